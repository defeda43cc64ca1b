/* Language models: a decoder's programs over sequences whose keys and values are the caller's.

   What runs when is as in `llm/engine/decoder.py`, so that the same tokens give the same bits. */
#include "internal.h"
#include "linked.h"

#define VM_DECODER_FORMAT 1 /* `llm/library.py` says the same */
/* `llm/engine/decoder.py`: rows of the two programs, threads of a token. */
#define VM_FEW_ROWS 16
#define VM_MANY_ROWS 512
#define VM_MOST_TOKEN_WORKERS 8
/* `codegen/emit/decoder/cache.py` */
#define VM_BLOCK_TOKENS 64
/* The control block, `codegen/emit/decoder/control.py`: words, then a line for each sequence. */
#define VM_CONTROL_ROWS 0
#define VM_CONTROL_LENGTH 1
#define VM_CONTROL_SEQUENCES 8
#define VM_LINE_PAST 0
#define VM_LINE_CAPACITY 1
#define VM_LINE_ROOM 2
#define VM_LINE_TURNS 3
#define VM_CONTROL_WORDS (VM_CONTROL_SEQUENCES + 4 * VM_MANY_ROWS)

enum { VM_FEW, VM_MANY, VM_REST, VM_HEAD, VM_STAGES };
static const char *const VM_STAGE_NAMES[VM_STAGES] = {"few", "many", "rest", "head"};

typedef enum vm_rows_kind { VM_ROWS_F32, VM_ROWS_F16, VM_ROWS_BF16, VM_ROWS_CODES } vm_rows_kind;

/* The rows that tokens begin with: numbers, or codes with scales by block. A code stands for its place
   in `table`, or for what it is over its zero, `middle` where there are none; `mins` are added. */
typedef struct vm_embedding {
  vm_rows_kind kind;
  int64_t tokens, width, bits, block, blocks, row_bytes, zero_bytes, middle;
  float factor;
  const unsigned char *rows, *zeros;
  const float *scales, *mins, *table;
} vm_embedding;

/* An argument that points into a layer's keys or values: number 2 · layer, or one more. */
typedef struct vm_cache_argument {
  uint32_t argument, part;
  int64_t offset;
} vm_cache_argument;

/* One of a decoder's programs, ready to run. */
typedef struct vm_stage {
  vm_program program;
  vm_sized sized;
  vm_team *team;
  int64_t *arguments;
  unsigned char *arena;
  int64_t arena_bytes;
  vm_cache_argument *caches;
  uint32_t cache_count;
} vm_stage;

/* A layer's keys are of so many heads, of so many numbers. */
typedef struct vm_layer {
  int64_t heads, size;
} vm_layer;

/* Rows that go from the first program of a prompt to the second. */
typedef struct vm_crossing {
  const char *name;
  int64_t width;
  float *rows;
} vm_crossing;

struct vermilion_decoder {
  vm_arena arena;
  vm_bundle bundle;
  const char *where, *target;
  vm_bytes weights;
  unsigned char *own_weights; /* a copy that is aligned, NULL where none was needed */
  int64_t vocabulary, context, short_length, item_bytes, hidden_width;
  float logits_bound, logits_factor;
  vm_embedding embedding;
  vm_layer *layers;
  uint32_t layer_count;
  vm_crossing *crossing;
  uint32_t crossing_count;
  int32_t workers;
  vm_lock turn;
  _Atomic long process; /* whose threads there are; -1 while that changes */
  int64_t *control;
  float *few, *many, *hidden, *head_input, *logits;
  int64_t logits_width;
  vm_stage stages[VM_STAGES];
};

/* ---- numbers ---- */

static float vm_float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static float vm_half(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
  if (exponent == 31) return vm_float_of_bits(sign | 0x7F800000 | fraction << 13);
  if (exponent) return vm_float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
  float small = (float)fraction * 0x1p-24f; /* exact */
  return sign ? -small : small;
}

/* tanh, rounded to float32 from a result whose error is some 1e-15 of it; libc alone has none. */
static float vm_tanh(float value) {
  double x = value < 0 ? -(double)value : (double)value, result;
  if (!(x < 20)) return x != x ? value : value < 0 ? -1.0f : 1.0f;
  if (x < 1e-4) {
    result = x - x * x * x / 3;
  } else {
    /* e^(-2x) = 2^n · e^r, with |r| below half of ln 2 */
    double y = -2 * x, n = (double)(int64_t)(y * 1.4426950408889634 - 0.5), r = y - n * 0.6931471805599453, sum = 1, term = 1;
    for (int i = 1; i <= 16; i++) sum += term *= r / i;
    for (int64_t i = (int64_t)n; i < 0; i++) sum *= 0.5;
    result = (1 - sum) / (1 + sum);
  }
  return (float)(value < 0 ? -result : result);
}

