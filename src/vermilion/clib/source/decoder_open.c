/* Opening a language model: its facts, arrays and programs, and where everything lies. */
#include "internal.h"
#include "linked.h"

#define VM_MOST_LAYERS 4096
#define VM_MOST_WIDTH ((int64_t)1 << 24)
#define VM_DECODER_PART "decoder"

/* What is known while a decoder is opened. */
typedef struct vm_decoder_opening {
  vermilion_decoder *decoder;
  vm_json manifest, about;
  uint32_t flags;
  const vermilion_linked *linked; /* NULL: from files */
} vm_decoder_opening;

static vm_status vm_bad_decoder(const vermilion_decoder *decoder, const char *what) {
  return vm_fail(VERMILION_ERROR_ARTIFACT, decoder->where, VM_DAMAGED, "the decoder has %s that is damaged", what);
}

/* ---- facts ---- */

static vm_status vm_fact(const vermilion_decoder *decoder, const vm_json *object, const char *key, int64_t least, int64_t most,
                         int64_t *number) {
  return vm_number_of(object, key, decoder->where, least, most, number);
}

/* A float32, written as its bits. */
static vm_status vm_float_fact(const vermilion_decoder *decoder, const vm_json *object, const char *key, float *value) {
  int64_t bits;
  VM_TRY(vm_fact(decoder, object, key, 0, UINT32_MAX, &bits));
  *value = vm_float_of_bits((uint32_t)bits);
  return NULL;
}

/* An array of the decoder's, by its name; `least` is how many bytes it must have. NULL where there is none. */
static vm_status vm_array(const vm_decoder_opening *opening, const char *name, int64_t least, const unsigned char **data) {
  const vermilion_decoder *decoder = opening->decoder;
  const vm_json *arrays = vm_member(&opening->about, "arrays");
  int64_t offset, bytes, size = (int64_t)decoder->weights.size;
  *data = NULL;
  if (!arrays || arrays->kind != VM_OBJECT) return vm_bad_decoder(decoder, "a list of arrays");
  for (uint32_t i = 0; i < arrays->count; i++) {
    const vm_json *place = &arrays->items[i];
    if (strcmp(arrays->keys[i], name)) continue;
    if (place->kind != VM_LIST || place->count != 2 || !vm_whole(&place->items[0], 0, size, &offset) ||
        !vm_whole(&place->items[1], 0, size - offset, &bytes) || (offset & 63) || bytes < least)
      return vm_bad_decoder(decoder, "an array");
    *data = decoder->weights.data + offset;
  }
  return NULL;
}

static vm_status vm_needed_array(const vm_decoder_opening *opening, const char *name, int64_t least, const unsigned char **data) {
  VM_TRY(vm_array(opening, name, least, data));
  return *data ? NULL : vm_bad_decoder(opening->decoder, "an array");
}

