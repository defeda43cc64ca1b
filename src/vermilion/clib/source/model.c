/* Models: a bundle's parts, put together. */
#include "internal.h"
#include "linked.h"

#define VM_MOST_PARTS 4096

VERMILION_API uint32_t vermilion_abi_version(void) { return VERMILION_ABI_VERSION; }

VERMILION_API const char *vermilion_version(void) { return VERMILION_VERSION; }

/* ---- names, types, shapes ---- */

static vm_status vm_take_port(vm_arena *arena, const char *where, const vm_json *record, vermilion_port *port) {
  const vm_json *shape = vm_member(record, "shape");
  const char *type;
  VM_TRY(vm_text_of(record, "name", where, &port->name));
  VM_TRY(vm_text_of(record, "type", where, &type));
  port->type = vm_type_named(type, false);
  port->rank = -1;
  if (port->type == VERMILION_UNDEFINED)
    return vm_fail(VERMILION_ERROR_UNSUPPORTED, where, "run it in Python, with `vermilion run`", "`%s` is %s, which this library does not take",
                   port->name, type);
  if (!shape || shape->kind != VM_LIST) return NULL;
  if (shape->count > VERMILION_MAX_RANK)
    return vm_fail(VERMILION_ERROR_UNSUPPORTED, where, "run it in Python, with `vermilion run`", "`%s` has %u dimensions, this library takes %d",
                   port->name, shape->count, VERMILION_MAX_RANK);
  int64_t *sizes = vm_take(arena, shape->count, sizeof *sizes);
  const char **names = vm_take(arena, shape->count, sizeof *names);
  if (!sizes || !names) return vm_no_memory();
  for (uint32_t i = 0; i < shape->count; i++) {
    const vm_json *size = &shape->items[i];
    sizes[i] = -1;
    if (size->kind == VM_TEXT)
      names[i] = size->text;
    else if (size->kind != VM_NULL && !vm_whole(size, 0, VM_MOST, &sizes[i]))
      return vm_wrong(where, "shape", "a list of sizes");
  }
  port->rank = (int32_t)shape->count;
  port->shape = sizes;
  port->names = names;
  return NULL;
}

static vm_status vm_take_model_ports(vm_arena *arena, const char *where, const vm_json *manifest, const char *key, vermilion_port **ports,
                                     uint32_t *count) {
  const vm_json *list;
  VM_TRY(vm_list_of(manifest, key, where, &list));
  *ports = vm_take(arena, list->count, sizeof **ports);
  if (!*ports) return vm_no_memory();
  *count = list->count;
  for (uint32_t i = 0; i < list->count; i++) VM_TRY(vm_take_port(arena, where, &list->items[i], &(*ports)[i]));
  return NULL;
}

/* ---- parts ---- */

typedef struct vm_opening {
  vermilion_model *model;
  vm_json manifest;
  uint32_t flags;
  const vermilion_linked *linked; /* NULL: from files */
  const char **names;             /* of the tensors that there are so far */
} vm_opening;

static int32_t vm_value_named(const vm_opening *opening, const char *name) {
  for (uint32_t i = 0; i < opening->model->value_count; i++)
    if (!strcmp(opening->names[i], name)) return (int32_t)i;
  return -1;
}

