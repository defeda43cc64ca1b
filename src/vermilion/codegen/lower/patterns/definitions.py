"""Operators written out as the ones that define them, so that groups and reductions take them.

Source of every formula: the operator's page at https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np
import onnx_ir as ir

from vermilion.codegen.lower.data_movement_shapes import joined, range_bound
from vermilion.codegen.lower.patterns.attention import (
    attention,
    check_attention,
    rotary_embedding,
)
from vermilion.codegen.lower.patterns.linear import is_linear_of_run, write_linear
from vermilion.codegen.lower.patterns.writer import (
    DefinitionWriter,
    Shape,
    constant_array,
    input_of,
    sizes_of,
)
from vermilion.ir.attributes import integer, integers, number
from vermilion.ir.opset import constant_of, is_standard

# Inputs of a Sum, Max, Min or Mean that one kernel reads: pointers beyond that are not in
# registers, and each costs a level of the expression.
_MOST_ADDENDS = 8
# Channels that LRN adds up: each is an operator. AlexNet and GoogLeNet have 5.
_MOST_NEIGHBOURS = 64
Definition = Callable[[DefinitionWriter, ir.Node], ir.Value]

_JOINED = {"Sum": "Sum", "Mean": "Sum", "Max": "Max", "Min": "Min"}


def write_definitions(model: ir.Model) -> ir.Model:
    """Return the model with composite operators written out; the given one stays as it is."""
    if not any(_is_composite(node) for node in model.graph):
        return model
    work = model.clone()
    for node in list(work.graph):
        if _is_composite(node):
            _replace(work.graph, node)
    return work


def _is_composite(node: ir.Node) -> bool:
    return is_standard(node) and _definition_of(node) is not None


def _definition_of(node: ir.Node) -> Definition | None:
    if is_linear_of_run(node):
        return write_linear
    if node.op_type == "Range" and node.outputs[0].dtype == ir.DataType.FLOAT:
        return _float_range
    if node.op_type in _JOINED and len(node.inputs) > _MOST_ADDENDS:
        return _joined
    return DEFINITIONS.get(node.op_type)


def check_definition(node: ir.Node) -> str:
    """Say why a composite operator is not generated, empty if it is."""
    if any(output.name and _is_read(output) for output in node.outputs[1:]):
        return f"{node.op_type} with more than one result"
    if node.op_type in ("BatchNormalization", "InstanceNormalization", "GroupNormalization"):
        if integer(node, "training_mode", 0):
            return "BatchNormalization in training mode"
        if any(constant_of(value) is None for value in node.inputs[1:]):
            return f"{node.op_type} with a scale or shift that is not constant"
    if node.op_type == "LpNormalization" and integer(node, "p", 2) not in (1, 2):
        return "LpNormalization of another order than 1 or 2"
    if node.op_type == "LRN" and not 0 < integer(node, "size", 1) <= _MOST_NEIGHBOURS:
        return f"LRN over {integer(node, 'size', 1)} channels at a time"
    if node.op_type == "Attention":
        return check_attention(node)
    if node.op_type.startswith("Reduce"):
        axes = node.inputs[1] if len(node.inputs) > 1 else None
        if axes is not None and axes.name and constant_of(axes) is None:
            return f"{node.op_type} over axes that are not constant"
        if does_nothing_without_axes(node):
            return f"{node.op_type} with noop_with_empty_axes"
    return ""


def does_nothing_without_axes(node: ir.Node) -> bool:
    """Say whether a reduction has no axes and so gives what it reads (ONNX ReduceSum-13)."""
    axes = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    is_empty = (axes is None or not axes.size) and not integers(node, "axes", ())
    return is_empty and bool(integer(node, "noop_with_empty_axes", 0))


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _by_channel(array: np.ndarray, rank: int) -> np.ndarray:
    return array.reshape(-1, *[1] * (rank - 2))


def _batch_normalization(w: DefinitionWriter, node: ir.Node) -> ir.Value:
    x = input_of(node, 0)
    shape = sizes_of(x)
    scale, shift, mean, variance = (constant_array(node, i).astype(np.float64) for i in range(1, 5))
    factor = scale / np.sqrt(variance + number(node, "epsilon", 1e-5))
    kind = x.dtype.numpy() if x.dtype is not None else np.float32
    rank = len(shape)
    scaled = w("Mul", shape, x, w.constant(_by_channel(factor, rank).astype(kind)))
    rest = _by_channel(shift - mean * factor, rank).astype(kind)
    return w("Add", shape, scaled, w.constant(rest))


def _normalized(w: DefinitionWriter, x: ir.Value, axes: Shape, epsilon: float) -> ir.Value:
    """Return (x - mean) ÷ √(variance + epsilon)."""
    shape = sizes_of(x)
    mean = w.reduced("ReduceMean", x, axes)
    centred = w("Sub", shape, x, mean)
    variance = w.reduced("ReduceMean", w("Mul", shape, centred, centred), axes)
    small = sizes_of(variance)
    root = w("Sqrt", small, w("Add", small, variance, w.number(epsilon, x)))
    return w("Mul", shape, centred, w("Reciprocal", small, root))


def _instance_normalization(w: DefinitionWriter, node: ir.Node) -> ir.Value:
    x = input_of(node, 0)
    shape = sizes_of(x)
    rank = len(shape)
    y = _normalized(w, x, range(2, rank), number(node, "epsilon", 1e-5))
    scaled = w("Mul", shape, y, w.constant(_by_channel(constant_array(node, 1), rank)))
    return w("Add", shape, scaled, w.constant(_by_channel(constant_array(node, 2), rank)))


def _group_normalization(w: DefinitionWriter, node: ir.Node) -> ir.Value:
    x = input_of(node, 0)
    shape = sizes_of(x)
    groups = integer(node, "num_groups", 1)
    split = (shape[0], groups, shape[1] // groups, *shape[2:])
    parts = w.reshaped(x, split)
    y = _normalized(w, parts, range(2, len(split)), number(node, "epsilon", 1e-5))
    # Before opset 21 there is one scale and shift for each group, since then one a channel.
    scale, shift = (
        w.constant(constant_array(node, i).reshape(1, groups, -1, *[1] * (len(shape) - 2)))
        for i in (1, 2)
    )
    y = w("Add", split, w("Mul", split, y, scale), shift)
    return w.reshaped(y, shape)


def _lp_normalization(w: DefinitionWriter, node: ir.Node) -> ir.Value:
    x = input_of(node, 0)
    shape = sizes_of(x)
    axes = [integer(node, "axis", -1) % len(shape)]
    if integer(node, "p", 2) == 1:
        norm = w.reduced("ReduceSum", w("Abs", shape, x), axes)
    else:
        norm = w.reduced("ReduceL2", x, axes)
    # A row whose norm is 0 gives zeros, also where squares were too small to be numbers: x ÷ ∞.
    is_nought = w("Equal", sizes_of(norm), norm, w.number(0.0, x))
    is_nought.type = ir.TensorType(ir.DataType.BOOL)
    norm = w("Where", sizes_of(norm), is_nought, w.number(math.inf, x), norm)
    norm.type = x.type
    return w("Div", shape, x, norm)


def _axes_of(node: ir.Node, rank: int) -> list[int]:
    constant = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    given = () if constant is None else [int(axis) for axis in constant.numpy().reshape(-1)]
    axes = integers(node, "axes", given)
    return sorted(axis % rank for axis in axes) or list(range(rank))


def _shaped(w: DefinitionWriter, node: ir.Node, value: ir.Value) -> ir.Value:
    """Drop the axes of one element where the node does not keep them."""
    shape = sizes_of(node.outputs[0])
    if shape == sizes_of(value):
        return value
    return w.reshaped(value, shape)


def _reduce_l1(w: DefinitionWriter, node: ir.Node) -> ir.Value:
    x = input_of(node, 0)
    total = w.reduced("ReduceSum", w("Abs", sizes_of(x), x), _axes_of(node, len(sizes_of(x))))
    return _shaped(w, node, total)


def _reduce_log_sum(w: DefinitionWriter, node: ir.Node) -> ir.Value:
    x = input_of(node, 0)
    total = w.reduced("ReduceSum", x, _axes_of(node, len(sizes_of(x))))
    return _shaped(w, node, w("Log", sizes_of(total), total))


def _reduce_log_sum_exp(w: DefinitionWriter, node: ir.Node) -> ir.Value:
    """Write ln Σ e^x as max + ln Σ e^(x - max), which does not overflow.

    The maximum is held finite: infinity less itself is no number.
    """
    x = input_of(node, 0)
    axes = _axes_of(node, len(sizes_of(x)))
    top = w.reduced("ReduceMax", x, axes)
    assert x.dtype is not None
    largest = float(ml_dtypes.finfo(x.dtype.numpy()).max)  # type: ignore[no-untyped-call]
    top = w("Clip", sizes_of(top), top, w.number(-largest, x), w.number(largest, x))
    powers = w("Exp", sizes_of(x), w("Sub", sizes_of(x), x, top))
    total = w.reduced("ReduceSum", powers, axes)
    small = sizes_of(total)
    return _shaped(w, node, w("Add", small, w("Log", small, total), top))


def _local_response(w: DefinitionWriter, node: ir.Node) -> ir.Value:
    x = input_of(node, 0)
    shape = sizes_of(x)
    size = integer(node, "size", 1)
    before, after = (size - 1) // 2, math.ceil((size - 1) / 2)
    padded = (shape[0], shape[1] + before + after, *shape[2:])
    pads = [0] * 2 * len(shape)
    pads[1], pads[len(shape) + 1] = before, after
    squares = w("Pad", padded, w("Mul", shape, x, x), w.constant(np.array(pads)))
    one = w.constant(np.array([1]))
    windows = [
        w("Slice", shape, squares, w.sizes([start]), w.sizes([start + shape[1]]), one)
        for start in range(size)
    ]
    total = windows[0] if size == 1 else w("Sum", shape, *windows)
    share = w.number(number(node, "alpha", 1e-4) / size, x)
    base = w("Add", shape, w("Mul", shape, total, share), w.number(number(node, "bias", 1.0), x))
    power = w("Pow", shape, base, w.number(-number(node, "beta", 0.75), x))
    return w("Mul", shape, x, power)


def _joined(w: DefinitionWriter, node: ir.Node) -> ir.Value:
    """Write one operator over many inputs as a few over the first ones, the result and the next.

    That is the order in which one operator takes them, so that the rounding is the same.
    """
    op_type = _JOINED[node.op_type]
    values = [value for value in node.inputs if value is not None]
    total = values[0]
    for start in range(1, len(values), _MOST_ADDENDS - 1):
        some = [total, *values[start : start + _MOST_ADDENDS - 1]]
        total = w(op_type, joined([sizes_of(value) for value in some]), *some)
    if node.op_type == "Mean":
        total = w("Mul", sizes_of(total), total, w.number(1.0 / len(values), total))
    return total


def _float_range(w: DefinitionWriter, node: ir.Node) -> ir.Value:
    """Count in whole numbers, which are converted."""
    shape = sizes_of(node.outputs[0])
    bounds = (range_bound(node, at) for at in range(3))
    count = w("Range", shape, *(w.size(bound) for bound in bounds if bound is not None))
    numbers = w("Cast", shape, count, to=int(ir.DataType.FLOAT))
    numbers.type = ir.TensorType(ir.DataType.FLOAT)
    return numbers


DEFINITIONS: Mapping[str, Definition] = {
    "BatchNormalization": _batch_normalization,
    "InstanceNormalization": _instance_normalization,
    "GroupNormalization": _group_normalization,
    "LpNormalization": _lp_normalization,
    "ReduceL1": _reduce_l1,
    "ReduceLogSum": _reduce_log_sum,
    "ReduceLogSumExp": _reduce_log_sum_exp,
    "LRN": _local_response,
    "Attention": attention,
    "RotaryEmbedding": rotary_embedding,
}


def _replace(graph: ir.Graph, node: ir.Node) -> None:
    output = node.outputs[0]
    write = _definition_of(node)
    assert write is not None, "a composite operator has a definition"
    result = write(DefinitionWriter(graph, node), node)
    name, output.name = output.name, None
    result.name, result.type = name, output.type
    output.replace_all_uses_with(result, replace_graph_outputs=True)
    graph.remove(node, safe=True)
