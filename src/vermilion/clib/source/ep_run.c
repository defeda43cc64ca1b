/* A context node's inputs and outputs, and its runs. */
#include "ep.h"

/* ---- its inputs and outputs ---- */

typedef OrtStatus *(ORT_CALL *ep_count_function)(const OrtNode *, size_t *);
typedef OrtStatus *(ORT_CALL *ep_values_function)(const OrtNode *, const OrtValueInfo **, size_t);

/* A node's inputs or outputs; what is left out has an empty name, or none. */
static OrtStatus *ep_values(const ort_functions *ort, const OrtNode *node, bool outputs,
                            const char ***names, size_t *count) {
  ep_count_function count_of = outputs ? ort->Node_GetNumOutputs : ort->Node_GetNumInputs;
  ep_values_function values_of = outputs ? ort->Node_GetOutputs : ort->Node_GetInputs;
  EP_TRY(count_of(node, count));
  const OrtValueInfo **values = calloc(*count + 1, sizeof *values);
  *names = calloc(*count + 1, sizeof **names);
  OrtStatus *status = values && *names ? values_of(node, values, *count) : ep_no_memory(ort);
  for (size_t i = 0; i < *count && !status; i++) {
    (*names)[i] = "";
    if (values[i]) status = ort->GetValueInfoName(values[i], &(*names)[i]);
  }
  free(values);
  return status;
}

/* Where the context node's values stand among those of the node that ONNX Runtime made of it: values
   that nobody reads are not there, and one that is read twice stands once. */
static OrtStatus *ep_places(const ort_functions *ort, const OrtNode *node, const OrtNode *fused,
                            bool outputs, size_t wanted, size_t **places) {
  const char **mine = NULL, **theirs = NULL;
  size_t count = 0, fused_count = 0;
  OrtStatus *status = ep_values(ort, node, outputs, &mine, &count);
  if (!status) status = ep_values(ort, fused, outputs, &theirs, &fused_count);
  if (!status && count != wanted)
    status = ep_fail(ort, ORT_INVALID_GRAPH, ep_name_of(ort, node),
                     outputs ? "it has another number of outputs than its part"
                             : "it has another number of inputs than its part",
                     EP_AGAIN);
  *places = calloc(wanted + 1, sizeof **places);
  if (!status && !*places) status = ep_no_memory(ort);
  for (size_t i = 0; i < wanted && !status; i++) {
    size_t at = 0;
    while (at < fused_count && (!mine[i][0] || strcmp(mine[i], theirs[at]))) at++;
    (*places)[i] = at < fused_count ? at : SIZE_MAX;
    if (at == fused_count && !outputs)
      status = ep_fail(ort, ORT_INVALID_GRAPH, ep_name_of(ort, node), "one of its inputs is missing",
                       EP_AGAIN);
  }
  free(mine);
  free(theirs);
  return status;
}

static void ep_free_node(ep_node *node) {
  if (!node) return;
  for (ep_idle *idle = node->idle; idle;) {
    ep_idle *next = idle->next;
    vermilion_session_free(idle->session);
    free(idle);
    idle = next;
  }
  vermilion_model_free(node->model);
  vermilion_decoder_free(node->decoder);
  free(node->bytes);
  free(node->inputs);
  free(node->outputs);
  free(node);
}

/* ---- runs ---- */

static void ep_take(ep_node *node) {
  while (atomic_flag_test_and_set_explicit(&node->is_taken, memory_order_acquire)) {
  }
}

static void ep_leave(ep_node *node) {
  atomic_flag_clear_explicit(&node->is_taken, memory_order_release);
}

/* A session that nobody else runs: runs side by side have one each, as many as there ever were. */
static OrtStatus *ep_idle_session(ep_node *node, ep_idle **found) {
  ep_take(node);
  *found = node->idle;
  if (*found) node->idle = (*found)->next;
  ep_leave(node);
  if (*found) return NULL;
  vermilion_session_options options = VERMILION_SESSION_OPTIONS;
  options.workers = (int32_t)node->threads;
  ep_idle *made = calloc(1, sizeof *made);
  if (!made) return ep_no_memory(node->ort);
  OrtStatus *status =
      ep_status_of(node->ort, vermilion_session_new(node->model, &options, &made->session));
  if (status) {
    free(made);
    return status;
  }
  *found = made;
  return NULL;
}

static void ep_give_back(ep_node *node, ep_idle *session) {
  ep_take(node);
  session->next = node->idle;
  node->idle = session;
  ep_leave(node);
}