static void vm_embed_codes(const vm_embedding *embedding, int64_t token, float *out) {
  const unsigned char *row = embedding->rows + token * embedding->row_bytes;
  const unsigned char *zeros = embedding->zeros ? embedding->zeros + token * embedding->zero_bytes : NULL;
  const float *scales = embedding->scales + token * embedding->blocks;
  const float *mins = embedding->mins ? embedding->mins + token * embedding->blocks : NULL;
  bool is_nibble = embedding->bits == 4;
  for (int64_t i = 0; i < embedding->width; i++) {
    int64_t block = i / embedding->block;
    unsigned code = is_nibble ? row[i / 2] >> (4 * (i & 1)) & 15u : row[i];
    unsigned zero = !zeros ? (unsigned)embedding->middle : is_nibble ? zeros[block / 2] >> (4 * (block & 1)) & 15u : zeros[block];
    float value = embedding->table ? embedding->table[code] : (float)code - (float)zero;
    value *= scales[block];
    out[i] = mins ? value + mins[block] : value;
  }
}

static void vm_embed(const vm_embedding *embedding, int64_t token, float *out) {
  const unsigned char *row = embedding->rows + token * embedding->row_bytes;
  switch (embedding->kind) {
  case VM_ROWS_F32: memcpy(out, row, (size_t)embedding->row_bytes); break;
  case VM_ROWS_CODES: vm_embed_codes(embedding, token, out); break;
  default:
    for (int64_t i = 0; i < embedding->width; i++) {
      uint16_t half = (uint16_t)(row[2 * i] | row[2 * i + 1] << 8);
      out[i] = embedding->kind == VM_ROWS_F16 ? vm_half(half) : vm_float_of_bits((uint32_t)half << 16);
    }
  }
  if (embedding->factor != 1.0f)
    for (int64_t i = 0; i < embedding->width; i++) out[i] *= embedding->factor;
}

/* ---- sequences ---- */

static int64_t vm_block_count(int64_t tokens) { return (tokens + VM_BLOCK_TOKENS - 1) / VM_BLOCK_TOKENS; }

static int64_t vm_block_bytes(const vermilion_decoder *decoder, const vm_layer *layer) {
  return VM_BLOCK_TOKENS * layer->size * decoder->item_bytes;
}

/* Bytes of one layer's keys, or of its values, at a capacity; the next begin at a multiple of 64. */
static int64_t vm_layer_bytes(const vermilion_decoder *decoder, const vm_layer *layer, int64_t capacity) {
  return layer->heads * vm_block_count(capacity) * vm_block_bytes(decoder, layer) + VM_SLACK_BYTES;
}

VERMILION_API size_t vermilion_cache_bytes(const vermilion_decoder *decoder, int64_t capacity) {
  size_t bytes = 0;
  if (!decoder || capacity < 1 || capacity > decoder->context) return 0;
  for (uint32_t i = 0; i < decoder->layer_count; i++)
    bytes += 2 * (((size_t)vm_layer_bytes(decoder, &decoder->layers[i], capacity) + 63) & ~(size_t)63);
  return bytes;
}

static vm_status vm_check_read(const vermilion_decoder *decoder, const vermilion_cache *cache, const int64_t *tokens, size_t count) {
  const char *where = decoder->where;
  if (!cache || !tokens) return vm_fail(VERMILION_ERROR_OPTION, where, "give a cache and tokens", "a pointer is NULL");
  if (cache->size < sizeof *cache || (!cache->data && !cache->parts))
    return vm_fail(VERMILION_ERROR_OPTION, where, "set `size` to sizeof(vermilion_cache), and `data` or `parts`", "the cache is not filled in");
  if (cache->capacity < 1 || cache->capacity > decoder->context)
    return vm_fail(VERMILION_ERROR_OPTION, where, "a sequence has room for 1 to as many tokens as the model's context",
                   "a cache of %lld tokens for a context of %lld", (long long)cache->capacity, (long long)decoder->context);
  if (!cache->parts && (((uintptr_t)cache->data & 63) || cache->bytes < vermilion_cache_bytes(decoder, cache->capacity)))
    return vm_fail(VERMILION_ERROR_OPTION, where, "as many bytes as `vermilion_cache_bytes` says, aligned to 64",
                   "the cache's memory has %zu bytes%s, %lld tokens take %zu", cache->bytes, (uintptr_t)cache->data & 63 ? ", not aligned" : "",
                   (long long)cache->capacity, vermilion_cache_bytes(decoder, cache->capacity));
  for (uint32_t i = 0; cache->parts && i < 2 * decoder->layer_count; i++)
    if (!cache->parts[i] || ((uintptr_t)cache->parts[i] & 63))
      return vm_fail(VERMILION_ERROR_OPTION, where, "as many bytes as `vermilion_layer_bytes` says, aligned to 64",
                     "part %u of the cache is %s", i, cache->parts[i] ? "not aligned" : "NULL");
  if (cache->length < 0 || cache->length > cache->capacity || !count || count > (size_t)(cache->capacity - cache->length))
    return vm_fail(VERMILION_ERROR_OPTION, where, "begin with room for more", "%zu more tokens after %lld in a cache of %lld", count,
                   (long long)cache->length, (long long)cache->capacity);
  for (size_t i = 0; i < count; i++)
    if (tokens[i] < 0 || tokens[i] >= decoder->embedding.tokens)
      return vm_fail(VERMILION_ERROR_OPTION, where, "tokens come from the model's own tokenizer", "token %lld is outside 0 to %lld",
                     (long long)tokens[i], (long long)decoder->embedding.tokens - 1);
  int64_t end = cache->length + (int64_t)count;
  if (decoder->short_length && cache->length && cache->is_long != (end > decoder->short_length))
    return vm_fail(VERMILION_ERROR_SIZES, where, "set `length` to 0 and read all tokens of the sequence again, with these",
                   "positions are turned otherwise in sequences of more than %lld tokens, which this one now %s", (long long)decoder->short_length,
                   end > decoder->short_length ? "is" : "is no more");
  return NULL;
}

