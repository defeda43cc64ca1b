"""What tells x86 cores apart: features by LLVM's names, and AMD's families and models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# Features in these sets are those that a code generator told `-mcpu` may use on its own. Those
# that only an explicit intrinsic uses (`clwb`, `rdseed`, `movdir64b`, …) are left out: hypervisors
# often hide them, and code runs all the same.
# Source: LLVM, llvm/lib/Target/X86/X86.td, feature lists of x86-64-v3 and znver1 to znver5.
X86_64_V3 = frozenset(
    [
        "avx",
        "avx2",
        "bmi",
        "bmi2",
        "cx16",
        "f16c",
        "fma",
        "lzcnt",
        "movbe",
        "popcnt",
        "sse3",
        "sse4.1",
        "sse4.2",
        "ssse3",
    ]
)
ZEN2 = X86_64_V3 | {"adx", "aes", "pclmul", "sha", "sse4a"}
ZEN3 = ZEN2 | {"vaes", "vpclmulqdq"}
ZEN4 = ZEN3 | frozenset(
    [
        "avx512f",
        "avx512bf16",
        "avx512bitalg",
        "avx512bw",
        "avx512cd",
        "avx512dq",
        "avx512ifma",
        "avx512vbmi",
        "avx512vbmi2",
        "avx512vl",
        "avx512vnni",
        "avx512vpopcntdq",
        "gfni",
    ]
)
ZEN5 = ZEN4 | {"avxvnni"}
# The micro-architecture level and integer products, as Ice Lake and later have them; also what is
# left of Zen 4 where a hypervisor hides some of its features.
X86_64_V4 = X86_64_V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vnni"}

# Newest first: the first whose features are all there is what a machine can run.
CORES: Mapping[str, frozenset[str]] = {
    "zen5": ZEN5,
    "zen4": ZEN4,
    "x86-64-v4": X86_64_V4,
    "zen3": ZEN3,
    "zen2": ZEN2,
    "x86-64-v3": X86_64_V3,
}

# Names in /proc/cpuinfo where they differ from LLVM's.
# Source: Linux, arch/x86/include/asm/cpufeatures.h.
_LINUX_NAMES = {
    "abm": "lzcnt",
    "avx512_bf16": "avx512bf16",
    "avx512_bitalg": "avx512bitalg",
    "avx512_vbmi2": "avx512vbmi2",
    "avx512_vnni": "avx512vnni",
    "avx512_vpopcntdq": "avx512vpopcntdq",
    "avx_vnni": "avxvnni",
    "bmi1": "bmi",
    "pclmulqdq": "pclmul",
    "pni": "sse3",
    "sha_ni": "sha",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
}

# (family, first model, last model) → core.
# Source: Linux, arch/x86/kernel/cpu/amd.c, bsp_init_amd.
_AMD_MODELS = (
    (0x17, 0x00, 0x2F, "zen"),
    (0x17, 0x50, 0x5F, "zen"),
    (0x17, 0x30, 0x4F, "zen2"),
    (0x17, 0x60, 0x7F, "zen2"),
    (0x17, 0x90, 0x91, "zen2"),
    (0x17, 0xA0, 0xAF, "zen2"),
    (0x19, 0x00, 0x0F, "zen3"),
    (0x19, 0x20, 0x5F, "zen3"),
    (0x19, 0x10, 0x1F, "zen4"),
    (0x19, 0x60, 0xAF, "zen4"),
    (0x1A, 0x00, 0x2F, "zen5"),
    (0x1A, 0x40, 0x4F, "zen5"),
    (0x1A, 0x60, 0x7F, "zen5"),
    (0x1A, 0x50, 0x5F, "zen6"),
    (0x1A, 0x80, 0xAF, "zen6"),
    (0x1A, 0xC0, 0xCF, "zen6"),
)

KNOWN_FEATURES = frozenset().union(*CORES.values())


def features_from_linux(flags: Iterable[str]) -> frozenset[str]:
    """Translate the flags of /proc/cpuinfo; those that no core of ours asks for are dropped."""
    return frozenset(_LINUX_NAMES.get(flag, flag) for flag in flags) & KNOWN_FEATURES


def amd_core(family: int, model: int) -> str:
    """Name the core of an AMD processor, empty where the pair is in no public table."""
    for row_family, first, last, core in _AMD_MODELS:
        if family == row_family and first <= model <= last:
            return core
    return ""


def newest_core(features: frozenset[str]) -> str:
    """Name the newest core whose features are all in `features`, empty below x86-64-v3."""
    for core, needed in CORES.items():
        if needed <= features:
            return core
    return ""
