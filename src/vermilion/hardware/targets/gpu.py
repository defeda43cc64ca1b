"""AMD GPUs, by the name that compilers give the instruction set.

Sources: LLVM, AMDGPUUsage (processors, wavefront size) and the AMD instruction set architecture
guides: CDNA 2, CDNA 3, CDNA 4, RDNA 3, RDNA 3.5, RDNA 4 (chapters on MFMA and WMMA).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from vermilion.hardware.targets.target import GpuFacts, Target

_CDNA2 = GpuFacts("CDNA 2", 64, "mfma", frozenset(("f64", "f32", "f16", "bf16", "i8")))
_CDNA3 = GpuFacts("CDNA 3", 64, "mfma", _CDNA2.matrix_inputs | {"xf32", "f8"})
_CDNA4 = GpuFacts("CDNA 4", 64, "mfma", _CDNA2.matrix_inputs | {"f8", "f6", "f4"})
_RDNA3 = GpuFacts("RDNA 3", 32, "wmma", frozenset(("f16", "bf16", "i8", "i4")))
_RDNA35 = GpuFacts("RDNA 3.5", 32, "wmma", _RDNA3.matrix_inputs)
_RDNA4 = GpuFacts("RDNA 4", 32, "wmma", _RDNA3.matrix_inputs | {"f8"})

# Name, title, facts, and PCI device → title, for systems where no compute driver tells. Source of
# the last: pci.ids, vendor 1002, for the chip; LLVM AMDGPUUsage, processors, for the chip's gfx.
_ROWS: tuple[tuple[str, str, GpuFacts, Mapping[int, str]], ...] = (
    (
        "gfx90a",
        "Instinct MI200 series",
        _CDNA2,
        {
            0x7408: "Instinct MI250X",
            0x740C: "Instinct MI250X or MI250",
            0x740F: "Instinct MI210",
        },
    ),
    (
        "gfx942",
        "Instinct MI300 series",
        _CDNA3,
        {0x74A0: "Instinct MI300A", 0x74A1: "Instinct MI300X", 0x74A5: "Instinct MI325X"},
    ),
    (
        "gfx950",
        "Instinct MI350 series",
        _CDNA4,
        {0x75A0: "Instinct MI350X", 0x75A3: "Instinct MI355X"},
    ),
    (
        "gfx1100",
        "Radeon RX 7900, PRO W7900 and W7800",
        _RDNA3,
        {
            0x744C: "Radeon RX 7900 series",
            0x7448: "Radeon PRO W7900",
            0x745E: "Radeon PRO W7800",
        },
    ),
    (
        "gfx1103",
        "Radeon 780M (Phoenix, Hawk Point)",
        _RDNA3,
        {
            0x15BF: "Radeon 780M (Phoenix)",
            0x15C8: "Radeon 740M (Phoenix 2)",
            0x1900: "Radeon 780M (Hawk Point)",
        },
    ),
    (
        "gfx1150",
        "Radeon 890M (Strix Point)",
        _RDNA35,
        {0x150E: "Radeon 890M or 880M (Strix Point)"},
    ),
    (
        "gfx1151",
        "Radeon 8060S (Strix Halo)",
        _RDNA35,
        {0x1586: "Radeon 8060S or 8050S (Strix Halo)"},
    ),
    ("gfx1200", "Radeon RX 9060", _RDNA4, {0x7590: "Radeon RX 9060 series"}),
    (
        "gfx1201",
        "Radeon RX 9070, AI PRO R9700",
        _RDNA4,
        {0x7550: "Radeon RX 9070 series", 0x7551: "Radeon AI PRO R9700"},
    ),
)

TARGETS = tuple(
    Target(
        name=name,
        kind="gpu",
        title=f"{title}, {facts.family}",
        source=f"LLVM AMDGPUUsage, {name}; AMD {facts.family} instruction set architecture guide",
        gpu=replace(facts, pci=pci),
    )
    for name, title, facts, pci in _ROWS
)

# PCI device → gfx, title: GPUs that models are not compiled for, and those that they are for.
BY_DEVICE: Mapping[int, tuple[str, str]] = {
    0x1114: ("gfx1152", "Radeon 860M or 840M (Krackan Point)"),
    **{device: (name, title) for name, _, _, pci in _ROWS for device, title in pci.items()},
}


def several(targets: Sequence[Target]) -> Target:
    """Return what stands for several GPUs at once: one artifact with a program for each."""
    return Target(
        name=",".join(target.name for target in targets),
        kind="gpu",
        title="; ".join(target.title for target in targets),
        source="; ".join(target.source for target in targets),
    )


def instead_of(name: str) -> str:
    """Say what can be done for a GPU that no programs are compiled for."""
    others = ", ".join(target.name for target in TARGETS)
    return (
        f"run the model on the CPU (`--target cpu`), or on {name} through AMD's MIGraphX provider"
        f" in ONNX Runtime; programs are compiled for {others} (`{nearest_architecture(name)}` is"
        " the nearest, and a program for one GPU does not run on another)"
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
