"""A model's native parts, compiled and run between guard pages; the rest as the reference has it.

The thread pool is told to share even the smallest step, so that every kernel is run in pieces.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from random_graphs.guarded_memory import GuardedMemory, Side
from vermilion.backends.base import CompileOptions, Part, Program
from vermilion.backends.native import NativeBackend
from vermilion.backends.native_files import TABLE_FILE, WEIGHTS_FILE
from vermilion.backends.ort import OrtBackend
from vermilion.codegen.workers import HEAP, Memory
from vermilion.hardware.targets.find import find_target
from vermilion.ir.literal.types import complete_types
from vermilion.ir.opset import required_inputs
from vermilion.ir.passes.pipeline import simplify
from vermilion.partition.place import plan, settle
from vermilion.runtime.block_numbers import settled_numbers

Array = NDArray[Any]
Compute = Callable[[Part, Mapping[str, Array]], Mapping[str, Array]]


@dataclass(frozen=True)
class Way:
    """How a model is compiled and run."""

    target: str
    precision: str
    threads: int
    shares_all: bool
    winograd: bool = True
    whole_path: bool = False  # also as a user compiles it: placed, proven, written, opened
    open_seed: int | None = None  # some sizes are open, drawn by this


@dataclass
class Placed:
    """A model's parts in the order in which they run, and which nodes were left out and why."""

    parts: Sequence[Part]
    nodes: int
    native_nodes: int
    native_operators: Sequence[str]
    refused: Sequence[tuple[str, str]]  # operator and reason
    programs: dict[str, tuple[Program, Path]] = field(default_factory=dict)


def place(model: onnx.ModelProto, way: Way) -> Placed:
    """Simplify, and cut into parts as the compiler does."""
    found = simplify(ir.from_proto(model)).model
    complete_types(found)
    found, _, _ = settled_numbers(found, find_target(way.target), way.precision)
    decided = plan(found, find_target(way.target), NativeBackend(), OrtBackend())
    nodes = list(found.graph)
    refused = [
        (node.op_type, refusal.reason)
        for node, refusal in zip(nodes, decided.refusals, strict=True) if refusal is not None
    ]  # fmt: skip
    claimed = [n.op_type for n, r in zip(nodes, decided.refusals, strict=True) if r is None]
    return Placed(settle(decided, {}).parts, len(nodes), len(claimed), claimed, refused)


def compile_parts(placed: Placed, way: Way, folder: Path) -> None:
    """Compile the native parts below `folder`."""
    options = CompileOptions(way.precision, winograd=way.winograd, threads=way.threads)
    target = find_target(way.target)
    for part in placed.parts:
        if part.backend == "native":
            where = folder / part.name
            program = NativeBackend().compile(part, target, options, where)
            placed.programs[part.name] = (program, where)


@dataclass(frozen=True)
class _Files:
    """A part's files, weights beside a guard page, small steps shared among the workers."""

    folder: Path
    shares_all: bool
    memory: GuardedMemory | None

    def read(self, name: str) -> memoryview:
        data = (self.folder / name).read_bytes()
        if name == WEIGHTS_FILE and self.memory is not None:
            return memoryview(self.memory.read_only(np.frombuffer(data, np.uint8)))
        if name == TABLE_FILE and self.shares_all:
            table = json.loads(data)
            table["most_workers"] = 8
            for call in table["calls"]:
                call["chunk"] = 1
            data = json.dumps(table).encode()
        return memoryview(data)

    def weights(self) -> Mapping[str, Array]:
        raise AssertionError("generated code has its weights in its own file")


def run_parts(
    placed: Placed, way: Way, inputs: Mapping[str, Array], side: Side | None, rest: Compute
) -> dict[str, Array]:
    """Run every part; `rest` computes those that are not native. Return every value known."""
    guard = None if side is None else GuardedMemory(side)
    memory = HEAP if guard is None else Memory(guard.aligned, guard.empty, guard.aligned)
    options = CompileOptions(way.precision, threads=way.threads)
    known = dict(inputs)
    for part in placed.parts:
        wanted = {str(v.name): known[str(v.name)] for v in required_inputs(part.model)}
        if part.backend != "native":
            known.update(rest(part, wanted))
            continue
        program, folder = placed.programs[part.name]
        files = _Files(folder, way.shares_all, guard)
        loaded = NativeBackend(memory).load(program, files, find_target(way.target), options)
        if guard is not None:
            wanted = {name: guard.read_only(np.asarray(a, order="C")) for name, a in wanted.items()}
        first = loaded.run(wanted)
        # What the first run left in the arena must not be seen by the second.
        second = loaded.run(wanted)
        for name, array in first.items():
            if array.tobytes() != second[name].tobytes():
                raise UnsteadyError(f"`{name}` differs between two runs on the same inputs")
        known.update({name: np.array(array) for name, array in second.items()})
        if loaded._program is not None:
            loaded._program.close()
    return known


class UnsteadyError(Exception):
    """Two runs on the same inputs gave different numbers."""


def in_scratch(work: Callable[[Path], Any]) -> Any:
    """Call `work` with a folder that is removed afterwards."""
    with TemporaryDirectory(prefix="random-graph-") as name:
        return work(Path(name))
