"""What a chip can do, as data: one `Target` a chip, each fact with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from vermilion.version import is_older

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
class CpuFacts:
    """What a core has and how it is recognised. The names of features are LLVM's."""

    features: frozenset[str] = frozenset()  # that must be there
    llvm_cpu: str = ""  # LLVM's name for the core
    llvm_features: str = ""  # what LLVM is to add to and take from what it thinks the core has
    models: tuple[tuple[int, int, int], ...] = ()  # of AMD's: family, first model, last model


@dataclass(frozen=True)
class GpuFacts:
    """What a code generator for a GPU has to know of the chip.

    `matrix_inputs` are the element types that its matrix instructions multiply. `compiled_as` is
    the GPU whose description the compiler has where it has none of this one: tiles and limits are
    that one's, the instructions are this one's. `members` are the GPUs that programs for a whole
    family run on.
    """

    family: str  # `CDNA 3`, `RDNA 4`
    wave_size: int  # lanes that run in step, in the mode that compute kernels use
    matrix_instructions: Literal["mfma", "wmma", ""]
    matrix_inputs: frozenset[str]
    pci: Mapping[int, str] = field(default_factory=dict)  # device → title
    compiled_as: str = ""
    members: tuple[str, ...] = ()


@dataclass(frozen=True)
class ArrayFacts:
    """The size and clock of an NPU's array.

    Units: `int8_per_clock` is operations a compute tile and clock; `memory_kib` is that of all
    memory tiles.
    """

    columns: int
    rows: int
    int8_per_clock: int
    megahertz: int
    memory_kib: int
    source: str

    @property
    def int8_tops(self) -> float:
        """The most that the array can do, in 10^12 operations a second."""
        return self.columns * self.rows * self.int8_per_clock * self.megahertz / 1e6


@dataclass(frozen=True)
class NpuFacts:
    """How an NPU is recognised, sized, and driven by the vendor's provider."""

    chips: str  # how messages name it: `Phoenix and Hawk Point`
    # Number format (`bf16`, `xint8`, `a8w8`, `a16w8`) → operators. A format that is not a key is
    # not taken by the chip at all.
    operators: Mapping[str, frozenset[str]]
    summary_codes: tuple[str, ...]  # after `Device:` in the vendor's summary, the usual one first
    vaiml_code: str  # what `vaiml_config.device` begins with
    compilers: tuple[str, ...]  # values of the option `target`, the usual one for INT8 first
    pci: Mapping[tuple[int, int], str] = field(default_factory=dict)  # device, revision → title
    array: ArrayFacts | None = None  # None: it depends on how the board was built
    first_release: str = ""  # of Ryzen AI that drives it; empty: another product does
    not_on: tuple[str, ...] = ()  # systems whose Ryzen AI does not drive it
    language_models: bool = True  # whether the vendor runs any on it
    # (release, NPU binary that is named from then on, below the installation folder), in order;
    # empty: must not be named.
    binaries: tuple[tuple[str, str], ...] = ()
    # Releases whose installer leaves that binary out, with what is known of it.
    without_binary: Mapping[str, str] = field(default_factory=dict)
    # (release, option, value, why): provider options that INT8 models want from then on.
    int8_settings: tuple[tuple[str, str, str, str], ...] = ()

    def settings(self, release: str) -> dict[str, tuple[str, str]]:
        """Return the options that INT8 models want in a release, each with its value and why."""
        return {
            name: (value, why)
            for since, name, value, why in self.int8_settings
            if not is_older(release, since)
        }

    def binary(self, release: str) -> str:
        """Return the NPU binary that a release wants named, empty where it is to name none."""
        named = [path for since, path in self.binaries if not is_older(release, since)]
        return named[-1] if named else ""


@dataclass(frozen=True)
class Target:
    """One chip (or family that compiles alike) that a model can be compiled for."""

    name: str  # what the user writes: `strix`
    kind: Kind
    title: str  # what a person reads: `Strix / Strix Halo NPU (XDNA 2)`
    source: str  # where the facts on this chip come from
    aliases: tuple[str, ...] = ()
    limits: PlacementLimits = field(default_factory=PlacementLimits)
    # The facts of its kind; None where the name stands for several, or for this machine's.
    cpu: CpuFacts | None = None
    gpu: GpuFacts | None = None
    npu: NpuFacts | None = None

    @property
    def architectures(self) -> tuple[str, ...]:
        """GPUs that get a program each; the name holds them: `gfx942,gfx1100`."""
        return tuple(self.name.split(",")) if self.kind == "gpu" else ()

    @property
    def features(self) -> frozenset[str]:
        """Features that code for a CPU may use, by LLVM's names."""
        return self.cpu.features if self.cpu is not None else frozenset()

    @property
    def operators(self) -> Mapping[str, frozenset[str]]:
        """Operators by number format that the vendor documents for an NPU."""
        return self.npu.operators if self.npu is not None else {}

    @property
    def formats(self) -> tuple[str, ...]:
        """Number formats that the chip takes, in a stable order."""
        return tuple(sorted(self.operators))
