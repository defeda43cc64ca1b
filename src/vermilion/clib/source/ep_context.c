/* Context nodes: which are ours, what they say, the compiled model that they name. */
#include "ep.h"

/* ---- statuses ---- */

static OrtStatus *ep_fail(const ort_functions *ort, int code, const char *node, const char *message,
                          const char *hint) {
  char said[VM_MOST_CHARACTERS], text[4 * VM_MOST_CHARACTERS + 1024];
  snprintf(said, sizeof said, "%s: %s (EPContext node `%.200s`)", EP_NAME, message, node);
  char *end = vm_put_printable(text, said) - 1;
  snprintf(end, sizeof text - (size_t)(end - text), "\nhint: %s", hint);
  return ort->CreateStatus(code, text);
}

/* The same of a status of the library, which is freed. */
static OrtStatus *ep_status_of(const ort_functions *ort, vermilion_status *status) {
  static const int codes[] = {
      [VERMILION_ERROR_ARTIFACT] = ORT_INVALID_GRAPH, [VERMILION_ERROR_OPTION] = ORT_INVALID_ARGUMENT,
      [VERMILION_ERROR_UNSUPPORTED] = ORT_NOT_IMPLEMENTED, [VERMILION_ERROR_DEVICE] = ORT_EP_FAIL,
      [VERMILION_ERROR_SIZES] = ORT_NOT_IMPLEMENTED, [VERMILION_ERROR_TRUST] = ORT_EP_FAIL,
      [VERMILION_ERROR_MEMORY] = ORT_FAIL, [VERMILION_ERROR_DATA] = ORT_INVALID_ARGUMENT};
  if (!status) return NULL;
  char text[8192];
  size_t code = (size_t)vermilion_status_code(status);
  snprintf(text, sizeof text, "%s: %s", EP_NAME, vermilion_status_text(status));
  int ort_code = code < sizeof codes / sizeof *codes && codes[code] ? codes[code] : ORT_FAIL;
  vermilion_status_free(status);
  return ort->CreateStatus(ort_code, text);
}

static OrtStatus *ep_no_memory(const ort_functions *ort) {
  return ort->CreateStatus(ORT_FAIL, "VermilionExecutionProvider: the system has no more memory");
}

/* ---- attributes ---- */

/* An attribute of that kind, NULL where there is none. */
static const OrtOpAttr *ep_attribute(const ort_functions *ort, const OrtNode *node,
                                     const char *name, int kind) {
  const OrtOpAttr *attribute = NULL;
  int found = 0;
  OrtStatus *status = ort->Node_GetAttributeByName(node, name, &attribute);
  if (!status && attribute) status = ort->OpAttr_GetType(attribute, &found);
  if (status) ort->ReleaseStatus(status);
  return status || found != kind ? NULL : attribute;
}

/* A whole number; `missing` where there is none. */
static int64_t ep_integer(const ort_functions *ort, const OrtNode *node, const char *name,
                          int64_t missing) {
  const OrtOpAttr *attribute = ep_attribute(ort, node, name, ORT_INT);
  int64_t value = missing;
  size_t size = 0;
  OrtStatus *status =
      attribute ? ort->ReadOpAttr(attribute, ORT_INT, &value, sizeof value, &size) : NULL;
  if (status) ort->ReleaseStatus(status);
  return status ? missing : value;
}

/* How many bytes a text has; 0 where there is none. */
static size_t ep_text_size(const ort_functions *ort, const OrtNode *node, const char *name) {
  const OrtOpAttr *attribute = ep_attribute(ort, node, name, ORT_STRING);
  char nothing = 0;
  size_t size = 0;
  if (!attribute) return 0;
  /* It fails where there is no room, and says how much there has to be. */
  OrtStatus *status = ort->ReadOpAttr(attribute, ORT_STRING, &nothing, 0, &size);
  if (status) ort->ReleaseStatus(status);
  return size;
}

/* A text of at most `room` - 1 bytes, ended by a zero byte. False where there is none, where it is
   longer, or where it has a zero byte inside. */
static bool ep_text(const ort_functions *ort, const OrtNode *node, const char *name, char *text,
                    size_t room) {
  const OrtOpAttr *attribute = ep_attribute(ort, node, name, ORT_STRING);
  size_t size = ep_text_size(ort, node, name), written = 0;
  if (!attribute || !size || size >= room) return false;
  memset(text, 0, room);
  OrtStatus *status = ort->ReadOpAttr(attribute, ORT_STRING, text, room - 1, &written);
  if (status) ort->ReleaseStatus(status);
  return !status && strlen(text) == size;
}

static const char *ep_name_of(const ort_functions *ort, const OrtNode *node) {
  const char *name = NULL;
  OrtStatus *status = ort->Node_GetName(node, &name);
  if (status) ort->ReleaseStatus(status);
  return status || !name ? "" : name;
}

/* ---- opening what a node names ---- */

