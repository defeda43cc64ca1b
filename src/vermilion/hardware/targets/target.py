"""What a chip can do, as data: one `Target` a chip, each fact with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["cpu", "gpu", "npu"]


@dataclass(frozen=True)
class PlacementLimits:
    """The rules by which a compiled device part is given back to the CPU.

    CPU targets have none. Source for the NPU values: Ryzen AI documentation, `modelrun.rst`
    (`threshold_gops_percent` 20, at most 7 subgraphs).
    """

    min_gops_percent: float = 0.0  # a part with less of the model's GOPs runs on the CPU
    max_parts: int | None = None  # parts beyond this many, smallest first, run on the CPU
    min_convolutions: int = 0  # a model with fewer runs on the CPU as a whole
    max_batch: int | None = None  # batch entries beyond this are not computed by the device


@dataclass(frozen=True)
class GpuFacts:
    """What a code generator for a GPU has to know of the chip.

    `matrix_inputs` are the element types that its matrix instructions multiply.
    """

    family: str  # `CDNA 3`, `RDNA 4`
    wave_size: int  # lanes that run in step, in the mode that compute kernels use
    matrix_instructions: Literal["mfma", "wmma"]
    matrix_inputs: frozenset[str]


@dataclass(frozen=True)
class Target:
    """One chip (or family that compiles alike) that a model can be compiled for."""

    name: str  # what the user writes: `strix`
    kind: Kind
    title: str  # what a person reads: `Strix / Strix Halo NPU (XDNA 2)`
    source: str  # where the facts on this chip come from
    aliases: tuple[str, ...] = ()
    device_code: str = ""  # what the vendor's summary prints after `Device:`
    limits: PlacementLimits = field(default_factory=PlacementLimits)
    # CPU: LLVM feature names that must be there, and LLVM's name for the core.
    features: frozenset[str] = frozenset()
    llvm_cpu: str = ""
    # NPU: operator names by number format (`bf16`, `xint8`, `a8w8`, `a16w8`). A format that is
    # not a key is not taken by the chip at all.
    operators: Mapping[str, frozenset[str]] = field(default_factory=dict)
    # NPU: published maximum, by `bf16` or `int8`.
    peak_tops: Mapping[str, float] = field(default_factory=dict)
    # GPU: None for all else, and where the name stands for several.
    gpu: GpuFacts | None = None

    @property
    def architectures(self) -> tuple[str, ...]:
        """GPUs that get a program each; the name holds them: `gfx942,gfx1100`."""
        return tuple(self.name.split(",")) if self.kind == "gpu" else ()

    @property
    def formats(self) -> tuple[str, ...]:
        """Number formats that the chip takes, in a stable order."""
        return tuple(sorted(self.operators))
