/* Loading the generator's own object files: sections are laid into memory, references filled in, the
   pages made executable and read-only. What is not expected of our objects is refused.

   Source: System V ABI, AMD64 supplement, chapter 4 (object files) and table 4.9 (relocations). */
#include "internal.h"

#define VM_STUB_BYTES 16

typedef struct vm_section {
  uint32_t kind, link, info;
  uint64_t flags, offset, size, alignment, place;
  bool is_placed;
} vm_section;

typedef struct vm_elf {
  vm_bytes data;
  const char *where;
  vm_section *sections;
  uint32_t section_count;
  const vm_section *symbols, *names;
  uint64_t symbol_count, size;
  uint64_t *stubs; /* by symbol, where it is another library's */
} vm_elf;

static vm_status vm_refuse(const char *where, const char *reason) {
  return vm_fail(VERMILION_ERROR_ARTIFACT, where, VM_DAMAGED, "the compiled code cannot be loaded: %s",
                 reason);
}

static uint64_t vm_little(const unsigned char *at, int bytes) {
  uint64_t value = 0;
  for (int i = bytes; i--;) value = value << 8 | at[i];
  return value;
}

static void vm_put_little(unsigned char *at, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; i++, value >>= 8) at[i] = (unsigned char)value;
}

/* What generated code calls; by its own convention on every system. */
static VM_GENERATED int vm_yield(void) {
#ifdef _WIN32
  return (int)SwitchToThread();
#else
  return sched_yield();
#endif
}
static VM_GENERATED void *vm_memset(void *to, int value, size_t size) { return memset(to, value, size); }
static VM_GENERATED void *vm_memcpy(void *to, const void *from, size_t size) { return memcpy(to, from, size); }
static VM_GENERATED void *vm_memmove(void *to, const void *from, size_t size) { return memmove(to, from, size); }

static uint64_t vm_outside(const char *name) {
  if (!strcmp(name, "sched_yield") || !strcmp(name, "SwitchToThread")) return (uintptr_t)vm_yield;
  if (!strcmp(name, "memset")) return (uintptr_t)vm_memset;
  if (!strcmp(name, "memcpy")) return (uintptr_t)vm_memcpy;
  if (!strcmp(name, "memmove")) return (uintptr_t)vm_memmove;
  return 0;
}

static vm_status vm_read_sections(vm_elf *elf) {
  vm_bytes data = elf->data;
  if (data.size < 64) return vm_refuse(elf->where, "it is too short");
  if (memcmp(data.data, "\x7f" "ELF\x02\x01", 6) || vm_little(data.data + 16, 2) != 1 ||
      vm_little(data.data + 18, 2) != 62)
    return vm_refuse(elf->where, "it is no object file for x86-64 and System V");
  uint64_t start = vm_little(data.data + 40, 8), count = vm_little(data.data + 60, 2);
  if (vm_little(data.data + 58, 2) != 64 || start > data.size || count * 64 > data.size - start)
    return vm_refuse(elf->where, "its table of sections is damaged");
  elf->section_count = (uint32_t)count;
  elf->sections = calloc(count + 1, sizeof *elf->sections);
  if (!elf->sections) return vm_no_memory();
  for (uint32_t i = 0; i < count; i++) {
    const unsigned char *row = data.data + start + 64 * i;
    vm_section *section = &elf->sections[i];
    section->kind = (uint32_t)vm_little(row + 4, 4);
    section->flags = vm_little(row + 8, 8);
    section->offset = vm_little(row + 24, 8);
    section->size = vm_little(row + 32, 8);
    section->link = (uint32_t)vm_little(row + 40, 4);
    section->info = (uint32_t)vm_little(row + 44, 4);
    section->alignment = vm_little(row + 48, 8);
    if (!section->alignment) section->alignment = 1;
    bool is_outside = section->kind != 8 && (section->offset > data.size || section->size > data.size - section->offset);
    if (is_outside || section->size > INT32_MAX || section->alignment > 4096 ||
        section->alignment & (section->alignment - 1))
      return vm_refuse(elf->where, "a section lies outside the file");
    if (section->kind == 2) elf->symbols = section;
  }
  if (!elf->symbols || elf->symbols->link >= count) return vm_refuse(elf->where, "it has no symbols");
  elf->names = &elf->sections[elf->symbols->link];
  elf->symbol_count = elf->symbols->size / 24;
  return NULL;
}

