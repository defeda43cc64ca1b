/* What the plugin uses of ONNX Runtime's C interface, and no more.

   Facts of its binary interface: OrtApi and OrtEpApi are tables of functions that only ever grow at
   their end, so a function's place in them never changes. Source: `onnxruntime_c_api.h` and
   `onnxruntime_ep_c_api.h` of ONNX Runtime 1.24 and later, documented at
   https://onnxruntime.ai/docs/api/c/. */
#ifndef VERMILION_ONNXRUNTIME_ABI_H
#define VERMILION_ONNXRUNTIME_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef _WIN32
#define ORT_CALL __stdcall
typedef wchar_t ort_path_char;
#else
#define ORT_CALL
typedef char ort_path_char;
#endif

/* The version of the interface that this is of: ONNX Runtime 1.24. */
#define ORT_VERSION_USED 24

typedef struct OrtStatus OrtStatus;
typedef struct OrtLogger OrtLogger;
typedef struct OrtGraph OrtGraph;
typedef struct OrtNode OrtNode;
typedef struct OrtOpAttr OrtOpAttr;
typedef struct OrtValue OrtValue;
typedef struct OrtValueInfo OrtValueInfo;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtHardwareDevice OrtHardwareDevice;
typedef struct OrtEpDevice OrtEpDevice;
typedef struct OrtKeyValuePairs OrtKeyValuePairs;
typedef struct OrtEpGraphSupportInfo OrtEpGraphSupportInfo;
typedef struct OrtNodeComputeContext OrtNodeComputeContext;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtAllocator OrtAllocator;
typedef struct OrtDataTransferImpl OrtDataTransferImpl;
typedef struct OrtEp OrtEp;
typedef struct OrtEpFactory OrtEpFactory;
typedef struct OrtNodeComputeInfo OrtNodeComputeInfo;

enum ort_error {
  ORT_FAIL = 1,
  ORT_INVALID_ARGUMENT = 2,
  ORT_NO_SUCHFILE = 3,
  ORT_NOT_IMPLEMENTED = 9,
  ORT_INVALID_GRAPH = 10,
  ORT_EP_FAIL = 11
};

enum ort_attribute { ORT_INT = 1, ORT_STRING = 5 };
enum ort_device { ORT_CPU = 0 };

typedef struct OrtApiBase {
  const uintptr_t *(ORT_CALL *GetApi)(uint32_t version);
  const char *(ORT_CALL *GetVersionString)(void);
} OrtApiBase;

/* name, place, what it returns, what it takes */
#define ORT_FUNCTIONS(X)                                                                           \
  X(CreateStatus, 0, OrtStatus *, (int code, const char *message))                                 \
  X(GetTensorMutableData, 51, OrtStatus *, (OrtValue * value, void **data))                        \
  X(KernelContext_GetInputCount, 88, OrtStatus *, (const OrtKernelContext *context, size_t *n))    \
  X(KernelContext_GetOutputCount, 89, OrtStatus *, (const OrtKernelContext *context, size_t *n))   \
  X(KernelContext_GetInput, 90, OrtStatus *,                                                       \
    (const OrtKernelContext *context, size_t index, const OrtValue **value))                       \
  X(KernelContext_GetOutput, 91, OrtStatus *,                                                      \
    (OrtKernelContext * context, size_t index, const int64_t *shape, size_t rank,                  \
     OrtValue **value))                                                                            \
  X(ReleaseStatus, 93, void, (OrtStatus * status))                                                 \
  X(HasSessionConfigEntry, 237, OrtStatus *,                                                       \
    (const OrtSessionOptions *options, const char *key, int *found))                               \
  X(GetSessionConfigEntry, 238, OrtStatus *,                                                       \
    (const OrtSessionOptions *options, const char *key, char *value, size_t *size))                \
  X(ReadOpAttr, 272, OrtStatus *,                                                                  \
    (const OrtOpAttr *attribute, int type, void *data, size_t size, size_t *needed))               \
  X(KernelContext_ParallelFor, 274, OrtStatus *,                                                   \
    (const OrtKernelContext *context, void (*task)(void *, size_t), size_t count, size_t batches,  \
     void *work))                                                                                  \
  X(GetValueInfoName, 289, OrtStatus *, (const OrtValueInfo *info, const char **name))             \
  X(HardwareDevice_Type, 307, int, (const OrtHardwareDevice *device))                              \
  X(GetEpApi, 317, const uintptr_t *, (void))                                                      \
  X(GetTensorSizeInBytes, 318, OrtStatus *, (const OrtValue *value, size_t *bytes))                \
  X(Graph_GetModelPath, 334, OrtStatus *, (const OrtGraph *graph, const ort_path_char **path))     \
  X(Graph_GetNumNodes, 344, OrtStatus *, (const OrtGraph *graph, size_t *count))                   \
  X(Graph_GetNodes, 345, OrtStatus *, (const OrtGraph *graph, const OrtNode **nodes, size_t room)) \
  X(Node_GetName, 349, OrtStatus *, (const OrtNode *node, const char **name))                      \
  X(Node_GetOperatorType, 350, OrtStatus *, (const OrtNode *node, const char **type))              \
  X(Node_GetDomain, 351, OrtStatus *, (const OrtNode *node, const char **domain))                  \
  X(Node_GetNumInputs, 353, OrtStatus *, (const OrtNode *node, size_t *count))                     \
  X(Node_GetInputs, 354, OrtStatus *,                                                              \
    (const OrtNode *node, const OrtValueInfo **values, size_t room))                               \
  X(Node_GetNumOutputs, 355, OrtStatus *, (const OrtNode *node, size_t *count))                    \
  X(Node_GetOutputs, 356, OrtStatus *,                                                             \
    (const OrtNode *node, const OrtValueInfo **values, size_t room))                               \
  X(Node_GetAttributeByName, 361, OrtStatus *,                                                     \
    (const OrtNode *node, const char *name, const OrtOpAttr **attribute))                          \
  X(OpAttr_GetType, 363, OrtStatus *, (const OrtOpAttr *attribute, int *type))                     \
  X(GetTensorData, 378, OrtStatus *, (const OrtValue *value, const void **data))                   \
  X(GetTensorElementTypeAndShapeDataReference, 414, OrtStatus *,                                   \
    (const OrtValue *value, int *type, const int64_t **shape, size_t *rank))