static vm_status vm_take_embedding(const vm_decoder_opening *opening) {
  static const char *const kinds[] = {"f32", "f16", "bf16", "codes"};
  const vermilion_decoder *decoder = opening->decoder;
  vm_embedding *own = &opening->decoder->embedding;
  const vm_json *about = vm_member(&opening->about, "embedding");
  const char *kind;
  const unsigned char *data;
  if (!about) return vm_bad_decoder(decoder, "an embedding");
  VM_TRY(vm_text_of(about, "kind", decoder->where, &kind));
  VM_TRY(vm_fact(decoder, about, "tokens", 1, INT32_MAX, &own->tokens));
  VM_TRY(vm_fact(decoder, about, "width", 1, VM_MOST_WIDTH, &own->width));
  VM_TRY(vm_float_fact(decoder, about, "factor", &own->factor));
  int found = 0;
  while (found < 4 && strcmp(kind, kinds[found])) found++;
  if (found == 4) return vm_bad_decoder(decoder, "an embedding");
  own->kind = (vm_rows_kind)found;
  if (own->kind != VM_ROWS_CODES) {
    own->row_bytes = own->width * (own->kind == VM_ROWS_F32 ? 4 : 2);
    return vm_needed_array(opening, "embedding rows", own->tokens * own->row_bytes, &own->rows);
  }
  VM_TRY(vm_fact(decoder, about, "bits", 4, 8, &own->bits));
  VM_TRY(vm_fact(decoder, about, "block", 1, VM_MOST_WIDTH, &own->block));
  VM_TRY(vm_fact(decoder, about, "blocks", (own->width + own->block - 1) / own->block, VM_MOST_WIDTH, &own->blocks));
  VM_TRY(vm_fact(decoder, about, "row_bytes", (own->width * own->bits + 7) / 8, VM_MOST_WIDTH, &own->row_bytes));
  VM_TRY(vm_fact(decoder, about, "zero_bytes", 0, VM_MOST_WIDTH, &own->zero_bytes));
  VM_TRY(vm_fact(decoder, about, "middle", 0, 128, &own->middle));
  if (own->bits != 4 && own->bits != 8) return vm_bad_decoder(decoder, "an embedding");
  VM_TRY(vm_needed_array(opening, "embedding rows", own->tokens * own->row_bytes, &own->rows));
  VM_TRY(vm_needed_array(opening, "embedding scales", 4 * own->tokens * own->blocks, &data));
  own->scales = (const float *)data;
  VM_TRY(vm_array(opening, "embedding zeros", own->tokens * own->zero_bytes, &own->zeros));
  if (own->zeros && own->zero_bytes < (own->blocks * own->bits + 7) / 8) return vm_bad_decoder(decoder, "an embedding");
  VM_TRY(vm_array(opening, "embedding mins", 4 * own->tokens * own->blocks, &data));
  own->mins = (const float *)data;
  VM_TRY(vm_array(opening, "embedding table", (int64_t)4 << own->bits, &data));
  own->table = (const float *)data;
  return NULL;
}

/* Rows of an activation. Four more: products of many rows are made four at a time. */
static vm_status vm_take_rows(int64_t rows, int64_t columns, float **made) {
  *made = vm_aligned((size_t)((rows + 4) * columns) * sizeof **made + VM_SLACK_BYTES);
  return *made ? NULL : vm_no_memory();
}

static vm_status vm_take_layers(const vm_decoder_opening *opening, const vm_json *facts) {
  vermilion_decoder *decoder = opening->decoder;
  const vm_json *layers, *crossing;
  VM_TRY(vm_list_of(facts, "layers", decoder->where, &layers));
  VM_TRY(vm_list_of(facts, "crossing", decoder->where, &crossing));
  if (layers->count > VM_MOST_LAYERS || crossing->count > VM_MOST_LAYERS) return vm_bad_decoder(decoder, "a list of layers");
  decoder->layers = vm_take(&decoder->arena, layers->count, sizeof *decoder->layers);
  decoder->crossing = vm_take(&decoder->arena, crossing->count, sizeof *decoder->crossing);
  if (!decoder->layers || !decoder->crossing) return vm_no_memory();
  decoder->layer_count = layers->count;
  for (uint32_t i = 0; i < layers->count; i++) {
    const vm_json *pair = &layers->items[i];
    if (pair->kind != VM_LIST || pair->count != 2 || !vm_whole(&pair->items[0], 1, VM_MOST_WIDTH, &decoder->layers[i].heads) ||
        !vm_whole(&pair->items[1], 1, VM_MOST_WIDTH, &decoder->layers[i].size))
      return vm_bad_decoder(decoder, "a layer");
  }
  for (uint32_t i = 0; i < crossing->count; i++) {
    const vm_json *pair = &crossing->items[i];
    vm_crossing *one = &decoder->crossing[i];
    if (pair->kind != VM_LIST || pair->count != 2 || pair->items[0].kind != VM_TEXT || !vm_whole(&pair->items[1], 1, VM_MOST_WIDTH, &one->width))
      return vm_bad_decoder(decoder, "a crossing");
    one->name = pair->items[0].text;
    if (!strcmp(one->name, "first")) {
      if (one->width != decoder->embedding.width) return vm_bad_decoder(decoder, "a crossing");
      one->rows = decoder->many;
    } else {
      VM_TRY(vm_take_rows(VM_MANY_ROWS, one->width, &one->rows));
    }
    decoder->crossing_count = i + 1;
  }
  return NULL;
}

