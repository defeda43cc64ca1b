/* Sessions: memory and threads to run a model with. */
#include "internal.h"

/* Tables that are kept: 150 calls take 20 kB. */
#define VM_MOST_TABLES 256
/* What kernels may count on of an output's memory. */
#define VM_OUTPUT_ALIGNMENT 16

/* A part that is ready to run. */
typedef struct vm_runner {
  const vm_program *program;
  vm_team *team;
  vm_sized **tables;
  uint32_t table_count;
  const vm_sized *current; /* whose rows the team has */
  const vm_sized *due;     /* of the run at hand */
  int64_t entries;         /* how often it is run */
  int64_t *arguments;
  unsigned char *arena, *words;
  int64_t arena_bytes, words_bytes;
  vm_port_size *inputs; /* as the run at hand has them */
} vm_runner;

/* A tensor of the model during a run; `own` is the session's memory for it. */
typedef struct vm_value {
  vermilion_type type;
  int32_t rank;
  int64_t shape[VERMILION_MAX_RANK];
  int64_t bytes;
  unsigned char *data, *own;
  int64_t own_bytes;
} vm_value;

struct vermilion_session {
  vermilion_model *model;
  int32_t workers;
  vm_lock turn;
  _Atomic long process; /* whose threads there are; -1 while that changes */
  uint64_t clock;
  vm_runner *runners;
  vm_value *values;
};

static void vm_runner_free(vm_runner *runner, bool has_threads) {
  vm_team_free(runner->team, has_threads);
  for (uint32_t i = 0; i < runner->table_count; i++) vm_sized_free(runner->tables[i]);
  free(runner->tables);
  free(runner->inputs);
  vm_aligned_free(runner->arguments);
  vm_aligned_free(runner->arena);
  vm_aligned_free(runner->words);
}

/* Take `bytes` of zeroed memory instead of what `memory` has, where that is less. */
static bool vm_enlarge(unsigned char **memory, int64_t *has, int64_t bytes) {
  if (*memory && *has >= bytes) return true;
  vm_aligned_free(*memory);
  *memory = vm_aligned((size_t)bytes);
  *has = *memory ? bytes : 0;
  return *memory != NULL;
}

/* Make the calls that are made once: borders. */
static vm_status vm_run_once(const vm_runner *runner) {
  const vm_program *program = runner->program;
  for (uint32_t i = 0; i < program->once_count; i++) {
    const vm_call *call = &program->once[i];
    int64_t *at = vm_aligned(8 * (size_t)call->argument_count + 8);
    if (!at) return vm_no_memory();
    for (uint32_t k = 0; k < call->argument_count; k++) {
      const unsigned char *base = call->arguments[k].place == VM_IN_WEIGHTS ? program->weights.data : runner->arena;
      at[k] = (int64_t)(intptr_t)base + call->arguments[k].offset;
    }
    vm_grow_stack();
    ((vm_kernel)program->functions[call->function].address)(at, 0, call->units);
    vm_aligned_free(at);
  }
  return NULL;
}

static vm_status vm_runner_new(vm_runner *runner, const vm_program *program, int32_t workers) {
  size_t arguments = 0;
  for (uint32_t i = 0; i < program->call_count; i++) arguments += program->calls[i].argument_count;
  runner->program = program;
  runner->arguments = vm_aligned(8 * (arguments * (size_t)program->entries + 1));
  runner->tables = calloc(program->is_open ? VM_MOST_TABLES : 1, sizeof *runner->tables);
  runner->inputs = calloc(program->input_count + 1u, sizeof *runner->inputs);
  if (!runner->arguments || !runner->tables || !runner->inputs) return vm_no_memory();
  VM_TRY(vm_team_new(program, (int64_t)program->call_count * program->entries, workers, &runner->team));
  if (program->is_open) return NULL;
  if (!vm_enlarge(&runner->arena, &runner->arena_bytes, program->arena_bytes + VM_SLACK_BYTES)) return vm_no_memory();
  for (uint32_t i = 0; i < program->once_count; i++)
    for (uint32_t k = 0; k < program->once[i].argument_count; k++)
      if (program->once[i].arguments[k].place > VM_IN_WEIGHTS)
        return vm_fail(VERMILION_ERROR_ARTIFACT, program->name, VM_DAMAGED, "a call that is made once wants an input");
  return vm_run_once(runner);
}

