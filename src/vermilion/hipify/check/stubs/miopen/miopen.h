// Stub for the compile check: MIOpen.
#pragma once
#include <hip/hip_runtime.h>
#include <stddef.h>
extern "C" {
#define VERMILION_HANDLE(name) typedef struct name##_object* name##_t;
VERMILION_HANDLE(miopenHandle)
VERMILION_HANDLE(miopenTensorDescriptor)
VERMILION_HANDLE(miopenConvolutionDescriptor)
VERMILION_HANDLE(miopenPoolingDescriptor)
VERMILION_HANDLE(miopenActivationDescriptor)
VERMILION_HANDLE(miopenDropoutDescriptor)
VERMILION_HANDLE(miopenLRNDescriptor)
VERMILION_HANDLE(miopenRNNDescriptor)
VERMILION_HANDLE(miopenCTCLossDescriptor)
#undef VERMILION_HANDLE
typedef enum { miopenStatusSuccess, miopenStatusNotInitialized, miopenStatusInvalidValue, miopenStatusBadParm, miopenStatusAllocFailed, miopenStatusInternalError, miopenStatusNotImplemented, miopenStatusUnknownError } miopenStatus_t;
typedef enum { miopenHalf, miopenFloat, miopenInt32, miopenInt8, miopenBFloat16, miopenDouble } miopenDataType_t;
typedef enum { miopenTensorNCHW, miopenTensorNHWC } miopenTensorLayout_t;
typedef enum { miopenConvolution, miopenTranspose } miopenConvolutionMode_t;
typedef enum { miopenConvolutionFwdAlgoGEMM, miopenConvolutionFwdAlgoDirect, miopenConvolutionFwdAlgoFFT, miopenConvolutionFwdAlgoWinograd, miopenConvolutionFwdAlgoImplicitGEMM } miopenConvFwdAlgorithm_t;
typedef enum { miopenConvolutionBwdDataAlgoGEMM } miopenConvBwdDataAlgorithm_t;
typedef enum { miopenConvolutionBwdWeightsAlgoGEMM } miopenConvBwdWeightsAlgorithm_t;
typedef struct { miopenConvFwdAlgorithm_t fwd_algo; float time; size_t memory; } miopenConvAlgoPerf_t;
typedef enum { miopenPoolingMax, miopenPoolingAverage, miopenPoolingAverageInclusive } miopenPoolingMode_t;
typedef enum { miopenActivationPASTHRU, miopenActivationLOGISTIC, miopenActivationTANH, miopenActivationRELU, miopenActivationCLIPPEDRELU, miopenActivationELU } miopenActivationMode_t;
typedef enum { MIOPEN_SOFTMAX_FAST, MIOPEN_SOFTMAX_ACCURATE, MIOPEN_SOFTMAX_LOG } miopenSoftmaxAlgorithm_t;
typedef enum { MIOPEN_SOFTMAX_MODE_INSTANCE, MIOPEN_SOFTMAX_MODE_CHANNEL } miopenSoftmaxMode_t;
typedef enum { miopenBNPerActivation, miopenBNSpatial } miopenBatchNormMode_t;
typedef enum { miopenTensorOpAdd, miopenTensorOpMul, miopenTensorOpMin, miopenTensorOpMax } miopenTensorOp_t;
typedef miopenTensorDescriptor_t miopenT;
const char* miopenGetErrorString(miopenStatus_t);
miopenStatus_t miopenGetVersion(size_t*, size_t*, size_t*);
miopenStatus_t miopenCreate(miopenHandle_t*);
miopenStatus_t miopenDestroy(miopenHandle_t);
miopenStatus_t miopenSetStream(miopenHandle_t, hipStream_t);
miopenStatus_t miopenGetStream(miopenHandle_t, hipStream_t*);
miopenStatus_t miopenCreateTensorDescriptor(miopenT*);
miopenStatus_t miopenDestroyTensorDescriptor(miopenT);
miopenStatus_t miopenSet4dTensorDescriptor(miopenT, miopenDataType_t, int n, int c, int h, int w);
miopenStatus_t miopenSet4dTensorDescriptorEx(miopenT, miopenDataType_t, int, int, int, int, int, int, int, int);
miopenStatus_t miopenSetTensorDescriptor(miopenT, miopenDataType_t, int, const int*, const int*);
miopenStatus_t miopenGet4dTensorDescriptor(miopenT, miopenDataType_t*, int*, int*, int*, int*, int*, int*, int*, int*);
miopenStatus_t miopenSetTensor(miopenHandle_t, miopenT, void*, const void*);
miopenStatus_t miopenScaleTensor(miopenHandle_t, miopenT, void*, const void*);
miopenStatus_t miopenTransformTensor(miopenHandle_t, const void*, miopenT, const void*, const void*, miopenT, void*);
miopenStatus_t miopenOpTensor(miopenHandle_t, miopenTensorOp_t, const void*, miopenT, const void*, const void*, miopenT, const void*, const void*, miopenT, void*);
miopenStatus_t miopenCreateConvolutionDescriptor(miopenConvolutionDescriptor_t*);
miopenStatus_t miopenDestroyConvolutionDescriptor(miopenConvolutionDescriptor_t);
miopenStatus_t miopenInitConvolutionDescriptor(miopenConvolutionDescriptor_t, miopenConvolutionMode_t, int pad_h, int pad_w, int u, int v, int dilation_h, int dilation_w);
miopenStatus_t miopenSetConvolutionGroupCount(miopenConvolutionDescriptor_t, int);
miopenStatus_t miopenGetConvolutionForwardOutputDim(miopenConvolutionDescriptor_t, miopenT, miopenT, int*, int*, int*, int*);
miopenStatus_t miopenConvolutionForwardGetWorkSpaceSize(miopenHandle_t, miopenT w, miopenT x, miopenConvolutionDescriptor_t, miopenT y, size_t*);
miopenStatus_t miopenFindConvolutionForwardAlgorithm(miopenHandle_t, miopenT, const void*, miopenT, const void*, miopenConvolutionDescriptor_t, miopenT, void*, int, int*, miopenConvAlgoPerf_t*, void*, size_t, bool);
miopenStatus_t miopenConvolutionForward(miopenHandle_t, const void*, miopenT, const void*, miopenT, const void*, miopenConvolutionDescriptor_t, miopenConvFwdAlgorithm_t, const void*, miopenT, void*, void*, size_t);
miopenStatus_t miopenConvolutionBackwardData(miopenHandle_t, const void*, miopenT, const void*, miopenT, const void*, miopenConvolutionDescriptor_t, miopenConvBwdDataAlgorithm_t, const void*, miopenT, void*, void*, size_t);
miopenStatus_t miopenConvolutionBackwardWeights(miopenHandle_t, const void*, miopenT, const void*, miopenT, const void*, miopenConvolutionDescriptor_t, miopenConvBwdWeightsAlgorithm_t, const void*, miopenT, void*, void*, size_t);
miopenStatus_t miopenConvolutionBackwardBias(miopenHandle_t, const void*, miopenT, const void*, const void*, miopenT, void*);
miopenStatus_t miopenCreatePoolingDescriptor(miopenPoolingDescriptor_t*);
miopenStatus_t miopenDestroyPoolingDescriptor(miopenPoolingDescriptor_t);
miopenStatus_t miopenSet2dPoolingDescriptor(miopenPoolingDescriptor_t, miopenPoolingMode_t, int, int, int, int, int, int);
miopenStatus_t miopenPoolingForward(miopenHandle_t, miopenPoolingDescriptor_t, const void*, miopenT, const void*, const void*, miopenT, void*, bool, void*, size_t);
miopenStatus_t miopenPoolingBackward(miopenHandle_t, miopenPoolingDescriptor_t, const void*, miopenT, const void*, miopenT, const void*, miopenT, const void*, const void*, miopenT, void*, const void*);
miopenStatus_t miopenCreateActivationDescriptor(miopenActivationDescriptor_t*);
miopenStatus_t miopenDestroyActivationDescriptor(miopenActivationDescriptor_t);
miopenStatus_t miopenSetActivationDescriptor(miopenActivationDescriptor_t, miopenActivationMode_t, double, double, double);
miopenStatus_t miopenActivationForward(miopenHandle_t, miopenActivationDescriptor_t, const void*, miopenT, const void*, const void*, miopenT, void*);
miopenStatus_t miopenActivationBackward(miopenHandle_t, miopenActivationDescriptor_t, const void*, miopenT, const void*, miopenT, const void*, miopenT, const void*, const void*, miopenT, void*);
miopenStatus_t miopenSoftmaxForward_V2(miopenHandle_t, const void*, miopenT, const void*, const void*, miopenT, void*, miopenSoftmaxAlgorithm_t, miopenSoftmaxMode_t);
miopenStatus_t miopenBatchNormalizationForwardInference(miopenHandle_t, miopenBatchNormMode_t, void*, void*, miopenT, const void*, miopenT, void*, miopenT, void*, void*, void*, void*, double);
miopenStatus_t miopenBatchNormalizationForwardTraining(miopenHandle_t, miopenBatchNormMode_t, void*, void*, miopenT, const void*, miopenT, void*, miopenT, void*, void*, double, void*, void*, double, void*, void*);
miopenStatus_t miopenDeriveBNTensorDescriptor(miopenT, miopenT, miopenBatchNormMode_t);
}
