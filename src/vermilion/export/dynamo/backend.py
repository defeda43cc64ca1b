"""The backend that `torch.compile` finds under the name `vermilion`."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vermilion.errors import Refusal
from vermilion.export.dynamo.cut import number_positions
from vermilion.export.dynamo.open_sizes import NOTHING_OPEN, OpenSizes, open_sizes
from vermilion.export.dynamo.options import TorchOptions, read_options
from vermilion.export.dynamo.program import Built

if TYPE_CHECKING:
    import torch

# A size takes seconds to compile and memory for as long as the model lives.
MAX_SIZES = 16
# Sizes at which a program for all of them is held against PyTorch before it is believed.
HELD_SIZES = 3
# Weights that change are trained: each time, everything would be compiled again.
MAX_CHANGES = 4

_STATIC = "_dynamo_static_input_type"  # how dynamo marks what belongs to a module


class RunsEagerlyWarning(UserWarning):
    """A graph of `torch.compile` is run by PyTorch as it stands, and why."""


class NotNativeWarning(UserWarning):
    """A graph of `torch.compile` is run by ONNX Runtime: no operator of it is native, and why."""


@dataclass(frozen=True)
class CompiledGraph:
    """What became of one graph at one size, or at all sizes: open ones are names in `sizes`.

    `reason` says why PyTorch runs it, if it does.
    `native` of `operators` are computed by machine code of our own, `placement` says so in a line,
    and why the rest is left to ONNX Runtime. `sqnr_db` is the worst output against PyTorch on the
    first inputs. A graph of nothing but views has no operators.
    """

    number: int
    sizes: tuple[object, ...]
    reason: str = ""
    operators: int = 0
    native: int = 0
    artifact: Path | None = None
    cache_hit: bool = False
    sqnr_db: float | None = None
    seconds: float = 0.0
    placement: str = ""


class TorchBackend:
    """Compile the graphs of `torch.compile` for this CPU, for inference."""

    def __init__(self) -> None:
        self.__name__ = "vermilion"
        self._graphs: list[CompiledGraph] = []
        self._count = 0

    def __call__(
        self,
        module: torch.fx.GraphModule,
        inputs: Sequence[Any],
        *,
        mode: str | None = None,
        options: Mapping[str, object] | None = None,
    ) -> Callable[..., Sequence[Any]]:
        """Return what is called in the place of a graph; it is compiled in its first call.

        Raises: OptionError for options that are none.
        """
        graph = Graph(self._count, module, inputs, read_options(mode, options), self._graphs)
        self._count += 1
        return graph

    def graphs(self) -> tuple[CompiledGraph, ...]:
        """Return what became of every graph so far, in the order in which they were first run."""
        return tuple(self._graphs)

    def reset(self) -> None:
        """Forget about them; `torch._dynamo.reset()` calls it."""
        self._graphs.clear()
        self._count = 0


torch_backend = TorchBackend()
"""The one that PyTorch finds."""


@dataclass(frozen=True)
class _Eager:
    """A graph that PyTorch runs."""

    module: torch.fx.GraphModule

    def __call__(self, arguments: Sequence[Any]) -> Sequence[Any]:
        made: Sequence[Any] = self.module(*arguments)
        return made


class Graph:
    """A graph, with a program for all sizes that PyTorch leaves open. Safe for several threads.

    Sizes that change come as numbers among the arguments. Where one program cannot serve all, one
    is made for each combination of sizes; the first `MAX_SIZES` are kept, and PyTorch runs all
    others. The same is done with numbers that are no sizes.
    """

    def __init__(
        self,
        number: int,
        module: torch.fx.GraphModule,
        inputs: Sequence[Any],
        options: TorchOptions,
        records: list[CompiledGraph],
    ) -> None:
        """Take the graph with the arguments that it was traced with."""
        import torch

        self._number, self._module, self._options = number, module, options
        self._records = records
        self._constants = _constants(module, inputs)
        self._numbers = number_positions(module)
        sized = not all(isinstance(one, torch.Tensor) for one in inputs)
        self._has_sizes = sized or bool(self._numbers)
        self._open = open_sizes(module, self._constants) if self._has_sizes else NOTHING_OPEN
        self._held: set[tuple[object, ...]] = set()  # sizes at which that program is right
        self._refuted = 0  # programs for all sizes that were wrong at one
        self._programs: dict[tuple[object, ...], Built | _Eager] = {}
        self._given_up: _Eager | None = None  # what runs sizes that have no program
        self._changes = 0
        self._turn = threading.Lock()

    def __call__(self, *arguments: Any) -> Sequence[Any]:
        """Compute the outputs of the graph."""
        sizes = self._sizes(arguments, self._open) if self._has_sizes else ()
        found = self._programs.get(sizes, self._given_up)
        if isinstance(found, Built) and (
            found.program.constants.changed(arguments) or self._is_to_be_held(arguments)
        ):
            found = None
        if found is None:
            with self._turn:
                found = self._made(arguments)
        return found.program(arguments) if isinstance(found, Built) else found(arguments)

    def _sizes(self, arguments: Sequence[Any], sizes: OpenSizes) -> tuple[object, ...]:
        import torch

        found = [
            sizes.of(position, one.shape) if isinstance(one, torch.Tensor) else one
            for position, one in enumerate(arguments)
            if position not in self._constants and position not in sizes.numbers
        ]
        return (*found, *(arguments[position].item() for position in self._numbers))

    def _is_to_be_held(self, arguments: Sequence[Any]) -> bool:
        """Say whether a program for all sizes is now asked for one that it was not tried at."""
        if not self._open or len(self._held) >= HELD_SIZES:
            return False
        return self._sizes(arguments, NOTHING_OPEN) not in self._held

    def _made(self, arguments: Sequence[Any]) -> Built | _Eager:
        """Return the program for these sizes; make it if need be."""
        sizes = self._sizes(arguments, self._open) if self._has_sizes else ()
        found = self._programs.get(sizes, self._given_up)
        if isinstance(found, Built) and (moved := found.program.constants.changed(arguments)):
            self._note_changes(arguments, moved)
            self._programs.clear()  # they have the former numbers
            found = None
        if isinstance(found, Built) and self._is_to_be_held(arguments):
            found = self._held_at(arguments, found, sizes)
        if found is not None:
            return found
        if (refusal := self._had_enough()) is not None:
            self._given_up = self._eager(sizes, refusal)
            return self._given_up
        made = self._built(arguments)
        sizes = self._sizes(arguments, self._open) if self._has_sizes else ()
        self._programs[sizes] = self._eager(sizes, made) if isinstance(made, Refusal) else made
        if isinstance(made, Built):
            self._records.append(_record(self._number, sizes, made))
            if made.operators and not made.native:
                words = f"graph {self._number} of torch.compile: {made.placement}"
                warnings.warn(words, NotNativeWarning, stacklevel=2)
        return self._programs[sizes]

    def _held_at(
        self, arguments: Sequence[Any], found: Built, sizes: tuple[object, ...]
    ) -> Built | None:
        """Return a program that is as PyTorch at these sizes too, None where it is not."""
        from vermilion.export.dynamo.build import differs

        if differs(self._module, arguments, found, self._options) is None:
            self._held.add(self._sizes(arguments, NOTHING_OPEN))
            return found
        self._refuted += 1
        self._held.clear()
        del self._programs[sizes]
        wrong = _record(self._number, sizes, found)
        self._records[:] = [one for one in self._records if one != wrong]
        return None

    def _built(self, arguments: Sequence[Any]) -> Built | Refusal:
        """Make a program for all sizes, and where there is none, for those of the arguments."""
        from vermilion.export.dynamo.build import build_program  # it loads the whole compiler
        from vermilion.export.dynamo.to_onnx import OPEN_EXPORTERS

        how = self._module, arguments, self._constants, self._options
        if self._open:
            left = OPEN_EXPORTERS[self._refuted :]
            made = build_program(*how, self._open, left) if left else Refusal("")
            if isinstance(made, Built):
                self._held.add(self._sizes(arguments, NOTHING_OPEN))
                return made
            self._open = NOTHING_OPEN
            self._programs.clear()
        return build_program(*how)

    def _eager(self, sizes: tuple[object, ...], refusal: Refusal) -> _Eager:
        """Leave the graph to PyTorch, and say so."""
        words = f"graph {self._number} of torch.compile is run by PyTorch: {refusal.reason}"
        hint = f"\nhint: {refusal.hint}" if refusal.hint else ""
        warnings.warn(words + hint, RunsEagerlyWarning, stacklevel=2)
        self._records.append(CompiledGraph(self._number, sizes, reason=refusal.reason))
        return _Eager(self._module)

    def _had_enough(self) -> Refusal | None:
        if self._changes > MAX_CHANGES:
            return Refusal(
                f"its weights changed {self._changes} times",
                hint="compile the model when it is trained",
            )
        if len(self._programs) >= MAX_SIZES:
            return Refusal(
                f"it was called with more than {MAX_SIZES} sizes",
                hint="pad the inputs to a few sizes",
            )
        return None

    def _note_changes(self, arguments: Sequence[Any], moved: Sequence[int]) -> None:
        """Make an input of a buffer that changes; count the changes of weights."""
        import torch

        weights = [one for one in moved if isinstance(arguments[one], torch.nn.Parameter)]
        self._constants -= set(moved) - set(weights)
        self._changes += bool(weights)


def _record(number: int, sizes: tuple[object, ...], made: Built) -> CompiledGraph:
    return CompiledGraph(
        number,
        tuple(one for one in sizes if one != ()),  # tensors of one number say nothing
        operators=made.operators,
        native=made.native,
        artifact=made.artifact,
        cache_hit=made.cache_hit,
        sqnr_db=made.sqnr_db,
        seconds=made.seconds,
        placement=made.placement,
    )


def _constants(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> set[int]:
    """Return the positions of a module's weights and buffers among the arguments.

    Tensors that were made in inference mode do not say when they are written to: they are inputs.
    """
    import torch

    nodes = (node for node in module.graph.nodes if node.op == "placeholder")
    return {
        position
        for position, (node, one) in enumerate(zip(nodes, inputs, strict=True))
        if isinstance(one, torch.Tensor)
        and not one.is_inference()
        and (isinstance(one, torch.nn.Parameter) or _STATIC in node.meta.get("tensor_dict", {}))
    }