/* A symbol's name; NULL where it does not end inside the file. */
static const char *vm_symbol_name(const vm_elf *elf, uint64_t number) {
  const unsigned char *row = elf->data.data + elf->symbols->offset + 24 * number;
  uint64_t at = vm_little(row, 4);
  if (at >= elf->names->size) return NULL;
  const char *name = (const char *)elf->data.data + elf->names->offset + at;
  return memchr(name, 0, elf->names->size - at) ? name : NULL;
}

/* Give every section that is loaded its place, and every function of another library a stub. */
static vm_status vm_lay_out(vm_elf *elf) {
  uint64_t size = 0;
  for (uint32_t i = 0; i < elf->section_count; i++) {
    vm_section *section = &elf->sections[i];
    if (!(section->flags & 2) || (section->kind != 1 && section->kind != 8)) continue;
    size = (size + section->alignment - 1) & ~(section->alignment - 1);
    section->place = size;
    section->is_placed = true;
    size += section->size;
    if (size > INT32_MAX) return vm_refuse(elf->where, "it is too large");
  }
  size = (size + VM_STUB_BYTES - 1) & ~(uint64_t)(VM_STUB_BYTES - 1);
  elf->stubs = calloc(elf->symbol_count + 1, sizeof *elf->stubs);
  if (!elf->stubs) return vm_no_memory();
  for (uint64_t i = 0; i < elf->symbol_count; i++) {
    const unsigned char *row = elf->data.data + elf->symbols->offset + 24 * i;
    const char *name = vm_symbol_name(elf, i);
    uint64_t section = vm_little(row + 6, 2);
    if (!name || section == 0xFFF2) return vm_refuse(elf->where, "a symbol is damaged");
    if (section || !*name) continue;
    if (!vm_outside(name)) {
      char reason[160];
      snprintf(reason, sizeof reason, "it needs `%.100s`, which there is not", name);
      return vm_refuse(elf->where, reason);
    }
    elf->stubs[i] = size;
    size += VM_STUB_BYTES;
  }
  elf->size = (size + 4095) & ~(uint64_t)4095;
  return NULL;
}

/* Where a symbol lies from the beginning of the code. */
static bool vm_symbol_place(const vm_elf *elf, uint64_t number, uint64_t *place) {
  if (number >= elf->symbol_count) return false;
  const unsigned char *row = elf->data.data + elf->symbols->offset + 24 * number;
  uint64_t section = vm_little(row + 6, 2), value = vm_little(row + 8, 8);
  if (!section) {
    *place = elf->stubs[number];
    return elf->stubs[number] != 0;
  }
  if (section >= elf->section_count || !elf->sections[section].is_placed || value > elf->sections[section].size)
    return false;
  *place = elf->sections[section].place + value;
  return true;
}

