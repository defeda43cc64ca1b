"""Names by rule and by table, and the few places where more than a name changes."""

from __future__ import annotations

import pytest

from vermilion.hipify.names import Names
from vermilion.hipify.translate import translate


@pytest.mark.parametrize(
    ("cuda", "hip"),
    [
        ("cudaMalloc", "hipMalloc"),
        ("cudaMallocHost", "hipHostMalloc"),
        ("cudaErrorLaunchTimeout", "hipErrorLaunchTimeOut"),
        ("cudaDevAttrMultiProcessorCount", "hipDeviceAttributeMultiprocessorCount"),
        ("cudaDevAttrMaxPitch", "hipDeviceAttributeMaxPitch"),
        ("cuMemAlloc_v2", "hipMalloc"),
        ("cuStreamSynchronize_ptsz", "hipStreamSynchronize"),
        ("CUDA_R_16BF", "HIP_R_16BF"),
        ("CUDA_ERROR_ILLEGAL_ADDRESS", "hipErrorIllegalAddress"),
        ("CU_DEVICE_ATTRIBUTE_WARP_SIZE", "hipDeviceAttributeWarpSize"),
        ("CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT", "hipDeviceAttributeMultiprocessorCount"),
        ("cublasGemmEx", "hipblasGemmEx"),
        ("CUBLASLT_EPILOGUE_BIAS", "HIPBLASLT_EPILOGUE_BIAS"),
        ("cufftPlanMany", "hipfftPlanMany"),
        ("curandGenerateUniform", "hiprandGenerateUniform"),
        ("curand_normal2_double", "hiprand_normal2_double"),
        ("cusparseSpMM", "hipsparseSpMM"),
        ("cusolverDnSgetrf", "hipsolverDnSgetrf"),
        ("nvrtcCompileProgram", "hiprtcCompileProgram"),
        ("cudnnCreate", "miopenCreate"),
        ("nvtxRangePushA", "roctxRangePush"),
        ("ncclAllReduce", "ncclAllReduce"),
        ("cuCmulf", "hipCmulf"),
        ("__nv_bfloat16", "__hip_bfloat16"),
        ("make_cudaExtent", "make_hipExtent"),
        ("CUDART_LN2_F", "HIP_LN2_F"),
        ("CU_STREAM_PER_THREAD", "hipStreamPerThread"),
        ("CU_JIT_MAX_REGISTERS", "hipJitOptionMaxRegisters"),
        ("CU_MEM_ADVISE_SET_READ_MOSTLY", "hipMemAdviseSetReadMostly"),
        ("CU_RESOURCE_TYPE_ARRAY", "HIP_RESOURCE_TYPE_ARRAY"),
        ("CUDA_MEM_ALLOC_NODE_PARAMS", "hipMemAllocNodeParams"),
        ("cublasSasum_v2_64", "hipblasSasum_64"),
        ("cublasSgemm_v2", "hipblasSgemm"),
        ("cuMemcpy2D_v2", "hipMemcpyParam2D"),
        ("__DRIVER_TYPES_H__", "HIP_INCLUDE_HIP_DRIVER_TYPES_H"),
    ],
)
def test_a_name_of_each_family(cuda: str, hip: str) -> None:
    assert translate(f"x = {cuda};").text == f"x = {hip};"


@pytest.mark.parametrize(
    "same",
    [
        "CUDA_CHECK(x);", "CUDA_KERNEL_LOOP(i, n)", "CU_ASSERT(x)", "cuda_stream = s;", "cudasts;",
        "cuSum(x);x", "hipMalloc(&p, 4);", "int cub = 3; cub += 1;", "a.thrust = thrust(b);",
        "namespace mine { struct cuda {}; }", "cutoff(3);", "CURRENT_DEVICE",
    ],
)  # fmt: skip
def test_what_only_looks_like_cuda_stays(same: str) -> None:
    assert translate(same).text == same


def test_the_unknown_is_kept_and_reported_with_a_hint() -> None:
    result = translate("int a;\n  cudaCtxResetPersistingL2Cache();\ncublasFancy(h);\n", file="a.cu")
    assert "cudaCtxResetPersistingL2Cache();" in result.text
    first, second = result.findings
    assert (first.rule, first.file, first.line, first.column) == ("unknown-name", "a.cu", 2, 3)
    assert first.hint == "AMD GPUs have no persisting L2 window: remove the call"
    assert second.message == "`cublasFancy` has no hipBLAS name that this tool knows"


