/* The files of a bundle by name: of a folder, or of the single file, a ZIP whose members are stored
   whole, aligned, without holes. What `runtime/archive.py` writes is read, and nothing else.

   Source of the layout: PKWARE APPNOTE 6.3.10. */
#include "internal.h"

#define VM_MOST_FILES 4096 /* `runtime/names.py` says the same */
#define VM_MOST_NAME_CHARACTERS 200
#define VM_UNSAFE "do not use this file: it was not written by Vermilion, or somebody changed it"

/* ---- mapping ---- */

#ifdef _WIN32
static vm_status vm_map_file(const char *path, bool is_link_allowed, vm_bytes *bytes) {
  wchar_t wide[32768];
  (void)is_link_allowed;
  if (!MultiByteToWideChar(CP_UTF8, 0, path, -1, wide, 32768))
    return vm_fail(VERMILION_ERROR_OPTION, path, "give the path as UTF-8", "this is not a path");
  HANDLE file = CreateFileW(wide, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, NULL, OPEN_EXISTING,
                            FILE_ATTRIBUTE_NORMAL, NULL);
  if (file == INVALID_HANDLE_VALUE)
    return vm_fail(VERMILION_ERROR_ARTIFACT, path, "check that the file is there and that you may read it",
                   "the file cannot be read: error %lu", (unsigned long)GetLastError());
  LARGE_INTEGER size;
  HANDLE mapping = NULL;
  bytes->data = (const unsigned char *)"";
  bytes->size = 0;
  if (GetFileSizeEx(file, &size) && size.QuadPart) {
    mapping = CreateFileMappingW(file, NULL, PAGE_READONLY, 0, 0, NULL);
    void *at = mapping ? MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, 0) : NULL;
    bytes->data = at;
    bytes->size = (size_t)size.QuadPart;
  }
  if (mapping) CloseHandle(mapping);
  CloseHandle(file);
  return bytes->data ? NULL : vm_no_memory();
}

static void vm_unmap(vm_bytes bytes) {
  if (bytes.size) UnmapViewOfFile(bytes.data);
}

static bool vm_is_folder(const char *path) {
  wchar_t wide[32768];
  if (!MultiByteToWideChar(CP_UTF8, 0, path, -1, wide, 32768)) return false;
  DWORD found = GetFileAttributesW(wide);
  return found != INVALID_FILE_ATTRIBUTES && found & FILE_ATTRIBUTE_DIRECTORY;
}
#else
static vm_status vm_map_file(const char *path, bool is_link_allowed, vm_bytes *bytes) {
  struct stat about;
  /* O_NONBLOCK: a pipe is not waited for. */
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | (is_link_allowed ? 0 : O_NOFOLLOW));
  if (file < 0 || fstat(file, &about)) {
    int reason = errno;
    if (file >= 0) close(file);
    return vm_fail(VERMILION_ERROR_ARTIFACT, path, "check that the file is there and that you may read it",
                   "the file cannot be read: %s", reason == ELOOP ? "it is a link" : strerror(reason));
  }
  if (!S_ISREG(about.st_mode)) {
    close(file);
    return vm_fail(VERMILION_ERROR_ARTIFACT, path, "name a `.rai` file, or a folder that was compiled",
                   "this is neither a file nor a folder");
  }
  bytes->size = (size_t)about.st_size;
  void *at = bytes->size ? mmap(NULL, bytes->size, PROT_READ, MAP_PRIVATE, file, 0) : (void *)"";
  close(file);
  if (at == MAP_FAILED) return vm_no_memory();
  bytes->data = at;
  return NULL;
}

static void vm_unmap(vm_bytes bytes) {
  if (bytes.size) munmap((void *)bytes.data, bytes.size);
}

static bool vm_is_folder(const char *path) {
  struct stat about;
  return !stat(path, &about) && S_ISDIR(about.st_mode);
}
#endif

static void vm_bundle_free(vm_bundle *bundle) {
  for (size_t i = 0; i < bundle->mapped_count; i++) vm_unmap(bundle->mapped[i]);
  free(bundle->mapped);
  free(bundle->files);
}