VERMILION_API vermilion_status *vermilion_session_new(vermilion_model *model, const vermilion_session_options *options,
                                                      vermilion_session **result) {
  int32_t wanted = options ? options->workers : 0;
  if (!model || !result)
    return vm_fail(VERMILION_ERROR_OPTION, "", "give a model, and where the session is to go", "a pointer is NULL");
  *result = NULL;
  if (wanted < 0 || wanted > 4096)
    return vm_fail(VERMILION_ERROR_OPTION, "", "0 means all cores", "a session cannot have %d workers", wanted);
  int32_t cores = wanted ? wanted : vermilion_usable_cores();
  vermilion_session *session = calloc(1, sizeof *session);
  if (!session) return vm_no_memory();
  session->model = model;
  atomic_fetch_add(&model->holders, 1);
  session->workers = 1;
  vm_lock_new(&session->turn);
  atomic_store(&session->process, vm_process());
  session->runners = calloc(model->program_count + 1, sizeof *session->runners);
  session->values = calloc(model->value_count + 1, sizeof *session->values);
  vm_status status = session->runners && session->values ? NULL : vm_no_memory();
  for (uint32_t i = 0; !status && i < model->program_count; i++) {
    int64_t most = model->programs[i].most_workers;
    int32_t workers = cores < most ? cores : (int32_t)most;
    if (workers > session->workers) session->workers = workers;
    status = vm_runner_new(&session->runners[i], &model->programs[i], workers);
  }
  if (status) {
    vermilion_session_free(session);
    return status;
  }
  *result = session;
  return NULL;
}

VERMILION_API void vermilion_session_free(vermilion_session *session) {
  if (!session) return;
  bool has_threads = atomic_load(&session->process) == vm_process();
  for (uint32_t i = 0; session->runners && i < session->model->program_count; i++)
    vm_runner_free(&session->runners[i], has_threads);
  for (uint32_t i = 0; session->values && i < session->model->value_count; i++) vm_aligned_free(session->values[i].own);
  free(session->runners);
  free(session->values);
  vermilion_model_free(session->model);
  free(session);
}

VERMILION_API int32_t vermilion_session_workers(const vermilion_session *session) {
  return session ? session->workers : 0;
}

/* Begin anew in a forked process: the threads are elsewhere, and whoever had a turn is not there. */
static void vm_settle_in_process(vermilion_session *session) {
  if (!vm_enter_process(&session->process)) return;
  vm_lock_new(&session->turn);
  for (uint32_t i = 0; i < session->model->program_count; i++) {
    vm_team_renew(session->runners[i].team);
    session->runners[i].current = NULL; /* a run may have been cut off while it changed */
  }
  atomic_store(&session->process, vm_process());
}

/* ---- shapes ---- */

static bool vm_same_shape(const int64_t *one, const int64_t *other, int32_t rank) {
  return !rank || !memcmp(one, other, (size_t)rank * sizeof *one);
}

/* Compare an input with what the model says of it. */
static vm_status vm_check_input(const vermilion_port *port, const vermilion_tensor *tensor) {
  bool fits = port->rank < 0 || port->rank == tensor->rank;
  if (tensor->type != port->type)
    return vm_fail(VERMILION_ERROR_OPTION, port->name, "give it as the model declares it", "input `%s` is %s, the model wants %s", port->name,
                   vm_type_text(tensor->type), vm_type_text(port->type));
  if (tensor->rank < 0 || tensor->rank > VERMILION_MAX_RANK)
    return vm_fail(VERMILION_ERROR_OPTION, port->name, "at most 16 dimensions", "input `%s` has %d dimensions", port->name, tensor->rank);
  for (int32_t i = 0; fits && i < port->rank; i++) fits = port->shape[i] < 0 || port->shape[i] == tensor->shape[i];
  for (int32_t i = 0; fits && i < tensor->rank; i++) fits = tensor->shape[i] >= 0;
  if (fits) return NULL;
  char one[256], other[256];
  return vm_fail(VERMILION_ERROR_OPTION, port->name, "give it in that shape, or compile with other sizes (`--dim`)",
                 "input `%s` has shape %s, the model wants %s", port->name, vm_shape_text(tensor->shape, tensor->rank, one),
                 vm_shape_text(port->shape, port->rank, other));
}