/* Clear the blocks that these tokens begin: what lies there may be no number, and is multiplied by 0. */
static void vm_clear_blocks(const vermilion_decoder *decoder, unsigned char *const *parts, const vermilion_cache *cache, int64_t count) {
  int64_t first = vm_block_count(cache->length), end = vm_block_count(cache->length + count), room = vm_block_count(cache->capacity);
  if (first == end) return;
  for (uint32_t i = 0; i < decoder->layer_count; i++) {
    int64_t block = vm_block_bytes(decoder, &decoder->layers[i]);
    for (int64_t head = 0; head < decoder->layers[i].heads; head++)
      for (int side = 0; side < 2; side++)
        memset(parts[2 * i + (uint32_t)side] + (head * room + first) * block, 0, (size_t)((end - first) * block));
  }
}

static void vm_point_caches(vermilion_decoder *decoder, unsigned char *const *parts) {
  for (int i = 0; i < VM_STAGES; i++) {
    vm_stage *stage = &decoder->stages[i];
    for (uint32_t k = 0; k < stage->cache_count; k++)
      stage->arguments[stage->caches[k].argument] = (int64_t)(intptr_t)parts[stage->caches[k].part] + stage->caches[k].offset;
  }
}

/* ---- runs ---- */

static vm_status vm_run_stage(vermilion_decoder *decoder, int number, const vermilion_pool *pool) {
  vm_team *team = decoder->stages[number].team;
  if (pool) return vm_team_run_on(team, pool);
  vm_team_run(team);
  return NULL;
}

/* Read tokens that begin at a position, with the program for few or for many. */
static vm_status vm_read_piece(vermilion_decoder *decoder, int number, const int64_t *tokens, int64_t count, int64_t past,
                               const vermilion_pool *pool) {
  float *rows = number == VM_FEW ? decoder->few : decoder->many;
  for (int64_t i = 0; i < count; i++) vm_embed(&decoder->embedding, tokens[i], rows + i * decoder->embedding.width);
  decoder->control[VM_CONTROL_ROWS] = decoder->control[VM_CONTROL_LENGTH] = count;
  decoder->control[VM_CONTROL_SEQUENCES + VM_LINE_PAST] = past;
  return vm_run_stage(decoder, number, pool);
}

/* Compute the last attention, what follows it and the head for the last position of a piece alone. */
static vm_status vm_go_on_with_last(vermilion_decoder *decoder, int64_t count, int64_t past, const vermilion_pool *pool) {
  for (uint32_t i = 0; i < decoder->crossing_count; i++) {
    const vm_crossing *crossing = &decoder->crossing[i];
    memmove(crossing->rows, crossing->rows + (count - 1) * crossing->width, (size_t)crossing->width * sizeof *crossing->rows);
  }
  decoder->control[VM_CONTROL_ROWS] = decoder->control[VM_CONTROL_LENGTH] = 1;
  decoder->control[VM_CONTROL_SEQUENCES + VM_LINE_PAST] = past + count - 1;
  VM_TRY(vm_run_stage(decoder, VM_REST, pool));
  memcpy(decoder->head_input, decoder->hidden, (size_t)decoder->hidden_width * sizeof *decoder->hidden);
  return vm_run_stage(decoder, VM_HEAD, pool);
}