static vm_status vm_relocate(const vm_elf *elf, unsigned char *base) {
  for (uint32_t i = 0; i < elf->section_count; i++) {
    const vm_section *section = &elf->sections[i];
    if (section->kind != 4 || section->info >= elf->section_count || !elf->sections[section->info].is_placed)
      continue;
    const vm_section *changed = &elf->sections[section->info];
    for (uint64_t at = 0; at + 24 <= section->size; at += 24) {
      const unsigned char *row = elf->data.data + section->offset + at;
      uint64_t offset = vm_little(row, 8), info = vm_little(row + 8, 8), target;
      int64_t addend = (int64_t)vm_little(row + 16, 8);
      int bytes = (uint32_t)info == 1 ? 8 : 4;
      if (changed->size < (uint64_t)bytes || offset > changed->size - (uint64_t)bytes || changed->kind != 1 ||
          addend > INT32_MAX || addend < INT32_MIN || !vm_symbol_place(elf, info >> 32, &target))
        return vm_refuse(elf->where, "a reference leads out of it");
      uint64_t place = changed->place + offset;
      target += (uint64_t)addend;
      switch ((uint32_t)info) {
        case 1: vm_put_little(base + place, (uint64_t)(uintptr_t)base + target, 8); break;
        case 2:
        case 4: vm_put_little(base + place, target - place, 4); break;
        default: return vm_refuse(elf->where, "it has a reference of an unknown kind");
      }
    }
  }
  return NULL;
}

static unsigned char *vm_pages(size_t size) {
#ifdef _WIN32
  return VirtualAlloc(NULL, size, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
#else
  void *found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return found == MAP_FAILED ? NULL : found;
#endif
}

static bool vm_make_executable(unsigned char *base, size_t size) {
#ifdef _WIN32
  DWORD before;
  return VirtualProtect(base, size, PAGE_EXECUTE_READ, &before) &&
         FlushInstructionCache(GetCurrentProcess(), base, size);
#else
  return !mprotect(base, size, PROT_READ | PROT_EXEC);
#endif
}

static void vm_code_free(vm_code code) {
  if (!code.base) return;
#ifdef _WIN32
  VirtualFree(code.base, 0, MEM_RELEASE);
#else
  munmap(code.base, code.size);
#endif
}

static vm_status vm_place_code(vm_elf *elf, vm_code *code) {
  VM_TRY(vm_read_sections(elf));
  VM_TRY(vm_lay_out(elf));
  code->size = elf->size ? elf->size : 4096;
  code->base = vm_pages(code->size);
  if (!code->base) return vm_no_memory();
  for (uint32_t i = 0; i < elf->section_count; i++) {
    const vm_section *section = &elf->sections[i];
    if (section->is_placed && section->kind == 1 && section->size)
      memcpy(code->base + section->place, elf->data.data + section->offset, section->size);
  }
  for (uint64_t i = 0; i < elf->symbol_count; i++) {
    if (!elf->stubs[i]) continue;
    /* `jmp *0(%rip)` and the address that it reads: a call reaches any library from here. */
    memcpy(code->base + elf->stubs[i], "\xff\x25\0\0\0\0", 6);
    vm_put_little(code->base + elf->stubs[i] + 6, vm_outside(vm_symbol_name(elf, i)), 8);
  }
  VM_TRY(vm_relocate(elf, code->base));
  if (!vm_make_executable(code->base, code->size))
    return vm_fail(VERMILION_ERROR_DEVICE, elf->where,
                   "allow executable memory for this program, or link the model into it "
                   "(`vermilion compile -o NAME.so`)",
                   "this system does not let generated code run");
  return NULL;
}

/* Load an object file, and find the functions of it that `symbols` names and no object had yet. */
static vm_status vm_load_object(vm_bytes data, const char *where, vm_symbol *symbols,
                                size_t symbol_count, vm_code *code) {
  vm_elf elf = {.data = data, .where = where};
  vm_status status = vm_place_code(&elf, code);
  for (uint64_t i = 0; !status && i < elf.symbol_count; i++) {
    const char *name = vm_symbol_name(&elf, i);
    uint64_t place;
    if (!name || !*name || elf.stubs[i] || !vm_symbol_place(&elf, i, &place)) continue;
    for (size_t k = 0; k < symbol_count; k++)
      if (!symbols[k].address && !strcmp(symbols[k].name, name)) symbols[k].address = code->base + place;
  }
  free(elf.sections);
  free(elf.stubs);
  return status;
}