static int64_t vm_value_bytes(const vm_value *value) {
  vm_port_size port = {"", value->type, value->rank, {0}};
  memcpy(port.shape, value->shape, sizeof port.shape);
  return vm_port_bytes(&port);
}

/* Compare the shapes of a part's inputs with those that it is compiled for. */
static vm_status vm_fixed_shapes(vm_runner *runner, const vm_port_size *inputs) {
  const vm_program *program = runner->program;
  for (uint32_t i = 0; i < program->input_count; i++) {
    const vm_port_size *port = &program->inputs[i];
    bool is_free = program->any_batch && port->rank > 0 && inputs[i].rank == port->rank;
    if (is_free && i == 0) runner->entries = inputs[i].shape[0];
    bool fits = inputs[i].rank == port->rank && vm_same_shape(inputs[i].shape + is_free, port->shape + is_free, port->rank - is_free) &&
                (!is_free || (inputs[i].shape[0] == runner->entries && runner->entries > 0));
    if (!fits)
      return vm_other_shape(port->name, inputs[i].shape, inputs[i].rank, port->shape, port->rank,
                            program->any_batch ? "the first dimension may be any, the same of every input and 1 or more"
                                               : "give it in that shape, or compile with other sizes (`--dim`)");
  }
  return NULL;
}

/* Keep a table among those that were used last, under its key. */
static vm_status vm_keep_table(vm_runner *runner, vm_sized *sized, const int64_t *key, size_t words) {
  uint32_t place = runner->table_count;
  sized->key = vm_take(&sized->arena, words, sizeof *key);
  if (!sized->key) {
    vm_sized_free(sized);
    return vm_no_memory();
  }
  memcpy(sized->key, key, words * sizeof *key);
  if (place == VM_MOST_TABLES) {
    place = 0;
    for (uint32_t i = 1; i < VM_MOST_TABLES; i++)
      if (runner->tables[i]->used < runner->tables[place]->used) place = i;
    if (runner->current == runner->tables[place]) runner->current = NULL;
    vm_sized_free(runner->tables[place]);
  } else {
    runner->table_count++;
  }
  runner->tables[place] = sized;
  return NULL;
}

/* Find the table for inputs of these shapes, or make it. */
static vm_status vm_find_table(vm_runner *runner, const vm_port_size *inputs, uint64_t clock) {
  const vm_program *program = runner->program;
  size_t words = program->is_open ? (size_t)program->input_count * (1 + VERMILION_MAX_RANK) : 0;
  int64_t *key = calloc(words + 1, sizeof *key);
  if (!key) return vm_no_memory();
  for (uint32_t i = 0; program->is_open && i < program->input_count; i++) {
    key[(size_t)i * (1 + VERMILION_MAX_RANK)] = inputs[i].rank;
    memcpy(key + (size_t)i * (1 + VERMILION_MAX_RANK) + 1, inputs[i].shape, (size_t)inputs[i].rank * sizeof *key);
  }
  vm_sized *sized = NULL;
  vm_status status = NULL;
  for (uint32_t i = 0; !sized && i < runner->table_count; i++)
    if (!memcmp(runner->tables[i]->key, key, words * sizeof *key)) sized = runner->tables[i];
  if (!sized) {
    status = vm_sized_new(program, inputs, &sized);
    if (!status) status = vm_keep_table(runner, sized, key, words);
  }
  free(key);
  VM_TRY(status);
  sized->used = clock;
  runner->due = sized;
  return NULL;
}

