/* What a bundle says of itself: `manifest.json`. */
#include "internal.h"

#define VM_FORMAT_VERSION 2 /* `runtime/manifest.py` says the same */
#define VM_MOST_MANIFEST_BYTES (16 * 1024 * 1024)

/* ---- the digest of JSON in Python's shortest form, keys in order ---- */

static void vm_hash_text(vm_hash *hash, const char *text) { vm_hash_add(hash, text, strlen(text)); }

static void vm_hash_escaped(vm_hash *hash, const char *text) {
  const unsigned char *at = (const unsigned char *)text, *end = at + strlen(text);
  char escape[16];
  vm_hash_text(hash, "\"");
  while (at < end) {
    const unsigned char *before = at;
    uint32_t code = vm_utf8(&at, end);
    if (code >= 0x20 && code < 0x7F && code != '"' && code != '\\') {
      vm_hash_add(hash, before, 1);
      continue;
    }
    switch (code) {
      case '"': vm_hash_text(hash, "\\\""); continue;
      case '\\': vm_hash_text(hash, "\\\\"); continue;
      case '\n': vm_hash_text(hash, "\\n"); continue;
      case '\r': vm_hash_text(hash, "\\r"); continue;
      case '\t': vm_hash_text(hash, "\\t"); continue;
      case '\f': vm_hash_text(hash, "\\f"); continue;
      case '\b': vm_hash_text(hash, "\\b"); continue;
    }
    if (code < 0x10000)
      sprintf(escape, "\\u%04x", (unsigned)code);
    else
      sprintf(escape, "\\u%04x\\u%04x", 0xD800u + ((unsigned)(code - 0x10000) >> 10),
              0xDC00u + ((unsigned)(code - 0x10000) & 0x3FF));
    vm_hash_text(hash, escape);
  }
  vm_hash_text(hash, "\"");
}

/* Hash a value. At the top, `digest` and what is said about it are left out. */
static void vm_hash_json(vm_hash *hash, const vm_json *value, bool is_top) {
  switch (value->kind) {
    case VM_NULL: vm_hash_text(hash, "null"); return;
    case VM_TRUE: vm_hash_text(hash, "true"); return;
    case VM_FALSE: vm_hash_text(hash, "false"); return;
    case VM_NUMBER: vm_hash_text(hash, value->text); return;
    case VM_TEXT: vm_hash_escaped(hash, value->text); return;
    case VM_LIST:
      vm_hash_text(hash, "[");
      for (uint32_t i = 0; i < value->count; i++) {
        if (i) vm_hash_text(hash, ",");
        vm_hash_json(hash, &value->items[i], false);
      }
      vm_hash_text(hash, "]");
      return;
    case VM_OBJECT: break;
  }
  /* The next key in the order of their bytes, which is that of their characters. */
  const char *before = NULL;
  bool is_first = true;
  vm_hash_text(hash, "{");
  for (uint32_t done = 0; done < value->count; done++) {
    uint32_t next = value->count;
    for (uint32_t i = 0; i < value->count; i++) {
      const char *key = value->keys[i];
      if ((!before || strcmp(key, before) > 0) && (next == value->count || strcmp(key, value->keys[next]) < 0))
        next = i;
    }
    if (next == value->count) break;
    before = value->keys[next];
    if (is_top && (!strcmp(before, "digest") || !strcmp(before, "seal"))) continue;
    if (!is_first) vm_hash_text(hash, ",");
    is_first = false;
    vm_hash_escaped(hash, before);
    vm_hash_text(hash, ":");
    vm_hash_json(hash, &value->items[next], false);
  }
  vm_hash_text(hash, "}");
}

/* ---- reading ---- */

