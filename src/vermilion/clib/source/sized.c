/* The calls of a run at the sizes that its inputs have: for one size they are in the table, for any
   they are computed from its formulas. `codegen/open_table.py` and `codegen/memory.py` do the same. */
#include "internal.h"

#define VM_SLACK_BYTES 64
#define VM_ALIGNMENT 64
#define VM_MOST_PENDING 512

static vm_status vm_unfit(const vm_program *program, const char *what) {
  return vm_fail(VERMILION_ERROR_SIZES, program->name, "something in the model has a size of its own that these go beyond",
                 "the model cannot be run at the sizes of these inputs: %s", what);
}

static int64_t vm_divided_down(int64_t above, int64_t below) {
  int64_t quotient = above / below;
  return quotient - (above % below != 0 && (above < 0) != (below < 0));
}

/* Compute every row of the formula table. */
static vm_status vm_compute(const vm_program *program, const int64_t *symbols, int64_t *numbers) {
  for (uint32_t i = 0; i < program->formula_count; i++) {
    const vm_formula *formula = &program->formulas[i];
    const int64_t *term = formula->terms;
    int64_t total = 0, one = 0, other = 0;
    switch (formula->operation) {
      case VM_SYMBOL: numbers[i] = symbols[formula->one]; continue;
      case VM_SUM:
        for (uint32_t k = 0; k < formula->term_count; k++) {
          int64_t product = *term++;
          for (int64_t left = *term++; left; left--)
            if (__builtin_mul_overflow(product, numbers[*term++], &product)) return vm_unfit(program, "they are too large");
          if (__builtin_add_overflow(total, product, &total)) return vm_unfit(program, "they are too large");
        }
        numbers[i] = total;
        continue;
      default: one = numbers[formula->one], other = numbers[formula->other];
    }
    if (formula->operation == VM_QUOTIENT) {
      if (!other || (one == INT64_MIN && other == -1)) return vm_unfit(program, "something is divided by 0");
      numbers[i] = vm_divided_down(one, other);
    } else {
      numbers[i] = (formula->operation == VM_MAXIMUM) == (one > other) ? one : other;
    }
  }
  return NULL;
}

/* Write a shape for people: `1x3x224`. */
static const char *vm_shape_text(const int64_t *shape, int32_t rank, char text[256]) {
  char *at = text;
  if (rank <= 0) strcpy(text, rank ? "any" : "scalar");
  for (int32_t i = 0; i < rank && at < text + 220; i++) at += sprintf(at, "%s%lld", i ? "x" : "", (long long)shape[i]);
  return text;
}

static vm_status vm_other_shape(const char *code_name, const int64_t *given, int32_t rank, const int64_t *wanted,
                                int32_t wanted_rank, const char *hint) {
  char one[256], other[256];
  return vm_fail(VERMILION_ERROR_SIZES, code_name, hint, "`%s` has the shape %s; it must be %s", code_name,
                 vm_shape_text(given, rank, one), vm_shape_text(wanted, wanted_rank, other));
}

static vm_status vm_symbol_sizes(const vm_program *program, const vm_port_size *inputs, int64_t *sizes) {
  for (uint32_t i = 0; i < program->symbol_count; i++) {
    const vm_symbol_size *symbol = &program->symbols[i];
    const vm_port_size *input = &inputs[symbol->input];
    int64_t size = symbol->axis < input->rank ? input->shape[symbol->axis] : 0;
    if (size < 1 || size % symbol->times)
      return vm_fail(VERMILION_ERROR_SIZES, program->inputs[symbol->input].name,
                     "pad the input, or compile the model for this size with `--dim`",
                     "dimension %d of `%s` is %lld; it must be a multiple of %lld, and no less", symbol->axis,
                     program->inputs[symbol->input].name, (long long)size, (long long)symbol->times);
    sizes[i] = size / symbol->times;
  }
  return NULL;
}

/* ---- memory ---- */

typedef struct vm_placed {
  int64_t low, high;
  int32_t first, last;
} vm_placed;

typedef struct vm_life {
  int64_t bytes;
  int32_t first, last, buffer;
} vm_life;

