/* A part's `kernels.json`: the calls of a run, at one size or as formulas of the inputs' sizes. */
#include "internal.h"

#define VM_TABLE_FORMAT 9 /* `backends/native_files.py` says the same */
#define VM_MOST_ENTRIES 65536
/* What any size, offset or count may be: products of two of them do not leave 64 bits. */
#define VM_MOST ((int64_t)1 << 46)

typedef struct vm_table_reader {
  vm_arena *arena;
  const char *where;
  vm_program *program;
} vm_table_reader;

static const struct {
  const char *storage, *type;
  vermilion_type number;
  int bytes;
} VM_TYPES[] = {
    {"f32", "tensor(float)", VERMILION_FLOAT, 4},      {"bf16", "tensor(bfloat16)", VERMILION_BFLOAT16, 2},
    {"f16", "tensor(float16)", VERMILION_FLOAT16, 2},  {"u8", "tensor(uint8)", VERMILION_UINT8, 1},
    {"s8", "tensor(int8)", VERMILION_INT8, 1},         {"u16", "tensor(uint16)", VERMILION_UINT16, 2},
    {"s16", "tensor(int16)", VERMILION_INT16, 2},      {"i32", "tensor(int32)", VERMILION_INT32, 4},
    {"i64", "tensor(int64)", VERMILION_INT64, 8},      {"bool", "tensor(bool)", VERMILION_BOOL, 1},
};
#define VM_TYPE_COUNT (sizeof VM_TYPES / sizeof *VM_TYPES)

static vermilion_type vm_type_named(const char *name, bool is_storage) {
  for (size_t i = 0; i < VM_TYPE_COUNT; i++)
    if (!strcmp(is_storage ? VM_TYPES[i].storage : VM_TYPES[i].type, name)) return VM_TYPES[i].number;
  return VERMILION_UNDEFINED;
}

static int vm_type_bytes(vermilion_type type) {
  for (size_t i = 0; i < VM_TYPE_COUNT; i++)
    if (VM_TYPES[i].number == type) return VM_TYPES[i].bytes;
  return 0;
}

static const char *vm_type_text(vermilion_type type) {
  for (size_t i = 0; i < VM_TYPE_COUNT; i++)
    if (VM_TYPES[i].number == type) return VM_TYPES[i].type;
  return "no type";
}

static vm_status vm_bad_table(const vm_table_reader *reader, const char *what) {
  return vm_fail(VERMILION_ERROR_ARTIFACT, reader->where, VM_DAMAGED, "the step table has %s that is damaged", what);
}

/* A number in the table; of an open program, that of a formula. */
static vm_status vm_take_number(const vm_table_reader *reader, const vm_json *value, const char *what, int64_t *number) {
  int64_t most = reader->program->is_open ? (int64_t)reader->program->formula_count - 1 : VM_MOST;
  return vm_whole(value, 0, most, number) ? NULL : vm_bad_table(reader, what);
}

static vm_status vm_take_formula(const vm_table_reader *reader, const vm_json *value, int32_t *number) {
  int64_t found;
  if (!vm_whole(value, 0, (int64_t)reader->program->formula_count - 1, &found)) return vm_bad_table(reader, "a formula");
  *number = (int32_t)found;
  return NULL;
}

static vm_status vm_take_terms(const vm_table_reader *reader, const vm_json *sum, int64_t row, vm_formula *formula) {
  size_t words = 0;
  if (sum->kind != VM_LIST) return vm_bad_table(reader, "a formula");
  for (uint32_t i = 0; i < sum->count; i++) {
    const vm_json *term = &sum->items[i];
    if (term->kind != VM_LIST || term->count != 2 || term->items[1].kind != VM_LIST) return vm_bad_table(reader, "a formula");
    words += 2 + term->items[1].count;
  }
  int64_t *at = vm_take(reader->arena, words, sizeof *at);
  if (!at) return vm_no_memory();
  formula->terms = at;
  formula->term_count = sum->count;
  for (uint32_t i = 0; i < sum->count; i++) {
    const vm_json *term = &sum->items[i], *numbers = &term->items[1];
    if (!vm_whole(&term->items[0], -VM_MOST, VM_MOST, at++)) return vm_bad_table(reader, "a formula");
    *at++ = numbers->count;
    for (uint32_t k = 0; k < numbers->count; k++)
      if (!vm_whole(&numbers->items[k], 0, row - 1, at++)) return vm_bad_table(reader, "a formula");
  }
  return NULL;
}

