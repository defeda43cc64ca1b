"""Steps with sizes that only a run has → a program whose table is made for each run's sizes.

The machine code is written once. What the table of a run needs (units, addresses, sizes of buffers)
is kept as formulas of the symbols; `open_table` computes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.emit.check import CheckSpec
from vermilion.codegen.extents import check_extents, extents_of
from vermilion.codegen.isa import Isa
from vermilion.codegen.kernel import Step, size_name
from vermilion.codegen.lower.part import LoweredPart
from vermilion.codegen.memory import BORDERS
from vermilion.codegen.program import (
    compiled_objects,
    module_text,
    most_workers,
    packed_weights,
)
from vermilion.codegen.table import ObjectCode
from vermilion.codegen.tensor import Buffer, View
from vermilion.codegen.watch import OpenTensor, OpenTensors
from vermilion.errors import UnsupportedError
from vermilion.ir.formula import FormulaTable, UndecidedError, at_least, formula
from vermilion.ir.symbolic import Guard, lesser


@dataclass(frozen=True)
class OpenProgram:
    """Machine code, packed weights, and what a run's table is computed from.

    `tensors` says where the results of nodes lie while it runs.
    """

    objects: tuple[ObjectCode, ...]
    packed: NDArray[np.uint8]
    table: Mapping[str, Any]
    tensors: OpenTensors


def compile_open(
    lowered: LoweredPart,
    other: LoweredPart,
    symbols: Mapping[str, tuple[int, int, int]],
    guards: Iterable[Guard],
    isa: Isa,
) -> OpenProgram:
    """Compile a part that was lowered at two sets of examples; `symbols` are those of its inputs.

    `guards` are what lowering took for granted of the sizes.

    Raises: UnsupportedError where the two differ in anything but the examples, where a kernel must
    know a size when it is written, and where it would touch memory outside of its buffers.
    """
    table, packed = check_open(lowered, other, symbols, guards, isa)
    objects = compiled_objects(lowered.steps, isa)
    table["most_workers"] = most_workers(lowered.steps)
    return OpenProgram(objects, packed, table, _tensors(lowered))


def check_open(
    lowered: LoweredPart,
    other: LoweredPart,
    symbols: Mapping[str, tuple[int, int, int]],
    guards: Iterable[Guard],
    isa: Isa,
) -> tuple[dict[str, Any], NDArray[np.uint8]]:
    """Return the table and the packed weights, after all that `compile_open` looks at."""
    try:
        for one in (lowered, other):
            check_extents(one.steps, isa)
        weights, packed = packed_weights(lowered.steps)
        given = tuple(guards)
        table = _table(lowered, symbols, given, weights, isa)
        again = _table(other, symbols, given, _alike(other.steps, weights), isa)
        module_text(lowered.steps, isa)
    except UndecidedError as error:
        raise UnsupportedError(
            f"a kernel here is written for one size alone: {error}",
            hint="give the sizes that you run, with `--dim`",
        ) from error
    if table != again:
        raise UnsupportedError(
            f"the program for one size is not that for another: {_difference(table, again)}",
            hint="give the sizes that you run, with `--dim`",
        )
    return table, packed


def _alike(
    steps: Sequence[Step], weights: Sequence[tuple[Buffer, int]]
) -> list[tuple[Buffer, int]]:
    """Return the weights of the second program where the first has its: used in the same order."""
    own: dict[int, Buffer] = {}
    for step in steps:
        for view in step.arguments:
            if view.buffer.place == "weights" and view.buffer.data is not None:
                own.setdefault(id(view.buffer), view.buffer)
    sizes = [buffer.size_bytes for buffer, _ in weights]
    if sizes != [buffer.size_bytes for buffer in own.values()]:
        raise UnsupportedError(
            "the program for one size has other weights than that for another",
            hint="give the sizes that you run, with `--dim`",
        )
    return [(buffer, at) for buffer, (_, at) in zip(own.values(), weights, strict=True)]


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    names = [[call["function"] for call in table["calls"]] for table in (one, other)]
    for number, (a, b) in enumerate(zip(*names, strict=False)):
        if a != b:
            return f"call {number}, {one['calls'][number]['label']}"
    return next(key for key in one if one[key] != other[key])


def _table(
    lowered: LoweredPart,
    symbols: Mapping[str, tuple[int, int, int]],
    guards: Sequence[Guard],
    weights: Sequence[tuple[Buffer, int]],
    isa: Isa,
) -> dict[str, Any]:
    formulas = FormulaTable()
    places: dict[int, dict[str, Any]] = {
        id(buffer): {"place": "weights", "base": offset} for buffer, offset in weights
    }
    for place, views in (("input", lowered.inputs), ("output", lowered.outputs)):
        for index, view in enumerate(views):
            places[id(view.buffer)] = {"place": place, "index": index}
    arena = _arena(lowered.steps)
    places |= {key: {"place": "arena", "index": index} for index, key in enumerate(arena)}
    checks: list[dict[str, Any]] = []
    for step in lowered.steps:
        if isinstance(step.spec, CheckSpec):
            words = step.writes[0].buffer
            places[id(words)] = {"place": "checks", "index": len(checks)}
            checks.append({
                "where": words.name,
                "count": formulas.number(step.spec.units),
                "size": formulas.number(step.spec.size),
            })  # fmt: skip
    calls = [_call(step, places, formulas, isa) for step in lowered.steps]
    return {
        "symbols": {name: list(at) for name, at in symbols.items()},
        "inputs": [_port(view, formulas) for view in lowered.inputs],
        "outputs": [_port(view, formulas) for view in lowered.outputs],
        "buffers": [formulas.number(buffer.size_bytes) for buffer in arena.values()],
        "checks": checks,
        "calls": calls,
        "guards": [[formulas.number(guard.difference), guard.sign] for guard in guards],
        "formulas": formulas.rows,
    }


def _arena(steps: Iterable[Step]) -> dict[int, Buffer]:
    """Return the buffers of the arena by identity, in the order in which steps name them."""
    given = tuple(steps)
    words = {id(step.writes[0].buffer) for step in given if isinstance(step.spec, CheckSpec)}
    return {
        id(view.buffer): view.buffer
        for step in given
        for view in step.arguments
        if view.buffer.place == "arena" and id(view.buffer) not in words
    }


def _tensors(lowered: LoweredPart) -> OpenTensors:
    """Return the results of nodes that lie in the arena, each with the calls that write it."""
    formulas = FormulaTable()
    numbers = {key: number for number, key in enumerate(_arena(lowered.steps))}
    writers: dict[int, list[int]] = {}
    for at, step in enumerate(lowered.steps):
        for view in step.writes if step.spec.family not in BORDERS else ():
            writers.setdefault(id(view.buffer), []).append(at)
    tensors = tuple(
        OpenTensor(
            name,
            tuple(writers[id(view.buffer)]),
            numbers[id(view.buffer)],
            formulas.number(view.offset * view.item_bytes),
            view.storage,
            tuple(formulas.number(size) for size in view.shape),
            tuple(formulas.number(stride) for stride in view.strides),
        )
        for name, view in lowered.values.items()
        if id(view.buffer) in numbers and id(view.buffer) in writers
    )
    return OpenTensors(tensors, formulas.rows)


def _port(view: View, formulas: FormulaTable) -> dict[str, Any]:
    return {
        "name": view.buffer.name,
        "storage": view.storage,
        "shape": [formulas.number(size) for size in view.shape],
    }


def _call(
    step: Step, places: Mapping[int, dict[str, Any]], formulas: FormulaTable, isa: Isa
) -> dict[str, Any]:
    given = {size_name(number): int(size) for number, size in enumerate(step.code.sizes)}
    # The kernel computes with numbers of sizes, the table with their formulas.
    assert formula(step.code.spec.units).at(given) == step.spec.units, step.function
    written = {id(view.buffer) for view in step.writes}
    arguments = [
        {
            **places[id(view.buffer)],
            "offset": formulas.number(view.offset * view.item_bytes),
            "written": id(view.buffer) in written,
        }
        for view in step.arguments
    ]
    return {
        "function": step.function,
        "label": step.nodes[-1] if step.nodes else step.spec.family,
        "border": step.spec.family in BORDERS,
        "units": formulas.number(_units(step)),
        "operations": formulas.number(step.operations),
        "moved": formulas.number(_moved_bytes(step)),
        "arguments": arguments,
        "sizes": [formulas.number(size) for size in step.code.sizes],
        "extents": [
            [formulas.number(low), formulas.number(high), formulas.number(size)]
            for low, high, size in extents_of(step, isa)
        ],
    }


def _units(step: Step) -> int:
    """Return the units of a step: none where a run's sizes leave it out or nothing to write.

    A kernel divides the numbers of its units by sizes, and must not be called where one is 0.
    """
    units: int = step.spec.units * step.only_if
    unsure = {
        formula(size).text: size
        for view in step.writes
        for size in view.shape
        if not at_least(size, 1)
    }
    for size in unsure.values():
        units = units * lesser(1, size)
    return units


def _moved_bytes(step: Step) -> int:
    """Return the bytes that a step moves; `program.expected_ns` says the same of fixed sizes."""
    buffers = {id(view.buffer): view for view in step.arguments}
    total: int = 0
    for view in buffers.values():
        total = total + lesser(view.elements * view.item_bytes, view.buffer.size_bytes)
    return total
