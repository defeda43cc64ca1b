/* Statuses, and memory in pieces. */
#include "internal.h"

struct vermilion_status {
  vermilion_code code;
  const char *message, *where, *hint, *text;
};

static const vermilion_status VM_NO_MEMORY = {
    VERMILION_ERROR_MEMORY, "the system has no more memory", "", "free some, or use a smaller model",
    "the system has no more memory\nhint: free some, or use a smaller model"};

static vm_status vm_no_memory(void) { return (vm_status)&VM_NO_MEMORY; }

static vm_status vm_status_of(vermilion_code code, const char *message, const char *where,
                              const char *hint) {
  size_t each = 4 * VM_MOST_CHARACTERS + 64;
  vermilion_status *status = malloc(sizeof *status + 6 * each + 16);
  if (!status) return vm_no_memory();
  char *at = (char *)(status + 1);
  status->code = code;
  status->message = at;
  at = vm_put_printable(at, message);
  status->where = at;
  at = vm_put_printable(at, where);
  status->hint = at;
  at = vm_put_printable(at, hint);
  status->text = at;
  at += sprintf(at, "%s", status->message);
  if (*status->where) at += sprintf(at, " (%s)", status->where);
  if (*status->hint) sprintf(at, "\nhint: %s", status->hint);
  return status;
}

static vm_status vm_fail(vermilion_code code, const char *where, const char *hint,
                         const char *format, ...) {
  char message[2 * VM_MOST_CHARACTERS];
  va_list values;
  va_start(values, format);
  vsnprintf(message, sizeof message, format, values);
  va_end(values);
  return vm_status_of(code, message, where ? where : "", hint);
}

VERMILION_API vermilion_code vermilion_status_code(const vermilion_status *status) {
  return status ? status->code : VERMILION_OK;
}

VERMILION_API const char *vermilion_status_message(const vermilion_status *status) {
  return status ? status->message : "";
}

VERMILION_API const char *vermilion_status_where(const vermilion_status *status) {
  return status ? status->where : "";
}

VERMILION_API const char *vermilion_status_hint(const vermilion_status *status) {
  return status ? status->hint : "";
}

VERMILION_API const char *vermilion_status_text(const vermilion_status *status) {
  return status ? status->text : "";
}

VERMILION_API void vermilion_status_free(vermilion_status *status) {
  if (status != &VM_NO_MEMORY) free(status);
}

/* ---- memory in pieces ---- */

#define VM_BLOCK_BYTES 16384

typedef struct vm_block {
  struct vm_block *before;
} vm_block;

/* `count` things of `size` bytes, zeroed and aligned to 16 bytes; NULL where there is no memory. */
static void *vm_take(vm_arena *arena, size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX / 2) return NULL;
  bytes = (bytes + 15) & ~(size_t)15;
  if (bytes > arena->left || !arena->at) {
    size_t room = bytes > VM_BLOCK_BYTES / 4 ? bytes : VM_BLOCK_BYTES;
    unsigned char *fresh = calloc(1, 16 + room);
    if (!fresh) return NULL;
    vm_block *block = (vm_block *)fresh;
    block->before = arena->blocks;
    arena->blocks = block;
    if (room == bytes) return fresh + 16; /* a block of its own; the one before has room yet */
    arena->at = fresh + 16;
    arena->left = room;
  }
  void *taken = arena->at;
  arena->at += bytes;
  arena->left -= bytes;
  return taken;
}

static char *vm_take_text(vm_arena *arena, const char *text, size_t length) {
  char *copy = vm_take(arena, length + 1, 1);
  if (copy) memcpy(copy, text, length);
  return copy;
}

static void vm_arena_free(vm_arena *arena) {
  while (arena->blocks) {
    vm_block *before = arena->blocks->before;
    free(arena->blocks);
    arena->blocks = before;
  }
  arena->at = NULL;
  arena->left = 0;
}

/* What is worth pages of 2 MiB. */
#define VM_LARGE_BYTES ((size_t)4 << 20)

/* Zeroed memory whose first byte is aligned to 64; freed with `vm_aligned_free`. */
static void *vm_aligned(size_t bytes) {
#ifdef _WIN32
  void *found = _aligned_malloc(bytes ? bytes : 1, 64);
  if (found) memset(found, 0, bytes);
  return found;
#else
  /* Large memory comes zeroed from the system, and untouched pages cost nothing. */
  unsigned char *raw = calloc(1, bytes + 64 + sizeof(void *));
  if (!raw) return NULL;
  unsigned char *start =
      (unsigned char *)(((uintptr_t)raw + sizeof(void *) + 63) & ~(uintptr_t)63);
  memcpy(start - sizeof(void *), &raw, sizeof raw);
#ifdef MADV_HUGEPAGE
  /* As numpy asks for: a pass over some megabytes misses the address cache less often. */
  uintptr_t page = 4096, first = ((uintptr_t)start + page - 1) & ~(page - 1);
  if (bytes >= VM_LARGE_BYTES) madvise((void *)first, ((uintptr_t)start + bytes - first) & ~(page - 1), MADV_HUGEPAGE);
#endif
  return start;
#endif
}

static void vm_aligned_free(void *memory) {
#ifdef _WIN32
  _aligned_free(memory);
#else
  if (!memory) return;
  void *raw;
  memcpy(&raw, (unsigned char *)memory - sizeof(void *), sizeof raw);
  free(raw);
#endif
}