/* Choose a part's table by the shapes of its inputs, and set those of its outputs. */
static vm_status vm_part_shapes(vermilion_session *session, vm_runner *runner) {
  const vm_program *program = runner->program;
  for (uint32_t i = 0; i < program->input_count; i++) {
    const vm_value *value = &session->values[program->input_values[i]];
    runner->inputs[i].rank = value->rank;
    memcpy(runner->inputs[i].shape, value->shape, sizeof value->shape);
  }
  runner->entries = 1;
  if (!program->is_open) VM_TRY(vm_fixed_shapes(runner, runner->inputs));
  VM_TRY(vm_find_table(runner, runner->inputs, ++session->clock));
  for (uint32_t i = 0; i < program->output_count; i++) {
    const vm_port_size *port = &runner->due->outputs[i];
    vm_value *value = &session->values[program->output_values[i]];
    value->type = port->type;
    value->rank = port->rank;
    memcpy(value->shape, port->shape, sizeof value->shape);
    if (program->any_batch && port->rank > 0) value->shape[0] = runner->entries;
    value->bytes = vm_value_bytes(value);
    if (value->bytes < 0) return vm_unfit(program, "an output is too large");
  }
  return NULL;
}

static vm_status vm_take_inputs(vermilion_session *session, const vermilion_tensor *inputs, size_t input_count, const void *outputs,
                                size_t output_count) {
  const vermilion_model *model = session->model;
  if (input_count != model->input_count || output_count != model->output_count || (input_count && !inputs) || (output_count && !outputs))
    return vm_fail(VERMILION_ERROR_OPTION, model->where, "give every input and every output, in the model's order",
                   "the model has %u inputs and %u outputs; given were %zu and %zu", model->input_count, model->output_count, input_count,
                   output_count);
  for (size_t i = 0; i < input_count; i++) {
    vm_value *value = &session->values[i];
    VM_TRY(vm_check_input(&model->inputs[i], &inputs[i]));
    value->type = inputs[i].type;
    value->rank = inputs[i].rank;
    memcpy(value->shape, inputs[i].shape, sizeof value->shape);
    value->bytes = vm_value_bytes(value);
    value->data = inputs[i].data;
    if (value->bytes < 0)
      return vm_fail(VERMILION_ERROR_OPTION, model->inputs[i].name, "no tensor is so large", "input `%s` has a shape that is no tensor's", model->inputs[i].name);
  }
  return NULL;
}

/* Tell the caller the shape of each output. */
static void vm_tell_outputs(const vermilion_session *session, vermilion_tensor *outputs) {
  for (uint32_t i = 0; i < session->model->output_count; i++) {
    const vm_value *value = &session->values[session->model->output_values[i]];
    outputs[i].type = value->type;
    outputs[i].rank = value->rank;
    memcpy(outputs[i].shape, value->shape, sizeof value->shape);
  }
}

static vm_status vm_shapes(vermilion_session *session, const vermilion_tensor *inputs, size_t input_count, vermilion_tensor *outputs,
                           size_t output_count) {
  VM_TRY(vm_take_inputs(session, inputs, input_count, outputs, output_count));
  for (uint32_t i = 0; i < session->model->program_count; i++) VM_TRY(vm_part_shapes(session, &session->runners[i]));
  vm_tell_outputs(session, outputs);
  return NULL;
}

static vm_status vm_no_session(void) {
  return vm_fail(VERMILION_ERROR_OPTION, "", "give what `vermilion_session_new` made", "the session is NULL");
}

VERMILION_API vermilion_status *vermilion_shapes(vermilion_session *session, const vermilion_tensor *inputs, size_t input_count,
                                                 vermilion_tensor *outputs, size_t output_count) {
  if (!session) return vm_no_session();
  vm_settle_in_process(session);
  vm_lock_take(&session->turn);
  vm_status status = vm_shapes(session, inputs, input_count, outputs, output_count);
  vm_lock_leave(&session->turn);
  return status;
}

/* ---- runs ---- */

