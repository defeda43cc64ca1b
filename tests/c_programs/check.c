/* Runs a compiled model in several ways, and compares the bits with the first run's.

   check MODE MODEL COUNT INPUT:SHAPE...    INPUT is a file of raw numbers, SHAPE is 1x3x224x224
   run      once, outputs to out0.bin, out1.bin, ...
   memory   the same, from the file's bytes at an address that is not aligned
   pool     COUNT times on threads of this program's
   threads  8 threads, COUNT times each, a session for every second of them
   fork     run, fork while a thread runs, run in both processes
   reload   COUNT times: open, run, free; memory must not grow */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "vermilion.h"

#define MOST 32
#define THREADS 8

static vermilion_tensor inputs[MOST], wanted[MOST];
static size_t input_count, output_count;
static vermilion_model *model;
static int repeats;

static void must(vermilion_status *status) {
  if (!status) return;
  fprintf(stderr, "%d %s\n", vermilion_status_code(status), vermilion_status_text(status));
  vermilion_status_free(status);
  exit(3);
}

static void *read_file(const char *path, size_t *bytes) {
  FILE *file = fopen(path, "rb");
  if (!file) exit(4);
  fseek(file, 0, SEEK_END);
  *bytes = (size_t)ftell(file);
  rewind(file);
  void *data = aligned_alloc(64, (*bytes + 127) / 64 * 64);
  if (fread(data, 1, *bytes, file) != *bytes) exit(4);
  fclose(file);
  return data;
}

static void read_inputs(char **words, int count) {
  for (int i = 0; i < count; i++) {
    vermilion_tensor *tensor = &inputs[i];
    char *shape = strrchr(words[i], ':');
    *shape++ = 0;
    tensor->data = read_file(words[i], &tensor->bytes);
    tensor->type = vermilion_input(model, (size_t)i)->type;
    for (char *size = strtok(shape, "x"); size; size = strtok(NULL, "x")) tensor->shape[tensor->rank++] = atoll(size);
  }
  input_count = (size_t)count;
}

static size_t bytes_of(const vermilion_tensor *tensor) {
  size_t each = tensor->type == VERMILION_INT64 ? 8 : tensor->type == VERMILION_FLOAT || tensor->type == VERMILION_INT32 ? 4
                : tensor->type == VERMILION_FLOAT16 || tensor->type == VERMILION_BFLOAT16 || tensor->type == VERMILION_UINT16 || tensor->type == VERMILION_INT16 ? 2 : 1;
  for (int i = 0; i < tensor->rank; i++) each *= (size_t)tensor->shape[i];
  return each;
}

/* Run once into fresh memory. */
static void run_into(vermilion_session *session, vermilion_tensor *outputs, const vermilion_pool *pool) {
  memset(outputs, 0, MOST * sizeof *outputs);
  must(vermilion_shapes(session, inputs, input_count, outputs, output_count));
  for (size_t i = 0; i < output_count; i++) {
    outputs[i].bytes = bytes_of(&outputs[i]);
    outputs[i].data = aligned_alloc(64, (outputs[i].bytes + 127) / 64 * 64);
  }
  must(vermilion_run(session, inputs, input_count, outputs, output_count, pool));
}

static void run_and_compare(vermilion_session *session, const vermilion_pool *pool) {
  vermilion_tensor outputs[MOST];
  run_into(session, outputs, pool);
  for (size_t i = 0; i < output_count; i++) {
    if (outputs[i].bytes != wanted[i].bytes || memcmp(outputs[i].data, wanted[i].data, wanted[i].bytes)) {
      fprintf(stderr, "other bits in output %zu\n", i);
      exit(5);
    }
    free(outputs[i].data);
  }
}

static vermilion_session *session_of(int workers) {
  vermilion_session *session;
  vermilion_session_options options = VERMILION_SESSION_OPTIONS;
  options.workers = workers;
  must(vermilion_session_new(model, &options, &session));
  return session;
}

/* ---- threads of this program's: started for each call, which is slow and simple ---- */

typedef struct task {
  vermilion_task call;
  void *work;
  size_t index;
} task;

static void *do_task(void *argument) {
  task *one = argument;
  one->call(one->work, one->index);
  return NULL;
}

static int parallel_for(void *context, vermilion_task call, size_t count, void *work) {
  pthread_t threads[64];
  task tasks[64];
  ++*(int *)context;
  for (size_t i = 0; i < count; i++) {
    tasks[i] = (task){call, work, i};
    if (pthread_create(&threads[i], NULL, do_task, &tasks[i])) return 1;
  }
  for (size_t i = 0; i < count; i++) pthread_join(threads[i], NULL);
  return 0;
}

