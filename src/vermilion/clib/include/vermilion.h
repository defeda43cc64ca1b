/* Compiled models of Vermilion in C: open one, run it, without Python.

   Objects
     vermilion_model    a compiled model that is open: code, weights, names, types, shapes. Nothing
                        in it changes, so threads share one as they like.
     vermilion_session  memory and threads to run a model with. Threads may share one: their runs
                        take turns. Runs at the same time want a session each; a session costs the
                        memory that the model's inner tensors take.
     vermilion_status   why something failed; NULL stands for success.

   Ownership
     Whoever gets an object frees it with its `_free` function, which takes NULL too. A session
     holds its model: the two may be freed in any order. Texts and arrays that a function returns
     belong to the object that it was asked of and live as long. What a caller hands over stays the
     caller's and is read during the call alone, but for the bytes of `vermilion_open_memory`.

   Threads, processes
     Every function may be called from any thread, on objects that no other thread frees. A session's
     threads sleep a millisecond or so after a run; nothing runs while nobody calls. In a forked
     process, models and sessions go on working: a session starts threads anew there. To fork while
     another thread is inside of a run of the same session is safe as well.

   Versions
     Structures begin with `size`, which the caller sets to the structure's `sizeof`, or with the
     macro of its name. A later version adds fields at the end and functions, and changes neither
     meaning nor order of what is here; otherwise VERMILION_ABI_VERSION changes. */
#ifndef VERMILION_H
#define VERMILION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef VERMILION_API
#if defined(_WIN32) && defined(VERMILION_BUILD)
#define VERMILION_API __declspec(dllexport)
#elif defined(_WIN32)
#define VERMILION_API __declspec(dllimport)
#else
#define VERMILION_API __attribute__((visibility("default")))
#endif
#endif

#define VERMILION_ABI_VERSION 1

/* The ABI version of the library that is loaded: VERMILION_ABI_VERSION of its header. */
VERMILION_API uint32_t vermilion_abi_version(void);

/* The version of Vermilion that the library belongs to: `0.1.0`. */
VERMILION_API const char *vermilion_version(void);

/* ---- status ---- */

typedef enum vermilion_code {
  VERMILION_OK = 0,
  VERMILION_ERROR_ARTIFACT = 1,    /* the compiled model is damaged, foreign, or of another version */
  VERMILION_ERROR_OPTION = 2,      /* the call makes no sense as written: a name, a type, a shape */
  VERMILION_ERROR_UNSUPPORTED = 3, /* the model needs more than this library does */
  VERMILION_ERROR_DEVICE = 4,      /* this processor, or this system, does not run it */
  VERMILION_ERROR_SIZES = 5,       /* the code is not right at the sizes of this run */
  VERMILION_ERROR_TRUST = 6,       /* nobody whom this user trusts answers for the machine code */
  VERMILION_ERROR_MEMORY = 7,      /* the system has no more memory */
  VERMILION_ERROR_DATA = 8         /* a number in an input is wrong: an index, a divisor of 0 */
} vermilion_code;

typedef struct vermilion_status vermilion_status;

/* VERMILION_OK for NULL. */
VERMILION_API vermilion_code vermilion_status_code(const vermilion_status *status);

/* The three parts of an error: what is wrong, where (a file, a tensor, a node), what to do about it.
   Never NULL; empty where there is nothing to say. */
VERMILION_API const char *vermilion_status_message(const vermilion_status *status);
VERMILION_API const char *vermilion_status_where(const vermilion_status *status);
VERMILION_API const char *vermilion_status_hint(const vermilion_status *status);

/* All three as one text for people: "message (where)\nhint: hint". */
VERMILION_API const char *vermilion_status_text(const vermilion_status *status);

VERMILION_API void vermilion_status_free(vermilion_status *status);

/* ---- models ---- */

typedef struct vermilion_model vermilion_model;

enum vermilion_open_flags {
  /* Run machine code whoever made it. By default it is run only where it was made by this user on
     this machine, or is signed by a key that this user trusts. The environment variable
     VERMILION_TRUST=1 says the same for a whole process. */
  VERMILION_TRUST_CODE = 1,
  /* Take weights as they are, instead of comparing them with their digest: 0.5 s a gigabyte. Code
     and tables are compared always. */
  VERMILION_SKIP_WEIGHTS_DIGEST = 2
};

typedef struct vermilion_open_options {
  size_t size;
  uint32_t flags;
  /* The name of one part to open alone, as `manifest.json` lists it; NULL: the whole model. The
     part's inputs and outputs then stand for the model's. */
  const char *part;
} vermilion_open_options;

#define VERMILION_OPEN_OPTIONS {sizeof(vermilion_open_options), 0, NULL}

