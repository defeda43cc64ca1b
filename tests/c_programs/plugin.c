/* Runs a model in ONNX Runtime with the plugin: `plugin EP MODEL NAME=FILE:TYPE:2x64... -- OUTPUT...`
   writes out0.bin, out1.bin, ... TYPE is the number of ONNX's element type.

   No package of PyPI has ONNX Runtime's headers. OrtApi is a table of functions that only grows at
   its end: the numbers are the places that `onnxruntime_c_api.h` of ONNX Runtime 1.24 gives. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
typedef wchar_t path_char;
#define main wmain
#else
typedef char path_char;
#endif

enum {
  GET_ERROR_MESSAGE = 2, CREATE_ENV = 3, CREATE_SESSION = 7, RUN = 9, CREATE_OPTIONS = 10,
  CREATE_TENSOR = 49, GET_DATA = 51, GET_SIZE = 64, GET_SHAPE_AND_TYPE = 65, CPU_MEMORY = 69,
  RELEASE_ENV = 92, RELEASE_SESSION = 95, REGISTER = 301, UNREGISTER = 302, GET_DEVICES = 303,
  APPEND = 304, DEVICE_NAME = 312, VERSION = 24, MOST = 8
};

typedef struct { void *const *(*get_api)(uint32_t); const char *(*version)(void); } base;
#ifdef _WIN32
__declspec(dllimport)
#endif
const base *OrtGetApiBase(void);

static void *const *ort;
#define CALL(place, types, ...) ((void *(*) types)ort[place])(__VA_ARGS__)

static void must(void *status) {
  if (!status) return;
  fprintf(stderr, "%s\n", (const char *)CALL(GET_ERROR_MESSAGE, (void *), status));
  exit(3);
}

/* Returns a word of the command line in bytes: names are ASCII here. */
static char *narrow(const path_char *word) {
  size_t length = 0;
  while (word[length]) length++;
  char *text = calloc(length + 1, 1);
  for (size_t i = 0; i < length; i++) text[i] = (char)word[i];
  return text;
}

static void *tensor(char *word, const void *memory) {
  char *file = strchr(word, '='), *type = strchr(file, ':');
  *file++ = *type++ = 0;
  char *dims = strchr(type, ':');
  *dims++ = 0;
  int64_t shape[MOST];
  size_t rank = 0;
  for (char *at = dims; *at; at += *at == 'x') shape[rank++] = strtoll(at, &at, 10);
  FILE *in = fopen(file, "rb");
  if (!in) exit(5);
  fseek(in, 0, SEEK_END);
  size_t bytes = (size_t)ftell(in);
  rewind(in);
  void *data = malloc(bytes + 1), *value = NULL;
  if (fread(data, 1, bytes, in) != bytes) exit(6);
  fclose(in);
  must(CALL(CREATE_TENSOR, (const void *, void *, size_t, const int64_t *, size_t, int, void **),
            memory, data, bytes, shape, rank, atoi(type), &value));
  return value;
}

static void write_out(int number, void *value, size_t item_bytes) {
  void *about = NULL, *data = NULL;
  size_t count = 0;
  must(CALL(GET_SHAPE_AND_TYPE, (void *, void **), value, &about));
  must(CALL(GET_SIZE, (void *, size_t *), about, &count));
  must(CALL(GET_DATA, (void *, void **), value, &data));
  char name[32];
  snprintf(name, sizeof name, "out%d.bin", number);
  FILE *out = fopen(name, "wb");
  if (!out || fwrite(data, item_bytes, count, out) != count) exit(7);
  fclose(out);
}

int main(int argc, path_char **argv) {
  if (argc < 4) return 2;
  ort = OrtGetApiBase()->get_api(VERSION);
  if (!ort) return 4;
  void *env, *options, *session, *memory;
  must(CALL(CREATE_ENV, (int, const char *, void **), 3, "plugin", &env));
  must(CALL(REGISTER, (void *, const char *, const path_char *), env, "vermilion", argv[1]));
  const void *const *devices;
  size_t count, ours = 0;
  must(CALL(GET_DEVICES, (void *, const void *const **, size_t *), env, &devices, &count));
  while (ours < count && strcmp(CALL(DEVICE_NAME, (const void *), devices[ours]),
                                "VermilionExecutionProvider"))
    ours++;
  if (ours == count) return 8;
  must(CALL(CREATE_OPTIONS, (void **), &options));
  must(CALL(APPEND, (void *, void *, const void *const *, size_t, void *, void *, size_t), options,
            env, &devices[ours], 1, NULL, NULL, 0));
  must(CALL(CREATE_SESSION, (void *, const path_char *, void *, void **), env, argv[2], options,
            &session));
  must(CALL(CPU_MEMORY, (int, int, void **), 1, 0, &memory));

  const char *names[MOST], *outputs[MOST];
  const void *inputs[MOST];
  void *results[MOST] = {0};
  size_t sizes[MOST], input_count = 0, output_count = 0;
  int at = 3;
  for (; at < argc; at++) {
    char *word = narrow(argv[at]);
    if (!strcmp(word, "--")) break;
    inputs[input_count] = tensor(word, memory);
    names[input_count++] = word;
  }
  for (at++; at < argc; at++) { /* OUTPUT:BYTES of one value */
    char *word = narrow(argv[at]), *bytes = strrchr(word, ':');
    *bytes++ = 0;
    sizes[output_count] = (size_t)atoi(bytes);
    outputs[output_count++] = word;
  }
  must(CALL(RUN, (void *, void *, const char **, const void **, size_t, const char **, size_t, void **),
            session, NULL, names, inputs, input_count, outputs, output_count, results));
  for (size_t i = 0; i < output_count; i++) write_out((int)i, results[i], sizes[i]);
  CALL(RELEASE_SESSION, (void *), session);
  must(CALL(UNREGISTER, (void *, const char *), env, "vermilion"));
  CALL(RELEASE_ENV, (void *), env);
  return 0;
}
