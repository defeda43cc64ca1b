"""Numbers that only a run knows and that may be wrong: indices and divisors, looked at in it."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from vermilion.codegen.emit.check import CheckSpec
from vermilion.codegen.emit.map import collapse
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.context import Lowering
from vermilion.codegen.tensor import Buffer, View
from vermilion.ir.opset import constant_of, where


def check_indices(lowering: Lowering, node: ir.Node, places: View, size: int) -> None:
    """Let a run say where an index is outside a dimension of `size`; constant ones are known."""
    if constant_of(node.inputs[1]) is None and _is_first(lowering, node):
        _check(lowering, node, places, "index", size)


def check_tuples(lowering: Lowering, node: ir.Node, places: View, sizes: Sequence[int]) -> None:
    """Let a run say where an index of GatherND is outside: its last axis has one for each size."""
    if constant_of(node.inputs[1]) is None and _is_first(lowering, node):
        for number, size in enumerate(sizes):
            column = places.sliced(len(places.shape) - 1, number, 1)
            _check(lowering, node, column, "index", size)


def check_divisor(lowering: Lowering, node: ir.Node) -> None:
    """Let a run say where whole numbers are divided by 0; constant ones are known."""
    divisor = node.inputs[1]
    if divisor is None or constant_of(divisor) is not None:
        return
    if _is_first(lowering, node):
        _check(lowering, node, lowering.demand(divisor), "divisor", 0)


def _is_first(lowering: Lowering, node: ir.Node) -> bool:
    """Say whether a node is not looked at yet."""
    is_first = node not in lowering.checked
    lowering.checked.add(node)
    return is_first


def _check(lowering: Lowering, node: ir.Node, view: View, what: str, size: int) -> None:
    dims = collapse(view.shape, [view.strides], 0)
    dims = [(count, strides) for count, strides in dims if strides != (0,)] or [(1, (1,))]
    if len(dims) > 1 or dims[0][1] not in ((0,), (1,)):
        view = lowering.copied(view)
        dims = [(view.elements, (1,))]
    spec = CheckSpec(what, view.storage, dims[0][0], size)  # type: ignore[arg-type]
    buffer = Buffer(where(node), 8 * spec.units, "checks")
    words = View(buffer, "i64", (spec.units,), (1,))
    lowering.add(Step(spec, (view, words), (words,), (str(node.name),)))