/* Find a part's tensors among the model's; outputs are new ones. */
static vm_status vm_connect(vm_opening *opening, vm_program *program) {
  vermilion_model *model = opening->model;
  program->input_values = vm_take(&model->arena, program->input_count, sizeof *program->input_values);
  program->output_values = vm_take(&model->arena, program->output_count, sizeof *program->output_values);
  if (!program->input_values || !program->output_values) return vm_no_memory();
  for (uint32_t i = 0; i < program->input_count; i++) {
    int32_t number = vm_value_named(opening, program->inputs[i].name);
    if (number < 0)
      return vm_fail(VERMILION_ERROR_ARTIFACT, model->where, VM_DAMAGED, "part `%s` wants `%s`, which nothing makes", program->name,
                     program->inputs[i].name);
    program->input_values[i] = number;
    if (number < (int32_t)model->input_count && model->inputs[number].type != program->inputs[i].type)
      return vm_fail(VERMILION_ERROR_UNSUPPORTED, model->where, "run it in Python, with `vermilion run`",
                     "`%s` is %s, and the code reads %s", program->inputs[i].name, vm_type_text(model->inputs[number].type),
                     vm_type_text(program->inputs[i].type));
  }
  for (uint32_t i = 0; i < program->output_count; i++) {
    if (vm_value_named(opening, program->outputs[i].name) >= 0)
      return vm_fail(VERMILION_ERROR_ARTIFACT, model->where, VM_DAMAGED, "part `%s` makes `%s` a second time", program->name,
                     program->outputs[i].name);
    program->output_values[i] = (int32_t)model->value_count;
    opening->names[model->value_count++] = program->outputs[i].name;
  }
  return NULL;
}

static vm_status vm_linked_code(const vermilion_linked_part *part, vm_program *program) {
  for (uint32_t i = 0; i < program->function_count; i++)
    for (size_t k = 0; k < part->function_count; k++)
      if (!strcmp(program->functions[i].name, part->functions[k].name)) program->functions[i].address = part->functions[k].address;
  return NULL;
}

static vm_status vm_member_path(const char *part, const char *file, char path[1024], const char *where) {
  if ((size_t)snprintf(path, 1024, "%s/%s", part, file) >= 1024)
    return vm_fail(VERMILION_ERROR_ARTIFACT, where, VM_DAMAGED, "part `%.80s` has a name that is too long", part);
  return NULL;
}

/* Load the objects that a part's table lists. */
static vm_status vm_load_code(vm_opening *opening, vm_program *program, const vm_json *table) {
  vermilion_model *model = opening->model;
  const vm_json *objects;
  const char *file;
  char path[1024];
  VM_TRY(vm_list_of(table, "objects", model->where, &objects));
  program->code = vm_take(&model->arena, objects->count, sizeof *program->code);
  if (!program->code) return vm_no_memory();
  program->code_count = objects->count;
  for (uint32_t i = 0; i < objects->count; i++) {
    vm_bytes object;
    VM_TRY(vm_text_of(&objects->items[i], "file", model->where, &file));
    VM_TRY(vm_member_path(program->name, file, path, model->where));
    VM_TRY(vm_read_member(&model->bundle, &opening->manifest, path, true, &object));
    VM_TRY(vm_load_object(object, model->where, program->functions, program->function_count, &program->code[i]));
  }
  return NULL;
}

static vm_status vm_open_part(vm_opening *opening, const char *name, vm_program *program) {
  vermilion_model *model = opening->model;
  const vermilion_linked_part *linked = NULL;
  vm_bytes text, weights;
  vm_json table;
  char path[1024];
  program->name = name;
  for (size_t i = 0; opening->linked && i < opening->linked->part_count; i++)
    if (!strcmp(opening->linked->parts[i].name, name)) linked = &opening->linked->parts[i];
  if (linked) {
    text = (vm_bytes){(const unsigned char *)linked->table, linked->table_bytes};
    weights = (vm_bytes){linked->weights, linked->weights_bytes};
  } else {
    VM_TRY(vm_member_path(name, "kernels.json", path, model->where));
    VM_TRY(vm_read_member(&model->bundle, &opening->manifest, path, true, &text));
    VM_TRY(vm_member_path(name, "packed.bin", path, model->where));
    VM_TRY(vm_read_member(&model->bundle, &opening->manifest, path, !(opening->flags & VERMILION_SKIP_WEIGHTS_DIGEST), &weights));
  }
  VM_TRY(vm_settle_weights(program, weights));
  VM_TRY(vm_json_parse(text, model->where, &model->arena, &table));
  VM_TRY(vm_read_table(program, &model->arena, &table, model->where));
  VM_TRY(linked ? vm_linked_code(linked, program) : vm_load_code(opening, program, &table));
  return vm_settle_functions(program, model->where);
}