def test_what_the_source_defines_itself_is_not_unknown() -> None:
    source = "#define cudaCheckIt(x) x\nint cudaHelper(int x) { return cudaCheckIt(x); }\n"
    result = translate(source + "int y = cudaHelper(1);\n")
    assert not result.findings
    assert translate("int y = cudaHelper(1);\n").findings


@pytest.mark.parametrize(
    "source",
    [
        "cudaError_t cudaResult = f(); if (cudaResult) return cudaResult;",
        "void f(int cudaDevId, float* cudaPtr) { g(cudaDevId, cudaPtr); }",
        "x = data.cudaConn + data->cudaConn;",
        "struct cudaThing { int a; }; cudaThing t;",
    ],
)
def test_the_projects_own_names_are_not_unknown(source: str) -> None:
    assert not translate(source).findings


def test_more_names_can_be_given() -> None:
    names = Names({"cudaNewest": "hipNewest"})
    assert translate("cudaNewest(1);", names=names).text == "hipNewest(1);"


@pytest.mark.parametrize(
    ("cuda", "hip"),
    [
        ("#include <cuda_runtime.h>", "#include <hip/hip_runtime.h>"),
        ('#  include "cublas_v2.h"', '#  include "hipblas/hipblas.h"'),
        ("#include <cub/block/block_reduce.cuh>", "#include <hipcub/hipcub.hpp>"),
        ("#include/* of ours */<curand.h>", "#include/* of ours */<hiprand/hiprand.h>"),
        ("#include <thrust/sort.h>", "#include <thrust/sort.h>"),
        ("#include <thrust/system/cuda/vector.h>", "#include <thrust/system/hip/vector.h>"),
        ("#include <nccl.h>", "#include <rccl/rccl.h>"),
        ('#include "mine.cuh"', '#include "mine.cuh"'),
    ],
)
def test_headers(cuda: str, hip: str) -> None:
    assert translate(f"{cuda}\n").text == f"{hip}\n"


def test_an_included_source_follows_the_name_of_its_file() -> None:
    source = '#include "kernels.cu"\n'
    assert translate(source).text == source
    assert translate(source, rename_cu_includes=True).text == '#include "kernels.hip"\n'


@pytest.mark.parametrize(
    ("cuda", "hip"),
    [
        ("cub::BlockReduce<T, 8>::TempStorage", "hipcub::BlockReduce<T, 8>::TempStorage"),
        ("::cub::Sum()", "::hipcub::Sum()"),
        ("using cub::Sum; cub::Max a;", "using hipcub::Sum; hipcub::Max a;"),
        ("typename cub::Sum<T>::X b; cub::Max a;", "typename hipcub::Sum<T>::X b; hipcub::Max a;"),
        ("struct cub {}; int a = cub::x;", "struct cub {}; int a = cub::x;"),
        ("thrust::system::cuda::par", "thrust::system::hip::par"),
        ("using namespace cub;", "using namespace hipcub;"),
        ("namespace algorithms = cub;", "namespace algorithms = hipcub;"),
        ("thrust::cuda::par", "thrust::hip::par"),
        ("namespace a { namespace cub = ::cub; }", "namespace a { namespace cub = ::hipcub; }"),
        (
            "namespace a::b { namespace cub { int x; } }",
            "namespace a::b { namespace cub { int x; } }",
        ),
        ("tools::cub::Sum()", "tools::cub::Sum()"),
        (
            "struct cub { static int x; }; int y = cub::x;",
            "struct cub { static int x; }; int y = cub::x;",
        ),
        ("#define NS cub\n", "#define NS hipcub\n"),
        ("namespace thrust_ = thrust;", "namespace thrust_ = thrust;"),
        ("nvcuda::wmma::fragment", "rocwmma::fragment"),
        ("using namespace nvcuda;", "namespace wmma = rocwmma;"),
        ("nvcuda::\n wmma /* of CUDA */ ::fragment", "rocwmma\n  /* of CUDA */ ::fragment"),
    ],
)
def test_namespaces(cuda: str, hip: str) -> None:
    assert translate(cuda).text == hip


