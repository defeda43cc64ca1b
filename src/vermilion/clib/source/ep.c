/* An execution provider for ONNX Runtime: it runs `com.microsoft:EPContext` nodes that Vermilion
   wrote, on ONNX Runtime's own threads, in its memory.

   A node names a compiled model and a part of it: in a file beside the model (`embed_mode` 0) or in
   the node itself (1). The node's inputs and outputs are the part's, in its order. Nothing is
   compiled here: a node that cannot be run is a status that says why, and the session is not made. */
#include "ep.h"

#include "printable.c"
#include "ep_context.c"
#include "ep_run.c"
#include "ep_decoder.c"

#ifdef _WIN32
#define EP_EXPORT __declspec(dllexport)
#else
#define EP_EXPORT __attribute__((visibility("default")))
#endif

/* ---- which nodes ---- */

static OrtStatus *ep_is_ours(const ort_functions *ort, const OrtNode *node, bool *is_ours) {
  const char *text = NULL;
  char source[64];
  *is_ours = false;
  EP_TRY(ort->Node_GetOperatorType(node, &text));
  if (!text || strcmp(text, "EPContext")) return NULL;
  EP_TRY(ort->Node_GetDomain(node, &text));
  if (!text || strcmp(text, "com.microsoft")) return NULL;
  *is_ours = ep_text(ort, node, "source", source, sizeof source) && !strcmp(source, EP_NAME);
  return NULL;
}

static OrtStatus *ORT_CALL ep_capability(OrtEp *self, const OrtGraph *graph,
                                         OrtEpGraphSupportInfo *info) {
  const ort_functions *ort = ((ep_provider *)self)->ort;
  size_t count = 0;
  EP_TRY(ort->Graph_GetNumNodes(graph, &count));
  if (!count) return NULL;
  const OrtNode **nodes = calloc(count, sizeof *nodes);
  if (!nodes) return ep_no_memory(ort);
  OrtStatus *status = ort->Graph_GetNodes(graph, nodes, count);
  for (size_t i = 0; i < count && !status; i++) {
    bool is_ours;
    status = ep_is_ours(ort, nodes[i], &is_ours);
    if (!status && is_ours)
      status = ort->EpGraphSupportInfo_AddNodesToFuse(info, &nodes[i], 1, NULL);
  }
  free(nodes);
  return status;
}

/* ---- the provider ---- */

static OrtStatus *ep_make_node(const ep_provider *provider, const OrtGraph *graph,
                               const OrtNode *fused, ep_node *made) {
  const ort_functions *ort = provider->ort;
  const OrtNode *node = NULL;
  size_t count = 0;
  EP_TRY(ort->Graph_GetNumNodes(graph, &count));
  if (count != 1)
    return ort->CreateStatus(ORT_EP_FAIL, "VermilionExecutionProvider: a node of its own was wanted");
  EP_TRY(ort->Graph_GetNodes(graph, &node, 1));
  made->base.version = ORT_VERSION_USED;
  made->base.CreateState = ep_create_state;
  made->base.Compute = ep_compute;
  made->base.ReleaseState = ep_release_state;
  made->ort = ort;
  made->threads = provider->threads;
  atomic_flag_clear(&made->is_taken);
  EP_TRY(ep_open(provider, graph, node, made));
  size_t caches = 2 * (size_t)vermilion_decoder_layers(made->decoder);
  made->input_count = made->model ? vermilion_input_count(made->model) : 2 + caches;
  made->output_count = made->model ? vermilion_output_count(made->model) : 1 + caches;
  EP_TRY(ep_places(ort, node, fused, false, made->input_count, &made->inputs));
  EP_TRY(ep_places(ort, node, fused, true, made->output_count, &made->outputs));
  if (made->decoder) {
    made->base.Compute = ep_compute_decoder;
    return NULL;
  }
  /* What a run would say, it says now: the first session has its memory. */
  ep_idle *session;
  EP_TRY(ep_idle_session(made, &session));
  ep_give_back(made, session);
  return NULL;
}

