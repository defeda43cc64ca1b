"""How large the expression of an elementwise node is, before it is joined with others."""

from __future__ import annotations

import onnx_ir as ir

from vermilion.codegen.emit.arithmetic import KIND_OF_STORAGE
from vermilion.codegen.expression import Apply, Constant, Convert, Expression, Operand
from vermilion.codegen.lower.context import STORAGE_OF
from vermilion.codegen.lower.elementwise import ELEMENTWISE
from vermilion.codegen.lower.groups import Extent
from vermilion.ir.opset import constant_of

# Divide, cut off on both sides, round, add the zero point.
_QUANTIZING = 5


def extent_of(node: ir.Node) -> Extent:
    """Return how often each input of an elementwise node stands in its expression, and its size."""
    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        return Extent((1,) * len(node.inputs), _QUANTIZING, _QUANTIZING)
    copies = [0] * len(node.inputs)
    operations, deepest = 1, 1
    leaves = [_leaf(index, value) for index, value in enumerate(node.inputs)]
    pending = [(ELEMENTWISE[node.op_type](node, leaves), 2)]
    while pending:
        part, level = pending.pop()
        match part:
            case Operand(index=index):
                copies[index] += 1
            case Apply(arguments=arguments):
                operations += 1
                deepest = max(deepest, level)
                pending.extend((argument, level + 1) for argument in arguments)
            case Convert(argument=argument):
                pending.append((argument, level + 1))
    return Extent(tuple(copies), operations, deepest)


def _leaf(index: int, value: ir.Value | None) -> Expression:
    if value is None or value.dtype is None:
        return Constant(0.0)
    kind = KIND_OF_STORAGE[STORAGE_OF[value.dtype]]
    constant = constant_of(value)
    if constant is not None and constant.size == 1:
        return Constant(constant.numpy().reshape(-1)[0].item(), kind)
    return Operand(index, kind)