static vm_status vm_take_facts(const vm_decoder_opening *opening) {
  vermilion_decoder *decoder = opening->decoder;
  const vm_json *facts = vm_member(&opening->about, "facts");
  int64_t format;
  VM_TRY(vm_fact(decoder, &opening->about, "format", 0, INT32_MAX, &format));
  if (format != VM_DECODER_FORMAT)
    return vm_fail(VERMILION_ERROR_ARTIFACT, decoder->where, VM_OTHER_VERSION, "the decoder has format %lld, this library reads %d",
                   (long long)format, VM_DECODER_FORMAT);
  if (!facts) return vm_bad_decoder(decoder, "facts");
  VM_TRY(vm_fact(decoder, facts, "vocabulary", 1, INT32_MAX, &decoder->vocabulary));
  VM_TRY(vm_fact(decoder, facts, "context", 1, INT32_MAX, &decoder->context));
  VM_TRY(vm_fact(decoder, facts, "short", 0, INT32_MAX, &decoder->short_length));
  VM_TRY(vm_fact(decoder, facts, "item_bytes", 2, 4, &decoder->item_bytes));
  VM_TRY(vm_fact(decoder, facts, "hidden_width", 1, VM_MOST_WIDTH, &decoder->hidden_width));
  VM_TRY(vm_fact(decoder, facts, "logits_width", decoder->vocabulary, INT32_MAX, &decoder->logits_width));
  VM_TRY(vm_float_fact(decoder, facts, "logits_bound", &decoder->logits_bound));
  VM_TRY(vm_float_fact(decoder, facts, "logits_factor", &decoder->logits_factor));
  VM_TRY(vm_take_embedding(opening));
  decoder->control = vm_aligned(8 * VM_CONTROL_WORDS);
  if (!decoder->control) return vm_no_memory();
  VM_TRY(vm_take_rows(VM_FEW_ROWS, decoder->embedding.width, &decoder->few));
  VM_TRY(vm_take_rows(VM_MANY_ROWS, decoder->embedding.width, &decoder->many));
  VM_TRY(vm_take_rows(VM_MANY_ROWS, decoder->hidden_width, &decoder->hidden));
  VM_TRY(vm_take_rows(VM_FEW_ROWS, decoder->hidden_width, &decoder->head_input));
  VM_TRY(vm_take_rows(VM_FEW_ROWS, decoder->logits_width, &decoder->logits));
  return vm_take_layers(opening, facts);
}

/* ---- programs ---- */

static vm_status vm_take_functions(const vm_decoder_opening *opening, const vm_json *table, vm_stage *stage) {
  vermilion_decoder *decoder = opening->decoder;
  vm_program *program = &stage->program;
  const vm_json *functions, *objects;
  char path[1024], name[64];
  VM_TRY(vm_list_of(table, "functions", decoder->where, &functions));
  VM_TRY(vm_list_of(table, "objects", decoder->where, &objects));
  program->functions = vm_take(&decoder->arena, (size_t)functions->count + 2, sizeof *program->functions);
  program->code = vm_take(&decoder->arena, objects->count, sizeof *program->code);
  if (!program->functions || !program->code) return vm_no_memory();
  for (uint32_t i = 0; i < functions->count; i++) {
    if (functions->items[i].kind != VM_TEXT) return vm_bad_decoder(decoder, "a function");
    program->functions[program->function_count++].name = functions->items[i].text;
  }
  program->functions[program->function_count++].name = "vermilion_run";
  program->functions[program->function_count++].name = "vermilion_serve";
  if (opening->linked) {
    snprintf(name, sizeof name, "%s/%s", VM_DECODER_PART, program->name);
    for (size_t i = 0; i < opening->linked->part_count; i++)
      if (!strcmp(opening->linked->parts[i].name, name)) VM_TRY(vm_linked_code(&opening->linked->parts[i], program));
    return vm_settle_functions(program, decoder->where);
  }
  program->code_count = objects->count;
  for (uint32_t i = 0; i < objects->count; i++) {
    vm_bytes object;
    if (objects->items[i].kind != VM_TEXT) return vm_bad_decoder(decoder, "an object");
    VM_TRY(vm_member_path(VM_DECODER_PART, objects->items[i].text, path, decoder->where));
    VM_TRY(vm_read_member(&decoder->bundle, &opening->manifest, path, true, &object));
    VM_TRY(vm_load_object(object, decoder->where, program->functions, program->function_count, &program->code[i]));
  }
  return vm_settle_functions(program, decoder->where);
}