static void vm_give_logits(const vermilion_decoder *decoder, const float *from, float *logits) {
  memcpy(logits, from, (size_t)decoder->vocabulary * sizeof *logits);
  float factor = decoder->logits_factor, bound = decoder->logits_bound;
  if (factor != 1.0f)
    for (int64_t i = 0; i < decoder->vocabulary; i++) logits[i] *= factor;
  if (bound != 0.0f)
    for (int64_t i = 0; i < decoder->vocabulary; i++) logits[i] = vm_tanh(logits[i] / bound) * bound;
}

static vm_status vm_read(vermilion_decoder *decoder, vermilion_cache *cache, unsigned char *const *parts, const int64_t *tokens,
                         int64_t count, float *logits, const vermilion_pool *pool) {
  int64_t *line = decoder->control + VM_CONTROL_SEQUENCES, end = cache->length + count;
  line[VM_LINE_CAPACITY] = vm_block_count(cache->capacity) * VM_BLOCK_TOKENS;
  line[VM_LINE_ROOM] = 0;
  line[VM_LINE_TURNS] = decoder->short_length && decoder->short_length < end ? decoder->short_length : 0;
  vm_clear_blocks(decoder, parts, cache, count);
  vm_point_caches(decoder, parts);
  if (count <= VM_FEW_ROWS) {
    VM_TRY(vm_read_piece(decoder, VM_FEW, tokens, count, cache->length, pool));
    if (logits) vm_give_logits(decoder, decoder->logits + (count - 1) * decoder->logits_width, logits);
    return NULL;
  }
  for (int64_t first = 0; first < count; first += VM_MANY_ROWS) {
    int64_t piece = count - first < VM_MANY_ROWS ? count - first : VM_MANY_ROWS;
    VM_TRY(vm_read_piece(decoder, VM_MANY, tokens + first, piece, cache->length + first, pool));
    if (first + piece < count || !logits) continue;
    VM_TRY(vm_go_on_with_last(decoder, piece, cache->length + first, pool));
    vm_give_logits(decoder, decoder->logits, logits);
  }
  return NULL;
}

VERMILION_API vermilion_status *vermilion_decoder_read(vermilion_decoder *decoder, vermilion_cache *cache, const int64_t *tokens,
                                                       size_t count, float *logits, const vermilion_pool *pool) {
  if (!decoder) return vm_fail(VERMILION_ERROR_OPTION, "", "give what `vermilion_decoder_open` made", "the decoder is NULL");
  if (pool && (pool->size < sizeof *pool || !pool->parallel_for))
    return vm_fail(VERMILION_ERROR_OPTION, "", "set `size` to sizeof(vermilion_pool), and `parallel_for`", "the pool is not filled in");
  VM_TRY(vm_check_read(decoder, cache, tokens, count));
  unsigned char **parts = calloc(2 * (size_t)decoder->layer_count + 1, sizeof *parts), *at = cache->data;
  if (!parts) return vm_no_memory();
  for (uint32_t i = 0; i < 2 * decoder->layer_count; i++) {
    parts[i] = cache->parts ? cache->parts[i] : at;
    if (!cache->parts) at += ((size_t)vm_layer_bytes(decoder, &decoder->layers[i / 2], cache->capacity) + 63) & ~(size_t)63;
  }
  if (vm_enter_process(&decoder->process)) {
    vm_lock_new(&decoder->turn);
    for (int i = 0; i < VM_STAGES; i++) vm_team_renew(decoder->stages[i].team);
    atomic_store(&decoder->process, vm_process());
  }
  vm_lock_take(&decoder->turn);
  vm_status status = vm_read(decoder, cache, parts, tokens, (int64_t)count, logits, pool);
  vm_lock_leave(&decoder->turn);
  free(parts);
  VM_TRY(status);
  cache->length += (int64_t)count;
  cache->is_long = decoder->short_length && cache->length > decoder->short_length;
  return NULL;
}

/* ---- asking ---- */

VERMILION_API int64_t vermilion_decoder_vocabulary(const vermilion_decoder *decoder) { return decoder ? decoder->vocabulary : 0; }

VERMILION_API int64_t vermilion_decoder_context(const vermilion_decoder *decoder) { return decoder ? decoder->context : 0; }

VERMILION_API int64_t vermilion_decoder_layers(const vermilion_decoder *decoder) { return decoder ? decoder->layer_count : 0; }

VERMILION_API const char *vermilion_decoder_target(const vermilion_decoder *decoder) { return decoder ? decoder->target : ""; }

VERMILION_API size_t vermilion_layer_bytes(const vermilion_decoder *decoder, int64_t layer, int64_t capacity) {
  if (!decoder || layer < 0 || layer >= decoder->layer_count || capacity < 1 || capacity > decoder->context) return 0;
  return (size_t)vm_layer_bytes(decoder, &decoder->layers[layer], capacity);
}