/* Map a file, to be unmapped with the bundle. */
static vm_status vm_bundle_map(vm_bundle *bundle, const char *path, bool is_link_allowed, vm_bytes *bytes) {
  if (bundle->mapped_count == bundle->mapped_room) {
    size_t room = bundle->mapped_room ? 2 * bundle->mapped_room : 8;
    vm_bytes *mapped = realloc(bundle->mapped, room * sizeof *mapped);
    if (!mapped) return vm_no_memory();
    bundle->mapped = mapped;
    bundle->mapped_room = room;
  }
  VM_TRY(vm_map_file(path, is_link_allowed, bytes));
  bundle->mapped[bundle->mapped_count++] = *bytes;
  return NULL;
}

static vm_status vm_bundle_add(vm_bundle *bundle, const char *name, vm_bytes bytes) {
  if (bundle->count == bundle->room) {
    size_t room = bundle->room ? 2 * bundle->room : 16;
    vm_file *files = realloc(bundle->files, room * sizeof *files);
    if (!files) return vm_no_memory();
    bundle->files = files;
    bundle->room = room;
  }
  bundle->files[bundle->count++] = (vm_file){name, bytes};
  return NULL;
}

/* ---- names ---- */

/* Refuse a name that leads out of the bundle, or that no file of a bundle has. */
static vm_status vm_check_name(const char *where, const char *name) {
  size_t length = strlen(name), depth = 0;
  const char *problem = NULL;
  if (!length || length > 4 * VM_MOST_NAME_CHARACTERS) problem = "is not a name of a usual length";
  for (const char *at = name; !problem && *at; depth++) {
    size_t segment = strcspn(at, "/");
    if (!segment || (segment == 1 && *at == '.') || (segment == 2 && !memcmp(at, "..", 2)))
      problem = "leads out of the bundle";
    for (size_t i = 0; !problem && i < segment; i++)
      if ((unsigned char)at[i] < 0x20 || strchr("<>:\"\\|?*\x7f", at[i]))
        problem = "has a character that file names must not have";
    if (!problem && (*at == ' ' || at[segment - 1] == ' ' || at[segment - 1] == '.'))
      problem = "begins or ends with a space, or ends with a dot";
    at += segment;
    if (!problem && *at == '/' && !*++at) problem = "leads out of the bundle";
  }
  if (!problem && depth > 4) problem = "lies too deep";
  return problem ? vm_fail(VERMILION_ERROR_ARTIFACT, where, VM_UNSAFE, "`%.80s` %s", name, problem) : NULL;
}

/* ---- the single file ---- */

typedef struct vm_entry {
  const char *name;
  uint64_t size, at;
} vm_entry;

static vm_status vm_bad_archive(const vm_bundle *bundle, const char *problem) {
  return vm_fail(VERMILION_ERROR_ARTIFACT, bundle->where,
                 "make the file again with `vermilion compile -o NAME.rai`; do not use this one", "%s",
                 problem);
}

/* Read where the archive's directory is; the 64-bit end may be there although 32 bits would do. */
static vm_status vm_read_end(const vm_bundle *bundle, vm_bytes data, uint64_t *count, uint64_t *offset,
                             uint64_t *end) {
  if (data.size < 22) return vm_bad_archive(bundle, "the file is too short to be a compiled model");
  *end = data.size - 22;
  const unsigned char *tail = data.data + *end;
  if (memcmp(tail, "PK\5\6", 4) || vm_little(tail + 20, 2))
    return vm_bad_archive(bundle, "this is not a compiled model: a ZIP's end is not where it must be");
  uint64_t size = vm_little(tail + 12, 4);
  *count = vm_little(tail + 10, 2);
  *offset = vm_little(tail + 16, 4);
  bool is_whole = !vm_little(tail + 4, 4) && vm_little(tail + 8, 2) == *count;
  if (*end >= 20 && !memcmp(tail - 20, "PK\6\7", 4)) {
    if (*end < 76 || vm_little(tail - 12, 8) != *end - 76 || memcmp(tail - 76, "PK\6\6", 4) ||
        vm_little(tail - 72, 8) != 44)
      return vm_bad_archive(bundle, "the archive's 64-bit end is damaged");
    *end -= 76;
    const unsigned char *wide = data.data + *end;
    uint64_t wide_count = vm_little(wide + 32, 8), wide_size = vm_little(wide + 40, 8);
    uint64_t wide_offset = vm_little(wide + 48, 8);
    is_whole = !vm_little(wide + 16, 8) && vm_little(wide + 24, 8) == wide_count &&
               (*count == wide_count || *count == 0xFFFF) && (size == wide_size || size == 0xFFFFFFFF) &&
               (*offset == wide_offset || *offset == 0xFFFFFFFF);
    *count = wide_count;
    *offset = wide_offset;
    size = wide_size;
  }
  if (!is_whole) return vm_bad_archive(bundle, "the archive's end is damaged");
  if (*count > VM_MOST_FILES) return vm_bad_archive(bundle, "the archive has too many files");
  if (*offset > *end || size != *end - *offset)
    return vm_bad_archive(bundle, "the archive's directory is not where it must be");
  return NULL;
}