/* Put a table into the team, and what does not change between its runs into the arguments. */
static vm_status vm_settle_table(vm_runner *runner, const vm_sized *sized) {
  if (runner->current == sized) return NULL;
  runner->current = NULL;
  int64_t arena = sized->arena_bytes + VM_SLACK_BYTES, words = 8 * (sized->words ? sized->words : 1);
  if (!vm_enlarge(&runner->arena, &runner->arena_bytes, arena) || !vm_enlarge(&runner->words, &runner->words_bytes, words))
    return vm_no_memory();
  vm_team_hold(runner->team, runner->program, sized, runner->arguments);
  for (uint32_t i = 0; i < sized->address_count; i++) {
    const vm_address *address = &sized->addresses[i];
    const unsigned char *base = address->place == VM_IN_ARENA     ? runner->arena
                                : address->place == VM_IN_WEIGHTS ? runner->program->weights.data
                                : address->place == VM_CHECKS     ? runner->words
                                                                  : NULL;
    runner->arguments[i] = (int64_t)(intptr_t)base + address->offset;
  }
  runner->current = sized;
  return NULL;
}

/* Say what the first wrong number of a run was. */
static vm_status vm_complain(const vm_runner *runner, const vm_sized *sized) {
  const vm_program *program = runner->program;
  const int64_t *words = (const int64_t *)runner->words;
  int64_t each = sized->words / program->entries;
  for (uint32_t i = 0; i < program->check_count; i++) {
    const vm_check *check = &sized->checks[i];
    for (int64_t entry = 0; entry < program->entries; entry++) {
      for (int64_t k = 0; k < check->count; k++) {
        int64_t word = words[entry * each + check->offset + k];
        const char *hint = "what the node got does not fit it: check the model and its inputs";
        if (word && !check->size) return vm_fail(VERMILION_ERROR_DATA, check->where, hint, "running the model failed: Integer division by zero");
        if (word)
          return vm_fail(VERMILION_ERROR_DATA, check->where, hint,
                         "running the model failed: indices element out of data bounds, idx=%lld must be within the inclusive range "
                         "[%lld,%lld]",
                         (long long)word, (long long)-check->size, (long long)check->size - 1);
      }
    }
  }
  return NULL;
}

static bool vm_any_word(const vm_runner *runner, const vm_sized *sized) {
  const int64_t *words = (const int64_t *)runner->words;
  int64_t any = 0;
  for (int64_t i = 0; i < sized->words; i++) any |= words[i];
  return any != 0;
}

static vm_status vm_run_part(vermilion_session *session, vm_runner *runner, const vermilion_pool *pool) {
  const vm_program *program = runner->program;
  const vm_sized *sized = runner->due;
  int64_t entries = runner->entries;
  VM_TRY(vm_settle_table(runner, sized));
  for (int64_t entry = 0; entry < entries; entry++) {
    for (uint32_t k = 0; k < sized->port_count; k++) {
      uint32_t i = sized->ports[k];
      const vm_address *address = &sized->addresses[i];
      const int32_t *numbers = address->place == VM_INPUT ? program->input_values : program->output_values;
      const vm_value *value = &session->values[numbers[address->index]];
      runner->arguments[i] = (int64_t)(intptr_t)value->data + entry * (value->bytes / entries) + address->offset;
    }
    if (program->is_open && sized->words) memset(runner->words, 0, 8 * (size_t)sized->words);
    if (pool)
      VM_TRY(vm_team_run_on(runner->team, pool));
    else
      vm_team_run(runner->team);
    if (sized->words && vm_any_word(runner, sized)) VM_TRY(vm_complain(runner, sized));
  }
  return NULL;
}

static bool vm_overlap(const void *one, int64_t bytes, const void *other, int64_t other_bytes) {
  uintptr_t a = (uintptr_t)one, b = (uintptr_t)other;
  return a < b + (uintptr_t)other_bytes && b < a + (uintptr_t)bytes;
}

