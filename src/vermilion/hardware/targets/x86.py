"""AMD's Zen cores, and generic levels: x86 processors with AVX2, AVX-512, and its extensions.

A core is one row: its features, how LLVM calls it, and the processors that have it.
"""

from __future__ import annotations

from collections.abc import Mapping

from vermilion.hardware.targets.target import CpuFacts, PlacementLimits, Target

# Features in these sets are those that a code generator told `-mcpu` may use on its own. Those
# that only an explicit intrinsic uses (`clwb`, `rdseed`, `movdir64b`, …) are left out: hypervisors
# often hide them, and code runs all the same.
# Source: LLVM, llvm/lib/Target/X86/X86.td, feature lists of x86-64-v3 and znver1 to znver5.
# fmt: off
X86_64_V3 = frozenset((
    "avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sse3",
    "sse4.1", "sse4.2", "ssse3",
))
ZEN2 = X86_64_V3 | {"adx", "aes", "pclmul", "sha", "sse4a"}
ZEN3 = ZEN2 | {"vaes", "vpclmulqdq"}
ZEN4 = ZEN3 | {
    "avx512f", "avx512bf16", "avx512bitalg", "avx512bw", "avx512cd", "avx512dq", "avx512ifma",
    "avx512vbmi", "avx512vbmi2", "avx512vl", "avx512vnni", "avx512vpopcntdq", "gfni",
}
# fmt: on
ZEN5 = ZEN4 | {"avxvnni"}
# The micro-architecture level as such, as Skylake servers have it; with integer products, as Ice
# Lake has them; with products of bfloat16 too, as Sapphire Rapids has them. The last two are also
# what is left of Zen 4 where a hypervisor hides some of its features.
X86_64_V4_BASE = X86_64_V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
X86_64_V4 = X86_64_V4_BASE | {"avx512vnni"}
X86_64_V4_BF16 = X86_64_V4 | {"avx512bf16"}

# Handing a tensor from generated code to ONNX Runtime and back costs some 20 microseconds: a region
# with less than a hundredth of the work stays with its neighbours.
_LIMITS = PlacementLimits(min_gops_percent=1.0)
_LLVM = "LLVM, llvm/lib/Target/X86/X86.td"


def _target(name: str, title: str, alias: str, facts: CpuFacts, source: str = "") -> Target:
    return Target(
        name=name,
        kind="cpu",
        title=title,
        source=source or f"{_LLVM}, {facts.llvm_cpu}",
        aliases=(alias,),
        limits=_LIMITS,
        cpu=facts,
    )


# Source of family and models: Linux, arch/x86/kernel/cpu/amd.c, bsp_init_amd.
TARGETS = (
    _target(
        "zen2",
        "AMD Zen 2 (AVX2)",
        "znver2",
        CpuFacts(
            ZEN2,
            "znver2",
            models=(
                (0x17, 0x30, 0x4F),
                (0x17, 0x60, 0x7F),
                (0x17, 0x90, 0x91),
                (0x17, 0xA0, 0xAF),
            ),
        ),
    ),
    _target(
        "zen3",
        "AMD Zen 3 (AVX2)",
        "znver3",
        CpuFacts(ZEN3, "znver3", models=((0x19, 0x00, 0x0F), (0x19, 0x20, 0x5F))),
    ),
    _target(
        "zen4",
        "AMD Zen 4 (AVX-512 with VNNI and BF16)",
        "znver4",
        CpuFacts(ZEN4, "znver4", models=((0x19, 0x10, 0x1F), (0x19, 0x60, 0xAF))),
    ),
    _target(
        "zen5",
        "AMD Zen 5 (AVX-512 with VNNI and BF16, AVX-VNNI)",
        "znver5",
        CpuFacts(
            ZEN5,
            "znver5",
            models=((0x1A, 0x00, 0x2F), (0x1A, 0x40, 0x4F), (0x1A, 0x60, 0x7F)),
        ),
    ),
    _target(
        "x86-64-v3",
        "Any x86-64 processor with AVX2 and FMA",
        "avx2",
        CpuFacts(X86_64_V3, "x86-64-v3"),
        source=f"x86-64 psABI, micro-architecture levels; {_LLVM}, x86-64-v3",
    ),
    # LLVM's generic level splits vectors of 512 bits into halves, and has no VNNI.
    # Source: LLVM, llvm/lib/Target/X86/X86.td, x86-64-v4: TuningPrefer256Bit.
    _target(
        "x86-64-v4",
        "Any x86-64 processor with AVX-512 and VNNI",
        "avx512",
        CpuFacts(X86_64_V4, "x86-64-v4", llvm_features="+avx512vnni,-prefer-256-bit"),
        source=f"x86-64 psABI, micro-architecture levels; {_LLVM}, x86-64-v4, FeatureVNNI",
    ),
    _target(
        "x86-64-v4-bf16",
        "Any x86-64 processor with AVX-512, VNNI and BF16",
        "avx512-bf16",
        CpuFacts(
            X86_64_V4_BF16,
            "x86-64-v4",
            llvm_features="+avx512vnni,+avx512bf16,-prefer-256-bit",
        ),
        source=f"x86-64 psABI, micro-architecture levels; {_LLVM}, x86-64-v4, FeatureBF16",
    ),
    _target(
        "x86-64-v4-base",
        "Any x86-64 processor with AVX-512",
        "avx512-base",
        CpuFacts(X86_64_V4_BASE, "x86-64-v4", llvm_features="-prefer-256-bit"),
        source=f"x86-64 psABI, micro-architecture levels; {_LLVM}, x86-64-v4",
    ),
)

# Family, first model, last model, core: of those that models are not compiled for by name.
_OTHER_MODELS = (
    (0x17, 0x00, 0x2F, "zen"),
    (0x17, 0x50, 0x5F, "zen"),
    (0x1A, 0x50, 0x5F, "zen6"),
    (0x1A, 0x80, 0xAF, "zen6"),
    (0x1A, 0xC0, 0xCF, "zen6"),
)


def newest_first() -> tuple[Target, ...]:
    """Return the cores so that the first whose features are all there is what a machine can run.

    A core with AVX-512 before one without, and more features before fewer.
    """
    return tuple(
        sorted(TARGETS, key=lambda t: ("avx512f" in t.features, len(t.features)), reverse=True)
    )


def features_by_core() -> Mapping[str, frozenset[str]]:
    """Return the features of each core by its name, newest first."""
    return {target.name: target.features for target in newest_first()}


def amd_core(family: int, model: int) -> str:
    """Name the core of an AMD processor, empty where the pair is in no public table."""
    for target in TARGETS:
        for row_family, first, last in target.cpu.models if target.cpu is not None else ():
            if family == row_family and first <= model <= last:
                return target.name
    for row_family, first, last, core in _OTHER_MODELS:
        if family == row_family and first <= model <= last:
            return core
    return ""
