/* Calls a compiled model by its header, on inputs from files: two models in one program, where
   -DOTHER says that there is another. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lookup.h"
#ifdef OTHER
#include "cnn.h"
#endif

#define N 2
#define S 5
#define WIDE 24

static int one_by_one(void *context, void (*task)(void *work, size_t index), size_t count, void *work) {
  ++*(int *)context;
  for (size_t i = 0; i < count; i++) task(work, i);
  return 0;
}

static void read_into(const char *path, void *data, size_t bytes) {
  FILE *file = fopen(path, "rb");
  if (!file || fread(data, 1, bytes, file) != bytes) exit(4);
  fclose(file);
}

static void must(int code, const char *what) {
  if (!code) return;
  fprintf(stderr, "%d %s\n", code, what);
  exit(3);
}

int main(void) {
  static int64_t i[N * S];
  static float x[N * S * WIDE], y[N * S * WIDE];
  static uint8_t b[N * S * WIDE];
  lookup *model = NULL;
  lookup_inputs inputs = {i, {N, S}, x, {N, S, WIDE}};
  lookup_outputs outputs;
  int calls = 0;
  lookup_pool pool = {2, &calls, one_by_one};
  memset(&outputs, 0, sizeof outputs);
  read_into("in0.bin", i, sizeof i);
  read_into("in1.bin", x, sizeof x);
  must(lookup_open(&model, 2), lookup_error());
  printf("%s\n", lookup_target(model));
  must(lookup_shapes(model, &inputs, &outputs), lookup_error());
  if (outputs.y_shape[0] != N || outputs.y_shape[1] != S || outputs.y_shape[2] != WIDE) return 5;
  outputs.y = y;
  outputs.y_room = 3;
  if (lookup_run(model, &inputs, &outputs) != 2 || !strstr(lookup_error(), "room for 12 bytes")) return 6;
  outputs.y_room = N * S * WIDE;
  must(lookup_run(model, &inputs, &outputs), lookup_error());
  outputs.b = b;
  outputs.b_room = N * S * WIDE;
  must(lookup_run_on(model, &inputs, &outputs, &pool), lookup_error());
  FILE *file = fopen("out0.bin", "wb");
  fwrite(y, 1, sizeof y, file);
  fclose(file);
  file = fopen("out1.bin", "wb");
  fwrite(b, 1, sizeof b, file);
  fclose(file);
  i[0] = 40;
  if (lookup_run(model, &inputs, &outputs) != 8) return 7;
  if (!strstr(lookup_error(), "idx=40") || !strstr(lookup_error(), "hint:")) return 8;
  lookup_close(model);
#ifdef OTHER
  static float input[CNN_INPUT_SIZE], output[CNN_OUTPUT_SIZE];
  cnn *other = NULL;
  cnn_inputs other_inputs = {input};
  cnn_outputs other_outputs = {output};
  read_into("in2.bin", input, sizeof input);
  must(cnn_open(&other, 0), cnn_error());
  must(cnn_run(other, &other_inputs, &other_outputs), cnn_error());
  file = fopen("out2.bin", "wb");
  fwrite(output, 1, sizeof output, file);
  fclose(file);
  cnn_close(other);
#endif
  return 0;
}