/* The inputs and outputs of one part, as the model's. */
static vm_status vm_ports_of_part(vm_arena *arena, const vm_program *program, const vm_port_size *from, uint32_t count, vermilion_port **ports,
                                  uint32_t *port_count) {
  *ports = vm_take(arena, count, sizeof **ports);
  if (!*ports) return vm_no_memory();
  *port_count = count;
  for (uint32_t i = 0; i < count; i++) {
    int64_t *sizes = vm_take(arena, VERMILION_MAX_RANK, sizeof *sizes);
    const char **names = vm_take(arena, VERMILION_MAX_RANK, sizeof *names);
    if (!sizes || !names) return vm_no_memory();
    for (int32_t k = 0; k < from[i].rank; k++) {
      sizes[k] = program->is_open || (program->any_batch && k == 0) ? -1 : from[i].shape[k];
      const vm_formula *formula = program->is_open ? &program->formulas[from[i].shape[k]] : NULL;
      if (!formula || formula->operation != VM_SUM) continue;
      if (!formula->term_count) sizes[k] = 0;
      if (formula->term_count == 1 && formula->terms[1] == 0) sizes[k] = formula->terms[0];
      /* once a symbol: it has the symbol's name */
      if (formula->term_count == 1 && formula->terms[0] == 1 && formula->terms[1] == 1 &&
          program->formulas[formula->terms[2]].operation == VM_SYMBOL)
        names[k] = program->symbols[program->formulas[formula->terms[2]].one].name;
    }
    (*ports)[i] = (vermilion_port){from[i].name, from[i].type, from[i].rank, sizes, names};
  }
  return NULL;
}

static vm_status vm_open_parts(vm_opening *opening, const char *only) {
  vermilion_model *model = opening->model;
  const vm_json *parts;
  const char *name, *backend;
  VM_TRY(vm_list_of(&opening->manifest, "parts", model->where, &parts));
  if (parts->count > VM_MOST_PARTS) return vm_wrong(model->where, "parts", "a list of a usual length");
  model->programs = vm_take(&model->arena, parts->count, sizeof *model->programs);
  if (!model->programs) return vm_no_memory();
  size_t room = model->input_count;
  for (uint32_t i = 0; i < parts->count; i++) {
    VM_TRY(vm_text_of(&parts->items[i], "name", model->where, &name));
    VM_TRY(vm_text_of(&parts->items[i], "backend", model->where, &backend));
    if (only && strcmp(name, only)) continue;
    if (!strcmp(backend, "decoder"))
      return vm_fail(VERMILION_ERROR_UNSUPPORTED, model->where, "open it with `vermilion_decoder_open`", "the compiled model is a language model");
    if (strcmp(backend, "native"))
      return vm_fail(VERMILION_ERROR_UNSUPPORTED, model->where,
                     "run it in Python, with `vermilion run`; `vermilion inspect MODEL` says why the part is not native",
                     "part `%s` runs in another runtime (`%s`), not in machine code of Vermilion", name, backend);
    vm_program *program = &model->programs[model->program_count++];
    VM_TRY(vm_open_part(opening, name, program));
    room += program->input_count + program->output_count;
  }
  if (only && !model->program_count)
    return vm_fail(VERMILION_ERROR_OPTION, model->where, "`manifest.json` lists the parts", "the model has no part `%s`", only);
  if (only) {
    const vm_program *program = &model->programs[0];
    VM_TRY(vm_ports_of_part(&model->arena, program, program->inputs, program->input_count, &model->inputs, &model->input_count));
    VM_TRY(vm_ports_of_part(&model->arena, program, program->outputs, program->output_count, &model->outputs, &model->output_count));
  }
  opening->names = vm_take(&model->arena, room + 1, sizeof *opening->names);
  if (!opening->names) return vm_no_memory();
  for (uint32_t i = 0; i < model->input_count; i++) opening->names[model->value_count++] = model->inputs[i].name;
  for (uint32_t i = 0; i < model->program_count; i++) VM_TRY(vm_connect(opening, &model->programs[i]));
  return NULL;
}