static vm_status vm_take_row(const vm_table_reader *reader, const vm_json *row, int64_t number, vm_formula *formula) {
  static const char *const names[] = {"symbol", "sum", "quotient", "max", "min"};
  int64_t one, other;
  if (row->kind != VM_LIST || row->count < 2 || row->items[0].kind != VM_TEXT) return vm_bad_table(reader, "a formula");
  for (int i = 0; i < 5; i++) {
    if (strcmp(row->items[0].text, names[i])) continue;
    formula->operation = (vm_operation)i;
    if (i == VM_SUM) return vm_take_terms(reader, &row->items[1], number, formula);
    if (i == VM_SYMBOL) {
      for (uint32_t k = 0; k < reader->program->symbol_count; k++)
        if (row->items[1].kind == VM_TEXT && !strcmp(reader->program->symbols[k].name, row->items[1].text)) {
          formula->one = (int32_t)k;
          return NULL;
        }
      return vm_bad_table(reader, "a symbol");
    }
    if (row->count != 3 || !vm_whole(&row->items[1], 0, number - 1, &one) || !vm_whole(&row->items[2], 0, number - 1, &other))
      return vm_bad_table(reader, "a formula");
    formula->one = (int32_t)one;
    formula->other = (int32_t)other;
    return NULL;
  }
  return vm_bad_table(reader, "a formula");
}

/* Symbols, formulas, guards and sizes of buffers of an open program. */
static vm_status vm_take_formulas(const vm_table_reader *reader, const vm_json *table) {
  vm_program *program = reader->program;
  const vm_json *symbols = vm_member(table, "symbols"), *formulas, *guards, *buffers;
  if (symbols->kind != VM_OBJECT) return vm_bad_table(reader, "a symbol");
  VM_TRY(vm_list_of(table, "formulas", reader->where, &formulas));
  VM_TRY(vm_list_of(table, "guards", reader->where, &guards));
  VM_TRY(vm_list_of(table, "buffers", reader->where, &buffers));
  program->symbols = vm_take(reader->arena, symbols->count, sizeof *program->symbols);
  program->formulas = vm_take(reader->arena, formulas->count, sizeof *program->formulas);
  program->guards = vm_take(reader->arena, guards->count, sizeof *program->guards);
  int32_t *sizes = vm_take(reader->arena, buffers->count, sizeof *sizes);
  program->lives = vm_take(reader->arena, buffers->count, sizeof *program->lives);
  if (!program->symbols || !program->formulas || !program->guards || !sizes || !program->lives) return vm_no_memory();
  program->symbol_count = symbols->count;
  for (uint32_t i = 0; i < symbols->count; i++) {
    const vm_json *at = &symbols->items[i];
    int64_t input, axis, times;
    if (at->kind != VM_LIST || at->count != 3 || !vm_whole(&at->items[0], 0, (int64_t)program->input_count - 1, &input) ||
        !vm_whole(&at->items[1], 0, VERMILION_MAX_RANK - 1, &axis) || !vm_whole(&at->items[2], 1, INT32_MAX, &times))
      return vm_bad_table(reader, "a symbol");
    program->symbols[i] = (vm_symbol_size){symbols->keys[i], (int32_t)input, (int32_t)axis, times};
  }
  for (uint32_t i = 0; i < formulas->count; i++) VM_TRY(vm_take_row(reader, &formulas->items[i], i, &program->formulas[i]));
  program->formula_count = formulas->count;
  program->guard_count = guards->count;
  for (uint32_t i = 0; i < guards->count; i++) {
    const vm_json *guard = &guards->items[i];
    int64_t sign = 2;
    bool is_pair = guard->kind == VM_LIST && guard->count == 2;
    if (!is_pair || (guard->items[1].kind != VM_NULL && !vm_whole(&guard->items[1], -1, 1, &sign))) return vm_bad_table(reader, "a guard");
    VM_TRY(vm_take_formula(reader, &guard->items[0], &program->guards[i].difference));
    program->guards[i].sign = (int32_t)sign;
  }
  program->buffers = sizes;
  program->buffer_count = buffers->count;
  for (uint32_t i = 0; i < buffers->count; i++) {
    VM_TRY(vm_take_formula(reader, &buffers->items[i], &sizes[i]));
    program->lives[i][0] = INT32_MAX;
    program->lives[i][1] = -1;
  }
  return NULL;
}