/* Open a compiled model: a `.rai` file or a folder. `path` is UTF-8; options may be NULL.

   Checked before anything is used: the format's version, names and sizes of all files, the digests
   of those that are used, the processor's features, who made the code. The file is mapped: it must
   not be changed while the model is open, but may be renamed or removed. */
VERMILION_API vermilion_status *vermilion_open(const char *path,
                                               const vermilion_open_options *options,
                                               vermilion_model **model);

/* Open the bytes of a `.rai` file. They are not copied: they must stay as they are until the model
   and all its sessions are freed. Weights are used in place where `data` is aligned to 64 bytes, and
   copied otherwise. */
VERMILION_API vermilion_status *vermilion_open_memory(const void *data, size_t bytes,
                                                      const vermilion_open_options *options,
                                                      vermilion_model **model);

VERMILION_API void vermilion_model_free(vermilion_model *model);

/* Element types, numbered as ONNX and ONNX Runtime do. */
typedef enum vermilion_type {
  VERMILION_UNDEFINED = 0,
  VERMILION_FLOAT = 1,
  VERMILION_UINT8 = 2,
  VERMILION_INT8 = 3,
  VERMILION_UINT16 = 4,
  VERMILION_INT16 = 5,
  VERMILION_INT32 = 6,
  VERMILION_INT64 = 7,
  VERMILION_BOOL = 9,
  VERMILION_FLOAT16 = 10,
  VERMILION_BFLOAT16 = 16
} vermilion_type;

#define VERMILION_MAX_RANK 16

/* An input or output of a model. An open dimension is -1 in `shape`; `names` has its name, NULL
   where it has none. `rank` is -1 where the model does not say even that. */
typedef struct vermilion_port {
  const char *name;
  vermilion_type type;
  int32_t rank;
  const int64_t *shape;
  const char *const *names;
} vermilion_port;

VERMILION_API size_t vermilion_input_count(const vermilion_model *model);
VERMILION_API size_t vermilion_output_count(const vermilion_model *model);

/* Number `index` of the inputs or outputs, NULL where there are not so many. */
VERMILION_API const vermilion_port *vermilion_input(const vermilion_model *model, size_t index);
VERMILION_API const vermilion_port *vermilion_output(const vermilion_model *model, size_t index);

/* Its number by name, -1 where there is none. */
VERMILION_API int64_t vermilion_input_index(const vermilion_model *model, const char *name);
VERMILION_API int64_t vermilion_output_index(const vermilion_model *model, const char *name);

/* The digest of the model's content, 64 hexadecimal digits; the target that it was compiled for. */
VERMILION_API const char *vermilion_model_digest(const vermilion_model *model);
VERMILION_API const char *vermilion_model_target(const vermilion_model *model);

/* ---- sessions ---- */

typedef struct vermilion_session vermilion_session;

typedef struct vermilion_session_options {
  size_t size;
  /* Threads that run it, the caller's among them. 0: as many as this process may keep busy, fewer
     where the model has too little to do for them. */
  int32_t workers;
} vermilion_session_options;

#define VERMILION_SESSION_OPTIONS {sizeof(vermilion_session_options), 0}

/* Make what runs a model; options may be NULL. Threads start with the first run that uses them. */
VERMILION_API vermilion_status *vermilion_session_new(vermilion_model *model,
                                                      const vermilion_session_options *options,
                                                      vermilion_session **session);

/* Free a session, in which nobody runs. It ends its threads, and waits for them. */
VERMILION_API void vermilion_session_free(vermilion_session *session);

/* How many threads run it at most. */
VERMILION_API int32_t vermilion_session_workers(const vermilion_session *session);

/* ---- runs ---- */

/* A tensor of the caller's: dense, in C order. `data` wants the alignment of an element; what is
   aligned to 16 bytes or more is written without a copy. `bytes` is how many there are at `data`.
   A model's inputs are read only. */
typedef struct vermilion_tensor {
  void *data;
  size_t bytes;
  vermilion_type type;
  int32_t rank;
  int64_t shape[VERMILION_MAX_RANK];
} vermilion_tensor;

/* The caller's threads. `parallel_for` calls task(work, 0) to task(work, count - 1), in any threads
   and any order, side by side or not, and returns when all have returned: 0, or another number where
   it could not. `workers` is how many it may run side by side.
   ONNX Runtime's KernelContext_ParallelFor is of this kind. */
typedef void (*vermilion_task)(void *work, size_t index);
typedef struct vermilion_pool {
  size_t size;
  size_t workers;
  void *context;
  int (*parallel_for)(void *context, vermilion_task task, size_t count, void *work);
} vermilion_pool;

/* Compute the outputs' types and shapes for inputs of these types and shapes, into `outputs`, whose
   `data` and `bytes` stay as they are. The inputs' data is not looked at, and may be NULL. */
VERMILION_API vermilion_status *vermilion_shapes(vermilion_session *session,
                                                 const vermilion_tensor *inputs,
                                                 size_t input_count, vermilion_tensor *outputs,
                                                 size_t output_count);