/* Read sizes that 32 bits could not hold from an entry's extra field. */
static bool vm_read_wide(const unsigned char *extra, size_t bytes, vm_entry *entry) {
  while (bytes >= 4) {
    uint64_t length = vm_little(extra + 2, 2);
    bool is_size = entry->size == 0xFFFFFFFF, is_at = entry->at == 0xFFFFFFFF;
    if (length > bytes - 4) return false;
    if (vm_little(extra, 2) == 1) {
      if (length != 16u * is_size + 8u * is_at) return false;
      if (is_size) {
        entry->size = vm_little(extra + 4, 8);
        if (vm_little(extra + 12, 8) != entry->size) return false;
      }
      if (is_at) entry->at = vm_little(extra + 4 + 16 * is_size, 8);
      return true;
    }
    extra += 4 + length;
    bytes -= 4 + length;
  }
  return false;
}

static vm_status vm_read_entry(const vm_bundle *bundle, vm_arena *arena, vm_bytes data, uint64_t *at,
                               uint64_t end, vm_entry *entry) {
  if (end - *at < 46) return vm_bad_archive(bundle, "the archive's directory has fewer files than it says");
  const unsigned char *row = data.data + *at;
  uint64_t name_bytes = vm_little(row + 28, 2), extra_bytes = vm_little(row + 30, 2);
  uint64_t mode = vm_little(row + 38, 4) >> 16 & 0170000;
  entry->size = vm_little(row + 24, 4);
  entry->at = vm_little(row + 42, 4);
  if (memcmp(row, "PK\1\2", 4) || end - *at - 46 < name_bytes + extra_bytes || vm_little(row + 32, 4))
    return vm_bad_archive(bundle, "the archive's directory is damaged");
  if (vm_little(row + 10, 2) || vm_little(row + 20, 4) != entry->size || vm_little(row + 8, 2) & ~0x800u)
    return vm_bad_archive(bundle, "a file in the archive is compressed or encrypted");
  if (row[5] == 3 && mode && mode != 0100000)
    return vm_bad_archive(bundle, "the archive has a link, or another thing that is not a file");
  if (memchr(row + 46, 0, name_bytes)) return vm_bad_archive(bundle, "a name in the archive is damaged");
  entry->name = vm_take_text(arena, (const char *)row + 46, name_bytes);
  if (!entry->name) return vm_no_memory();
  if ((entry->size == 0xFFFFFFFF || entry->at == 0xFFFFFFFF) &&
      !vm_read_wide(row + 46 + name_bytes, extra_bytes, entry))
    return vm_bad_archive(bundle, "a file in the archive has sizes that are damaged");
  *at += 46 + name_bytes + extra_bytes;
  return vm_check_name(bundle->where, entry->name);
}

static int vm_by_place(const void *one, const void *other) {
  uint64_t a = ((const vm_entry *)one)->at, b = ((const vm_entry *)other)->at;
  return (a > b) - (a < b);
}