static vm_status vm_take_ports(const vm_table_reader *reader, const vm_json *table, const char *key, vm_port_size **ports,
                               uint32_t *count) {
  const vm_json *list, *shape;
  VM_TRY(vm_list_of(table, key, reader->where, &list));
  *ports = vm_take(reader->arena, list->count, sizeof **ports);
  if (!*ports) return vm_no_memory();
  *count = list->count;
  for (uint32_t i = 0; i < list->count; i++) {
    vm_port_size *port = &(*ports)[i];
    const char *storage;
    VM_TRY(vm_text_of(&list->items[i], "name", reader->where, &port->name));
    VM_TRY(vm_text_of(&list->items[i], "storage", reader->where, &storage));
    VM_TRY(vm_list_of(&list->items[i], "shape", reader->where, &shape));
    port->type = vm_type_named(storage, true);
    if (port->type == VERMILION_UNDEFINED) return vm_bad_table(reader, "a type");
    if (shape->count > VERMILION_MAX_RANK)
      return vm_fail(VERMILION_ERROR_UNSUPPORTED, reader->where, "run it in Python, with `vermilion run`",
                     "`%s` has %u dimensions, this library takes %d", port->name, shape->count, VERMILION_MAX_RANK);
    port->rank = (int32_t)shape->count;
    for (uint32_t k = 0; k < shape->count; k++)
      if (!vm_whole(&shape->items[k], 0, VM_MOST, &port->shape[k])) return vm_bad_table(reader, "a shape");
  }
  return NULL;
}

/* Shapes are read before formulas are: say whether their numbers are those of formulas. */
static vm_status vm_check_ports(const vm_table_reader *reader, const vm_port_size *ports, uint32_t count) {
  for (uint32_t i = 0; i < count; i++)
    for (int32_t k = 0; k < ports[i].rank; k++)
      if (ports[i].shape[k] >= (int64_t)reader->program->formula_count) return vm_bad_table(reader, "a shape");
  return NULL;
}

static vm_status vm_take_checks(const vm_table_reader *reader, const vm_json *table) {
  vm_program *program = reader->program;
  const vm_json *list;
  VM_TRY(vm_list_of(table, "checks", reader->where, &list));
  program->checks = vm_take(reader->arena, list->count, sizeof *program->checks);
  if (!program->checks) return vm_no_memory();
  program->check_count = list->count;
  for (uint32_t i = 0; i < list->count; i++) {
    const vm_json *row = &list->items[i];
    vm_check *check = &program->checks[i];
    VM_TRY(vm_text_of(row, "where", reader->where, &check->where));
    VM_TRY(vm_take_number(reader, vm_member(row, "count"), "a check", &check->count));
    VM_TRY(vm_take_number(reader, vm_member(row, "size"), "a check", &check->size));
    if (!program->is_open) VM_TRY(vm_take_number(reader, vm_member(row, "offset"), "a check", &check->offset));
  }
  return NULL;
}

static int32_t vm_function_number(vm_table_reader *reader, const char *name) {
  vm_program *program = reader->program;
  for (uint32_t i = 0; i < program->function_count; i++)
    if (!strcmp(program->functions[i].name, name)) return (int32_t)i;
  program->functions[program->function_count] = (vm_symbol){name, NULL};
  return (int32_t)program->function_count++;
}

static vm_status vm_take_argument(const vm_table_reader *reader, const vm_json *row, uint32_t call, vm_argument *argument) {
  static const char *const names[] = {"arena", "weights", "input", "output", "checks"};
  vm_program *program = reader->program;
  const char *place;
  int64_t index = 0;
  VM_TRY(vm_text_of(row, "place", reader->where, &place));
  argument->place = VM_SIZE;
  for (int i = 0; i < 5; i++)
    if (!strcmp(place, names[i])) argument->place = (vm_place)i;
  const uint32_t counts[] = {program->is_open ? program->buffer_count : 1, 1, program->input_count,
                             program->output_count, program->is_open ? program->check_count : 1};
  if (argument->place == VM_SIZE) return vm_bad_table(reader, "a place");
  if (vm_member(row, "index") && !vm_whole(vm_member(row, "index"), 0, (int64_t)counts[argument->place] - 1, &index))
    return vm_bad_table(reader, "a place");
  if (argument->place >= VM_INPUT && argument->place <= VM_OUTPUT && index >= counts[argument->place])
    return vm_bad_table(reader, "a place");
  argument->index = (int32_t)index;
  VM_TRY(vm_take_number(reader, vm_member(row, "offset"), "an offset", &argument->offset));
  if (!program->is_open) {
    int64_t most = argument->place == VM_IN_ARENA ? program->arena_bytes : (int64_t)program->weights.size;
    if (argument->place <= VM_IN_WEIGHTS && argument->offset > most) return vm_bad_table(reader, "an offset");
    return NULL;
  }
  VM_TRY(vm_flag_of(row, "written", reader->where, &argument->is_written));
  if (argument->place == VM_IN_WEIGHTS && !vm_whole(vm_member(row, "base"), 0, (int64_t)program->weights.size, &argument->base))
    return vm_bad_table(reader, "an offset");
  if (argument->place == VM_IN_ARENA) {
    int32_t *life = program->lives[index];
    if (life[0] > (int32_t)call) life[0] = (int32_t)call;
    life[1] = (int32_t)call;
  }
  return NULL;
}