/* Find where each output comes from. */
static vm_status vm_settle_outputs(vm_opening *opening) {
  vermilion_model *model = opening->model;
  model->output_values = vm_take(&model->arena, model->output_count, sizeof *model->output_values);
  if (!model->output_values) return vm_no_memory();
  for (uint32_t i = 0; i < model->output_count; i++) {
    int32_t number = vm_value_named(opening, model->outputs[i].name);
    vermilion_type made = VERMILION_UNDEFINED;
    if (number < 0)
      return vm_fail(VERMILION_ERROR_UNSUPPORTED, model->where, "run it in Python, with `vermilion run`, or leave the output out of the model",
                     "the output `%s` is a weight of the model: no part makes it", model->outputs[i].name);
    model->output_values[i] = number;
    if (number < (int32_t)model->input_count) made = model->inputs[number].type;
    for (uint32_t k = 0; k < model->program_count; k++)
      for (uint32_t n = 0; n < model->programs[k].output_count; n++)
        if (model->programs[k].output_values[n] == number) made = model->programs[k].outputs[n].type;
    if (made != model->outputs[i].type)
      return vm_fail(VERMILION_ERROR_UNSUPPORTED, model->where, "run it in Python, with `vermilion run`", "`%s` is %s, and the code writes %s",
                     model->outputs[i].name, vm_type_text(model->outputs[i].type), vm_type_text(made));
  }
  return NULL;
}

static vm_status vm_open_files(vm_opening *opening, vm_bytes data, const char *only) {
  vermilion_model *model = opening->model;
  if (!opening->linked) {
    VM_TRY(vm_bundle_open(&model->bundle, &model->arena, model->where, data));
    VM_TRY(vm_read_manifest(&model->bundle, &model->arena, opening->flags, &opening->manifest, &model->digest));
  } else {
    VM_TRY(vm_json_parse(data, model->where, &model->arena, &opening->manifest));
    VM_TRY(vm_text_of(&opening->manifest, "digest", model->where, &model->digest));
  }
  VM_TRY(vm_text_of(&opening->manifest, "target", model->where, &model->target));
  if (!only) {
    VM_TRY(vm_take_model_ports(&model->arena, model->where, &opening->manifest, "inputs", &model->inputs, &model->input_count));
    VM_TRY(vm_take_model_ports(&model->arena, model->where, &opening->manifest, "outputs", &model->outputs, &model->output_count));
  }
  VM_TRY(vm_open_parts(opening, only));
  return vm_settle_outputs(opening);
}

static vm_status vm_open(vm_opening *opening, const char *where, vm_bytes data, const char *only, vermilion_model **result) {
  vermilion_model *model = calloc(1, sizeof *model);
  if (!model) return vm_no_memory();
  opening->model = model;
  atomic_store(&model->holders, 1);
  model->where = vm_take_text(&model->arena, where, strlen(where));
  vm_status status = model->where ? vm_open_files(opening, data, only) : vm_no_memory();
  if (status) {
    vermilion_model_free(model);
    return status;
  }
  *result = model;
  return NULL;
}

static vm_status vm_no_pointer(void) {
  return vm_fail(VERMILION_ERROR_OPTION, "", "give what to open, and where the model is to go", "a pointer is NULL");
}

VERMILION_API vermilion_status *vermilion_open(const char *path, const vermilion_open_options *options, vermilion_model **model) {
  vm_opening opening = {.flags = options ? options->flags : 0};
  if (!path || !model) return vm_no_pointer();
  *model = NULL;
  return vm_open(&opening, path, (vm_bytes){NULL, 0}, options ? options->part : NULL, model);
}

