"""AMD's Zen cores, and generic levels: x86 processors with AVX2, and with AVX-512 and VNNI."""

from __future__ import annotations

from vermilion.hardware import x86
from vermilion.hardware.targets.target import PlacementLimits, Target

# Handing a tensor from generated code to ONNX Runtime and back costs some 20 microseconds: a region
# with less than a hundredth of the work stays with its neighbours.
_LIMITS = PlacementLimits(min_gops_percent=1.0)
_LLVM = "LLVM, llvm/lib/Target/X86/X86.td"

ZEN2 = Target(
    name="zen2",
    kind="cpu",
    limits=_LIMITS,
    title="AMD Zen 2 (AVX2)",
    source=f"{_LLVM}, znver2",
    aliases=("znver2",),
    features=x86.ZEN2,
    llvm_cpu="znver2",
)
ZEN3 = Target(
    name="zen3",
    kind="cpu",
    limits=_LIMITS,
    title="AMD Zen 3 (AVX2)",
    source=f"{_LLVM}, znver3",
    aliases=("znver3",),
    features=x86.ZEN3,
    llvm_cpu="znver3",
)
ZEN4 = Target(
    name="zen4",
    kind="cpu",
    limits=_LIMITS,
    title="AMD Zen 4 (AVX-512 with VNNI and BF16)",
    source=f"{_LLVM}, znver4",
    aliases=("znver4",),
    features=x86.ZEN4,
    llvm_cpu="znver4",
)
ZEN5 = Target(
    name="zen5",
    kind="cpu",
    limits=_LIMITS,
    title="AMD Zen 5 (AVX-512 with VNNI and BF16, AVX-VNNI)",
    source=f"{_LLVM}, znver5",
    aliases=("znver5",),
    features=x86.ZEN5,
    llvm_cpu="znver5",
)
X86_64_V3 = Target(
    name="x86-64-v3",
    kind="cpu",
    limits=_LIMITS,
    title="Any x86-64 processor with AVX2 and FMA",
    source="x86-64 psABI, micro-architecture levels; " + _LLVM + ", x86-64-v3",
    aliases=("avx2",),
    features=x86.X86_64_V3,
    llvm_cpu="x86-64-v3",
)

X86_64_V4 = Target(
    name="x86-64-v4",
    kind="cpu",
    limits=_LIMITS,
    title="Any x86-64 processor with AVX-512 and VNNI",
    source="x86-64 psABI, micro-architecture levels; " + _LLVM + ", x86-64-v4, FeatureVNNI",
    aliases=("avx512",),
    features=x86.X86_64_V4,
    llvm_cpu="x86-64-v4",
)

TARGETS = (ZEN2, ZEN3, ZEN4, ZEN5, X86_64_V3, X86_64_V4)
