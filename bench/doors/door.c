/* One of the doors of `doors_bench.py`: a compiled model on the C library.

   door MODEL WORKERS FOLDER...    each FOLDER has in0.bin, in0.shape ("1x3x224x224"), in1.bin, ...

   The model runs once on each folder's inputs, and its outputs go beside them (NAME says as what:
   `$DOOR-out0.bin`). Then, for every line with a number on standard input, it runs so many times on
   the first folder's, and prints how long a run took, in milliseconds. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef LINKED
#include LINKED
#else
#include "vermilion.h"
#endif
#include "door.h"

#ifndef LINKED
static void must(vermilion_status *status) {
  if (!status) return;
  fprintf(stderr, "%s\n", vermilion_status_text(status));
  exit(3);
}

static vermilion_model *model;
static vermilion_session *session;
static vermilion_tensor inputs[MOST], outputs[MOST];
static size_t input_count, output_count;

static void door_open(const char *path, int workers) {
  vermilion_session_options options = VERMILION_SESSION_OPTIONS;
  options.workers = workers;
  must(vermilion_open(path, NULL, &model));
  must(vermilion_session_new(model, &options, &session));
  input_count = vermilion_input_count(model);
  output_count = vermilion_output_count(model);
}

static size_t element_bytes(vermilion_type type) {
  switch (type) {
  case VERMILION_INT64: return 8;
  case VERMILION_FLOAT: case VERMILION_INT32: return 4;
  case VERMILION_UINT16: case VERMILION_INT16: case VERMILION_FLOAT16: case VERMILION_BFLOAT16: return 2;
  default: return 1;
  }
}

static void door_take(const char *folder) {
  for (size_t i = 0; i < input_count; i++) {
    vermilion_tensor *tensor = &inputs[i];
    tensor->type = vermilion_input(model, i)->type;
    tensor->rank = read_input(folder, i, &tensor->data, &tensor->bytes, tensor->shape);
  }
  must(vermilion_shapes(session, inputs, input_count, outputs, output_count));
  for (size_t i = 0; i < output_count; i++) {
    size_t bytes = element_bytes(outputs[i].type);
    for (int k = 0; k < outputs[i].rank; k++) bytes *= (size_t)outputs[i].shape[k];
    outputs[i].bytes = bytes;
    outputs[i].data = room(bytes);
  }
}

static void door_run(void) { must(vermilion_run(session, inputs, input_count, outputs, output_count, NULL)); }

static void door_write(const char *folder) {
  for (size_t i = 0; i < output_count; i++) write_output(folder, i, outputs[i].data, outputs[i].bytes);
}
#endif

int main(int count, char **words) {
  if (count < 4) return 2;
  door_open(words[1], atoi(words[2]));
  for (int i = count - 1; i >= 3; i--) { /* the first folder's stay */
    door_take(words[i]);
    door_run();
    door_write(words[i]);
  }
  answer(door_run);
  return 0;
}