static OrtStatus *ORT_CALL ep_compile(OrtEp *self, const OrtGraph **graphs, const OrtNode **fused,
                                      size_t count, OrtNodeComputeInfo **infos,
                                      OrtNode **contexts) {
  const ep_provider *provider = (const ep_provider *)self;
  (void)contexts; /* the nodes are context nodes already */
  for (size_t i = 0; i < count; i++) {
    ep_node *made = calloc(1, sizeof *made);
    OrtStatus *status = made ? ep_make_node(provider, graphs[i], fused[i], made)
                             : ep_no_memory(provider->ort);
    if (status) {
      ep_free_node(made);
      for (size_t k = 0; k < i; k++) {
        ep_free_node((ep_node *)infos[k]);
        infos[k] = NULL;
      }
      return status;
    }
    infos[i] = &made->base;
  }
  return NULL;
}

static void ORT_CALL ep_release_infos(OrtEp *self, OrtNodeComputeInfo **infos, size_t count) {
  (void)self;
  for (size_t i = 0; i < count; i++) ep_free_node((ep_node *)infos[i]);
}

static const char *ORT_CALL ep_name(const OrtEp *self) {
  (void)self;
  return EP_NAME;
}

/* ---- the factory ---- */

/* An entry of the session's options, an empty text where there is none. */
static OrtStatus *ep_entry(const ort_functions *ort, const OrtSessionOptions *options,
                           const char *key, char *value, size_t room) {
  int found = 0;
  value[0] = 0;
  EP_TRY(ort->HasSessionConfigEntry(options, key, &found));
  return found ? ort->GetSessionConfigEntry(options, key, value, &room) : NULL;
}

static OrtStatus *ep_read_options(ep_provider *provider, const OrtSessionOptions *options) {
  char threads[32], *end = threads;
  EP_TRY(ep_entry(provider->ort, options, EP_THREADS, threads, sizeof threads));
  long wanted = strtol(threads, &end, 10);
  if (*end || wanted < 0 || wanted > EP_MOST_THREADS)
    return provider->ort->CreateStatus(
        ORT_INVALID_ARGUMENT,
        "VermilionExecutionProvider: its option `threads` is no number of threads\n"
        "hint: 0 or nothing is as many as this process may keep busy");
  provider->threads = wanted ? (size_t)wanted : (size_t)vermilion_usable_cores();
  return ep_entry(provider->ort, options, EP_CONTEXT_PATH, provider->folder,
                  sizeof provider->folder);
}

static OrtStatus *ORT_CALL factory_create(OrtEpFactory *self,
                                          const OrtHardwareDevice *const *devices,
                                          const OrtKeyValuePairs *const *metadata, size_t count,
                                          const OrtSessionOptions *options, const OrtLogger *logger,
                                          OrtEp **ep) {
  const ort_functions *ort = &((ep_factory *)self)->ort;
  (void)devices, (void)metadata, (void)count, (void)logger;
  *ep = NULL;
  ep_provider *made = calloc(1, sizeof *made);
  if (!made) return ep_no_memory(ort);
  made->ort = ort;
  made->base.version = ORT_VERSION_USED;
  made->base.GetName = ep_name;
  made->base.GetCapability = ep_capability;
  made->base.Compile = ep_compile;
  made->base.ReleaseNodeComputeInfos = ep_release_infos;
  OrtStatus *status = ep_read_options(made, options);
  if (status) {
    free(made);
    return status;
  }
  *ep = &made->base;
  return NULL;
}

static void ORT_CALL factory_release(OrtEpFactory *self, OrtEp *ep) {
  (void)self;
  free(ep);
}

