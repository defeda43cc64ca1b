"""The sizes that a program for open dimensions is right at, checked before each run.

IREE takes two dynamic dimensions that an operator combines for equal: of 3 rows and 1 row it adds
what lies behind the one row, and nobody complains. A window larger than its image, or a Reshape
that does not divide, is computed as well. So the sizes of every result are followed as formulas of
the inputs' sizes, and what was taken for granted of them goes with the program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from vermilion.codegen.lower.open_sizes import OpenModel, is_open, joined_models
from vermilion.codegen.lower.rules import has_rule
from vermilion.errors import OtherSizesError, Refusal, UnsupportedError
from vermilion.ir.formula import FormulaTable, computed, formula, guard_holds
from vermilion.ir.opset import required_inputs, static_shape
from vermilion.ir.symbolic import Guard, examples, is_known

_FIX = "give the sizes that you run, with `--dim`"


@dataclass(frozen=True)
class SizeRules:
    """Where a run's symbols are read, and what must hold of them.

    `symbols` are the input and the axis of each; `formulas` a `FormulaTable`; `inputs` the numbers
    of the formulas that every input's shape must have; `guards` the number of a formula with the
    sign that it must have, as `guard_holds` reads it.
    """

    symbols: Mapping[str, tuple[int, int]]
    formulas: Sequence[Sequence[Any]]
    inputs: Sequence[Sequence[int]]
    guards: Sequence[tuple[int, int | None]]

    def check(self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> None:
        """Raise OtherSizesError where a program is not right at the shapes of its inputs."""
        sizes = {name: shapes[number][axis] for name, (number, axis) in self.symbols.items()}
        words = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        try:
            numbers = computed(self.formulas, sizes)
        except ZeroDivisionError:
            raise _other(words) from None
        for name, shape, wanted in zip(names, shapes, self.inputs, strict=True):
            right = [numbers[number] for number in wanted]
            if list(shape) != right:
                raise OtherSizesError(
                    f"`{name}` has the shape {list(shape)}; beside the other inputs it must be "
                    f"{right}",
                    hint="dimensions of one name have one size",
                )
        if not all(guard_holds(sign, numbers[number]) for number, sign in self.guards):
            raise _other(words)

    def as_json(self) -> dict[str, Any]:
        """Return it as `part.json` holds it."""
        return {
            "symbols": {name: list(place) for name, place in self.symbols.items()},
            "formulas": list(self.formulas),
            "inputs": [list(row) for row in self.inputs],
            "guards": [list(row) for row in self.guards],
        }


def _other(words: str) -> OtherSizesError:
    return OtherSizesError(
        f"the GPU's program is not made for the sizes {words}",
        hint="it takes dimensions that an operator combines for equal, and windows to fit in",
    )


def read_size_rules(row: Mapping[str, Any], ranks: Sequence[int]) -> SizeRules:
    """Read what `as_json` gave; `ranks` are those of the inputs.

    Raises: ValueError, KeyError or TypeError for what is none of it.
    """
    formulas = [list(one) for one in row["formulas"]]
    for at, (kind, *operands) in enumerate(formulas):
        _check_formula(kind, operands, at, row["symbols"])
    symbols = {str(name): (int(n), int(axis)) for name, (n, axis) in row["symbols"].items()}
    if not all(0 <= n < len(ranks) and 0 <= axis < ranks[n] for n, axis in symbols.values()):
        raise ValueError("a size of an input that is not there")
    inputs = [[int(number) for number in one] for one in row["inputs"]]
    guards = [(int(number), None if s is None else int(s)) for number, s in row["guards"]]
    used = [number for one in inputs for number in one] + [number for number, _ in guards]
    if [len(one) for one in inputs] != list(ranks) or not _are_before(used, len(formulas)):
        raise ValueError("a formula that is not there")
    return SizeRules(symbols, formulas, inputs, guards)


def _check_formula(kind: str, operands: Sequence[Any], at: int, symbols: Mapping[str, Any]) -> None:
    if kind == "symbol":
        is_right = operands[0] in symbols
    elif kind == "sum":
        is_right = all(
            isinstance(factor, int) and _are_before(numbers, at) for factor, numbers in operands[0]
        )
    else:
        is_right = kind in ("quotient", "max", "min") and len(operands) == 2
        is_right = is_right and _are_before(operands, at)
    if not is_right:
        raise ValueError(f"`{kind}` is no formula of those before it")


def _are_before(numbers: Sequence[Any], count: int) -> bool:
    return all(isinstance(number, int) and 0 <= number < count for number in numbers)


def follow_sizes(model: ir.Model) -> SizeRules | None:
    """Return what must hold of a model's open sizes, None where none is open.

    Dimensions inside of the model that turn out to be numbers are written into it.

    Raises: UnsupportedError where the sizes of a result do not follow from those of the inputs.
    """
    if not is_open(model):
        return None
    first, second = joined_models(model)
    for node in first.model.graph:
        refused = _refusal(node, first)
        if refused is not None:
            name = node.name or node.outputs[0].name
            raise UnsupportedError(refused.reason, where=f"node `{name}`", hint=refused.hint)
    guards = {**first.sizes.guards, **second.sizes.guards}
    if first.contradicts(guards.values()) or second.contradicts(guards.values()):
        raise UnsupportedError(
            "what is taken for granted at one size does not hold at another", hint=_FIX
        )
    _write_known(model, first)
    return _rules(first, guards.values())


@dataclass(frozen=True)
class SizeClaims:
    """Why nodes of a model with open dimensions are not for a GPU; those that are have no row.

    `model` is the one asked about, which is held so that it stays the same.
    """

    model: ir.Model
    refused: Mapping[ir.Node, Refusal]


def size_claims(model: ir.Model) -> SizeClaims:
    """Return which nodes' sizes do not follow from those of the inputs."""
    if not is_open(model):
        return SizeClaims(model, {})
    opened = next(joined_models(model))
    reasons = {
        node: _refusal(twin, opened)
        for node, twin in zip(model.graph, opened.model.graph, strict=True)
    }
    return SizeClaims(model, {node: why for node, why in reasons.items() if why is not None})