static int vm_larger_first(const void *one, const void *other) {
  const vm_life *a = one, *b = other;
  if (a->bytes != b->bytes) return a->bytes < b->bytes ? 1 : -1;
  if (a->first != b->first) return a->first < b->first ? -1 : 1;
  return (a->buffer > b->buffer) - (a->buffer < b->buffer);
}

/* Give every buffer a place: largest first, each as low as is free throughout its life. */
static bool vm_place_buffers(const vm_program *program, const int64_t *numbers, int64_t *offsets, int64_t *arena_bytes) {
  size_t count = program->buffer_count, used = 0;
  vm_life *lives = malloc((count + 1) * sizeof *lives);
  vm_placed *placed = malloc((count + 1) * sizeof *placed);
  *arena_bytes = VM_ALIGNMENT;
  for (size_t i = 0; lives && placed && i < count; i++)
    lives[i] = (vm_life){numbers[program->buffers[i]], program->lives[i][0], program->lives[i][1], (int32_t)i};
  if (lives && placed) qsort(lives, count, sizeof *lives, vm_larger_first);
  for (size_t i = 0; lives && placed && i < count; i++) {
    int64_t size = (lives[i].bytes + VM_SLACK_BYTES + VM_ALIGNMENT - 1) / VM_ALIGNMENT * VM_ALIGNMENT;
    int64_t offset = VM_ALIGNMENT;
    for (size_t k = 0; k < used; k++) {
      if (placed[k].last < lives[i].first || placed[k].first > lives[i].last) continue;
      if (offset + size <= placed[k].low) break;
      if (placed[k].high > offset) offset = placed[k].high;
    }
    size_t at = used++;
    while (at && placed[at - 1].low > offset) placed[at] = placed[at - 1], at--;
    placed[at] = (vm_placed){offset, offset + size, lives[i].first, lives[i].last};
    offsets[lives[i].buffer] = offset;
    if (offset + size > *arena_bytes) *arena_bytes = offset + size;
  }
  bool is_done = lives && placed;
  free(lives);
  free(placed);
  return is_done;
}

/* ---- barriers ---- */

typedef struct vm_use {
  int64_t low, high;
  int32_t buffer;
  bool is_border, is_written;
} vm_use;

static bool vm_clash(const vm_use *one, const vm_use *other) {
  return (one->is_written || other->is_written) && one->low < other->high && other->low < one->high &&
         !(one->buffer == other->buffer && one->is_border != other->is_border);
}

/* Say before which calls a barrier is needed: where one touches what one since the last barrier wrote,
   or writes what one read. */
static bool vm_set_barriers(const vm_program *program, vm_sized *sized, const int64_t *numbers, const int64_t *offsets) {
  size_t most = 0, used = 0;
  for (uint32_t i = 0; i < program->call_count; i++) most += program->calls[i].argument_count;
  vm_use *uses = malloc((most + 1) * sizeof *uses);
  if (!uses) return false;
  size_t pending = 0; /* where those since the last barrier begin */
  for (uint32_t i = 0; i < program->call_count; i++) {
    const vm_call *call = &program->calls[i];
    size_t before = used;
    for (uint32_t k = 0; k < call->argument_count; k++) {
      const vm_argument *argument = &call->arguments[k];
      int64_t port = argument->place == VM_INPUT ? argument->index : (int64_t)program->input_count + argument->index;
      vm_use use = {-port - 1, -port, (int32_t)(-port - 1), call->is_border && argument->is_written,
                    argument->is_written};
      if (argument->place == VM_IN_ARENA) {
        use.low = offsets[argument->index];
        use.high = use.low + numbers[program->buffers[argument->index]] + VM_SLACK_BYTES;
        use.buffer = argument->index;
      } else if (argument->place != VM_INPUT && argument->place != VM_OUTPUT) {
        continue; /* read by all, or by nobody in a run */
      }
      uses[used++] = use;
    }
    bool conflict = before - pending > VM_MOST_PENDING;
    for (size_t a = before; !conflict && a < used; a++)
      for (size_t b = pending; !conflict && b < before; b++) conflict = vm_clash(&uses[a], &uses[b]);
    sized->rows[i].has_barrier = conflict;
    if (conflict) pending = before;
  }
  free(uses);
  return true;
}

/* ---- tables ---- */

/* Units that a worker takes at a time at least; `chunk_of` in `codegen/memory.py` says where the numbers
   come from. */