/* What an open program's call says beside its arguments: sizes, and how far it reaches. */
static vm_status vm_take_open_call(const vm_table_reader *reader, const vm_json *row, vm_call *call, vm_argument *arguments) {
  const vm_json *sizes = vm_member(row, "sizes"), *extents = vm_member(row, "extents");
  for (uint32_t i = 0; i < sizes->count; i++) {
    vm_argument *argument = &arguments[call->argument_count++];
    argument->place = VM_SIZE;
    VM_TRY(vm_take_number(reader, &sizes->items[i], "a size", &argument->offset));
  }
  if (!extents || extents->kind != VM_LIST) return vm_bad_table(reader, "an extent");
  vm_extent *found = vm_take(reader->arena, extents->count, sizeof *found);
  if (!found) return vm_no_memory();
  call->extents = found;
  call->extent_count = extents->count;
  for (uint32_t i = 0; i < extents->count; i++) {
    const vm_json *extent = &extents->items[i];
    if (extent->kind != VM_LIST || extent->count != 3) return vm_bad_table(reader, "an extent");
    VM_TRY(vm_take_formula(reader, &extent->items[0], &found[i].low));
    VM_TRY(vm_take_formula(reader, &extent->items[1], &found[i].high));
    VM_TRY(vm_take_formula(reader, &extent->items[2], &found[i].size));
  }
  VM_TRY(vm_take_number(reader, vm_member(row, "operations"), "a call", &call->operations));
  VM_TRY(vm_take_number(reader, vm_member(row, "moved"), "a call", &call->moved));
  return vm_flag_of(row, "border", reader->where, &call->is_border);
}

static vm_status vm_take_call(vm_table_reader *reader, const vm_json *row, uint32_t number, vm_call *call) {
  vm_program *program = reader->program;
  const vm_json *list, *sizes = vm_member(row, "sizes");
  const char *function;
  VM_TRY(vm_text_of(row, "function", reader->where, &function));
  VM_TRY(vm_list_of(row, "arguments", reader->where, &list));
  VM_TRY(vm_take_number(reader, vm_member(row, "units"), "a call", &call->units));
  if (program->is_open && (!sizes || sizes->kind != VM_LIST)) return vm_bad_table(reader, "a size");
  size_t room = (size_t)list->count + (program->is_open ? sizes->count : 0);
  vm_argument *arguments = vm_take(reader->arena, room, sizeof *arguments);
  if (!arguments) return vm_no_memory();
  call->function = vm_function_number(reader, function);
  call->arguments = arguments;
  call->argument_count = list->count;
  for (uint32_t i = 0; i < list->count; i++) VM_TRY(vm_take_argument(reader, &list->items[i], number, &arguments[i]));
  if (program->is_open) return vm_take_open_call(reader, row, call, arguments);
  if (!vm_whole(vm_member(row, "chunk"), -INT32_MAX, VM_MOST, &call->chunk)) return vm_bad_table(reader, "a call");
  return vm_flag_of(row, "barrier", reader->where, &call->has_barrier);
}

static vm_status vm_take_calls(vm_table_reader *reader, const vm_json *list, vm_call **calls, uint32_t *count) {
  *calls = vm_take(reader->arena, list->count, sizeof **calls);
  if (!*calls) return vm_no_memory();
  *count = list->count;
  for (uint32_t i = 0; i < list->count; i++) VM_TRY(vm_take_call(reader, &list->items[i], i, &(*calls)[i]));
  return NULL;
}

