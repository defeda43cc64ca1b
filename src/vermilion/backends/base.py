"""The contract between a part of a model and whatever executes it.

A backend says whether it is usable here (`available`), which nodes it takes (`claim`), turns a
part into files (`compile`), and files into something that runs (`load`). Nothing else in the
package knows how a part is executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from vermilion.errors import Refusal
from vermilion.hardware.targets.target import Target
from vermilion.progress import Progress, no_progress

if TYPE_CHECKING:
    import onnx_ir as ir

    from vermilion.codegen.table import StepTensor
    from vermilion.codegen.watch import OpenTensors
    from vermilion.proof.bounds import FormatName

Array = np.ndarray
Tensors = Mapping[str, Array]


@dataclass(frozen=True)
class Availability:
    """Whether a backend can execute on this machine, and if not, why and what to do."""

    usable: bool
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Claim:
    """This backend takes this node."""


@dataclass(frozen=True)
class ModelFacts:
    """What a backend may want to know of the whole model when it looks at one node."""

    number_format: str  # `fp32`, `fp16`, `bf16`, `xint8`, `a8w8`, `a16w8`, …
    opset: int
    convolutions: int
    symbolic_dimensions: tuple[str, ...]
    batch: int | None  # leading dimension shared by the inputs, None if unknown or mixed
    bind: str = ""  # the options of the command line that bind all that is open
    model: ir.Model | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class CompileOptions:
    """What the user asked for, apart from the model and the target."""

    precision: str = "auto"
    winograd: bool = True  # fewer multiplications (Winograd, Strassen), where that is faster
    dump: Path | None = None  # folder for what the code generator made on the way, for people
    threads: int = 0  # 0: as many as there are physical cores
    progress: Progress = field(default=no_progress, compare=False)  # told of steps within a part
    # The user's own, by name, for a backend whose provider has some; each build is asked.
    provider_options: Mapping[str, str] = field(default_factory=dict)
    # Parts that ONNX Runtime is to run without its optimizations, by name: those where they were
    # seen to change a number.
    literal_parts: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Part:
    """A run of nodes given to one backend, as a model of its own.

    `model` shares its weights with the whole model; inputs and outputs keep their names.
    """

    name: str
    device: str  # `cpu`, `gpu`, `npu`
    backend: str
    model: ir.Model
    node_names: tuple[str, ...]
    gops: float


LARGEST_FLOAT16 = 65504.0  # IEEE 754 binary16


@dataclass(frozen=True)
class Numerics:
    """What the proof wants to know of a compiled part; it is not written to any file.

    `form` is the number format that it computes in. `tensors` says where inner tensors lie while
    the program runs; of a batch that is run entry by entry, those of one entry. `float16` are the
    part's own float32 values that the program holds in float16: on a sample that drives one of them
    beyond `LARGEST_FLOAT16`, it has infinities where the part has numbers.
    """

    form: FormatName = "fp32"
    tensors: tuple[StepTensor, ...] | OpenTensors = ()
    fewer_products: bool = False  # Winograd's algorithm
    float16: frozenset[str] = frozenset()


# The detail of a program that was proven by running another one in its stead: which.
TWIN = "twin"
# What was proven where nothing of a model for a GPU came to be the GPU's.
ON_CPU = "CPU's parts"
# The detail that names the devices whose own programs were executed by an interpreter.
INTERPRETED = "interpreted"


@dataclass(frozen=True)
class Program:
    """A compiled part: the files it consists of, relative to the part's folder.

    `notes` is what a user should know, and `machine_code` a row a kernel, where there are any.
    `elsewhere` has the part's nodes that were not seen to run on the device, by position, with the
    reason; it is not written to any file. `weights` are the tensors that `part.onnx` keeps outside
    itself, by name; None where that is the part's own model.
    """

    files: tuple[str, ...]
    modelled: bool = False  # executed by a stand-in, because the device is not here
    details: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    machine_code: tuple[Mapping[str, object], ...] = ()
    numerics: Numerics | None = field(default=None, compare=False, repr=False)
    elsewhere: Mapping[int, str] = field(default_factory=dict, compare=False)
    weights: Mapping[str, Array] | None = field(default=None, compare=False, repr=False)


class PartFiles(Protocol):
    """Read access to a compiled part, whether it lies in a folder or inside a `.rai`."""

    def read(self, name: str) -> memoryview:
        """Return the bytes of a file of the part; large files are mapped, not copied."""

    def weights(self) -> Mapping[str, Array]:
        """Return the tensors that the part's model keeps outside itself, by name, read only."""


class Executable(Protocol):
    """A loaded part. Safe to call from several threads."""

    @property
    def runs_on(self) -> str:
        """Say where it runs and whether that is modelled, for people."""

    def run(self, inputs: Tensors) -> dict[str, Array]:
        """Compute every output of the part from all its inputs."""


@runtime_checkable
class WritesInto(Protocol):
    """A loaded part that writes outputs into memory of the caller's, without a copy."""

    def run_into(self, inputs: Tensors, places: Tensors) -> dict[str, Array]:
        """Compute every output, those named in `places` into the arrays there where they fit.

        An output that its place does not fit, or whose place holds an input, is in an array of its
        own.
        """


class Backend(Protocol):
    """One way to execute parts."""

    @property
    def name(self) -> str:
        """Short name, as it stands in manifests: `ort`."""

    def available(self, target: Target) -> Availability:
        """Say whether parts compiled for `target` can be executed on this machine."""

    def claim(self, node: ir.Node, facts: ModelFacts, target: Target) -> Claim | Refusal:
        """Say whether this backend takes the node, and if not, why."""

    def compile(self, part: Part, target: Target, options: CompileOptions, folder: Path) -> Program:
        """Write the part's program below `folder`. Raises VermilionError where it cannot."""

    def load(
        self, program: Program, files: PartFiles, target: Target, options: CompileOptions
    ) -> Executable:
        """Make a compiled part ready to run."""


@runtime_checkable
class ChecksParts(Protocol):
    """A backend that can tell in a fraction of the time whether a part is going to compile."""

    def check(self, part: Part, target: Target, options: CompileOptions) -> None:
        """Raise what `compile` would raise before it makes machine code."""


@runtime_checkable
class Versioned(Protocol):
    """A backend whose compiled parts depend on more than this package and its core libraries."""

    def versions(self, target: Target) -> Mapping[str, str]:
        """Return the versions of providers, drivers, compilers and firmware, by name."""


@runtime_checkable
class TakesProviderOptions(Protocol):
    """A backend whose provider has options that a user may set."""

    def check_options(self, target: Target, options: CompileOptions) -> None:
        """Raise OptionError for what the provider's build does not take."""