/* Rows of the step table: function, units, how many a worker takes at a time, barrier, arguments. */
static vm_status vm_take_steps(const vm_decoder_opening *opening, const vm_json *table, vm_stage *stage) {
  vermilion_decoder *decoder = opening->decoder;
  const vm_json *calls;
  VM_TRY(vm_list_of(table, "calls", decoder->where, &calls));
  stage->sized.rows = vm_take(&decoder->arena, calls->count, sizeof *stage->sized.rows);
  if (!stage->sized.rows) return vm_no_memory();
  stage->sized.row_count = calls->count;
  for (uint32_t i = 0; i < calls->count; i++) {
    const vm_json *call = &calls->items[i];
    int64_t function, barrier, arguments;
    vm_row *row = &stage->sized.rows[i];
    if (call->kind != VM_LIST || call->count != 5 || !vm_whole(&call->items[0], 0, (int64_t)stage->program.function_count - 3, &function) ||
        !vm_whole(&call->items[1], 0, INT32_MAX, &row->units) || !vm_whole(&call->items[2], -INT32_MAX, INT32_MAX, &row->chunk) ||
        !vm_whole(&call->items[3], 0, 1, &barrier) || !vm_whole(&call->items[4], 0, 255, &arguments))
      return vm_bad_decoder(decoder, "a step");
    row->function = (int32_t)function;
    row->has_barrier = barrier != 0;
    row->argument_count = (uint32_t)arguments;
    stage->sized.address_count += row->argument_count;
  }
  return NULL;
}

/* Where a buffer lies that is no layer's keys or values; NULL where there is none of that name. */
static vm_status vm_buffer(const vm_decoder_opening *opening, int number, const char *name, const void **base) {
  const vermilion_decoder *decoder = opening->decoder;
  const struct {
    const char *name;
    const void *base;
  } known[] = {
      {"control", decoder->control}, {"first", number == VM_FEW ? decoder->few : decoder->many}, {"hidden", decoder->hidden},
      {"head input", decoder->head_input}, {"logits", decoder->logits},
  };
  const unsigned char *data;
  *base = NULL;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (!strcmp(known[i].name, name)) *base = known[i].base;
  for (uint32_t i = 0; !*base && i < decoder->crossing_count; i++)
    if (!strcmp(decoder->crossing[i].name, name)) *base = decoder->crossing[i].rows;
  if (*base) return NULL;
  VM_TRY(vm_array(opening, name, 0, &data));
  *base = data;
  return NULL;
}

/* Number 2 · layer of `keys LAYER`, one more of `values LAYER`; -1 of another name. */
static int64_t vm_cache_part(const vermilion_decoder *decoder, const char *name) {
  const char *digits = !strncmp(name, "keys ", 5) ? name + 5 : !strncmp(name, "values ", 7) ? name + 7 : NULL;
  char *end;
  if (!digits || *digits < '0' || *digits > '9') return -1;
  long long layer = strtoll(digits, &end, 10);
  return *end || layer >= decoder->layer_count ? -1 : 2 * layer + (name[0] == 'v');
}

static vm_status vm_take_addresses(const vm_decoder_opening *opening, int number, const vm_json *table, vm_stage *stage) {
  vermilion_decoder *decoder = opening->decoder;
  const vm_json *addresses, *buffers;
  VM_TRY(vm_list_of(table, "addresses", decoder->where, &addresses));
  VM_TRY(vm_list_of(table, "buffers", decoder->where, &buffers));
  const void **bases = vm_take(&decoder->arena, buffers->count, sizeof *bases);
  int64_t *parts = vm_take(&decoder->arena, buffers->count, sizeof *parts);
  stage->caches = vm_take(&decoder->arena, addresses->count, sizeof *stage->caches);
  if (!bases || !parts || !stage->caches) return vm_no_memory();
  if (addresses->count != stage->sized.address_count) return vm_bad_decoder(decoder, "an argument");
  for (uint32_t i = 0; i < buffers->count; i++) {
    if (buffers->items[i].kind != VM_TEXT) return vm_bad_decoder(decoder, "a buffer");
    parts[i] = vm_cache_part(decoder, buffers->items[i].text);
    if (parts[i] < 0) VM_TRY(vm_buffer(opening, number, buffers->items[i].text, &bases[i]));
    if (parts[i] < 0 && !bases[i]) return vm_bad_decoder(decoder, "a buffer");
  }
  for (uint32_t i = 0; i < addresses->count; i++) {
    const vm_json *pair = &addresses->items[i];
    int64_t buffer, offset;
    if (pair->kind != VM_LIST || pair->count != 2 || !vm_whole(&pair->items[0], -2, (int64_t)buffers->count - 1, &buffer) ||
        !vm_whole(&pair->items[1], 0, VM_MOST, &offset) || (buffer == -1 && offset > stage->arena_bytes))
      return vm_bad_decoder(decoder, "an argument");
    if (buffer >= 0 && parts[buffer] >= 0) {
      stage->caches[stage->cache_count++] = (vm_cache_argument){i, (uint32_t)parts[buffer], offset};
      continue;
    }
    const void *base = buffer == -2 ? NULL : buffer == -1 ? stage->arena : bases[buffer];
    stage->arguments[i] = (int64_t)(intptr_t)base + offset;
  }
  return NULL;
}