/* What a program for one size has beside its calls. */
static vm_status vm_take_fixed(vm_table_reader *reader, const vm_json *table) {
  vm_program *program = reader->program;
  const vm_json *again;
  VM_TRY(vm_number_of(table, "arena_bytes", reader->where, 0, VM_MOST, &program->arena_bytes));
  VM_TRY(vm_number_of(table, "entries", reader->where, 1, VM_MOST_ENTRIES, &program->entries));
  VM_TRY(vm_flag_of(table, "any_batch", reader->where, &program->any_batch));
  VM_TRY(vm_list_of(table, "barriers_again", reader->where, &again));
  if (!again->count) return NULL;
  const vm_json *calls = vm_member(table, "calls");
  if (again->count != calls->count) return vm_bad_table(reader, "a barrier");
  unsigned char *barriers = vm_take(reader->arena, again->count, 1);
  if (!barriers) return vm_no_memory();
  for (uint32_t i = 0; i < again->count; i++) barriers[i] = again->items[i].kind == VM_TRUE;
  program->barriers_again = barriers;
  return NULL;
}

/* Read the table of a part whose weights are known. Its functions' addresses are open still. */
static vm_status vm_read_table(vm_program *program, vm_arena *arena, const vm_json *table, const char *where) {
  vm_table_reader reader = {arena, where, program};
  const vm_json *calls, *once = vm_member(table, "once");
  int64_t format;
  VM_TRY(vm_number_of(table, "format", where, 0, INT32_MAX, &format));
  if (format != VM_TABLE_FORMAT)
    return vm_fail(VERMILION_ERROR_ARTIFACT, where, VM_OTHER_VERSION, "the step table has format %lld, this library reads %d",
                   (long long)format, VM_TABLE_FORMAT);
  program->is_open = vm_member(table, "symbols") != NULL;
  program->entries = 1;
  VM_TRY(vm_number_of(table, "most_workers", where, 1, INT32_MAX, &program->most_workers));
  VM_TRY(vm_list_of(table, "calls", where, &calls));
  VM_TRY(vm_take_ports(&reader, table, "inputs", &program->inputs, &program->input_count));
  VM_TRY(vm_take_ports(&reader, table, "outputs", &program->outputs, &program->output_count));
  if (program->is_open) {
    VM_TRY(vm_take_formulas(&reader, table));
    VM_TRY(vm_check_ports(&reader, program->inputs, program->input_count));
    VM_TRY(vm_check_ports(&reader, program->outputs, program->output_count));
  } else {
    VM_TRY(vm_take_fixed(&reader, table));
  }
  VM_TRY(vm_take_checks(&reader, table));
  size_t most = (size_t)calls->count + (once && once->kind == VM_LIST ? once->count : 0) + 2;
  program->functions = vm_take(arena, most, sizeof *program->functions);
  if (!program->functions) return vm_no_memory();
  VM_TRY(vm_take_calls(&reader, calls, &program->calls, &program->call_count));
  if (once && once->kind == VM_LIST && !program->is_open)
    VM_TRY(vm_take_calls(&reader, once, &program->once, &program->once_count));
  vm_function_number(&reader, "vermilion_run");
  vm_function_number(&reader, "vermilion_serve");
  return NULL;
}

/* Look whether all functions are there; find the driver's. */
static vm_status vm_settle_functions(vm_program *program, const char *where) {
  for (uint32_t i = 0; i < program->function_count; i++)
    if (!program->functions[i].address)
      return vm_fail(VERMILION_ERROR_ARTIFACT, where, VM_DAMAGED, "the code has no function `%s`", program->functions[i].name);
  program->run = (vm_run_function)program->functions[program->function_count - 2].address;
  program->serve = (vm_serve_function)program->functions[program->function_count - 1].address;
  return NULL;
}

/* Use weights where they are, or a copy that is aligned. */
static vm_status vm_settle_weights(vm_program *program, vm_bytes weights) {
  program->weights = weights;
  if (((uintptr_t)weights.data & 63) == 0) return NULL;
  program->own_weights = vm_aligned(weights.size);
  if (!program->own_weights) return vm_no_memory();
  memcpy(program->own_weights, weights.data, weights.size);
  program->weights.data = program->own_weights;
  return NULL;
}

static void vm_program_free(vm_program *program) {
  for (uint32_t i = 0; i < program->code_count; i++) vm_code_free(program->code[i]);
  vm_aligned_free(program->own_weights);
}
