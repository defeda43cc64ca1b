// ORT-style CUDA custom op: layer norm + warp reduce + cublas bias gemm
#include <hip/hip_runtime.h>
#include <hip/hip_fp16.h>
#include <hipblas/hipblas.h>
#include <hiprand/hiprand_kernel.h>
#include <hipcub/hipcub.hpp>
#include "onnxruntime_cxx_api.h"
#define FULL 0xffffffffu
__device__ __forceinline__ float warpSum(float v){
  for(int o=16;o>0;o>>=1) v+=__shfl_down_sync(__activemask(),v,o, 32);
  return v;
}
template<typename T,int TPB> __global__ void LayerNormKernel(const T* x,const T* g,const T* b,T* y,int d,float eps){
  extern __shared__ float sm[];
  typedef hipcub::BlockReduce<float,TPB> BR; __shared__ typename BR::TempStorage ts; __shared__ float mu,rs;
  const T* r=x+(size_t)blockIdx.x*d; float s=0,q=0;
  for(int i=threadIdx.x;i<d;i+=blockDim.x){ float v=static_cast<float>(__ldg(r+i)); s+=v; q+=v*v; }
  s=BR(ts).Sum(s); __syncthreads(); q=BR(ts).Sum(q);
  if(threadIdx.x==0){ mu=s/d; rs=rsqrtf(q/d-mu*mu+eps);} __syncthreads();
  for(int i=threadIdx.x;i<d;i+=blockDim.x) y[(size_t)blockIdx.x*d+i]=T((float(r[i])-mu)*rs*float(g[i])+float(b[i]));
  unsigned m=(unsigned)(__ballot(threadIdx.x&1) >> (__lane_id() & 32)); (void)m; (void)(unsigned)(__activemask() >> (__lane_id() & 32));
  __threadfence();
}
struct LNKernel{
  void Compute(OrtKernelContext* c){
    Ort::KernelContext ctx(c); hipStream_t st=reinterpret_cast<hipStream_t>(ctx.GetGPUComputeStream());
    auto X=ctx.GetInput(0); auto sh=X.GetTensorTypeAndShapeInfo().GetShape(); int d=(int)sh.back(); int n=(int)(X.GetTensorTypeAndShapeInfo().GetElementCount()/d);
    auto Y=ctx.GetOutput(0,sh);
    LayerNormKernel<float,256><<<n,256,0,st>>>(X.GetTensorData<float>(),ctx.GetInput(1).GetTensorData<float>(),ctx.GetInput(2).GetTensorData<float>(),Y.GetTensorMutableData<float>(),d,1e-5f);
    hipblasHandle_t h; hipblasCreate(&h); hipblasSetStream(h,st); hipblasSetMathMode(h,HIPBLAS_DEFAULT_MATH); hipblasDestroy(h);
  }
};
struct LNOp: Ort::CustomOpBase<LNOp,LNKernel>{
  void* CreateKernel(const OrtApi&,const OrtKernelInfo*)const{return new LNKernel;}
  const char* GetName()const{return "MyLN";} const char* GetExecutionProviderType()const{return "MIGraphXExecutionProvider";}
  size_t GetInputTypeCount()const{return 3;} ONNXTensorElementDataType GetInputType(size_t)const{return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;}
  size_t GetOutputTypeCount()const{return 1;} ONNXTensorElementDataType GetOutputType(size_t)const{return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;}
};
