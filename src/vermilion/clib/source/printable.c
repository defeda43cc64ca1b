/* What is said to people, of names that anybody may have written. The library has this and, compiled
   apart from it, the plugin. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Room for a path of the usual length and a few names; more is a file's doing. */
#define VM_MOST_CHARACTERS 1200

/* Read a code point of UTF-8; 0 where it is none. */
static uint32_t vm_utf8(const unsigned char **at, const unsigned char *end) {
  const unsigned char *p = *at;
  int more = *p < 0x80 ? 0 : *p >= 0xC2 && *p < 0xE0 ? 1 : (*p & 0xF0) == 0xE0 ? 2 : (*p & 0xF8) == 0xF0 ? 3 : -1;
  if (more < 0 || end - p <= more) return 0;
  uint32_t code = more == 0 ? *p : *p & (0x3F >> more);
  for (int i = 1; i <= more; i++) {
    if ((p[i] & 0xC0) != 0x80) return 0;
    code = code << 6 | (p[i] & 0x3F);
  }
  if (code > 0x10FFFF || (more == 2 && code < 0x800) || (more == 3 && code < 0x10000)) return 0;
  *at = p + more + 1;
  return code;
}

/* Append a text; control characters, and bytes that are not UTF-8, are escaped: names come from files
   that anybody may have written, and callers decode what is said. */
static char *vm_put_printable(char *to, const char *from) {
  size_t length = strlen(from);
  const unsigned char *at = (const unsigned char *)from, *end = at + length;
  const unsigned char *rest = length > VM_MOST_CHARACTERS ? end - VM_MOST_CHARACTERS / 2 : end;
  const unsigned char *cut = length > VM_MOST_CHARACTERS ? at + VM_MOST_CHARACTERS / 2 : end;
  while (at < end) {
    if (at >= cut && at < rest) {
      to += sprintf(to, "... %zu bytes left out ...", length - VM_MOST_CHARACTERS);
      for (at = rest; at < end && (*at & 0xC0) == 0x80;) at++;
      continue;
    }
    const unsigned char *before = at;
    uint32_t code = vm_utf8(&at, end);
    if (code < 0x20 || code == 0x7F || (code >= 0xD800 && code < 0xE000)) {
      to += sprintf(to, "\\x%02x", *before);
      at = before + 1;
      continue;
    }
    while (before < at) *to++ = (char)*before++;
  }
  *to++ = 0;
  return to;
}