/* ONNX Runtime's one processor is what this runs on. */
static OrtStatus *ORT_CALL factory_devices(OrtEpFactory *self,
                                           const OrtHardwareDevice *const *devices, size_t count,
                                           OrtEpDevice **made, size_t room, size_t *made_count) {
  const ort_functions *ort = &((ep_factory *)self)->ort;
  *made_count = 0;
  for (size_t i = 0; i < count && *made_count < room; i++) {
    if (ort->HardwareDevice_Type(devices[i]) != ORT_CPU) continue;
    EP_TRY(ort->CreateEpDevice(self, devices[i], NULL, NULL, &made[*made_count]));
    ++*made_count;
  }
  return NULL;
}

static const char *ORT_CALL factory_name(const OrtEpFactory *self) {
  (void)self;
  return EP_NAME;
}

static const char *ORT_CALL factory_vendor(const OrtEpFactory *self) {
  (void)self;
  return "Vermilion";
}

static uint32_t ORT_CALL factory_vendor_id(const OrtEpFactory *self) {
  (void)self;
  return 0; /* no vendor of hardware */
}

static const char *ORT_CALL factory_version(const OrtEpFactory *self) {
  (void)self;
  return vermilion_version();
}

/* ONNX Runtime's own memory is used. (1.32 calls the three without looking whether they are there.) */
static OrtStatus *ORT_CALL factory_allocator(OrtEpFactory *self, const OrtMemoryInfo *memory,
                                             const OrtKeyValuePairs *options, OrtAllocator **made) {
  (void)self, (void)memory, (void)options;
  *made = NULL;
  return NULL;
}

static void ORT_CALL factory_release_allocator(OrtEpFactory *self, OrtAllocator *allocator) {
  (void)self, (void)allocator;
}

static OrtStatus *ORT_CALL factory_transfer(OrtEpFactory *self, OrtDataTransferImpl **made) {
  (void)self;
  *made = NULL;
  return NULL;
}

static bool ORT_CALL factory_is_stream_aware(const OrtEpFactory *self) {
  (void)self;
  return false;
}

/* ---- what ONNX Runtime calls ---- */

EP_EXPORT OrtStatus *CreateEpFactories(const char *name, const OrtApiBase *base,
                                       const OrtLogger *logger, OrtEpFactory **factories,
                                       size_t room, size_t *count) {
  (void)name, (void)logger;
  *count = 0;
  const uintptr_t *api = base->GetApi(ORT_VERSION_USED);
  if (!api) {
    /* The first function of any version's table makes a status. */
    api = base->GetApi(1);
    OrtStatus *(ORT_CALL *create)(int, const char *) =
        api ? (OrtStatus * (ORT_CALL *)(int, const char *)) api[0] : NULL;
    return create ? create(ORT_NOT_IMPLEMENTED,
                           "VermilionExecutionProvider: this ONNX Runtime is too old\n"
                           "hint: it needs 1.24 or later")
                  : NULL;
  }
  ep_factory *made = calloc(1, sizeof *made);
  OrtStatus *(ORT_CALL *create)(int, const char *) =
      (OrtStatus * (ORT_CALL *)(int, const char *)) api[0];
  if (!made || !room) {
    free(made);
    return create(ORT_FAIL, "VermilionExecutionProvider: there is no room for its factory");
  }
  ort_bind(&made->ort, api);
  made->base.version = ORT_VERSION_USED;
  made->base.GetName = factory_name;
  made->base.GetVendor = factory_vendor;
  made->base.GetSupportedDevices = factory_devices;
  made->base.CreateEp = factory_create;
  made->base.ReleaseEp = factory_release;
  made->base.GetVendorId = factory_vendor_id;
  made->base.GetVersion = factory_version;
  made->base.CreateAllocator = factory_allocator;
  made->base.ReleaseAllocator = factory_release_allocator;
  made->base.CreateDataTransfer = factory_transfer;
  made->base.IsStreamAware = factory_is_stream_aware;
  factories[0] = &made->base;
  *count = 1;
  return NULL;
}

EP_EXPORT OrtStatus *ReleaseEpFactory(OrtEpFactory *factory) {
  free(factory);
  return NULL;
}
