"""Convolutions whose outer taps lie in the border for every output: those taps are cut off.

Before: Conv 3×3 with dilations and pads of 24 on 20×20 pixels → after: Conv 1×1 of the middle tap.
A long kernel on a short signal loses its ends, a 3×3 kernel on one pixel is its middle.

Source: ONNX Conv-11; the border holds zeros, so that only a weight that is not finite would show.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from vermilion.codegen.lower.dequantized import dequantized_constant
from vermilion.codegen.lower.geometry import pads_of
from vermilion.ir.attributes import flag, window_of
from vermilion.ir.opset import constant_of, is_operator, static_shape
from vermilion.ir.symbolic import is_known

Cut = tuple[int, int]  # taps that go at the begin and at the end of one axis


def drop_dead_taps(model: ir.Model) -> ir.Model:
    """Return the model without taps that only ever read the border; the given one stays."""
    cuts = [_cuts(node) for node in model.graph]
    if not any(cuts):
        return model
    work = model.clone()
    for node, cut in zip(list(work.graph), cuts, strict=True):
        if cut is not None:
            _cut(work.graph, node, cut)
    return work


def _cuts(node: ir.Node) -> Sequence[Cut] | None:
    """Return how many taps of each axis go, None where none does."""
    if not is_operator(node, "Conv"):
        return None
    data, kernel = static_shape(node.inputs[0]), static_shape(node.inputs[1])
    result = static_shape(node.outputs[0])
    if data is None or kernel is None or result is None:
        return None
    if not all(map(is_known, (*data[2:], *result[2:]))) or not _weights(node):
        return None
    taps, strides, dilations, pads = _geometry(node, kernel[2:])
    rank = len(taps)
    cuts = []
    for axis in range(rank):
        before, after, step = pads[axis], pads[rank + axis], dilations[axis]
        first = max(0, -(((result[2 + axis] - 1) * strides[axis] - before) // step))
        stop = (data[2 + axis] - 1 + before) // step + 1
        # What is left keeps a border of 0 at least, and one tap.
        begin = min(first, before // step, taps[axis] - 1)
        cuts.append((begin, min(max(0, taps[axis] - stop), after // step, taps[axis] - 1 - begin)))
    if not any(map(any, cuts)):
        return None
    numbers = dequantized_constant(node.inputs[1])
    is_finite = numbers is not None and np.isfinite(numbers.astype(np.float32)).all()
    return cuts if is_finite else None


def _geometry(node: ir.Node, kernel: Sequence[int]) -> tuple[Sequence[int], ...]:
    """Return kernel, strides, dilations and pads."""
    window = window_of(node, kernel)
    return kernel, window.strides, window.dilations, pads_of(node, window)


def _weights(node: ir.Node) -> bool:
    """Say whether the weights are a constant, or one that is dequantized without blocks."""
    value = node.inputs[1]
    if constant_of(value) is not None:
        return True
    maker = None if value is None else value.producer()
    return (
        is_operator(maker, "DequantizeLinear")
        and maker is not None
        and constant_of(maker.inputs[0]) is not None
        and not flag(maker, "block_size")
    )


def _cut(graph: ir.Graph, node: ir.Node, cuts: Sequence[Cut]) -> None:
    kernel = static_shape(node.inputs[1])
    assert kernel is not None
    taps, _, dilations, pads = _geometry(node, kernel[2:])
    rank = len(taps)
    left = [size - sum(cut) for size, cut in zip(taps, cuts, strict=True)]
    border = [
        pads[side * rank + axis] - cuts[axis][side] * dilations[axis]
        for side in (0, 1)
        for axis in range(rank)
    ]
    node.attributes.pop("auto_pad", None)
    node.attributes["kernel_shape"] = ir.AttrInt64s("kernel_shape", left)
    node.attributes["pads"] = ir.AttrInt64s("pads", border)
    value = node.inputs[1]
    maker = None if value is None else value.producer()
    assert value is not None
    if maker is None or not is_operator(maker, "DequantizeLinear"):
        node.replace_input_with(1, _shorter(graph, node, value, cuts, left))
        return
    source = maker.inputs[0]
    assert source is not None
    short = _shorter(graph, node, source, cuts, left)
    again = ir.Node(
        "", "DequantizeLinear", [short, *maker.inputs[1:]], list(maker.attributes.values()),
        version=maker.version, name=f"{maker.name} of {node.name}",
    )  # fmt: skip
    result = again.outputs[0]
    result.name = f"{value.name} of {node.outputs[0].name}"
    result.type, result.shape = value.type, short.shape
    graph.insert_before(node, again)
    node.replace_input_with(1, result)


def _shorter(
    graph: ir.Graph, node: ir.Node, value: ir.Value, cuts: Sequence[Cut], left: Sequence[int]
) -> ir.Value:
    """Return a constant with the weights that are left."""
    tensor = constant_of(value)
    assert tensor is not None
    places = [slice(begin, begin + size) for (begin, _), size in zip(cuts, left, strict=True)]
    array = np.ascontiguousarray(tensor.numpy()[(slice(None), slice(None), *places)])
    name = f"{value.name} of {node.outputs[0].name}"
    short = ir.Value(
        name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype),
        const_value=ir.Tensor(array, dtype=tensor.dtype, name=name),
    )  # fmt: skip
    graph.register_initializer(short)
    return short
