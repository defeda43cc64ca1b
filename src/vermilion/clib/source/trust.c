/* Who answers for machine code: this user, or a key that this user trusts. `docs/trust.md` says what the
   files hold. */
#include "internal.h"

#define VM_SIGNATURE_BYTES 202
#define VM_MOST_KEY_FILE_BYTES (1 << 20)

/* The path of a file in the user's data folder; false where there is no such folder. */
static bool vm_user_file(const char *name, char *path, size_t room) {
#ifdef _WIN32
  const char *home = getenv("LOCALAPPDATA");
  return home && (size_t)snprintf(path, room, "%s\\vermilion\\%s", home, name) < room;
#else
  const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
  if (data && *data) return (size_t)snprintf(path, room, "%s/vermilion/%s", data, name) < room;
  return home && *home && (size_t)snprintf(path, room, "%s/.local/share/vermilion/%s", home, name) < room;
#endif
}

/* Read this user's secret; false where there is none. */
static bool vm_read_key(unsigned char key[32]) {
  char path[4096];
  FILE *file = vm_user_file("machine.key", path, sizeof path) ? fopen(path, "rb") : NULL;
  if (!file) return false;
  unsigned char more;
  bool is_whole = fread(key, 1, 32, file) == 32 && fread(&more, 1, 1, file) == 0;
  fclose(file);
  return is_whole;
}

static bool vm_is_sealed(const char *digest, const char *seal) {
  unsigned char key[32];
  char code[65];
  if (strlen(seal) != 64 || !vm_read_key(key)) return false;
  vm_hmac(key, sizeof key, digest, code);
  unsigned char difference = 0;
  for (size_t i = 0; i < 64; i++) difference |= (unsigned char)(code[i] ^ seal[i]);
  return !difference;
}

/* Bytes of lower-case hexadecimal digits; false where they are none. */
static bool vm_of_hex(const unsigned char *text, size_t bytes, unsigned char *to) {
  for (size_t i = 0; i < 2 * bytes; i++) {
    unsigned char c = text[i];
    int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return false;
    to[i / 2] = (unsigned char)(i % 2 ? to[i / 2] * 16 + digit : digit);
  }
  return true;
}

/* Whether a line of the trusted keys is of this one; -1 where it is no key and name. */
static int vm_is_key(const char *line, size_t length, const char key[65]) {
  unsigned char found[32];
  while (length && (line[length - 1] == '\r' || line[length - 1] == ' ' || line[length - 1] == '\t')) length--;
  if (!length || *line == '#') return 0;
  if (length < 66 || line[64] != ' ' || line[65] == ' ' || !vm_of_hex((const unsigned char *)line, 32, found))
    return -1;
  return !memcmp(line, key, 64);
}

/* Whether this user trusts a key; in a file with a line that is wrong, none. */
static bool vm_is_trusted(const char key[65]) {
  char path[4096];
  FILE *file = vm_user_file("trusted_keys", path, sizeof path) ? fopen(path, "rb") : NULL;
  if (!file) return false;
  char *text = malloc(VM_MOST_KEY_FILE_BYTES);
  size_t size = text ? fread(text, 1, VM_MOST_KEY_FILE_BYTES, file) : 0;
  fclose(file);
  bool is_trusted = false, is_damaged = size == VM_MOST_KEY_FILE_BYTES;
  for (size_t at = 0; at < size && !is_damaged;) {
    const char *end = memchr(text + at, '\n', size - at);
    size_t length = end ? (size_t)(end - text) - at : size - at;
    int found = vm_is_key(text + at, length, key);
    if (found < 0) is_damaged = true;
    if (found > 0) is_trusted = true;
    at += length + 1;
  }
  free(text);
  return is_trusted && !is_damaged;
}

typedef enum vm_signature { VM_UNSIGNED, VM_SIGNATURE_DAMAGED, VM_SIGNATURE_WRONG, VM_SIGNED } vm_signature;

/* Whether a line signs a manifest; `key` gets the public key in hexadecimal. */
static vm_signature vm_read_signature(vm_bytes line, vm_bytes manifest, char key[65]) {
  unsigned char public[32], signature[64], digest[32];
  char text[65], message[128];
  vm_hash hash;
  if (line.size != VM_SIGNATURE_BYTES || memcmp(line.data, "ed25519 ", 8) || line.data[72] != ' ' ||
      line.data[201] != '\n' || !vm_of_hex(line.data + 8, 32, public) || !vm_of_hex(line.data + 73, 64, signature))
    return VM_SIGNATURE_DAMAGED;
  memcpy(key, line.data + 8, 64);
  key[64] = 0;
  vm_hash_begin(&hash);
  vm_hash_add(&hash, manifest.data, manifest.size);
  vm_hash_end(&hash, digest);
  vm_as_hex(digest, text);
  int size = snprintf(message, sizeof message, "vermilion signature 1\nbundle\n%s\n", text);
  return vm_ed25519_verify(signature, (const uint8_t *)message, (size_t)size, public) ? VM_SIGNED
                                                                                      : VM_SIGNATURE_WRONG;
}

#define VM_RUN_HERE \
  "compile the model on this machine; to run machine code from elsewhere as it is, trust a key that signed it with " \
  "`vermilion trust add`, open it with VERMILION_TRUST_CODE, or set VERMILION_TRUST=1"

/* Refuse machine code that nobody answers for whom this user trusts. `data` is the manifest's bytes. */
static vm_status vm_check_trust(vm_bundle *bundle, vm_bytes data, const vm_json *manifest, const char *digest,
                                uint32_t flags) {
  const char *trust = getenv("VERMILION_TRUST"), *seal = "";
  char key[65] = "";
  vm_bytes line = {NULL, 0};
  if (flags & VERMILION_TRUST_CODE || (trust && !strcmp(trust, "1"))) return NULL;
  VM_TRY(vm_text_of(manifest, "seal", bundle->where, &seal));
  if (vm_is_sealed(digest, seal)) return NULL;
  vm_status missing = vm_bundle_file(bundle, "manifest.sig", &line);
  vm_signature found = missing ? VM_UNSIGNED : vm_read_signature(line, data, key);
  vermilion_status_free(missing);
  if (found == VM_SIGNED && vm_is_trusted(key)) return NULL;
  switch (found) {
    case VM_SIGNED:
      return vm_fail(VERMILION_ERROR_TRUST, bundle->where, VM_RUN_HERE,
                     "its machine code is signed by the key %s, which is not trusted here", key);
    case VM_SIGNATURE_WRONG:
      return vm_fail(VERMILION_ERROR_TRUST, bundle->where, VM_RUN_HERE,
                     "its signature does not fit: it was changed since it was signed");
    case VM_SIGNATURE_DAMAGED:
      return vm_fail(VERMILION_ERROR_TRUST, bundle->where, VM_RUN_HERE, "its signature is damaged");
    case VM_UNSIGNED: break;
  }
  return vm_fail(VERMILION_ERROR_TRUST, bundle->where, VM_RUN_HERE,
                 "its machine code was not made by this user on this machine");
}