VERMILION_API vermilion_status *vermilion_open_memory(const void *data, size_t bytes, const vermilion_open_options *options,
                                                      vermilion_model **model) {
  vm_opening opening = {.flags = options ? options->flags : 0};
  if (!data || !model) return vm_no_pointer();
  *model = NULL;
  return vm_open(&opening, "bytes in memory", (vm_bytes){data, bytes}, options ? options->part : NULL, model);
}

#ifdef VERMILION_LINKED
/* Say whether this processor has all features that a linked model was compiled for. */
static vm_status vm_linked_fits(const vermilion_linked *linked, bool *fits) {
  vm_arena arena = {0};
  vm_json manifest;
  const vm_json *features;
  vm_status status = vm_json_parse((vm_bytes){(const unsigned char *)linked->manifest, linked->manifest_bytes}, linked->name, &arena, &manifest);
  if (!status) status = vm_list_of(&manifest, "features", linked->name, &features);
  *fits = true;
  for (uint32_t i = 0; !status && i < features->count; i++)
    if (features->items[i].kind != VM_TEXT || !vm_has_feature(features->items[i].text)) *fits = false;
  vm_arena_free(&arena);
  return status;
}

/* Find the first of several targets that this processor has all features for. */
static vm_status vm_choose_linked(const vermilion_linked *targets, size_t count, const vermilion_linked **chosen) {
  for (size_t i = 0; i < count; i++) {
    bool fits;
    VM_TRY(vm_linked_fits(&targets[i], &fits));
    *chosen = &targets[i];
    if (fits) return NULL;
  }
  return vm_fail(VERMILION_ERROR_DEVICE, targets[0].name, "compile it for this processor, with `vermilion compile MODEL --target T -o NAME.so`",
                 "none of the processors that the model was compiled for is this one");
}

VERMILION_API vermilion_status *vermilion_open_linked(const vermilion_linked *targets, size_t count, vermilion_model **model) {
  const vermilion_linked *chosen;
  if (!model) return vm_no_pointer();
  *model = NULL;
  VM_TRY(vm_choose_linked(targets, count, &chosen));
  vm_opening opening = {.linked = chosen};
  vm_bytes manifest = {(const unsigned char *)chosen->manifest, chosen->manifest_bytes};
  return vm_open(&opening, chosen->name, manifest, NULL, model);
}
#endif

VERMILION_API void vermilion_model_free(vermilion_model *model) {
  if (!model || atomic_fetch_sub(&model->holders, 1) > 1) return;
  for (uint32_t i = 0; i < model->program_count; i++) vm_program_free(&model->programs[i]);
  vm_bundle_free(&model->bundle);
  vm_arena_free(&model->arena);
  free(model);
}

/* ---- asking ---- */

VERMILION_API size_t vermilion_input_count(const vermilion_model *model) { return model ? model->input_count : 0; }

VERMILION_API size_t vermilion_output_count(const vermilion_model *model) { return model ? model->output_count : 0; }

VERMILION_API const vermilion_port *vermilion_input(const vermilion_model *model, size_t index) {
  return model && index < model->input_count ? &model->inputs[index] : NULL;
}

VERMILION_API const vermilion_port *vermilion_output(const vermilion_model *model, size_t index) {
  return model && index < model->output_count ? &model->outputs[index] : NULL;
}

static int64_t vm_port_named(const vermilion_port *ports, size_t count, const char *name) {
  for (size_t i = 0; name && i < count; i++)
    if (!strcmp(ports[i].name, name)) return (int64_t)i;
  return -1;
}

VERMILION_API int64_t vermilion_input_index(const vermilion_model *model, const char *name) {
  return model ? vm_port_named(model->inputs, model->input_count, name) : -1;
}

VERMILION_API int64_t vermilion_output_index(const vermilion_model *model, const char *name) {
  return model ? vm_port_named(model->outputs, model->output_count, name) : -1;
}

VERMILION_API const char *vermilion_model_digest(const vermilion_model *model) { return model ? model->digest : ""; }

VERMILION_API const char *vermilion_model_target(const vermilion_model *model) { return model ? model->target : ""; }
