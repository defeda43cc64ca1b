// Stub for the compile check: the part of ONNX Runtime that custom operators use.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>
struct OrtApi; struct OrtKernelInfo; struct OrtKernelContext; struct OrtSessionOptions; struct OrtStatus; struct OrtCustomOpDomain;
struct OrtApiBase { const OrtApi* (*GetApi)(uint32_t); const char* (*GetVersionString)(); };
struct OrtCustomOp { uint32_t version; };
typedef enum ONNXTensorElementDataType { ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16 } ONNXTensorElementDataType;
typedef enum OrtCustomOpInputOutputCharacteristic { INPUT_OUTPUT_REQUIRED, INPUT_OUTPUT_OPTIONAL, INPUT_OUTPUT_VARIADIC } OrtCustomOpInputOutputCharacteristic;
typedef enum OrtMemType { OrtMemTypeCPUInput = -2, OrtMemTypeCPUOutput = -1, OrtMemTypeDefault = 0 } OrtMemType;
#define ORT_API_VERSION 22
#ifndef ORT_API_CALL
#define ORT_API_CALL
#endif
namespace Ort {
struct TensorTypeAndShapeInfo {
  std::vector<int64_t> GetShape() const;
  size_t GetElementCount() const;
  ONNXTensorElementDataType GetElementType() const;
};
struct ConstValue {
  TensorTypeAndShapeInfo GetTensorTypeAndShapeInfo() const;
  template <class T> const T* GetTensorData() const;
  const void* GetTensorRawData() const;
};
struct UnownedValue : ConstValue {
  template <class T> T* GetTensorMutableData();
  void* GetTensorMutableRawData();
};
struct KernelContext {
  explicit KernelContext(OrtKernelContext*);
  size_t GetInputCount() const;
  size_t GetOutputCount() const;
  ConstValue GetInput(size_t) const;
  UnownedValue GetOutput(size_t, const int64_t*, size_t) const;
  UnownedValue GetOutput(size_t, const std::vector<int64_t>&) const;
  void* GetGPUComputeStream() const;
};
struct KernelInfo { explicit KernelInfo(OrtKernelInfo*); template <class T> T GetAttribute(const char*) const; };
struct ConstKernelInfo { explicit ConstKernelInfo(const OrtKernelInfo*); template <class T> T GetAttribute(const char*) const; };
struct CustomOpDomain { explicit CustomOpDomain(const char*); void Add(const OrtCustomOp*); OrtCustomOpDomain* release(); };
struct UnownedSessionOptions { explicit UnownedSessionOptions(OrtSessionOptions*); void Add(OrtCustomOpDomain*); };
inline void InitApi(const OrtApi*) {}
template <class Op, class Kernel, bool WithStatus = false> struct CustomOpBase : OrtCustomOp {
  const char* GetExecutionProviderType() const { return nullptr; }
  OrtCustomOpInputOutputCharacteristic GetInputCharacteristic(size_t) const { return INPUT_OUTPUT_REQUIRED; }
  OrtMemType GetInputMemoryType(size_t) const { return OrtMemTypeDefault; }
};
}  // namespace Ort
