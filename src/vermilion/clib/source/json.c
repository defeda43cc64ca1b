/* JSON that somebody else may have written: read strictly, and written in the form that digests are
   of. */
#include "internal.h"

#define VM_JSON_DEPTH 64
#define VM_JSON_KEYS 4096

typedef struct vm_reader {
  const unsigned char *at, *end;
  const char *where;
  vm_arena *arena;
  vm_json *stack; /* of what lists and objects hold that are not ended yet */
  const char **key_stack;
  size_t used, room;
} vm_reader;

static vm_status vm_json_error(const vm_reader *reader, const char *problem) {
  return vm_fail(VERMILION_ERROR_ARTIFACT, reader->where, VM_DAMAGED,
                 "this is not JSON that can be read: %s", problem);
}

static void vm_skip_space(vm_reader *reader) {
  while (reader->at < reader->end && (*reader->at == ' ' || *reader->at == '\n' ||
                                      *reader->at == '\t' || *reader->at == '\r'))
    reader->at++;
}

static int vm_hex4(const unsigned char *at) {
  int value = 0;
  for (int i = 0; i < 4; i++) {
    unsigned char c = at[i];
    int digit = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

static char *vm_put_utf8(char *to, uint32_t code) {
  if (code < 0x80) {
    *to++ = (char)code;
  } else if (code < 0x800) {
    *to++ = (char)(0xC0 | code >> 6);
    *to++ = (char)(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    *to++ = (char)(0xE0 | code >> 12);
    *to++ = (char)(0x80 | (code >> 6 & 0x3F));
    *to++ = (char)(0x80 | (code & 0x3F));
  } else {
    *to++ = (char)(0xF0 | code >> 18);
    *to++ = (char)(0x80 | (code >> 12 & 0x3F));
    *to++ = (char)(0x80 | (code >> 6 & 0x3F));
    *to++ = (char)(0x80 | (code & 0x3F));
  }
  return to;
}

static vm_status vm_escape(vm_reader *reader, char **to) {
  static const char marks[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
  unsigned char mark = reader->at < reader->end ? *reader->at : 0;
  const char *known = mark ? strchr(marks, mark) : NULL;
  if (known) {
    *(*to)++ = meant[known - marks];
    reader->at++;
    return NULL;
  }
  int code = mark == 'u' && reader->end - reader->at >= 5 ? vm_hex4(reader->at + 1) : -1;
  if (code <= 0) return vm_json_error(reader, "an escape that is none");
  reader->at += 5;
  uint32_t whole = (uint32_t)code;
  if (code >= 0xD800 && code < 0xDC00 && reader->end - reader->at >= 6 && reader->at[0] == '\\' &&
      reader->at[1] == 'u') {
    int low = vm_hex4(reader->at + 2);
    if (low >= 0xDC00 && low < 0xE000) {
      whole = 0x10000 + (((uint32_t)code - 0xD800) << 10) + ((uint32_t)low - 0xDC00);
      reader->at += 6;
    }
  }
  *to = vm_put_utf8(*to, whole);
  return NULL;
}

static vm_status vm_read_text(vm_reader *reader, const char **text) {
  const unsigned char *from = ++reader->at, *end = from;
  while (end < reader->end && *end != '"') end += *end == '\\' ? 2 : 1;
  if (end >= reader->end) return vm_json_error(reader, "a text that does not end");
  /* No text is longer than what it is written with. */
  char *to = vm_take(reader->arena, (size_t)(end - from) + 1, 1);
  if (!to) return vm_no_memory();
  *text = to;
  while (*reader->at != '"') {
    if (*reader->at == '\\') {
      reader->at++;
      VM_TRY(vm_escape(reader, &to));
      continue;
    }
    const unsigned char *before = reader->at;
    if (*before < 0x20 || !vm_utf8(&reader->at, reader->end))
      return vm_json_error(reader, "a text that is not UTF-8");
    while (before < reader->at) *to++ = (char)*before++;
  }
  reader->at++;
  *to = 0;
  return NULL;
}

static vm_status vm_read_number(vm_reader *reader, vm_json *value) {
  const unsigned char *from = reader->at;
  while (reader->at < reader->end && *reader->at && strchr("+-.eE0123456789", *reader->at)) reader->at++;
  value->kind = VM_NUMBER;
  value->text = vm_take_text(reader->arena, (const char *)from, (size_t)(reader->at - from));
  if (!value->text) return vm_no_memory();
  const char *digits = value->text + (*value->text == '-');
  if (*digits < '0' || *digits > '9' || (digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9'))
    return vm_json_error(reader, "a number that is none");
  return NULL;
}

static vm_status vm_read_value(vm_reader *reader, vm_json *value, int depth);

static bool vm_push(vm_reader *reader, const char *key, vm_json value) {
  if (reader->used == reader->room) {
    size_t room = reader->room ? 2 * reader->room : 256;
    vm_json *stack = realloc(reader->stack, room * sizeof *stack);
    if (stack) reader->stack = stack;
    const char **keys = stack ? realloc(reader->key_stack, room * sizeof *keys) : NULL;
    if (!keys) return false;
    reader->key_stack = keys;
    reader->room = room;
  }
  reader->stack[reader->used] = value;
  reader->key_stack[reader->used++] = key;
  return true;
}

/* Read a list or an object, whose first character is there. */
static vm_status vm_read_items(vm_reader *reader, vm_json *value, int depth) {
  bool is_object = *reader->at++ == '{';
  unsigned char ending = is_object ? '}' : ']';
  size_t first = reader->used;
  value->kind = is_object ? VM_OBJECT : VM_LIST;
  if (depth > VM_JSON_DEPTH) return vm_json_error(reader, "it lies too deep");
  vm_skip_space(reader);
  bool is_empty = reader->at < reader->end && *reader->at == ending;
  while (!is_empty) {
    const char *key = NULL;
    vm_skip_space(reader);
    if (is_object) {
      if (reader->at >= reader->end || *reader->at != '"') return vm_json_error(reader, "a key is no text");
      VM_TRY(vm_read_text(reader, &key));
      vm_skip_space(reader);
      if (reader->at >= reader->end || *reader->at++ != ':') return vm_json_error(reader, "a key without a value");
      if (reader->used - first >= VM_JSON_KEYS) return vm_json_error(reader, "an object has too many keys");
      for (size_t i = first; i < reader->used; i++)
        if (!strcmp(reader->key_stack[i], key)) return vm_json_error(reader, "a key stands twice in one object");
    }
    vm_json item = {0};
    VM_TRY(vm_read_value(reader, &item, depth + 1));
    if (!vm_push(reader, key, item)) return vm_no_memory();
    vm_skip_space(reader);
    if (reader->at >= reader->end) return vm_json_error(reader, "it does not end");
    if (*reader->at == ending) break;
    if (*reader->at++ != ',') return vm_json_error(reader, "a comma is missing");
  }
  reader->at++;
  size_t count = reader->used - first;
  if (count > UINT32_MAX) return vm_json_error(reader, "it is too long");
  value->count = (uint32_t)count;
  vm_json *items = vm_take(reader->arena, count, sizeof *items);
  const char **keys = is_object ? vm_take(reader->arena, count, sizeof *keys) : NULL;
  if (!items || (is_object && !keys)) return vm_no_memory();
  if (count) memcpy(items, reader->stack + first, count * sizeof *items);
  if (count && is_object) memcpy(keys, reader->key_stack + first, count * sizeof *keys);
  value->items = items;
  value->keys = keys;
  reader->used = first;
  return NULL;
}

static vm_status vm_read_value(vm_reader *reader, vm_json *value, int depth) {
  static const struct {
    const char *word;
    vm_json_kind kind;
  } words[] = {{"null", VM_NULL}, {"false", VM_FALSE}, {"true", VM_TRUE}};
  vm_skip_space(reader);
  if (reader->at >= reader->end) return vm_json_error(reader, "it ends too soon");
  unsigned char first = *reader->at;
  if (first == '{' || first == '[') return vm_read_items(reader, value, depth);
  if (first == '"') {
    value->kind = VM_TEXT;
    return vm_read_text(reader, &value->text);
  }
  for (size_t i = 0; i < 3; i++) {
    size_t length = strlen(words[i].word);
    if ((size_t)(reader->end - reader->at) >= length && !memcmp(reader->at, words[i].word, length)) {
      reader->at += length;
      value->kind = words[i].kind;
      return NULL;
    }
  }
  return vm_read_number(reader, value);
}

/* Take JSON apart; all of it lives in the arena. */
static vm_status vm_json_parse(vm_bytes data, const char *where, vm_arena *arena, vm_json *value) {
  vm_reader reader = {data.data, data.data + data.size, where, arena, NULL, NULL, 0, 0};
  memset(value, 0, sizeof *value);
  vm_status status = vm_read_value(&reader, value, 0);
  vm_skip_space(&reader);
  if (!status && reader.at != reader.end) status = vm_json_error(&reader, "something follows it");
  free(reader.stack);
  free(reader.key_stack);
  return status;
}

/* ---- asking ---- */

static const vm_json *vm_member(const vm_json *object, const char *key) {
  for (uint32_t i = 0; object->kind == VM_OBJECT && i < object->count; i++)
    if (!strcmp(object->keys[i], key)) return &object->items[i];
  return NULL;
}

static vm_status vm_wrong(const char *where, const char *key, const char *wanted) {
  return vm_fail(VERMILION_ERROR_ARTIFACT, where, VM_DAMAGED, "the JSON has no `%s` that is %s", key,
                 wanted);
}

static vm_status vm_text_of(const vm_json *object, const char *key, const char *where,
                            const char **text) {
  const vm_json *found = vm_member(object, key);
  if (!found || found->kind != VM_TEXT) return vm_wrong(where, key, "a text");
  *text = found->text;
  return NULL;
}

static vm_status vm_list_of(const vm_json *object, const char *key, const char *where,
                            const vm_json **list) {
  *list = vm_member(object, key);
  if (!*list || (*list)->kind != VM_LIST) return vm_wrong(where, key, "a list");
  return NULL;
}

/* Say whether a value is a whole number that lies between two bounds. */
static bool vm_whole(const vm_json *value, int64_t least, int64_t most, int64_t *number) {
  if (!value || value->kind != VM_NUMBER || value->text[strspn(value->text, "-0123456789")]) return false;
  errno = 0;
  char *end;
  long long found = strtoll(value->text, &end, 10);
  if (errno || *end || found < least || found > most) return false;
  *number = found;
  return true;
}

static vm_status vm_number_of(const vm_json *object, const char *key, const char *where,
                              int64_t least, int64_t most, int64_t *number) {
  if (!vm_whole(vm_member(object, key), least, most, number))
    return vm_wrong(where, key, "a whole number in its range");
  return NULL;
}

static vm_status vm_flag_of(const vm_json *object, const char *key, const char *where, bool *flag) {
  const vm_json *found = vm_member(object, key);
  if (!found || (found->kind != VM_TRUE && found->kind != VM_FALSE)) return vm_wrong(where, key, "true or false");
  *flag = found->kind == VM_TRUE;
  return NULL;
}
