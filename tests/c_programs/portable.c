/* Runs a compiled model, in C that every system has: `portable MODEL INPUT:SHAPE...` runs it on its own
   threads and on one of the caller's, opens it again from memory, and writes out0.bin, out1.bin, ... */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vermilion.h"

#define MOST 32

static vermilion_tensor inputs[MOST], outputs[MOST], again[MOST];
static size_t input_count, output_count;

static void must(vermilion_status *status) {
  if (!status) return;
  fprintf(stderr, "%d %s\n", (int)vermilion_status_code(status), vermilion_status_text(status));
  exit(3);
}

static void *read_file(const char *path, size_t *bytes) {
  FILE *file = fopen(path, "rb");
  if (!file) exit(4);
  fseek(file, 0, SEEK_END);
  *bytes = (size_t)ftell(file);
  rewind(file);
  void *data = malloc(*bytes + 64);
  if (!data || fread(data, 1, *bytes, file) != *bytes) exit(4);
  fclose(file);
  return data;
}

static size_t bytes_of(const vermilion_tensor *tensor) {
  size_t each = tensor->type == VERMILION_INT64 ? 8 : tensor->type == VERMILION_FLOAT || tensor->type == VERMILION_INT32 ? 4
                : tensor->type == VERMILION_FLOAT16 || tensor->type == VERMILION_BFLOAT16 ? 2 : 1;
  for (int i = 0; i < tensor->rank; i++) each *= (size_t)tensor->shape[i];
  return each;
}

static void run(vermilion_model *model, vermilion_tensor *made, int workers, const vermilion_pool *pool) {
  vermilion_session *session;
  vermilion_session_options options = VERMILION_SESSION_OPTIONS;
  options.workers = workers;
  must(vermilion_session_new(model, &options, &session));
  must(vermilion_shapes(session, inputs, input_count, made, output_count));
  for (size_t i = 0; i < output_count; i++) {
    made[i].bytes = bytes_of(&made[i]);
    made[i].data = malloc(made[i].bytes + 1);
  }
  for (int turn = 0; turn < 20; turn++) must(vermilion_run(session, inputs, input_count, made, output_count, pool));
  vermilion_session_free(session);
}

static void compare(void) {
  for (size_t i = 0; i < output_count; i++)
    if (outputs[i].bytes != again[i].bytes || memcmp(outputs[i].data, again[i].data, outputs[i].bytes)) exit(5);
}

static int one_by_one(void *context, vermilion_task call, size_t count, void *work) {
  (void)context;
  for (size_t i = 0; i < count; i++) call(work, i);
  return 0;
}

int main(int count, char **words) {
  vermilion_model *model, *other;
  vermilion_pool pool = {sizeof pool, 2, NULL, one_by_one};
  size_t bytes;
  if (count < 3 || count - 2 > MOST) return 2;
  if (!vermilion_open("nothing.rai", NULL, &model)) return 6; /* an error, not a crash */
  must(vermilion_open(words[1], NULL, &model));
  output_count = vermilion_output_count(model);
  for (int i = 2; i < count; i++) {
    vermilion_tensor *tensor = &inputs[input_count];
    char *shape = strrchr(words[i], ':');
    *shape++ = 0;
    tensor->data = read_file(words[i], &tensor->bytes);
    tensor->type = vermilion_input(model, input_count++)->type;
    for (char *size = strtok(shape, "x"); size; size = strtok(NULL, "x")) tensor->shape[tensor->rank++] = atoll(size);
  }
  run(model, outputs, 2, NULL);
  run(model, again, 3, &pool);
  compare();
  void *data = read_file(words[1], &bytes);
  must(vermilion_open_memory(data, bytes, NULL, &other));
  run(other, again, 1, NULL);
  compare();
  for (size_t i = 0; i < output_count; i++) {
    char name[32];
    snprintf(name, sizeof name, "out%d.bin", (int)i);
    FILE *file = fopen(name, "wb");
    if (!file || fwrite(outputs[i].data, 1, outputs[i].bytes, file) != outputs[i].bytes) return 4;
    fclose(file);
  }
  vermilion_model_free(model);
  vermilion_model_free(other);
  printf("equal on %s\n", vermilion_version());
  return 0;
}
