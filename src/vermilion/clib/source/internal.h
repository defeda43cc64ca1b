/* What the files of the library share. They are compiled as one: `vermilion.c` includes them all, so
   that everything but the interface is static. */
#ifndef VERMILION_INTERNAL_H
#define VERMILION_INTERNAL_H

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vermilion.h"

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
/* Generated code follows the System V convention on every system. */
#define VM_GENERATED __attribute__((sysv_abi))
#else
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#define VM_GENERATED
#endif

#define VM_PRINTF(number, first) __attribute__((format(printf, number, first)))

typedef vermilion_status *vm_status;

/* Return `status` where it is one. */
#define VM_TRY(status)                                                                             \
  do {                                                                                             \
    vm_status tried_ = (status);                                                                   \
    if (tried_) return tried_;                                                                     \
  } while (0)

#define VM_DAMAGED "the compiled model is damaged or incomplete: compile it again"
#define VM_OTHER_VERSION "compile the model again with this version"

/* A status of three parts; `format` is of the message. */
static vm_status vm_fail(vermilion_code code, const char *where, const char *hint,
                         const char *format, ...) VM_PRINTF(4, 5);
static vm_status vm_no_memory(void);

/* Memory in pieces that are freed together. */
typedef struct vm_arena {
  struct vm_block *blocks;
  size_t left;
  unsigned char *at;
} vm_arena;

typedef struct vm_bytes {
  const unsigned char *data;
  size_t size;
} vm_bytes;

/* ---- JSON ---- */

typedef enum vm_json_kind {
  VM_NULL,
  VM_FALSE,
  VM_TRUE,
  VM_NUMBER,
  VM_TEXT,
  VM_LIST,
  VM_OBJECT
} vm_json_kind;

/* A text, decoded, or a number as it is written, both ended by a zero byte; or what a list or an
   object holds, an object's keys beside it. */
typedef struct vm_json {
  vm_json_kind kind;
  uint32_t count;
  const char *text;
  const struct vm_json *items;
  const char *const *keys;
} vm_json;

/* ---- files ---- */

typedef struct vm_file {
  const char *name;
  vm_bytes bytes;
} vm_file;

/* A bundle's files: of an archive they are known from the beginning, of a folder those that were
   asked for. `mapped` are what is unmapped in the end. */
typedef struct vm_bundle {
  const char *where;
  const char *folder; /* NULL: an archive */
  vm_file *files;
  size_t count, room;
  vm_bytes *mapped;
  size_t mapped_count, mapped_room;
} vm_bundle;

/* ---- machine code ---- */

typedef VM_GENERATED void (*vm_kernel)(const int64_t *arguments, int64_t first, int64_t last);
typedef VM_GENERATED void (*vm_run_function)(void *context, const int64_t *table, int64_t steps,
                                             int64_t tag, int64_t total, int64_t worker,
                                             int64_t workers);
typedef VM_GENERATED int64_t (*vm_serve_function)(void *context, const int64_t *table,
                                                  int64_t steps, int64_t seen, int64_t spins,
                                                  int64_t worker, int64_t workers);

/* A function of a program, by name. */
typedef struct vm_symbol {
  const char *name;
  const void *address;
} vm_symbol;

/* Pages of code. */
typedef struct vm_code {
  unsigned char *base;
  size_t size;
} vm_code;

/* ---- programs ---- */

typedef enum vm_place { VM_IN_ARENA, VM_IN_WEIGHTS, VM_INPUT, VM_OUTPUT, VM_CHECKS, VM_SIZE } vm_place;

/* An argument of a call. In an open program `offset` is the number of a formula, beside `base`. */
typedef struct vm_argument {
  vm_place place;
  bool is_written;
  int32_t index;
  int64_t base, offset;
} vm_argument;

typedef struct vm_extent {
  int32_t low, high, size;
} vm_extent;

/* A call of a kernel. In an open program numbers are those of formulas. */
typedef struct vm_call {
  int32_t function;
  bool has_barrier, is_border;
  int64_t units, chunk, operations, moved;
  uint32_t argument_count, extent_count;
  const vm_argument *arguments;
  const vm_extent *extents;
} vm_call;

typedef struct vm_check {
  const char *where;
  int64_t offset, count, size;
} vm_check;

typedef struct vm_port_size {
  const char *name;
  vermilion_type type;
  int32_t rank;
  int64_t shape[VERMILION_MAX_RANK]; /* sizes, or numbers of formulas */
} vm_port_size;

typedef enum vm_operation { VM_SYMBOL, VM_SUM, VM_QUOTIENT, VM_MAXIMUM, VM_MINIMUM } vm_operation;

/* A row of the formula table: a sum's terms are (factor, how many numbers, numbers …), flat. */
typedef struct vm_formula {
  vm_operation operation;
  int32_t one, other;
  uint32_t term_count;
  const int64_t *terms;
} vm_formula;

typedef struct vm_symbol_size {
  const char *name;
  int32_t input, axis;
  int64_t times;
} vm_symbol_size;

typedef struct vm_guard {
  int32_t difference;
  int32_t sign; /* -1, 0, 1; 2: any but 0 */
} vm_guard;

/* A part of a model, as `kernels.json` describes it, and where its code and weights lie. */
typedef struct vm_program {
  const char *name;
  bool is_open, any_batch;
  int64_t arena_bytes, most_workers, entries;
  vm_port_size *inputs, *outputs;
  uint32_t input_count, output_count;
  int32_t *input_values, *output_values; /* numbers of the model's tensors */
  vm_call *calls, *once;
  uint32_t call_count, once_count;
  const unsigned char *barriers_again; /* NULL: as in the first entry */
  vm_check *checks;
  uint32_t check_count;
  vm_formula *formulas;
  uint32_t formula_count;
  vm_symbol_size *symbols;
  uint32_t symbol_count;
  vm_guard *guards;
  uint32_t guard_count;
  const int32_t *buffers; /* formulas of sizes */
  int32_t (*lives)[2];
  uint32_t buffer_count;
  vm_symbol *functions; /* the calls', then the driver's */
  uint32_t function_count;
  vm_run_function run;
  vm_serve_function serve;
  vm_bytes weights;
  unsigned char *own_weights; /* a copy that is aligned, NULL where none was needed */
  vm_code *code;
  uint32_t code_count;
} vm_program;

struct vermilion_model {
  _Atomic long holders;
  vm_arena arena;
  vm_bundle bundle;
  const char *where, *digest, *target;
  vermilion_port *inputs, *outputs;
  uint32_t input_count, output_count;
  int32_t *output_values; /* numbers of tensors; inputs are the first */
  uint32_t value_count;
  vm_program *programs;
  uint32_t program_count;
};

/* ---- the calls of a run at given sizes ---- */

typedef struct vm_address {
  vm_place place;
  int32_t index;
  int64_t offset;
} vm_address;

typedef struct vm_row {
  int32_t function;
  bool has_barrier;
  int64_t units, chunk;
  uint32_t argument_count;
} vm_row;

typedef struct vm_sized {
  int64_t *key; /* the inputs' sizes, one after the other */
  uint64_t used;
  int64_t arena_bytes, words;
  vm_row *rows;
  vm_address *addresses;
  uint32_t row_count, address_count;
  uint32_t *ports; /* numbers of addresses in inputs and outputs */
  uint32_t port_count;
  vm_port_size *outputs;
  vm_check *checks;
  vm_arena arena;
} vm_sized;

#endif