static vm_status vm_open_stage(const vm_decoder_opening *opening, int number, int32_t workers) {
  vermilion_decoder *decoder = opening->decoder;
  vm_stage *stage = &decoder->stages[number];
  const vm_json *programs = vm_member(&opening->about, "programs");
  const vm_json *table = programs && programs->kind == VM_OBJECT ? vm_member(programs, VM_STAGE_NAMES[number]) : NULL;
  if (!table || table->kind != VM_OBJECT) return vm_bad_decoder(decoder, "a program");
  stage->program.name = VM_STAGE_NAMES[number];
  VM_TRY(vm_fact(decoder, table, "arena_bytes", 0, VM_MOST, &stage->arena_bytes));
  VM_TRY(vm_take_functions(opening, table, stage));
  VM_TRY(vm_take_steps(opening, table, stage));
  stage->arena = vm_aligned((size_t)stage->arena_bytes + VM_SLACK_BYTES);
  stage->arguments = vm_aligned(8 * ((size_t)stage->sized.address_count + 1));
  if (!stage->arena || !stage->arguments) return vm_no_memory();
  VM_TRY(vm_take_addresses(opening, number, table, stage));
  VM_TRY(vm_team_new(&stage->program, stage->sized.row_count, workers, &stage->team));
  vm_team_hold(stage->team, &stage->program, &stage->sized, stage->arguments);
  return NULL;
}

/* ---- opening ---- */

static vm_status vm_decoder_files(vm_decoder_opening *opening, vm_bytes data, vm_bytes *table, vm_bytes *weights) {
  vermilion_decoder *decoder = opening->decoder;
  const char *digest;
  if (opening->linked) {
    const vermilion_linked_part *part = &opening->linked->parts[0];
    *table = (vm_bytes){(const unsigned char *)part->table, part->table_bytes};
    *weights = (vm_bytes){part->weights, part->weights_bytes};
    return vm_json_parse(data, decoder->where, &decoder->arena, &opening->manifest);
  }
  VM_TRY(vm_bundle_open(&decoder->bundle, &decoder->arena, decoder->where, data));
  VM_TRY(vm_read_manifest(&decoder->bundle, &decoder->arena, opening->flags, &opening->manifest, &digest));
  const vm_json *parts;
  const char *backend = "";
  VM_TRY(vm_list_of(&opening->manifest, "parts", decoder->where, &parts));
  if (parts->count == 1) VM_TRY(vm_text_of(&parts->items[0], "backend", decoder->where, &backend));
  if (strcmp(backend, VM_DECODER_PART))
    return vm_fail(VERMILION_ERROR_UNSUPPORTED, decoder->where, "open it with `vermilion_open`", "the compiled model is no language model");
  VM_TRY(vm_read_member(&decoder->bundle, &opening->manifest, VM_DECODER_PART "/kernels.json", true, table));
  return vm_read_member(&decoder->bundle, &opening->manifest, VM_DECODER_PART "/packed.bin", !(opening->flags & VERMILION_SKIP_WEIGHTS_DIGEST),
                        weights);
}