#define ORT_EP_FUNCTIONS(X)                                                                        \
  X(CreateEpDevice, 0, OrtStatus *,                                                                \
    (OrtEpFactory * factory, const OrtHardwareDevice *device, const OrtKeyValuePairs *metadata,    \
     const OrtKeyValuePairs *options, OrtEpDevice **made))                                         \
  X(EpGraphSupportInfo_AddNodesToFuse, 2, OrtStatus *,                                             \
    (OrtEpGraphSupportInfo * info, const OrtNode *const *nodes, size_t count,                      \
     const void *fusion_options))                                                                  \
  X(NodeComputeContext_NodeName, 4, const char *, (const OrtNodeComputeContext *context))

typedef struct ort_functions {
#define ORT_FIELD(name, place, result, parameters) result(ORT_CALL *name) parameters;
  ORT_FUNCTIONS(ORT_FIELD)
  ORT_EP_FUNCTIONS(ORT_FIELD)
#undef ORT_FIELD
} ort_functions;

/* Take the functions out of the two tables. */
static inline void ort_bind(ort_functions *ort, const uintptr_t *api) {
#define ORT_TAKE(name, place, result, parameters)                                                  \
  ort->name = (result(ORT_CALL *) parameters)table[place];
  const uintptr_t *table = api;
  ORT_FUNCTIONS(ORT_TAKE)
  table = ort->GetEpApi();
  ORT_EP_FUNCTIONS(ORT_TAKE)
#undef ORT_TAKE
}

/* What a provider fills in. Functions that are not set stand as NULL, which ONNX Runtime takes for
   the default; those behind the last one here are of later versions, and are not looked at for
   `version` 24. */
struct OrtNodeComputeInfo {
  uint32_t version;
  OrtStatus *(ORT_CALL *CreateState)(OrtNodeComputeInfo *self, OrtNodeComputeContext *context,
                                     void **state);
  OrtStatus *(ORT_CALL *Compute)(OrtNodeComputeInfo *self, void *state, OrtKernelContext *context);
  void(ORT_CALL *ReleaseState)(OrtNodeComputeInfo *self, void *state);
};

struct OrtEp {
  uint32_t version;
  const char *(ORT_CALL *GetName)(const OrtEp *self);
  OrtStatus *(ORT_CALL *GetCapability)(OrtEp *self, const OrtGraph *graph,
                                       OrtEpGraphSupportInfo *info);
  OrtStatus *(ORT_CALL *Compile)(OrtEp *self, const OrtGraph **graphs, const OrtNode **fused,
                                 size_t count, OrtNodeComputeInfo **infos, OrtNode **contexts);
  void(ORT_CALL *ReleaseNodeComputeInfos)(OrtEp *self, OrtNodeComputeInfo **infos, size_t count);
  void *optional[32];
};

struct OrtEpFactory {
  uint32_t version;
  const char *(ORT_CALL *GetName)(const OrtEpFactory *self);
  const char *(ORT_CALL *GetVendor)(const OrtEpFactory *self);
  OrtStatus *(ORT_CALL *GetSupportedDevices)(OrtEpFactory *self,
                                             const OrtHardwareDevice *const *devices,
                                             size_t count, OrtEpDevice **made, size_t room,
                                             size_t *made_count);
  OrtStatus *(ORT_CALL *CreateEp)(OrtEpFactory *self, const OrtHardwareDevice *const *devices,
                                  const OrtKeyValuePairs *const *metadata, size_t count,
                                  const OrtSessionOptions *options, const OrtLogger *logger,
                                  OrtEp **ep);
  void(ORT_CALL *ReleaseEp)(OrtEpFactory *self, OrtEp *ep);
  uint32_t(ORT_CALL *GetVendorId)(const OrtEpFactory *self);
  const char *(ORT_CALL *GetVersion)(const OrtEpFactory *self);
  void *ValidateCompiledModelCompatibilityInfo;
  OrtStatus *(ORT_CALL *CreateAllocator)(OrtEpFactory *self, const OrtMemoryInfo *memory,
                                         const OrtKeyValuePairs *options, OrtAllocator **made);
  void(ORT_CALL *ReleaseAllocator)(OrtEpFactory *self, OrtAllocator *allocator);
  OrtStatus *(ORT_CALL *CreateDataTransfer)(OrtEpFactory *self, OrtDataTransferImpl **made);
  bool(ORT_CALL *IsStreamAware)(const OrtEpFactory *self);
  void *optional[32];
};

#endif
