"""Parts with open dimensions: machine code that is written once and run at any size.

What a run of one size needs beside it, its step table, is computed when that size is first seen and
kept for the sizes that were seen last.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vermilion.backends.base import Array, CompileOptions, Numerics, Part, Program, Tensors
from vermilion.backends.native_files import float_storage, write_program
from vermilion.backends.native_run import fits
from vermilion.codegen.load import LoadedProgram
from vermilion.codegen.open_table import OpenTable, SizedTable
from vermilion.codegen.watch import NUMPY, OpenTensors, StepWatcher, affordable, calls_of_table
from vermilion.codegen.workers import HEAP, Memory
from vermilion.errors import Refusal, UnsupportedError
from vermilion.forks import renew_after_fork

if TYPE_CHECKING:
    import onnx_ir as ir

    from vermilion.codegen.isa import Isa
    from vermilion.codegen.lower.part import LoweredPart
    from vermilion.codegen.tensor import View
    from vermilion.ir.symbolic import Guard

# Tables that are kept: 150 calls take 20 kB.
_MOST_TABLES = 256


class OpenExecutable:
    """A loaded part for any sizes. Calls from several threads take turns."""

    entries = 1

    def __init__(
        self,
        table: OpenTable,
        cpu: str,
        isa: Isa,
        workers: int,
        packed: Array,
        memory: Memory = HEAP,
    ) -> None:
        """Load the code; the first run's table comes with the first run."""
        self._open, self._cpu, self._isa, self._workers = table, cpu, isa, workers
        self._packed, self._memory = packed, memory
        self._tables: OrderedDict[tuple[tuple[int, ...], ...], SizedTable] = OrderedDict()
        self._program: LoadedProgram | None = None
        self._current: SizedTable | None = None
        self._words = memory.aligned(8).view(np.int64)
        self._turn = threading.Lock()
        about = table.about
        self._inputs = [(port["name"], NUMPY[port["storage"]]) for port in about["inputs"]]
        self._outputs = [(port["name"], NUMPY[port["storage"]]) for port in about["outputs"]]
        renew_after_fork(self)

    @property
    def runs_on(self) -> str:
        """Say where it runs."""
        threads = f"{self._workers} thread{'s' * (self._workers != 1)}"
        return f"CPU (native code for {self._cpu}, any size, {threads})"

    def run(self, inputs: Tensors) -> dict[str, Array]:
        """Compute every output of the part from all its inputs."""
        return self.run_into(inputs, {})

    def run_into(self, inputs: Tensors, places: Tensors) -> dict[str, Array]:
        """Compute the same, outputs into `places` where these fit."""
        return self._computed(inputs, places, lambda program, sized: program.run())

    def run_watched(
        self, inputs: Tensors, tensors: OpenTensors, most_bytes: int
    ) -> tuple[dict[str, Array], dict[str, list[Array]]]:
        """Compute the same call by call; return the outputs and copies of the inner `tensors`."""
        copies: dict[str, list[Array]] = {}

        def run(program: LoadedProgram, sized: SizedTable) -> None:
            shapes = tuple(np.shape(inputs[name]) for name, _ in self._inputs)
            found = tensors.at(self._open.sizes_of(shapes), sized.run, sized.places)
            calls = calls_of_table(program, sized.table)
            watcher = StepWatcher(program, calls, 1, affordable(found, 1, most_bytes))
            watcher.run()
            copies.update(watcher.copies)

        return self._computed(inputs, {}, run), copies

    def _computed(
        self,
        inputs: Tensors,
        places: Tensors,
        run: Callable[[LoadedProgram, SizedTable], None],
    ) -> dict[str, Array]:
        held = [np.asarray(inputs[name], dtype, order="C") for name, dtype in self._inputs]
        with self._turn:
            sized = self._sized(tuple(array.shape for array in held))
            program = self._settled(sized)
            results = {
                name: places[name]
                if name in places and fits(places[name], shape, dtype, held)
                else self._memory.empty(shape, dtype)
                for (name, dtype), shape in zip(self._outputs, sized.output_shapes, strict=True)
            }
            for at, array in enumerate(held):
                program.point(f"input {at}", array.ctypes.data)
            for at, array in enumerate(results.values()):
                program.point(f"output {at}", array.ctypes.data)
            self._words[: sized.words] = 0
            # When it is left, by an exception even, no worker touches these arrays.
            run(program, sized)
            if sized.words and self._words[: sized.words].any():
                self._complain(sized)
        return results

    def _sized(self, shapes: tuple[tuple[int, ...], ...]) -> SizedTable:
        found = self._tables.get(shapes)
        if found is None:
            if len(self._tables) >= _MOST_TABLES:
                self._tables.popitem(last=False)
            found = self._tables[shapes] = self._open.sized(shapes)
        self._tables.move_to_end(shapes)
        return found

    def _settled(self, sized: SizedTable) -> LoadedProgram:
        """Return the program with this table in it."""
        before, self._current = self._current, None  # until it is in: an exception may come
        if self._program is None:
            program = LoadedProgram(
                sized.table, self._isa, self._workers, keep=self._packed, memory=self._memory
            )
            program.point("weights", self._packed.ctypes.data)
            program.point("checks", self._words.ctypes.data)
            self._program = program
        elif before is not sized:
            self._program.resize(sized.table)
        if sized.words > self._words.size:
            self._words = self._memory.aligned(8 * sized.words).view(np.int64)
            self._program.point("checks", self._words.ctypes.data)
        self._current = sized
        return self._program

    def _complain(self, sized: SizedTable) -> None:
        for check in sized.checks:
            words = self._words[check.offset : check.offset + check.count]
            if words.any():
                raise UnsupportedError(
                    f"running the model failed: {check.complaint(int(words[words != 0][0]))}",
                    where=check.where,
                    hint="what the node got does not fit it: check the model and its inputs",
                )

    def close(self) -> None:
        """End the workers."""
        if self._program is not None:
            self._program.close()

    def after_fork(self) -> None:
        """Renew the lock in a forked process: whoever had a turn is not there."""
        self._turn = threading.Lock()