/* Choose where each tensor is written: an output where the caller wants it, if kernels can write there
   while they read the inputs, and if no other output is the same tensor; all else in the session's memory. */
static vm_status vm_place_values(vermilion_session *session, const vermilion_tensor *inputs, const vermilion_tensor *outputs) {
  const vermilion_model *model = session->model;
  for (uint32_t i = 0; i < model->input_count; i++) {
    vm_value *value = &session->values[i];
    bool is_aligned = (uintptr_t)value->data % (size_t)vm_type_bytes(value->type) == 0;
    if ((value->bytes && !inputs[i].data) || (int64_t)inputs[i].bytes < value->bytes)
      return vm_fail(VERMILION_ERROR_OPTION, model->inputs[i].name, "give all of it", "input `%s` has %zu bytes, its shape takes %lld",
                     model->inputs[i].name, inputs[i].data ? inputs[i].bytes : (size_t)0, (long long)value->bytes);
    if (is_aligned) continue;
    if (!vm_enlarge(&value->own, &value->own_bytes, value->bytes + VM_SLACK_BYTES)) return vm_no_memory();
    memcpy(value->own, value->data, (size_t)value->bytes);
    value->data = value->own;
  }
  for (uint32_t i = model->input_count; i < model->value_count; i++) session->values[i].data = NULL;
  for (uint32_t i = 0; i < model->output_count; i++) {
    vm_value *value = &session->values[model->output_values[i]];
    const vermilion_tensor *output = &outputs[i];
    if (output->data && (int64_t)output->bytes < value->bytes)
      return vm_fail(VERMILION_ERROR_OPTION, model->outputs[i].name, "ask `vermilion_shapes` how large it is",
                     "output `%s` has room for %zu bytes, %lld are needed", model->outputs[i].name, output->bytes, (long long)value->bytes);
    bool is_free = output->data && (uintptr_t)output->data % VM_OUTPUT_ALIGNMENT == 0 && model->output_values[i] >= (int32_t)model->input_count && !value->data;
    for (uint32_t k = 0; is_free && k < model->input_count; k++) is_free = !vm_overlap(output->data, value->bytes, inputs[k].data, session->values[k].bytes);
    if (is_free) value->data = output->data;
  }
  for (uint32_t i = model->input_count; i < model->value_count; i++) {
    vm_value *value = &session->values[i];
    if (value->data) continue;
    if (!vm_enlarge(&value->own, &value->own_bytes, value->bytes + VM_SLACK_BYTES)) return vm_no_memory();
    value->data = value->own;
  }
  return NULL;
}

static vm_status vm_run(vermilion_session *session, const vermilion_tensor *inputs, size_t input_count, vermilion_tensor *outputs,
                        size_t output_count, const vermilion_pool *pool) {
  const vermilion_model *model = session->model;
  VM_TRY(vm_shapes(session, inputs, input_count, outputs, output_count));
  VM_TRY(vm_place_values(session, inputs, outputs));
  for (uint32_t i = 0; i < model->program_count; i++) VM_TRY(vm_run_part(session, &session->runners[i], pool));
  for (uint32_t i = 0; i < model->output_count; i++) {
    const vm_value *value = &session->values[model->output_values[i]];
    if (outputs[i].data && outputs[i].data != value->data) memcpy(outputs[i].data, value->data, (size_t)value->bytes);
  }
  return NULL;
}

VERMILION_API vermilion_status *vermilion_run(vermilion_session *session, const vermilion_tensor *inputs, size_t input_count,
                                              vermilion_tensor *outputs, size_t output_count, const vermilion_pool *pool) {
  if (!session) return vm_no_session();
  if (pool && (pool->size < sizeof *pool || !pool->parallel_for))
    return vm_fail(VERMILION_ERROR_OPTION, "", "set `size` to sizeof(vermilion_pool), and `parallel_for`", "the pool is not filled in");
  vm_settle_in_process(session);
  vm_lock_take(&session->turn);
  vm_status status = vm_run(session, inputs, input_count, outputs, output_count, pool);
  vm_lock_leave(&session->turn);
  return status;
}
