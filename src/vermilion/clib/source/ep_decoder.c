/* Context nodes that are a language model's decoder, with onnxruntime-genai's inputs and outputs: tokens,
   the attention mask, each layer's past keys and values; logits of the last token, the present ones.

   Present and past are one memory (`past_present_share_buffer`): a sequence's keys and values stay where
   they are, in the library's own form, and only what is new is written. */
#include "ep.h"

static OrtStatus *ep_wrong_run(const ep_node *node, const char *what) {
  char text[512];
  snprintf(text, sizeof text, "%s: %s", EP_NAME, what);
  return node->ort->CreateStatus(ORT_INVALID_ARGUMENT, text);
}

/* Find where each layer's keys or values lie, and how many tokens they have room for. */
static OrtStatus *ep_caches(const ep_node *node, OrtKernelContext *context, void **parts, int64_t *capacity) {
  *capacity = 0;
  for (size_t i = 0; i + 1 < node->output_count; i++) {
    vermilion_tensor past, present;
    EP_TRY(ep_input(node, context, 2 + i, &past));
    if (past.rank != 4 || past.shape[0] != 1 || past.shape[2] < 1 || (i && past.shape[2] != *capacity))
      return ep_wrong_run(node, "past keys and values are to be 1 x heads x room x size, alike in all layers\n"
                                "hint: one sequence at a time, and in `genai_config.json` `past_present_share_buffer`: true");
    *capacity = past.shape[2];
    present = past;
    EP_TRY(ep_output(node, context, 1 + i, &present));
    if (present.data != past.data)
      return ep_wrong_run(node, "present keys and values are to be in the memory of the past ones\n"
                                "hint: in `genai_config.json`, `past_present_share_buffer`: true; no beams");
    parts[i] = past.data;
    int64_t context_length = vermilion_decoder_context(node->decoder);
    if (*capacity > context_length) continue;
    if (vermilion_layer_bytes(node->decoder, (int64_t)i / 2, *capacity) > past.bytes)
      return ep_wrong_run(node, "the memory for keys and values is too small\nhint: a `max_length` of 64 or more");
  }
  if (*capacity > vermilion_decoder_context(node->decoder)) *capacity = vermilion_decoder_context(node->decoder);
  return NULL;
}

static OrtStatus *ep_run_decoder(ep_node *node, OrtKernelContext *context, void **parts) {
  const ort_functions *ort = node->ort;
  vermilion_tensor tokens, mask, logits;
  vermilion_cache cache = VERMILION_CACHE;
  ep_call call = {ort, context, NULL};
  vermilion_pool pool = {sizeof pool, node->threads, &call, ep_parallel_for};
  EP_TRY(ep_input(node, context, 0, &tokens));
  EP_TRY(ep_input(node, context, 1, &mask));
  if (tokens.rank != 2 || mask.rank != 2 || tokens.shape[0] != 1 || mask.shape[0] != 1 || tokens.shape[1] < 1 ||
      mask.shape[1] < tokens.shape[1] || tokens.type != VERMILION_INT64)
    return ep_wrong_run(node, "tokens are to be one sequence, and the attention mask as long as all of it\n"
                              "hint: a batch of 1, without beams");
  EP_TRY(ep_caches(node, context, parts, &cache.capacity));
  cache.length = mask.shape[1] - tokens.shape[1];
  cache.parts = parts;
  logits.rank = 3;
  logits.shape[0] = logits.shape[1] = 1;
  logits.shape[2] = vermilion_decoder_vocabulary(node->decoder);
  EP_TRY(ep_output(node, context, 0, &logits));
  OrtStatus *status = ep_status_of(ort, vermilion_decoder_read(node->decoder, &cache, tokens.data, (size_t)tokens.shape[1],
                                                               logits.data, &pool));
  if (!call.status) return status;
  if (status) ort->ReleaseStatus(status);
  return call.status;
}

static OrtStatus *ORT_CALL ep_compute_decoder(OrtNodeComputeInfo *self, void *state, OrtKernelContext *context) {
  ep_node *node = (ep_node *)self;
  (void)state;
  void **parts = calloc(node->output_count, sizeof *parts);
  OrtStatus *status = parts ? ep_run_decoder(node, context, parts) : ep_no_memory(node->ort);
  free(parts);
  return status;
}