static vm_status vm_open_decoder(vm_decoder_opening *opening, vm_bytes data, int32_t workers) {
  vermilion_decoder *decoder = opening->decoder;
  vm_bytes table, weights;
  vm_program holder = {0};
  VM_TRY(vm_decoder_files(opening, data, &table, &weights));
  VM_TRY(vm_text_of(&opening->manifest, "target", decoder->where, &decoder->target));
  VM_TRY(vm_settle_weights(&holder, weights));
  decoder->weights = holder.weights;
  decoder->own_weights = holder.own_weights;
  VM_TRY(vm_json_parse(table, decoder->where, &decoder->arena, &opening->about));
  VM_TRY(vm_take_facts(opening));
  decoder->workers = workers ? workers : vermilion_usable_cores();
  for (int i = 0; i < VM_STAGES; i++) {
    bool is_token = i == VM_FEW || i == VM_HEAD;
    int32_t own = is_token && decoder->workers > VM_MOST_TOKEN_WORKERS ? VM_MOST_TOKEN_WORKERS : decoder->workers;
    VM_TRY(vm_open_stage(opening, i, own));
  }
  return NULL;
}

static vm_status vm_new_decoder(vm_decoder_opening *opening, const char *where, vm_bytes data, int32_t workers, vermilion_decoder **result) {
  *result = NULL;
  if (workers < 0 || workers > 4096)
    return vm_fail(VERMILION_ERROR_OPTION, "", "0 means all cores", "a decoder cannot have %d workers", workers);
  vermilion_decoder *decoder = calloc(1, sizeof *decoder);
  if (!decoder) return vm_no_memory();
  opening->decoder = decoder;
  vm_lock_new(&decoder->turn);
  atomic_store(&decoder->process, vm_process());
  decoder->where = vm_take_text(&decoder->arena, where, strlen(where));
  vm_status status = decoder->where ? vm_open_decoder(opening, data, workers) : vm_no_memory();
  if (status) {
    vermilion_decoder_free(decoder);
    return status;
  }
  *result = decoder;
  return NULL;
}

VERMILION_API vermilion_status *vermilion_decoder_open(const char *path, const vermilion_decoder_options *options, vermilion_decoder **decoder) {
  vm_decoder_opening opening = {.flags = options ? options->flags : 0};
  if (!path || !decoder) return vm_no_pointer();
  return vm_new_decoder(&opening, path, (vm_bytes){NULL, 0}, options ? options->workers : 0, decoder);
}

VERMILION_API vermilion_status *vermilion_decoder_open_memory(const void *data, size_t bytes, const vermilion_decoder_options *options,
                                                              vermilion_decoder **decoder) {
  vm_decoder_opening opening = {.flags = options ? options->flags : 0};
  if (!data || !decoder) return vm_no_pointer();
  return vm_new_decoder(&opening, "bytes in memory", (vm_bytes){data, bytes}, options ? options->workers : 0, decoder);
}

#ifdef VERMILION_LINKED
VERMILION_API vermilion_status *vermilion_decoder_open_linked(const vermilion_linked *targets, size_t count, int32_t workers,
                                                              vermilion_decoder **decoder) {
  const vermilion_linked *chosen;
  if (!decoder) return vm_no_pointer();
  *decoder = NULL;
  VM_TRY(vm_choose_linked(targets, count, &chosen));
  vm_decoder_opening opening = {.linked = chosen};
  vm_bytes manifest = {(const unsigned char *)chosen->manifest, chosen->manifest_bytes};
  return vm_new_decoder(&opening, chosen->name, manifest, workers, decoder);
}
#endif

VERMILION_API void vermilion_decoder_free(vermilion_decoder *decoder) {
  if (!decoder) return;
  bool has_threads = atomic_load(&decoder->process) == vm_process();
  for (int i = 0; i < VM_STAGES; i++) {
    vm_stage *stage = &decoder->stages[i];
    vm_team_free(stage->team, has_threads);
    vm_program_free(&stage->program);
    vm_aligned_free(stage->arguments);
    vm_aligned_free(stage->arena);
  }
  for (uint32_t i = 0; i < decoder->crossing_count; i++)
    if (decoder->crossing[i].rows != decoder->many) vm_aligned_free(decoder->crossing[i].rows);
  float *const rows[] = {decoder->few, decoder->many, decoder->hidden, decoder->head_input, decoder->logits};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) vm_aligned_free(rows[i]);
  vm_aligned_free(decoder->control);
  vm_aligned_free(decoder->own_weights);
  vm_bundle_free(&decoder->bundle);
  vm_arena_free(&decoder->arena);
  free(decoder);
}
