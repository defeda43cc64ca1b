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
_RDNA2 = GpuFacts("RDNA 2", 32, "", frozenset(), compiled_as="gfx1100")
_RDNA3 = GpuFacts("RDNA 3", 32, "wmma", frozenset(("f16", "bf16", "i8", "i4")))
_RDNA35 = GpuFacts("RDNA 3.5", 32, "wmma", _RDNA3.matrix_inputs)
_RDNA4 = GpuFacts("RDNA 4", 32, "wmma", _RDNA3.matrix_inputs | {"f8"})
_FAMILY10 = replace(_RDNA2, members=tuple(f"gfx103{n}" for n in range(7)))
_FAMILY11 = replace(
    _RDNA3,
    compiled_as="gfx1100",
    members=(*(f"gfx110{n}" for n in range(4)), *(f"gfx115{n}" for n in range(4))),
)
_FAMILY12 = replace(_RDNA4, compiled_as="gfx1201", members=("gfx1200", "gfx1201"))

# Name, title, facts, and PCI device → title, for systems where no compute driver tells. Source of
# the last: pci.ids, vendor 1002, for the chip; LLVM AMDGPUUsage, processors, for the chip's gfx.
_ROWS: tuple[tuple[str, str, GpuFacts, Mapping[int, str]], ...] = (
    ("gfx1030", "Radeon RX 6800 and 6900", _RDNA2, {0x73BF: "Radeon RX 6800 or 6900 series"}),
    ("gfx1031", "Radeon RX 6700", _RDNA2, {0x73DF: "Radeon RX 6700 series"}),
    ("gfx1032", "Radeon RX 6600", _RDNA2, {0x73FF: "Radeon RX 6600 series"}),
    ("gfx1033", "Steam Deck (Van Gogh)", _RDNA2, {0x163F: "Radeon of the Steam Deck (Van Gogh)"}),
    ("gfx1034", "Radeon RX 6500 and 6400", _RDNA2, {0x743F: "Radeon RX 6500 or 6400 series"}),
    ("gfx1035", "Radeon 680M (Rembrandt)", _RDNA2, {0x1681: "Radeon 680M or 660M (Rembrandt)"}),
    ("gfx1036", "Radeon 610M (Raphael)", _RDNA2, {0x164E: "Radeon 610M (Raphael)"}),
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
    ("gfx1101", "Radeon RX 7800 and 7700", _RDNA3, {0x747E: "Radeon RX 7800 or 7700 series"}),
    (
        "gfx1102",
        "Radeon RX 7600",
        replace(_RDNA3, compiled_as="gfx1101"),
        {0x7480: "Radeon RX 7600 series"},
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
    (
        "gfx1152",
        "Radeon 860M (Krackan Point)",
        replace(_RDNA35, compiled_as="gfx1150"),
        {0x1114: "Radeon 860M or 840M (Krackan Point)"},
    ),
    ("gfx1153", "Radeon 820M", replace(_RDNA35, compiled_as="gfx1150"), {}),
    ("gfx1200", "Radeon RX 9060", _RDNA4, {0x7590: "Radeon RX 9060 series"}),
    (
        "gfx1201",
        "Radeon RX 9070, AI PRO R9700",
        _RDNA4,
        {0x7550: "Radeon RX 9070 series", 0x7551: "Radeon AI PRO R9700"},
    ),
)

# One program for a family, in LLVM's names. Members that differ in what they can do have in common
# what the program uses. Of `gfx9-4-generic` there is none: what waits between two matrix
# instructions on gfx942 is too short for gfx950.
_FAMILIES: tuple[tuple[str, str, GpuFacts], ...] = (
    ("gfx10-3-generic", "every RDNA 2", _FAMILY10),
    ("gfx11-generic", "every RDNA 3 and 3.5", _FAMILY11),
    ("gfx12-generic", "every RDNA 4", _FAMILY12),
)
# Names of products and families that people and other compilers use.
_ALIASES: Mapping[str, tuple[str, ...]] = {
    "gfx90a": ("cdna2", "mi210", "mi250", "mi250x"),
    "gfx942": ("cdna3", "mi300a", "mi300x", "mi325x"),
    "gfx950": ("cdna4", "mi350x", "mi355x"),
    "gfx1030": ("rx6800", "rx6800xt", "rx6900xt", "rx6950xt"),
    "gfx1031": ("rx6700xt",),
    "gfx1032": ("rx6600", "rx6600xt"),
    "gfx1035": ("radeon680m",),
    "gfx1100": ("rx7900xtx", "rx7900xt", "w7900", "w7800"),
    "gfx1101": ("rx7800xt", "rx7700xt", "v710", "w7700"),
    "gfx1102": ("rx7600", "rx7600xt", "w7600"),
    "gfx1103": ("radeon780m", "radeon760m", "radeon740m"),
    "gfx1150": ("radeon890m", "radeon880m"),
    "gfx1151": ("radeon8060s", "radeon8050s"),
    "gfx1152": ("radeon860m", "radeon840m"),
    "gfx1200": ("rx9060xt",),
    "gfx1201": ("rx9070", "rx9070xt", "r9700"),
    "gfx10-3-generic": ("rdna2",),
    "gfx11-generic": ("rdna3", "rdna3.5"),
    "gfx12-generic": ("rdna4",),
}


def _target(name: str, title: str, facts: GpuFacts, pci: Mapping[int, str]) -> Target:
    return Target(
        name=name,
        kind="gpu",
        title=f"{title}, {facts.family}",
        source=f"LLVM AMDGPUUsage, {name}; AMD {facts.family} instruction set architecture guide",
        aliases=_ALIASES.get(name, ()),
        gpu=replace(facts, pci=pci),
    )


TARGETS = (
    *(_target(*row) for row in _ROWS),
    *(_target(name, title, facts, {}) for name, title, facts in _FAMILIES),
)
_BY_NAME = {target.name: target for target in TARGETS}

# PCI device → gfx, title.
BY_DEVICE: Mapping[int, tuple[str, str]] = {
    device: (name, title) for name, _, _, pci in _ROWS for device, title in pci.items()
}


def facts_of(name: str) -> GpuFacts | None:
    """Return the facts of one GPU, or of a family; None where nothing is known of it."""
    found = _BY_NAME.get(name)
    return None if found is None else found.gpu


def runs_on(program: str, gpu: str) -> bool:
    """Say whether programs for one name run on a GPU: its own, and those of its family."""
    facts = facts_of(program)
    return program == gpu or (facts is not None and gpu in facts.members)


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
        " the nearest, and a program for one GPU does not run on one of another family)"
    )


def nearest_architecture(name: str) -> str:
    """Return the GPU whose name's number is closest: `gfx1100` for `gfx1030`.

    The digits are major, minor and stepping, so that the closest is the next of its generation.
    """
    wanted = _number(name)
    others = [name_ for name_, *_ in _ROWS if name_ != name]
    return min(others, key=lambda other: abs(_number(other) - wanted))


def _number(name: str) -> int:
    digits = name.removeprefix("gfx")
    return int(digits, 16) if digits and set(digits) <= set("0123456789abcdef") else 0