/* Read the manifest: its version, its digest, who made the code, what the processor must have. */
static vm_status vm_read_manifest(vm_bundle *bundle, vm_arena *arena, uint32_t flags, vm_json *manifest,
                                  const char **digest) {
  vm_bytes data;
  int64_t version;
  vm_hash hash;
  unsigned char found[32];
  char text[65];
  vm_status status = vm_bundle_file(bundle, "manifest.json", &data);
  if (status && bundle->folder) {
    vermilion_status_free(status);
    return vm_fail(VERMILION_ERROR_ARTIFACT, bundle->where,
                   "compile a model with `vermilion compile MODEL --target T`",
                   "this folder is not a compiled model: it has no `manifest.json` that can be read");
  }
  VM_TRY(status);
  if (data.size > VM_MOST_MANIFEST_BYTES)
    return vm_fail(VERMILION_ERROR_ARTIFACT, bundle->where, VM_DAMAGED, "the manifest has %zu bytes", data.size);
  VM_TRY(vm_json_parse(data, bundle->where, arena, manifest));
  VM_TRY(vm_number_of(manifest, "format_version", bundle->where, 0, INT32_MAX, &version));
  if (version != VM_FORMAT_VERSION)
    return vm_fail(VERMILION_ERROR_ARTIFACT, bundle->where,
                   "compile the model again with this version, or use the library of the version that wrote it",
                   "the model has format version %lld, this library reads %d", (long long)version, VM_FORMAT_VERSION);
  VM_TRY(vm_text_of(manifest, "digest", bundle->where, digest));
  vm_hash_begin(&hash);
  vm_hash_json(&hash, manifest, true);
  vm_hash_end(&hash, found);
  vm_as_hex(found, text);
  if (strcmp(text, *digest))
    return vm_fail(VERMILION_ERROR_ARTIFACT, bundle->where, VM_DAMAGED,
                   "the manifest does not have the digest that it states");
  const vm_json *features;
  VM_TRY(vm_list_of(manifest, "features", bundle->where, &features));
  for (uint32_t i = 0; i < features->count; i++) {
    if (features->items[i].kind != VM_TEXT) return vm_wrong(bundle->where, "features", "a list of texts");
    if (!vm_has_feature(features->items[i].text)) {
      const char *target = "another processor";
      vermilion_status_free(vm_text_of(manifest, "target", bundle->where, &target));
      return vm_fail(VERMILION_ERROR_DEVICE, bundle->where,
                     "compile it for this processor, with `vermilion compile MODEL --target T`",
                     "the model was compiled for %s; this processor has no %s", target, features->items[i].text);
    }
  }
  return vm_check_trust(bundle, data, manifest, *digest, flags);
}

/* Read a file that the manifest lists, and compare it with its digest. */
static vm_status vm_read_member(vm_bundle *bundle, const vm_json *manifest, const char *name, bool check_digest,
                                vm_bytes *data) {
  const vm_json *members;
  VM_TRY(vm_list_of(manifest, "members", bundle->where, &members));
  for (uint32_t i = 0; i < members->count; i++) {
    const char *member, *digest;
    int64_t size;
    char text[65];
    VM_TRY(vm_text_of(&members->items[i], "name", bundle->where, &member));
    if (strcmp(member, name)) continue;
    VM_TRY(vm_text_of(&members->items[i], "sha256", bundle->where, &digest));
    VM_TRY(vm_number_of(&members->items[i], "size", bundle->where, 0, INT64_MAX, &size));
    VM_TRY(vm_bundle_file(bundle, member, data));
    if ((uint64_t)size != data->size)
      return vm_fail(VERMILION_ERROR_ARTIFACT, bundle->where, VM_DAMAGED,
                     "`%s` has %zu bytes, the manifest says %lld", name, data->size, (long long)size);
    if (check_digest) {
      vm_file_digest(*data, text);
      if (strcmp(text, digest))
        return vm_fail(VERMILION_ERROR_ARTIFACT, bundle->where, VM_DAMAGED,
                       "`%s` is not what was written: its sha256 does not match the manifest", name);
    }
    return NULL;
  }
  return vm_fail(VERMILION_ERROR_ARTIFACT, bundle->where, VM_DAMAGED, "the model has no file `%s`", name);
}
