"""Attention of quantized models: scores and weights that are rounded to 8 bits stay in registers.

Before: MatMul → QuantizeLinear → DequantizeLinear → (mask) → Softmax → QuantizeLinear →
DequantizeLinear → MatMul → after: each pair as Div, Round, Clip, Mul, which is its definition, so
that the products and the softmax between them are one kernel and no matrix of scores is written.

Source: ONNX QuantizeLinear-21, `saturate(round(x / y_scale) + y_zero_point)`.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from vermilion.codegen.lower.quantized import grid_of
from vermilion.ir.attributes import integer
from vermilion.ir.opset import is_operator, only_reader, static_shape
from vermilion.ir.symbolic import is_known

# Keys whose scores, of a few rows, stay in a second-level cache.
MOST_KEYS = 8192

Pair = tuple[ir.Node, ir.Node]  # QuantizeLinear, DequantizeLinear


def open_rounded_attentions(model: ir.Model) -> ir.Model:
    """Return the model with the rounding inside attentions as arithmetic; the given one stays."""
    if not any(_pairs_around(node) for node in model.graph):
        return model
    work = model.clone()
    for node in list(work.graph):
        for pair in _pairs_around(node):
            _open(work.graph, *pair)
    return work


def _pairs_around(softmax: ir.Node) -> list[Pair]:
    """Return the pairs between a Softmax and the products around it, none where one is absent."""
    if not is_operator(softmax, "Softmax"):
        return []
    shape = static_shape(softmax.inputs[0])
    if shape is None or len(shape) < 2 or not is_known(shape[-1]) or shape[-1] > MOST_KEYS:
        return []
    if integer(softmax, "axis", -1) % len(shape) != len(shape) - 1:
        return []
    before, after = _above(softmax.inputs[0], shape), _below(softmax)
    return [] if before is None or after is None else [*before, *after]


def _below(softmax: ir.Node) -> list[Pair] | None:
    """Return the pair between a softmax and the product of its weights, None without a product."""
    reader = only_reader(softmax.outputs[0])
    pairs: list[Pair] = []
    value = softmax.outputs[0]
    if is_operator(reader, "QuantizeLinear") and reader is not None:
        last = only_reader(reader.outputs[0])
        if last is None or not _is_pair(reader, last):
            return None
        pairs, value = [(reader, last)], last.outputs[0]
        reader = only_reader(value)
    is_left = is_operator(reader, "MatMul") and reader is not None and reader.inputs[0] is value
    return pairs if is_left else None


def _above(value: ir.Value | None, shape: tuple[int, ...]) -> list[Pair] | None:
    """Return the pairs between a product and the softmax, upwards through what is added."""
    if value is None or only_reader(value) is None or static_shape(value) != shape:
        return None
    node = value.producer()
    if node is None or is_operator(node, "MatMul"):
        return None if node is None else []
    if is_operator(node, "DequantizeLinear"):
        first = None if node.inputs[0] is None else node.inputs[0].producer()
        if first is None or only_reader(first.outputs[0]) is None or not _is_pair(first, node):
            return None
        found = _above(first.inputs[0], shape)
        return None if found is None else [*found, (first, node)]
    if not is_operator(node, "Add", "Sub", "Mul", "Div"):
        return None
    ways = (found for item in node.inputs if (found := _above(item, shape)) is not None)
    return next(ways, None)


def _is_pair(first: ir.Node, last: ir.Node) -> bool:
    """Say whether two nodes round to one grid of 8 bits and back."""
    if not is_operator(first, "QuantizeLinear") or not is_operator(last, "DequantizeLinear"):
        return False
    grid = grid_of(first)
    return grid is not None and grid == grid_of(last) and grid.storage in ("u8", "s8")


def _open(graph: ir.Graph, first: ir.Node, last: ir.Node) -> None:
    """Write a pair as arithmetic on floats."""
    grid = grid_of(first)
    source, result = first.inputs[0], last.outputs[0]
    assert grid is not None
    assert source is not None
    low, high = grid.limits
    version = first.version
    value = source
    steps: list[tuple[str, list[float]]] = [
        ("Div", [grid.scale]), ("Round", []), ("Clip", [low, high]), ("Mul", [grid.scale]),
    ]  # fmt: skip
    for op_type, numbers in steps:
        name = f"{result.name} {op_type}"
        constants = [_number(graph, f"{name} {at}", n) for at, n in enumerate(numbers)]
        node = ir.Node("", op_type, [value, *constants], version=version, name=name)
        value = node.outputs[0]
        value.name, value.type, value.shape = name, source.type, source.shape
        graph.insert_before(first, node)
    result.replace_all_uses_with(value)
    graph.remove([last, first], safe=True)


def _number(graph: ir.Graph, name: str, number: float) -> ir.Value:
    tensor = ir.Tensor(np.array(number, np.float32), name=name)
    value = ir.Value(
        name=name, shape=ir.Shape(()), type=ir.TensorType(ir.DataType.FLOAT), const_value=tensor
    )
    graph.register_initializer(value)
    return value
