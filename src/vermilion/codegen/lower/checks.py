"""Numbers that only a run knows and that may be wrong: indices and divisors, looked at in it."""

from __future__ import annotations

import onnx_ir as ir

from vermilion.codegen.emit.check import CheckSpec
from vermilion.codegen.emit.map import collapse
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.context import Lowering
from vermilion.codegen.tensor import Buffer, View
from vermilion.ir.opset import constant_of, where


def check_indices(lowering: Lowering, node: ir.Node, places: View, size: int) -> None:
    """Let a run say where an index is outside a dimension of `size`; constant ones are known."""
    if constant_of(node.inputs[1]) is None:
        _check(lowering, node, places, "index", size)


def check_divisor(lowering: Lowering, node: ir.Node) -> None:
    """Let a run say where whole numbers are divided by 0; constant ones are known."""
    divisor = node.inputs[1]
    if divisor is not None and constant_of(divisor) is None:
        _check(lowering, node, lowering.demand(divisor), "divisor", 0)


def _check(lowering: Lowering, node: ir.Node, view: View, what: str, size: int) -> None:
    if node in lowering.checked:
        return
    lowering.checked.add(node)
    dims = collapse(view.shape, [view.strides], 0)
    dims = [(count, strides) for count, strides in dims if strides != (0,)] or [(1, (1,))]
    if len(dims) > 1 or dims[0][1] not in ((0,), (1,)):
        view = lowering.copied(view)
        dims = [(view.elements, (1,))]
    spec = CheckSpec(what, view.storage, dims[0][0], size)  # type: ignore[arg-type]
    buffer = Buffer(where(node), 8 * spec.units, "checks")
    words = View(buffer, "i64", (spec.units,), (1,))
    lowering.add(Step(spec, (view, words), (words,), (str(node.name),)))