/* The folder of the file that the model is in; empty where it came from memory. */
static OrtStatus *ep_folder(const ep_provider *provider, const OrtGraph *graph, char *folder) {
  const ort_path_char *path = NULL;
  EP_TRY(provider->ort->Graph_GetModelPath(graph, &path));
  folder[0] = 0;
#ifdef _WIN32
  if (path && path[0] &&
      !WideCharToMultiByte(CP_UTF8, 0, path, -1, folder, EP_MOST_PATH, NULL, NULL))
    folder[0] = 0;
#else
  if (path && strlen(path) < EP_MOST_PATH) strcpy(folder, path);
#endif
  if (!folder[0]) memcpy(folder, provider->folder, sizeof provider->folder);
  if (!folder[0]) return NULL;
  char *end = strrchr(folder, '/');
#ifdef _WIN32
  char *other = strrchr(folder, '\\');
  if (other && (!end || other > end)) end = other;
#endif
  if (end)
    end[1] = 0;
  else
    strcpy(folder, "./");
  return NULL;
}

/* Whether a path stays in the model's folder. */
static bool ep_stays(const char *path) {
  if (!path[0] || path[0] == '/' || strchr(path, '\\') || strchr(path, ':')) return false;
  for (const char *at = path; *at;) {
    size_t length = strcspn(at, "/");
    if (!length || (length <= 2 && !strncmp(at, "..", length))) return false;
    at += length + (at[length] == '/');
  }
  return true;
}

/* Open a file, or the bytes of one where `path` is NULL. */
static OrtStatus *ep_load(ep_node *made, const char *path, const void *data, size_t size, const char *part) {
  if (!strcmp(part, EP_DECODER)) {
    vermilion_decoder_options options = VERMILION_DECODER_OPTIONS;
    options.workers = (int32_t)made->threads;
    return ep_status_of(made->ort, path ? vermilion_decoder_open(path, &options, &made->decoder)
                                        : vermilion_decoder_open_memory(data, size, &options, &made->decoder));
  }
  vermilion_open_options options = VERMILION_OPEN_OPTIONS;
  options.part = part;
  return ep_status_of(made->ort, path ? vermilion_open(path, &options, &made->model)
                                      : vermilion_open_memory(data, size, &options, &made->model));
}

static OrtStatus *ep_open_file(const ep_provider *provider, const OrtGraph *graph,
                               const OrtNode *node, const char *part, ep_node *made) {
  const ort_functions *ort = provider->ort;
  const char *name = ep_name_of(ort, node);
  char file[1024], path[EP_MOST_PATH + sizeof file];
  if (!ep_text(ort, node, "ep_cache_context", file, sizeof file))
    return ep_fail(ort, ORT_INVALID_GRAPH, name,
                   "`ep_cache_context` names no file, or one with too long a name", EP_AGAIN);
  if (!ep_stays(file))
    return ep_fail(ort, ORT_INVALID_GRAPH, name,
                   "`ep_cache_context` leads out of the model's folder",
                   "the compiled model lies beside the model: do not use this one");
  EP_TRY(ep_folder(provider, graph, path));
  if (!path[0])
    return ep_fail(ort, ORT_NO_SUCHFILE, name,
                   "the model came from memory, so nothing says where the compiled model lies",
                   "open the model's file, set the session's entry `ep.context_file_path` to it, or "
                   "write it with `--ep-context-embed`");
  strcat(path, file);
  return ep_load(made, path, NULL, 0, part);
}

static OrtStatus *ep_open_embedded(const ort_functions *ort, const OrtNode *node, const char *part,
                                   ep_node *made) {
  size_t size = ep_text_size(ort, node, "ep_cache_context"), written = 0;
  if (!size)
    return ep_fail(ort, ORT_INVALID_GRAPH, ep_name_of(ort, node), "`ep_cache_context` is empty",
                   EP_AGAIN);
  /* The library uses weights in place where they are aligned. */
  made->bytes = malloc(size + EP_ALIGNMENT);
  if (!made->bytes) return ep_no_memory(ort);
  char *data = (char *)(((uintptr_t)made->bytes + EP_ALIGNMENT - 1) / EP_ALIGNMENT * EP_ALIGNMENT);
  const OrtOpAttr *attribute = ep_attribute(ort, node, "ep_cache_context", ORT_STRING);
  EP_TRY(ort->ReadOpAttr(attribute, ORT_STRING, data, size, &written));
  return ep_load(made, NULL, data, size, part);
}

static OrtStatus *ep_open(const ep_provider *provider, const OrtGraph *graph, const OrtNode *node,
                          ep_node *made) {
  const ort_functions *ort = provider->ort;
  const char *name = ep_name_of(ort, node);
  char part[256];
  if (!ep_text(ort, node, "partition_name", part, sizeof part))
    return ep_fail(ort, ORT_INVALID_GRAPH, name, "it has no `partition_name`", EP_AGAIN);
  switch (ep_integer(ort, node, "embed_mode", 1)) {
  case 0:
    return ep_open_file(provider, graph, node, part, made);
  case 1:
    return ep_open_embedded(ort, node, part, made);
  default:
    return ep_fail(ort, ORT_INVALID_GRAPH, name, "its `embed_mode` is neither 0 nor 1", EP_AGAIN);
  }
}