/* Add each file, once it is sure that they follow one another without a gap. */
static vm_status vm_place_files(vm_bundle *bundle, vm_bytes data, const vm_entry *entries, uint64_t count,
                                uint64_t limit) {
  uint64_t at = 0;
  for (uint64_t i = 0; i < count; i++) {
    const vm_entry *entry = &entries[i];
    const unsigned char *head = data.data + at;
    if (entry->at != at || limit - at < 30)
      return vm_bad_archive(bundle, "files in the archive overlap, or there is a hole");
    uint64_t name_bytes = vm_little(head + 26, 2), size = vm_little(head + 22, 4);
    uint64_t start = at + 30 + name_bytes + vm_little(head + 28, 2);
    if (memcmp(head, "PK\3\4", 4) || vm_little(head + 8, 2) || vm_little(head + 6, 2) & ~0x800u ||
        (size != entry->size && size != 0xFFFFFFFF) || vm_little(head + 18, 4) != size || start > limit ||
        name_bytes != strlen(entry->name) || memcmp(head + 30, entry->name, name_bytes))
      return vm_bad_archive(bundle, "a file in the archive has a header that disagrees with the directory");
    if (entry->size > limit - start) return vm_bad_archive(bundle, "a file is longer than the archive");
    if (start % 64) return vm_bad_archive(bundle, "a file in the archive is not aligned to 64 bytes");
    VM_TRY(vm_bundle_add(bundle, entry->name, (vm_bytes){data.data + start, entry->size}));
    at = start + entry->size;
  }
  return at == limit ? NULL : vm_bad_archive(bundle, "the archive has bytes that belong to no file");
}

static vm_status vm_read_archive(vm_bundle *bundle, vm_arena *arena, vm_bytes data) {
  uint64_t count, at, end;
  VM_TRY(vm_read_end(bundle, data, &count, &at, &end));
  uint64_t limit = at;
  vm_entry *entries = vm_take(arena, count, sizeof *entries);
  if (!entries) return vm_no_memory();
  for (uint64_t i = 0; i < count; i++) VM_TRY(vm_read_entry(bundle, arena, data, &at, end, &entries[i]));
  if (at != end) return vm_bad_archive(bundle, "the archive's directory has another length than it says");
  qsort(entries, count, sizeof *entries, vm_by_place);
  VM_TRY(vm_place_files(bundle, data, entries, count, limit));
  if (!count || strcmp(entries[0].name, "manifest.json"))
    return vm_bad_archive(bundle, "this is not a compiled model but a ZIP that does not begin with "
                                  "`manifest.json`");
  return NULL;
}

/* Open a path or, where `data` has bytes, those. */
static vm_status vm_bundle_open(vm_bundle *bundle, vm_arena *arena, const char *path, vm_bytes data) {
  bundle->where = path;
  if (data.data) return vm_read_archive(bundle, arena, data);
  if (vm_is_folder(path)) {
    bundle->folder = path;
    return NULL;
  }
  VM_TRY(vm_bundle_map(bundle, path, true, &data));
  return vm_read_archive(bundle, arena, data);
}

#ifdef _WIN32
static vm_status vm_check_links(const vm_bundle *bundle, const char *path) {
  (void)bundle;
  (void)path;
  return NULL;
}
#else
/* Refuse links inside of a bundle's folder: they may lead out of it. */
static vm_status vm_check_links(const vm_bundle *bundle, const char *path) {
  struct stat about;
  char some[PATH_MAX];
  for (const char *at = path + strlen(bundle->folder) + 1; (at = strchr(at, '/')); at++) {
    snprintf(some, sizeof some, "%.*s", (int)(at - path), path);
    if (!lstat(some, &about) && S_ISLNK(about.st_mode))
      return vm_fail(VERMILION_ERROR_ARTIFACT, some, VM_UNSAFE, "this is a link, and links may lead out of "
                                                                "the bundle");
  }
  return NULL;
}
#endif

/* Find a file of the bundle. */
static vm_status vm_bundle_file(vm_bundle *bundle, const char *name, vm_bytes *bytes) {
  for (size_t i = 0; i < bundle->count; i++) {
    if (strcmp(bundle->files[i].name, name)) continue;
    *bytes = bundle->files[i].bytes;
    return NULL;
  }
  if (!bundle->folder)
    return vm_fail(VERMILION_ERROR_ARTIFACT, bundle->where, VM_DAMAGED, "`%s` is missing", name);
  VM_TRY(vm_check_name(bundle->where, name));
  char path[PATH_MAX];
  if ((size_t)snprintf(path, sizeof path, "%s/%s", bundle->folder, name) >= sizeof path)
    return vm_fail(VERMILION_ERROR_OPTION, bundle->where, "move it to a shorter path", "the path is too long");
  VM_TRY(vm_check_links(bundle, path));
  VM_TRY(vm_bundle_map(bundle, path, false, bytes));
  return vm_bundle_add(bundle, name, *bytes);
}