def compile_open_part(part: Part, isa: Isa, options: CompileOptions, folder: Path) -> Program:
    """Write machine code for any size, packed weights, and what a run's table is computed from."""
    from vermilion.codegen.dump import write_dump
    from vermilion.codegen.open_program import compile_open

    lowered, other, symbols, guards = _lowered_twice(part, isa, options)
    if options.dump is not None:
        write_dump(options.dump / part.name, lowered.steps, isa)
    program = compile_open(lowered, other, symbols, guards, isa)
    files = write_program(folder, isa, program.objects, program.packed, program.table)
    return Program(
        files,
        details={"steps": str(len(program.table["calls"])), "llvm_cpu": isa.llvm_cpu},
        numerics=Numerics(
            "bf16" if options.precision == "bf16" else "fp32",
            program.tensors,
            fewer_products=any(step.spec.family.startswith("winograd") for step in lowered.steps),
        ),
    )


def check_open_part(part: Part, isa: Isa, options: CompileOptions) -> None:
    """Lower a part and write its kernels, without machine code."""
    from vermilion.codegen.open_program import check_open

    check_open(*_lowered_twice(part, isa, options), isa)


def _lowered_twice(
    part: Part, isa: Isa, options: CompileOptions
) -> tuple[LoweredPart, LoweredPart, Mapping[str, tuple[int, int, int]], list[Guard]]:
    """Return a part lowered at both sets of examples, its symbols, and what was taken for granted.

    Weights are packed once.
    """
    from vermilion.codegen.lower.open_sizes import open_models
    from vermilion.codegen.lower.part import lower_part
    from vermilion.codegen.lower.rules import check_again
    from vermilion.ir.symbolic import examples

    packed: dict[tuple[str, ...], View] = {}
    lowered = []
    for opened in open_models(part.model):
        with examples(opened.sizes):
            for node in opened.model.graph:
                if node not in opened.from_sizes:
                    check_again(node)
            steps = lower_part(
                opened.model, isa, float_storage(options), winograd=options.winograd, packed=packed
            )
            lowered.append((steps, opened))
    (first, one), (second, last) = lowered
    if one.contradicts(last.sizes.guards.values()) or last.contradicts(one.sizes.guards.values()):
        raise UnsupportedError(
            "the program is for one size alone: what is taken for granted at it does not hold at "
            "another",
            hint="give the sizes that you run, with `--dim`",
        )
    return first, second, last.symbols, list(last.sizes.guards.values())


@dataclass(frozen=True)
class OpenClaims:
    """What the generator says of each node of a model with open dimensions, in the graph's order.

    `model` is the one asked about, which is held so that it stays the same.
    """

    model: ir.Model
    reasons: dict[ir.Node, Refusal | None]


def open_claims(model: ir.Model) -> OpenClaims:
    """Return why each node is not taken at open sizes, None for those that are."""
    from vermilion.codegen.lower.open_sizes import open_models
    from vermilion.codegen.lower.rules import refusal
    from vermilion.ir.symbolic import examples

    opened = next(open_models(model))
    with examples(opened.sizes):
        reasons = {
            node: None if twin in opened.from_sizes else refusal(twin)
            for node, twin in zip(model.graph, opened.model.graph, strict=True)
        }
    return OpenClaims(model, reasons)