static int64_t vm_chunk(int64_t units, int64_t operations, int64_t moved) {
  double one = (double)operations / 100.0, other = (double)moved / 20.0, whole = one > other ? one : other;
  if (whole < 1500.0) return units > 1 ? units : 1;
  int64_t chunk = (int64_t)((double)units * 700.0 / whole);
  return chunk > 1 ? chunk : 1;
}

static vm_status vm_open_addresses(const vm_program *program, vm_sized *sized, const int64_t *numbers, const int64_t *offsets) {
  vm_address *address = sized->addresses;
  for (uint32_t i = 0; i < program->call_count; i++) {
    const vm_call *call = &program->calls[i];
    sized->rows[i] = (vm_row){call->function, false, numbers[call->units],
                              vm_chunk(numbers[call->units], numbers[call->operations], numbers[call->moved]),
                              call->argument_count};
    if (numbers[call->units] < 0) return vm_unfit(program, "a step has nothing to do");
    for (uint32_t k = 0; numbers[call->units] > 0 && k < call->extent_count; k++)
      if (numbers[call->extents[k].low] < 0 || numbers[call->extents[k].high] > numbers[call->extents[k].size])
        return vm_unfit(program, "a step would leave its buffer");
    for (uint32_t k = 0; k < call->argument_count; k++, address++) {
      const vm_argument *argument = &call->arguments[k];
      *address = (vm_address){argument->place, argument->index, argument->base + numbers[argument->offset]};
      if (argument->place == VM_IN_ARENA) address->offset += offsets[argument->index];
      if (argument->place == VM_CHECKS) address->offset += 8 * sized->checks[argument->index].offset;
    }
  }
  return NULL;
}

/* Fill the table of an open program. `numbers` has room for all formulas, `offsets` for all buffers. */
static vm_status vm_fill_open(const vm_program *program, const vm_port_size *inputs, vm_sized *sized, int64_t *symbols,
                              int64_t *numbers, int64_t *offsets) {
  VM_TRY(vm_symbol_sizes(program, inputs, symbols));
  VM_TRY(vm_compute(program, symbols, numbers));
  for (uint32_t i = 0; i < program->input_count; i++) {
    const vm_port_size *port = &program->inputs[i];
    int64_t wanted[VERMILION_MAX_RANK];
    bool is_same = port->rank == inputs[i].rank;
    for (int32_t k = 0; k < port->rank; k++) {
      wanted[k] = numbers[port->shape[k]];
      is_same = is_same && wanted[k] == inputs[i].shape[k];
    }
    if (!is_same)
      return vm_other_shape(port->name, inputs[i].shape, inputs[i].rank, wanted, port->rank, "dimensions of one name have one size");
  }
  for (uint32_t i = 0; i < program->guard_count; i++) {
    int64_t difference = numbers[program->guards[i].difference];
    int sign = (difference > 0) - (difference < 0), wanted = program->guards[i].sign;
    if (wanted == 2 ? !sign : sign != wanted) return vm_unfit(program, "the code is for others");
  }
  for (uint32_t i = 0; i < program->buffer_count; i++)
    if (numbers[program->buffers[i]] < 0 || numbers[program->buffers[i]] > VM_MOST) return vm_unfit(program, "they are too large");
  for (uint32_t i = 0; i < program->check_count; i++) {
    sized->checks[i] = (vm_check){program->checks[i].where, sized->words, numbers[program->checks[i].count],
                                  numbers[program->checks[i].size]};
    if (sized->checks[i].count < 0 || sized->checks[i].count > VM_MOST) return vm_unfit(program, "they are too large");
    sized->words += sized->checks[i].count;
  }
  for (uint32_t i = 0; i < program->output_count; i++) {
    sized->outputs[i] = program->outputs[i];
    for (int32_t k = 0; k < program->outputs[i].rank; k++) sized->outputs[i].shape[k] = numbers[program->outputs[i].shape[k]];
  }
  if (!vm_place_buffers(program, numbers, offsets, &sized->arena_bytes)) return vm_no_memory();
  VM_TRY(vm_open_addresses(program, sized, numbers, offsets));
  return vm_set_barriers(program, sized, numbers, offsets) ? NULL : vm_no_memory();
}