def _refusal(node: ir.Node, opened: OpenModel) -> Refusal | None:
    """Say why the sizes that a node combines are not known, None where they are."""
    if node in opened.unknown or (node in opened.unfollowed and has_rule(node)):
        return Refusal(f"which sizes `{node.op_type}` gives at open sizes is not known", _FIX)
    if node not in opened.unfollowed:
        return None
    open_inputs = [v for v in node.inputs if v is not None and _is_open(v, opened)]
    if len(open_inputs) < 2:
        return None
    return Refusal(f"which open sizes `{node.op_type}` takes for equal is not known", _FIX)


def _is_open(value: ir.Value, opened: OpenModel) -> bool:
    with examples(opened.sizes):
        shape = static_shape(value)
    return shape is None or not all(map(is_known, shape))


def _write_known(model: ir.Model, opened: OpenModel) -> None:
    """Give the results of nodes the dimensions that are numbers at all sizes.

    IREE repeats a dimension of 1 along another where it knows that it is 1.
    """
    for node, twin in zip(model.graph, opened.model.graph, strict=True):
        for value, other in zip(node.outputs, twin.outputs, strict=True):
            with examples(opened.sizes):
                shape = static_shape(other)
            if shape is not None and value.type is not None and not value.is_graph_output():
                value.shape = ir.Shape([int(n) if is_known(n) else None for n in shape])


def _rules(opened: OpenModel, guards: Iterable[Guard]) -> SizeRules:
    table, wanted = FormulaTable(), dict[tuple[int, int | None], None]()
    names = {name: (number, axis) for name, (number, axis, _) in opened.symbols.items()}
    with examples(opened.sizes):
        inputs = [
            [table.number(size) for size in static_shape(value) or ()]
            for value in required_inputs(opened.model)
        ]
        sizes = {
            str(formula(size)): size
            for node in opened.model.graph
            for value in node.outputs
            for size in static_shape(value) or ()
        }
    for row in inputs:
        wanted |= {(number, 1): None for number in row}
    for size in sizes.values():
        guard = Guard(formula(size), 1)
        if not guard.always_holds:
            wanted[table.number(guard.difference), 1] = None
    for guard in guards:
        wanted[table.number(guard.difference), guard.sign] = None
    return SizeRules(names, table.rows, inputs, list(wanted))