static int one_by_one(void *context, vermilion_task call, size_t count, void *work) {
  ++*(int *)context;
  for (size_t i = count; i--;) call(work, i); /* the last first */
  return 0;
}

static void on_a_pool(void) {
  int calls = 0;
  vermilion_session *session = session_of(3);
  vermilion_pool pools[] = {{sizeof *pools, 3, &calls, parallel_for}, {sizeof *pools, 2, &calls, one_by_one}};
  for (int i = 0; i < repeats; i++) {
    run_and_compare(session, &pools[0]);
    run_and_compare(session, NULL);
    run_and_compare(session, &pools[1]);
  }
  printf("%d calls on %d workers\n", calls, vermilion_session_workers(session));
  vermilion_session_free(session);
}

static vermilion_session *shared;

static void *many_runs(void *own) {
  vermilion_session *session = own ? session_of(2) : shared;
  for (int i = 0; i < repeats; i++) run_and_compare(session, NULL);
  if (own) vermilion_session_free(session);
  return NULL;
}

static void on_threads(void) {
  pthread_t threads[THREADS];
  shared = session_of(2);
  for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, many_runs, i % 2 ? (void *)&shared : NULL);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  vermilion_session_free(shared);
}

static void in_a_fork(void) {
  pthread_t thread;
  shared = session_of(2);
  run_and_compare(shared, NULL);
  pthread_create(&thread, NULL, many_runs, NULL);
  for (int i = 0; i < 8; i++) {
    pid_t child = fork();
    if (!child) {
      for (int k = 0; k < 5; k++) run_and_compare(shared, NULL);
      vermilion_session_free(shared);
      vermilion_model_free(model);
      _exit(0);
    }
    int state;
    run_and_compare(shared, NULL);
    waitpid(child, &state, 0);
    if (state) {
      fprintf(stderr, "the child ended with %d\n", state);
      exit(6);
    }
  }
  pthread_join(thread, NULL);
  vermilion_session_free(shared);
}

static long resident_kb(void) {
  long pages = 0, all;
  FILE *file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%ld %ld", &all, &pages) != 2) return 0;
  fclose(file);
  return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void again_and_again(const char *path) {
  long after_ten = 0;
  for (int i = 0; i < repeats; i++) {
    vermilion_model_free(model);
    must(vermilion_open(path, NULL, &model));
    vermilion_session *session = session_of(2);
    run_and_compare(session, NULL);
    vermilion_session_free(session);
    if (i == 9) after_ten = resident_kb();
  }
  printf("%ld kB more\n", resident_kb() - after_ten);
  if (resident_kb() - after_ten > 4096) exit(7);
}

static void write_outputs(void) {
  for (size_t i = 0; i < output_count; i++) {
    char name[32];
    snprintf(name, sizeof name, "out%zu.bin", i);
    FILE *file = fopen(name, "wb");
    fwrite(wanted[i].data, 1, wanted[i].bytes, file);
    fclose(file);
  }
}

int main(int count, char **words) {
  if (count < 4 || count - 4 > MOST) return 2;
  const char *mode = words[1];
  size_t bytes;
  char *data = NULL;
  repeats = atoi(words[3]);
  if (!strcmp(mode, "memory")) {
    void *whole = read_file(words[2], &bytes);
    data = malloc(bytes + 8);
    memcpy(data + 8, whole, bytes);
    free(whole);
    must(vermilion_open_memory(data + 8, bytes, NULL, &model));
  } else {
    must(vermilion_open(words[2], NULL, &model));
  }
  output_count = vermilion_output_count(model);
  read_inputs(words + 4, count - 4);
  vermilion_session *session = session_of(0);
  run_into(session, wanted, NULL);
  run_and_compare(session, NULL);
  if (!strcmp(mode, "pool")) on_a_pool();
  if (!strcmp(mode, "threads")) on_threads();
  if (!strcmp(mode, "fork")) in_a_fork();
  if (!strcmp(mode, "reload")) again_and_again(words[2]);
  write_outputs();
  vermilion_session_free(session);
  vermilion_model_free(model);
  for (size_t i = 0; i < input_count; i++) free(inputs[i].data);
  for (size_t i = 0; i < output_count; i++) free(wanted[i].data);
  free(data);
  puts("equal");
  return 0;
}