def test_a_symbol_and_a_kernel_are_wrapped_where_hip_wants_it() -> None:
    text = translate(
        "cudaMemcpyToSymbol(w, h, n);cudaGetSymbolAddress(&p, t);"
        "cudaFuncSetAttribute(k<float, 4>, cudaFuncAttributeMaxDynamicSharedMemorySize, 9);"
        "cudaFuncSetAttribute((const void*)k, a, 9);"
    ).text
    assert text == (
        "hipMemcpyToSymbol(HIP_SYMBOL(w), h, n);hipGetSymbolAddress(&p, HIP_SYMBOL(t));"
        "hipFuncSetAttribute(reinterpret_cast<const void*>(k<float, 4>), "
        "hipFuncAttributeMaxDynamicSharedMemorySize, 9);"
        "hipFuncSetAttribute((const void*)k, a, 9);"
    )


def test_launch_bounds_count_waves() -> None:
    once = translate("__launch_bounds__(256, 2) __launch_bounds__(N) __launch_bounds__(N, M, 4)")
    assert once.text == (
        "__launch_bounds__(256, ((2) * (256) + 255) / 256) __launch_bounds__(N) "
        "__launch_bounds__(N, ((M) * (N) + 255) / 256)"
    )
    assert translate(once.text).text == once.text
    split = translate("__launch_bounds__(CUDART_VERSION, // few\n CUDA_VERSION, // two\n 3)").text
    assert split == (
        "__launch_bounds__(HIP_VERSION, // few\n ((HIP_VERSION) * (HIP_VERSION) + 255) / 256\n)"
    )


def test_line_ends_and_a_byte_order_mark_stay() -> None:
    source = "\ufeff// a\r\ncudaFree(p);\r\n"
    assert translate(source).text == "\ufeff// a\r\nhipFree(p);\r\n"


def test_parameters_that_differ_are_reported_at_calls_only() -> None:
    findings = translate(
        "cudnnSetTensor4dDescriptor(a, b); f = cudnnSetTensor4dDescriptor;"
    ).findings
    assert [f.rule for f in findings] == ["parameters-differ"]


@pytest.mark.parametrize(
    ("cuda", "hip"),
    [
        ("cuMemcpy(a, b, n);", "hipMemcpy(a, b, n, hipMemcpyDefault);"),
        ("cuMemcpyAsync(a, b, n, s);", "hipMemcpyAsync(a, b, n, hipMemcpyDefault, s);"),
        ("cudaGraphInstantiate(&e, g);", "hipGraphInstantiateWithFlags(&e, g, 0);"),
        ("cudaGraphInstantiate(&e, g, 0, 0, 0);", "hipGraphInstantiate(&e, g, 0, 0, 0);"),
        ("cuCtxCreate(&c, 0, d);", "hipCtxCreate(&c, 0, d);"),
    ],
)
def test_a_call_of_several_forms_goes_by_its_arguments(cuda: str, hip: str) -> None:
    done = translate(cuda)
    assert (done.text, done.findings) == (hip, [])


def test_a_form_that_hip_does_not_have_is_reported() -> None:
    (finding,) = translate("cuCtxCreate(&c, params, 0, d);").findings
    assert (finding.rule, "takes 3" in finding.message) == ("parameters-differ", True)


@pytest.mark.parametrize(
    "left", ["CU_TENSOR_MAP_SWIZZLE_NONE", "__CUDACC_VER_MAJOR__", "CU_GREEN_CTX_DEFAULT_STREAM"]
)
def test_no_name_is_left_without_a_word(left: str) -> None:
    assert [f.name for f in translate(f"x = {left};").findings] == [left]


def test_bytes_that_are_no_text_stay() -> None:
    source = b"// Gr\xf6\xdfe\r\nvoid f(void* p) { cudaFree(p); }\r\n"
    text = source.decode("utf-8", "surrogateescape")
    done = translate(text).text.encode("utf-8", "surrogateescape")
    assert done == source.replace(b"cudaFree", b"hipFree")


@pytest.mark.parametrize(
    "header",
    ["cupti.h", "cutensor.h", "npp.h", "nppi.h", "cufile.h", "optix.h", "nvshmem.h", "cudss.h",
     "nvfunctional", "cudaEGL.h", "cuda_awbarrier.h", "cusolverMg.h", "helper_math.h"],
)  # fmt: skip
def test_a_header_of_cuda_without_a_counterpart_is_told_with_what_to_do(header: str) -> None:
    (found,) = translate(f"#include <{header}>\n").findings
    assert (found.rule, bool(found.hint)) == (
        "unknown-header", True,
    )  # fmt: skip
