"""Rules about the interfaces around the kernels: HIP's runtime, libraries, ONNX Runtime."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vermilion.hipify.rules.machine import launches
from vermilion.hipify.rules.source import Hit, Source

AMD_PROVIDER = "MIGraphXExecutionProvider"
_CUDA_PROVIDERS = (
    "CUDAExecutionProvider",
    "TensorrtExecutionProvider",
    "NvTensorRTRTXExecutionProvider",
)
_NVIDIA_OPTION = re.compile(r'"(?:--gpu-architecture=|-arch=)(?:compute|sm|lto)?')
_CUDA_CONTEXT = r"CudaContext|OrtCudaContext|CudaResource|cuda_stream"


def managed_memory(source: Source) -> Iterator[Hit]:
    """Find managed memory."""
    for place, name in source.find("hipMallocManaged|__managed__|hipMemPrefetchAsync"):
        yield Hit("managed-memory", place, f"`{name}` is managed memory")


def graphs(source: Source) -> Iterator[Hit]:
    """Find the first use of graphs."""
    names = "hipStreamBeginCapture|hipGraph(?:Create|Instantiate|Launch)|hipGraphAdd[A-Z]\\w+"
    for place, name in list(source.find(names))[:1]:
        yield Hit("graphs", place, f"`{name}` is part of HIP's graphs")


def cuda_arch(source: Source) -> Iterator[Hit]:
    """Find tests of `__CUDA_ARCH__`; asking whether it is defined has a fix."""
    for place in source.places.get("__CUDA_ARCH__", ()):
        before = source.words[max(0, place - 2) : place]
        asks = before[-1:] in (["defined"], ["ifdef"], ["ifndef"]) or before == ["defined", "("]
        edits = (source.edit(place, place, "__HIP_DEVICE_COMPILE__"),) if asks else ()
        line = "asks whether" if asks else "compares"
        yield Hit("cuda-arch", place, f"{line} `__CUDA_ARCH__`", edits=edits)


def blas_math_mode(source: Source) -> Iterator[Hit]:
    """Find the tensor-core modes of BLAS."""
    for place, name in source.find("HIPBLAS_(?:TF32_)?TENSOR_OP_MATH"):
        edit = source.edit(place, place, "HIPBLAS_DEFAULT_MATH")
        yield Hit("blas-math-mode", place, f"`{name}` asks for tensor cores", edits=(edit,))


def provider_name(source: Source) -> Iterator[Hit]:
    """Find the names of CUDA's execution providers."""
    for word, places in source.places.items():
        name = next((p for p in _CUDA_PROVIDERS if p in word), "")
        for place in places if name else ():
            if source.kind(place) == "string":
                edit = source.edit(place, place, word.replace(name, AMD_PROVIDER))
                yield Hit("provider-name", place, f"the string names {name}", edits=(edit,))


def provider_stream(source: Source) -> Iterator[Hit]:
    """Find streams that are not those of the session an operator runs in."""
    if not source.is_operator:
        return
    for place, name in source.find(_CUDA_CONTEXT):
        yield Hit("provider-stream", place, f"`{name}` belongs to the CUDA provider")
    for place, arguments in launches(source):
        stream = source.text(arguments[3]).strip() if len(arguments) > 3 else ""
        if stream in {"", "0", "nullptr", "NULL"}:
            yield Hit("provider-stream", place, "the kernel runs on the default stream")


def compiler_option(source: Source) -> Iterator[Hit]:
    """Find options of NVIDIA's compiler in strings, for programs compiled at run time."""
    for word, places in source.places.items():
        found = _NVIDIA_OPTION.match(word)
        for place in places if found else ():
            if source.kind(place) == "string":
                what = f"the string `{word}` is an option of NVIDIA's compiler"
                yield Hit(
                    "nvcc-option", place, what, "write `--offload-arch=gfx942`, or leave it out"
                )


def missing_runtime_include(source: Source) -> Iterator[Hit]:
    """Find a source that uses HIP and includes none of its headers."""
    indices = source.tokens.meaningful
    headers = [source.tokens.raw(i) for i in indices if source.tokens.kinds[i] == "include"]
    if any("hip/" in header or '"' in header for header in headers):
        return
    for place in source.places.get("__global__", ())[:1]:
        yield Hit("missing-runtime-include", place, "no header of HIP is included")
