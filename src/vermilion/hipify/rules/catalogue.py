"""Every rule of the lint: what it says, why, and what fixes it.

Sources: HIP documentation ("HIP porting guide", "C++ language extensions", "Hardware features"),
HIP 7.1 headers (`amd_warp_sync_functions.h`, `hip_ldg.h`), hipBLAS and ONNX Runtime documentation.
"""

from __future__ import annotations

from collections.abc import Mapping

from vermilion.hipify.finding import Level, Rule

_WARP = "a wave has 64 lanes on CDNA (gfx90a, gfx942) and 32 on RDNA (gfx11xx, gfx12xx)"

# Level, id, title, why, fix.
_ROWS: tuple[tuple[Level, str, str, str, str], ...] = (
    # names
    ("error", "unknown-name", "CUDA name without a HIP name",
     "no HIP header declares a counterpart", "find a HIP call that does the same, or write it"),
    ("error", "unknown-header", "CUDA header without a HIP header",
     "the compiler will not find it", "remove the include and what needs it"),
    ("error", "parameters-differ", "Call whose parameters differ",
     "HIP or MIOpen has the same operation with other parameters",
     "compare the call with the declaration of HIP's or MIOpen's"),
    ("note", "cuda-version", "Comparison of CUDA's version",
     "HIP counts other versions: HIP 7 is larger than any of CUDA's",
     "test for HIP, or compare HIP_VERSION with a version of HIP"),
    ("note", "missing-runtime-include", "HIP used without its header",
     "nvcc includes cuda_runtime.h by itself, HIP's compiler does not",
     "add `#include <hip/hip_runtime.h>`, or compile with `-include hip/hip_runtime.h`"),
    # warps
    ("warning", "warp-size-constant", "Warp size written as 32", _WARP,
     "use `warpSize` in device code, the device's property on the host; for the size of an "
     "array take 64"),
    ("error", "warp-size-not-constant", "Warp size where a constant is needed",
     "the size of a wave is known when a kernel starts, not when it is compiled: `warpSize` is no "
     "constant on AMD GPUs",
     "take 64 for the size of an array; else a macro that `__GFX9__` decides, as `--fix` writes"),
    ("error", "warp-lane-arithmetic", "Lane or warp number computed with 32", _WARP,
     "use `warpSize`"),
    ("error", "warp-reduction-half", "Reduction over 32 lanes", _WARP,
     "give the shuffle a width of 32, or begin at `warpSize / 2` and count lanes by `warpSize`"),
    ("warning", "shuffle-width", "Shuffle without a width",
     "it works on the whole wave: 64 lanes on CDNA, where CUDA's warps have 32",
     "give a width of 32 where lanes work in groups of 32"),
    ("error", "vote-width", "Vote of a warp",
     "it asks the whole wave: 64 lanes on CDNA, where CUDA's warps have 32",
     "take a group's 32 bits out of the wave's ballot"),
    ("error", "mask-32-bit", "32-bit lane mask",
     "HIP's `_sync` functions take 64-bit masks only, and trap where one names lanes that do not "
     "take part: the other half of a wave of 64 lanes, say", "write `__activemask()`"),
    ("error", "ballot-32-bit", "Ballot kept in 32 bits",
     "the result has a bit for each of 64 lanes", "keep it in `unsigned long long`"),
    ("error", "lane-bit-32", "Lane's bit made in 32 bits",
     "shifting a 32-bit one by a lane of 32 or more is undefined", "write `1ull << lane`"),
    ("warning", "warp-synchronous", "Warp-synchronous code on shared memory",
     "it counts on 32 lanes in step without a barrier",
     "put `__syncthreads()` between the steps, or use shuffles"),
    # the machine
    ("error", "inline-ptx", "Inline PTX", "PTX is NVIDIA's; some of it compiles silently to "
     "nothing that works", "replace it with HIP's function for the same"),
    ("error", "missing-intrinsic", "CUDA intrinsic that HIP does not have",
     "no HIP header declares it", "write it with what HIP has"),
    ("note", "read-only-load", "Load through the read-only cache",
     "AMD GPUs have no such path: `__ldg` is a plain load, and only for built-in types",
     "nothing to do if it compiles; else dereference the pointer"),
    ("warning", "texture", "Texture or surface",
     "CDNA GPUs (gfx90a, gfx942) have no texture unit, and HIP has no texture references in "
     "device code", "read from a plain pointer, and interpolate yourself"),
    ("error", "cooperative-groups", "Part of cooperative groups that HIP does not have",
     "HIP has groups and their shuffles, not the algorithms on them",
     "write it with the group's shfl_down, or use hipCUB"),
    ("note", "tile-of-32", "Tile of 32 lanes", "on CDNA it is half a wave; this is correct, and "
     "leaves wide reductions to you", "take a tile of 64 on CDNA where that is faster"),
    ("error", "shared-memory-size", "More than 64 KiB of shared memory",
     "a compute unit of gfx90a, gfx942 and gfx11xx gives a block 64 KiB (gfx950: 160 KiB)",
     "use smaller tiles"),
    ("warning", "tensor-core", "Tensor cores",
     "rocWMMA has other fragment shapes, and a wave of 64 lanes holds a fragment on CDNA",
     "check the shapes against rocWMMA's table; launch whole waves"),
    ("note", "fast-math", "Fast approximate function",
     "its error is another than CUDA's", "compare results with a tolerance"),
    ("warning", "managed-memory", "Managed memory",
     "without XNACK pages do not move: every access goes to the host",
     "use hipMalloc and copies, or check that the GPU runs with XNACK"),
    ("warning", "graphs", "Stream capture and graphs",
     "HIP captures fewer calls than CUDA, and library calls may allocate while captured",
     "test the captured region on the device"),
    ("error", "cuda-arch", "Test for a compute capability",
     "HIP does not define __CUDA_ARCH__, so the branch is never taken",
     "test `__HIP_DEVICE_COMPILE__`, or `__GFX9__` and its like for a kind of GPU"),
    ("warning", "blas-math-mode", "Tensor-core mode of BLAS",
     "rocBLAS uses matrix instructions whenever it can, and older hipBLAS does not know the name",
     "use the default mode"),
    # ONNX Runtime
    ("error", "provider-name", "Name of a CUDA execution provider",
     "the operator would be registered for a provider that is not there",
     "register it for the AMD provider: MIGraphXExecutionProvider, or ROCMExecutionProvider "
     "with ONNX Runtime up to 1.22"),
    ("error", "provider-stream", "Stream from the wrong interface",
     "the context of the CUDA provider gives no HIP stream, and the default stream is not the "
     "session's", "take `context.GetGPUComputeStream()` and launch on it"),
    # files
    ("error", "file-utf16", "File in UTF-16", "compilers read UTF-8 only", "convert it to UTF-8"),
    ("error", "file-binary", "Binary file", "there is no source in it", "leave it out"),
    ("error", "file-huge", "Huge file", "no person wrote it; it is likely generated data",
     "leave it out, or split it"),
    ("error", "file-symlink", "Symbolic link", "it may lead out of the tree, and would be "
     "translated twice", "name the file that it leads to"),
    ("error", "file-unreadable", "File that cannot be read", "the system refused it",
     "check its permissions"),
    ("error", "file-broken", "Comment or string that nothing ends",
     "everything after it means something else", "end it"),
    # the compile check
    ("error", "compile", "Error of the compiler", "the HIP compiler refuses it", "see the message"),
    ("note", "compile-warning", "Warning of the compiler", "the HIP compiler warns of it",
     "see the message"),
    # build files
    ("warning", "nvcc-option", "Option of nvcc", "HIP's compiler does not know it", "remove it"),
)  # fmt: skip

RULES: Mapping[str, Rule] = {
    name: Rule(name, level, title, why, fix) for level, name, title, why, fix in _ROWS
}
