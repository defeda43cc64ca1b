/* What the doors in C and C++ share: files, the clock, the turns. */
#ifndef DOOR_H
#define DOOR_H

#define MOST 32

static char *door_path(const char *folder, const char *kind, size_t number, const char *ending) {
  static char path[4096];
  snprintf(path, sizeof path, "%s/%s%zu.%s", folder, kind, number, ending);
  return path;
}

static void *room(size_t bytes) {
  void *data = NULL;
  if (posix_memalign(&data, 64, (bytes + 127) / 64 * 64)) exit(4);
  return data;
}

/* Read an input and its shape; give its rank. */
static int read_input(const char *folder, size_t number, void **data, size_t *bytes, int64_t *shape) {
  FILE *file = fopen(door_path(folder, "in", number, "bin"), "rb");
  if (!file) exit(4);
  fseek(file, 0, SEEK_END);
  *bytes = (size_t)ftell(file);
  rewind(file);
  *data = room(*bytes);
  if (fread(*data, 1, *bytes, file) != *bytes) exit(4);
  fclose(file);
  char text[512] = "";
  file = fopen(door_path(folder, "in", number, "shape"), "r");
  if (!file) exit(4);
  if (!fgets(text, sizeof text, file)) text[0] = 0;
  fclose(file);
  int rank = 0;
  for (char *size = strtok(text, "x\n"); size; size = strtok(NULL, "x\n")) shape[rank++] = atoll(size);
  return rank;
}

static void write_output(const char *folder, size_t number, const void *data, size_t bytes) {
  char kind[64];
  snprintf(kind, sizeof kind, "%s-out", getenv("DOOR"));
  FILE *file = fopen(door_path(folder, kind, number, "bin"), "wb");
  if (!file || fwrite(data, 1, bytes, file) != bytes) exit(4);
  fclose(file);
}

/* The clock on the wall, or this process's time on processors where $DOOR_CLOCK is `cpu`. */
static double now_ms(void) {
  struct timespec now;
  const char *kind = getenv("DOOR_CLOCK");
  clock_gettime(kind && !strcmp(kind, "cpu") ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static void answer(void (*run)(void)) {
  char line[64];
  puts("ready");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    int runs = atoi(line);
    double begin = now_ms();
    for (int i = 0; i < runs; i++) run();
    printf("%.6f\n", (now_ms() - begin) / runs);
    fflush(stdout);
  }
}
#endif