static int64_t vm_port_bytes(const vm_port_size *port) {
  int64_t bytes = vm_type_bytes(port->type);
  for (int32_t i = 0; i < port->rank; i++)
    if (__builtin_mul_overflow(bytes, port->shape[i], &bytes)) return -1;
  return bytes;
}

/* Fill the table of a program for one size: the calls of every entry of a batch, the same on other inputs
   and outputs. */
static void vm_fill_fixed(const vm_program *program, vm_sized *sized) {
  vm_row *row = sized->rows;
  vm_address *address = sized->addresses;
  int64_t words = 0;
  for (uint32_t i = 0; i < program->check_count; i++) {
    sized->checks[i] = program->checks[i];
    words += program->checks[i].count;
  }
  sized->arena_bytes = program->arena_bytes;
  sized->words = words * program->entries;
  for (int64_t entry = 0; entry < program->entries; entry++) {
    for (uint32_t i = 0; i < program->call_count; i++, row++) {
      const vm_call *call = &program->calls[i];
      bool barrier = entry && program->barriers_again ? program->barriers_again[i] : call->has_barrier;
      *row = (vm_row){call->function, barrier, call->units, call->chunk, call->argument_count};
      for (uint32_t k = 0; k < call->argument_count; k++, address++) {
        const vm_argument *argument = &call->arguments[k];
        int64_t each = argument->place == VM_INPUT    ? vm_port_bytes(&program->inputs[argument->index])
                       : argument->place == VM_OUTPUT ? vm_port_bytes(&program->outputs[argument->index])
                       : argument->place == VM_CHECKS ? 8 * words * program->entries
                                                      : 0;
        *address = (vm_address){argument->place, argument->index, argument->offset + entry * (each / program->entries)};
      }
    }
  }
  for (uint32_t i = 0; i < program->output_count; i++) sized->outputs[i] = program->outputs[i];
}

static void vm_sized_free(vm_sized *sized) {
  if (!sized) return;
  vm_arena_free(&sized->arena);
  free(sized);
}

/* Make the table for inputs of these shapes; of a program for one size it is the same for all. */
static vm_status vm_sized_new(const vm_program *program, const vm_port_size *inputs, vm_sized **result) {
  size_t times = (size_t)program->entries, arguments = 0;
  for (uint32_t i = 0; i < program->call_count; i++) arguments += program->calls[i].argument_count;
  vm_sized *sized = calloc(1, sizeof *sized);
  if (!sized) return vm_no_memory();
  if (times * program->call_count > UINT32_MAX || times * arguments > UINT32_MAX) {
    free(sized);
    return vm_fail(VERMILION_ERROR_ARTIFACT, program->name, VM_DAMAGED, "the step table is too long");
  }
  sized->row_count = (uint32_t)(times * program->call_count);
  sized->address_count = (uint32_t)(times * arguments);
  sized->rows = vm_take(&sized->arena, sized->row_count, sizeof *sized->rows);
  sized->addresses = vm_take(&sized->arena, sized->address_count, sizeof *sized->addresses);
  sized->ports = vm_take(&sized->arena, sized->address_count, sizeof *sized->ports);
  sized->outputs = vm_take(&sized->arena, program->output_count, sizeof *sized->outputs);
  sized->checks = vm_take(&sized->arena, program->check_count, sizeof *sized->checks);
  size_t scratch = (size_t)program->symbol_count + program->formula_count + program->buffer_count + 1;
  int64_t *numbers = malloc(scratch * sizeof *numbers);
  bool is_there = sized->rows && sized->addresses && sized->ports && sized->outputs && sized->checks && numbers;
  vm_status status = is_there ? NULL : vm_no_memory();
  if (!status && program->is_open)
    status = vm_fill_open(program, inputs, sized, numbers, numbers + program->symbol_count,
                          numbers + program->symbol_count + program->formula_count);
  else if (!status)
    vm_fill_fixed(program, sized);
  free(numbers);
  if (status) {
    vm_sized_free(sized);
    return status;
  }
  for (uint32_t i = 0; i < sized->address_count; i++)
    if (sized->addresses[i].place == VM_INPUT || sized->addresses[i].place == VM_OUTPUT) sized->ports[sized->port_count++] = i;
  *result = sized;
  return NULL;
}