typedef struct ep_call {
  const ort_functions *ort;
  OrtKernelContext *context;
  OrtStatus *status;
} ep_call;

static int ep_parallel_for(void *context, vermilion_task task, size_t count, void *work) {
  ep_call *call = context;
  call->status = call->ort->KernelContext_ParallelFor(call->context, task, count, 0, work);
  return call->status != NULL;
}

static OrtStatus *ep_input(const ep_node *node, const OrtKernelContext *context, size_t index,
                           vermilion_tensor *tensor) {
  const ort_functions *ort = node->ort;
  const OrtValue *value = NULL;
  const int64_t *shape = NULL;
  const void *data = NULL;
  size_t rank = 0;
  int type = 0;
  EP_TRY(ort->KernelContext_GetInput(context, node->inputs[index], &value));
  if (!value)
    return ort->CreateStatus(ORT_INVALID_ARGUMENT,
                             "VermilionExecutionProvider: an input was not given");
  EP_TRY(ort->GetTensorElementTypeAndShapeDataReference(value, &type, &shape, &rank));
  if (rank > VERMILION_MAX_RANK)
    return ort->CreateStatus(ORT_INVALID_ARGUMENT,
                             "VermilionExecutionProvider: an input has too many dimensions");
  EP_TRY(ort->GetTensorData(value, &data));
  EP_TRY(ort->GetTensorSizeInBytes(value, &tensor->bytes));
  tensor->data = (void *)(uintptr_t)data;
  tensor->type = (vermilion_type)type;
  tensor->rank = (int32_t)rank;
  if (rank) memcpy(tensor->shape, shape, rank * sizeof *shape);
  return NULL;
}

static OrtStatus *ep_output(const ep_node *node, OrtKernelContext *context, size_t index,
                            vermilion_tensor *tensor) {
  const ort_functions *ort = node->ort;
  OrtValue *value = NULL;
  tensor->data = NULL;
  tensor->bytes = 0;
  if (node->outputs[index] == SIZE_MAX) return NULL;
  EP_TRY(ort->KernelContext_GetOutput(context, node->outputs[index], tensor->shape,
                                      (size_t)tensor->rank, &value));
  if (!value) return NULL; /* nobody reads it in this run */
  EP_TRY(ort->GetTensorMutableData(value, &tensor->data));
  return ort->GetTensorSizeInBytes(value, &tensor->bytes);
}

static OrtStatus *ep_run(ep_node *node, OrtKernelContext *context, vermilion_session *session,
                         vermilion_tensor *inputs, vermilion_tensor *outputs) {
  const ort_functions *ort = node->ort;
  ep_call call = {ort, context, NULL};
  vermilion_pool pool = {sizeof pool, node->threads, &call, ep_parallel_for};
  for (size_t i = 0; i < node->input_count; i++) EP_TRY(ep_input(node, context, i, &inputs[i]));
  EP_TRY(ep_status_of(ort, vermilion_shapes(session, inputs, node->input_count, outputs,
                                            node->output_count)));
  for (size_t i = 0; i < node->output_count; i++) EP_TRY(ep_output(node, context, i, &outputs[i]));
  OrtStatus *status = ep_status_of(ort, vermilion_run(session, inputs, node->input_count, outputs,
                                                      node->output_count, &pool));
  if (!call.status) return status;
  if (status) ort->ReleaseStatus(status);
  return call.status; /* why its threads could not be had */
}

static OrtStatus *ORT_CALL ep_compute(OrtNodeComputeInfo *self, void *state,
                                      OrtKernelContext *context) {
  ep_node *node = (ep_node *)self;
  (void)state;
  ep_idle *session;
  vermilion_tensor few[16], *tensors = few;
  size_t count = node->input_count + node->output_count;
  EP_TRY(ep_idle_session(node, &session));
  if (count > sizeof few / sizeof *few) tensors = calloc(count, sizeof *tensors);
  OrtStatus *status =
      tensors ? ep_run(node, context, session->session, tensors, tensors + node->input_count)
              : ep_no_memory(node->ort);
  ep_give_back(node, session);
  if (tensors != few) free(tensors);
  return status;
}

static OrtStatus *ORT_CALL ep_create_state(OrtNodeComputeInfo *self,
                                           OrtNodeComputeContext *context, void **state) {
  (void)context;
  *state = self;
  return NULL;
}

static void ORT_CALL ep_release_state(OrtNodeComputeInfo *self, void *state) {
  (void)self;
  (void)state;
}
