"""AMD GPUs, by the name that compilers give the instruction set.

Sources: LLVM, AMDGPUUsage (processors, wavefront size) and the AMD instruction set architecture
guides: CDNA 2, CDNA 3, CDNA 4, RDNA 3, RDNA 3.5, RDNA 4 (chapters on MFMA and WMMA).
"""

from __future__ import annotations

from collections.abc import Sequence

from vermilion.hardware.targets.target import GpuFacts, Target

_CDNA2 = GpuFacts("CDNA 2", 64, "mfma", frozenset(("f64", "f32", "f16", "bf16", "i8")))
_CDNA3 = GpuFacts("CDNA 3", 64, "mfma", _CDNA2.matrix_inputs | {"xf32", "f8"})
_CDNA4 = GpuFacts("CDNA 4", 64, "mfma", _CDNA2.matrix_inputs | {"f8", "f6", "f4"})
_RDNA3 = GpuFacts("RDNA 3", 32, "wmma", frozenset(("f16", "bf16", "i8", "i4")))
_RDNA35 = GpuFacts("RDNA 3.5", 32, "wmma", _RDNA3.matrix_inputs)
_RDNA4 = GpuFacts("RDNA 4", 32, "wmma", _RDNA3.matrix_inputs | {"f8"})

_ROWS: tuple[tuple[str, str, GpuFacts], ...] = (
    ("gfx90a", "Instinct MI200 series", _CDNA2),
    ("gfx942", "Instinct MI300 series", _CDNA3),
    ("gfx950", "Instinct MI350 series", _CDNA4),
    ("gfx1100", "Radeon RX 7900, PRO W7900 and W7800", _RDNA3),
    ("gfx1103", "Radeon 780M (Phoenix, Hawk Point)", _RDNA3),
    ("gfx1150", "Radeon 890M (Strix Point)", _RDNA35),
    ("gfx1151", "Radeon 8060S (Strix Halo)", _RDNA35),
    ("gfx1200", "Radeon RX 9060", _RDNA4),
    ("gfx1201", "Radeon RX 9070, AI PRO R9700", _RDNA4),
)

TARGETS = tuple(
    Target(
        name=name,
        kind="gpu",
        title=f"{title}, {facts.family}",
        source=f"LLVM AMDGPUUsage, {name}; AMD {facts.family} instruction set architecture guide",
        gpu=facts,
    )
    for name, title, facts in _ROWS
)


def several(targets: Sequence[Target]) -> Target:
    """Return what stands for several GPUs at once: one artifact with a program for each."""
    return Target(
        name=",".join(target.name for target in targets),
        kind="gpu",
        title="; ".join(target.title for target in targets),
        source="; ".join(target.source for target in targets),
    )


def nearest_architecture(name: str) -> str:
    """Return the GPU whose name's number is closest: `gfx1100` for `gfx1030`.

    The digits are major, minor and stepping, so that the closest is the next of its generation.
    """
    wanted = _number(name)
    others = [target.name for target in TARGETS if target.name != name]
    return min(others, key=lambda other: abs(_number(other) - wanted))


def _number(name: str) -> int:
    digits = name.removeprefix("gfx")
    return int(digits, 16) if digits and set(digits) <= set("0123456789abcdef") else 0