/* Run the model once. There are as many inputs and outputs as the model has, in its order.

   Each output's `data` and `bytes` say where it is written to; its type, rank and shape are set by
   the run. Fewer bytes than it has are an error, before anything is computed. An output whose data
   is NULL is computed into memory of the session's and left there. Outputs may not overlap each
   other; one that overlaps an input is computed apart and copied.

   `pool` runs it on the caller's threads; NULL: on the session's own. Same inputs, same bits,
   whichever threads run it. */
VERMILION_API vermilion_status *vermilion_run(vermilion_session *session,
                                              const vermilion_tensor *inputs, size_t input_count,
                                              vermilion_tensor *outputs, size_t output_count,
                                              const vermilion_pool *pool);

/* ---- language models ---- */

/* A language model: what `vermilion compile MODEL.gguf -o NAME.rai` writes. Tokens go in, logits come
   out; its tokenizer is the caller's business. It has the memory of one run, however many sequences
   there are: threads may share one, and take turns. */
typedef struct vermilion_decoder vermilion_decoder;

typedef struct vermilion_decoder_options {
  size_t size;
  uint32_t flags; /* of `enum vermilion_open_flags` */
  int32_t workers; /* threads that run it, the caller's among them; 0: as many as are of use here */
} vermilion_decoder_options;

#define VERMILION_DECODER_OPTIONS {sizeof(vermilion_decoder_options), 0, 0}

VERMILION_API vermilion_status *vermilion_decoder_open(const char *path,
                                                       const vermilion_decoder_options *options,
                                                       vermilion_decoder **decoder);

/* The bytes of a `.rai` file, as with `vermilion_open_memory`. */
VERMILION_API vermilion_status *vermilion_decoder_open_memory(const void *data, size_t bytes,
                                                              const vermilion_decoder_options *options,
                                                              vermilion_decoder **decoder);

/* Free a decoder that nobody reads with; sequences are the caller's. */
VERMILION_API void vermilion_decoder_free(vermilion_decoder *decoder);

/* Logits of a position; the longest sequence in tokens; layers that have keys and values. */
VERMILION_API int64_t vermilion_decoder_vocabulary(const vermilion_decoder *decoder);
VERMILION_API int64_t vermilion_decoder_context(const vermilion_decoder *decoder);
VERMILION_API int64_t vermilion_decoder_layers(const vermilion_decoder *decoder);
VERMILION_API const char *vermilion_decoder_target(const vermilion_decoder *decoder);

/* A sequence: its keys and values lie in memory of the caller's, which need not be cleared. What is in
   it is the library's own form, of this decoder: copy it, keep it, move it, but do not read it.

   `data` are `vermilion_cache_bytes` bytes, aligned to 64. Where the layers are to lie apart, `parts`
   names them instead: the keys of the first layer, its values, the keys of the second, ..., each of
   `vermilion_layer_bytes`, aligned to 64.

   `length` is how many tokens are in it. The caller sets it to 0 to begin, and to less than it is to
   forget the last tokens; reading adds to it. */
typedef struct vermilion_cache {
  size_t size;
  void *data;
  size_t bytes;
  int64_t capacity;
  int64_t length;
  int32_t is_long; /* the library's */
  void *const *parts;
} vermilion_cache;

#define VERMILION_CACHE {sizeof(vermilion_cache), NULL, 0, 0, 0, 0, NULL}

/* How many bytes a sequence of at most so many tokens takes; 0 where the model has no such length. */
VERMILION_API size_t vermilion_cache_bytes(const vermilion_decoder *decoder, int64_t capacity);
VERMILION_API size_t vermilion_layer_bytes(const vermilion_decoder *decoder, int64_t layer, int64_t capacity);

/* Append tokens to a sequence: a whole prompt, a piece of one, or a single token. `logits` are those of
   the last of them, `vermilion_decoder_vocabulary` float32; NULL where they are not wanted. The same
   tokens, read in the same pieces, give the same bits, on however many threads. */
VERMILION_API vermilion_status *vermilion_decoder_read(vermilion_decoder *decoder, vermilion_cache *cache,
                                                       const int64_t *tokens, size_t count,
                                                       float *logits, const vermilion_pool *pool);

/* ---- this machine ---- */

/* The processor's features that code generation knows of, as LLVM names them, with a space between:
   "avx avx2 …". Those named in the environment variable VERMILION_HIDE_FEATURES, with commas between,
   are left out, as if the processor had none. */
VERMILION_API const char *vermilion_cpu_features(void);

/* How many threads this process can keep busy: of the processors it may run on, the share that its
   control group grants. */
VERMILION_API int32_t vermilion_usable_cores(void);

#ifdef __cplusplus
}
#endif
#endif
