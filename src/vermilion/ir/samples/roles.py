"""What operators ask of their operands: indices, divisors, masks and amounts.

Shapes, bounds and axes stand in `shape_roles`. Source: the ONNX operator reference; for
`com.microsoft`, ONNX Runtime's `docs/ContribOperators.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from vermilion.ir.opset import constant_of
from vermilion.ir.samples.facts import attribute_list, operand
from vermilion.ir.samples.shape_roles import SHAPE_ROLES
from vermilion.ir.samples.use import Use
from vermilion.ir.samples.values import (
    Floats,
    Want,
    between,
    exactly,
)

Role = Callable[[Use], Want | None]

_MAX_DISTINCT = 1 << 20  # of more elements, distinct ones are not drawn


def _index(data: int, axis: int | None = None, *, negative: bool = True) -> Role:
    """Return the role of an index into an operand along the node's axis, or along a given one."""

    def ask(use: Use) -> Want:
        along = use.integer("axis", 0) if axis is None else axis
        size = use.size(data, along)
        if not size:
            return between(0, 0)  # of an unknown table the first row is the likeliest to be there
        return between(-size if negative and use.at_ends else 0, size - 1)

    return ask


def _scatter_elements(use: Use) -> Want | None:
    """Distinct along the axis: twice the same index is undefined without a reduction."""
    sizes, rows = use.static(use.at), use.size(0, use.integer("axis", 0))
    if sizes is None or rows is None or not sizes or math.prod(sizes) > _MAX_DISTINCT:
        return _index(0)(use)
    axis = use.integer("axis", 0) % len(sizes)
    if sizes[axis] > rows:
        return _index(0)(use)
    others = (*sizes[:axis], *sizes[axis + 1 :])
    drawn = use.random.permuted(np.broadcast_to(np.arange(rows), (*others, rows)), axis=-1)
    return exactly(np.moveaxis(drawn[..., : sizes[axis]], -1, axis))


def _tuples(use: Use) -> Want | None:
    """Rows of GatherND: each column has the limit of its dimension."""
    data, sizes = use.shape(0), use.shape(use.at)
    if data is None or not sizes or sizes[-1] is None:
        return between(0, 0)
    first = use.integer("batch_dims", 0)
    limits = np.array([size or 1 for size in data[first : first + sizes[-1]]], np.float64)
    low = -limits if use.at_ends else np.zeros_like(limits)
    return Want(low, limits - 1)


def _distinct_tuples(use: Use) -> Want | None:
    data, sizes = use.static(0), use.static(use.at)
    if data is None or not sizes:
        return _tuples(use)
    limits, rows = data[: sizes[-1]], math.prod(sizes[:-1])
    if not rows <= math.prod(limits) <= _MAX_DISTINCT:
        return _tuples(use)
    drawn = use.random.choice(math.prod(limits), rows, replace=False)
    return exactly(np.stack(np.unravel_index(drawn, limits), -1).reshape(sizes))


def _divisor(use: Use) -> Want | None:
    if use.is_integer(use.at):
        return between(-9, 9, nonzero=True)
    return between(-math.inf, math.inf, nonzero=True)


def _factor(use: Use) -> Want | None:
    """Integers that are added or multiplied: so small that sums of products stay exact."""
    return between(-100, 100, hard=False) if use.is_integer(use.at) else None


def _compared(use: Use) -> Want | None:
    """Near what it is compared with, so that both answers occur: integers, and a lone threshold."""
    constant = constant_of(operand(use.node, 1 - use.at))
    other = use.certain(1 - use.at) if constant is None else constant.numpy()
    if other is None or other.size == 0 or other.dtype.kind not in "iuf":
        return None
    is_integer = use.is_integer(use.at)
    if not is_integer and use.static(use.at) not in ((), (1,)):
        return None
    return between(float(other.min()) - 1, float(other.max()) + 1, hard=not is_integer)


def _subtracted(use: Use) -> Want | None:
    """`1 - mask`: a mask, whatever its type."""
    one = use.certain(0)
    value = use.node.inputs[use.at]
    if one is None or one.size != 1 or float(one.ravel()[0]) != 1 or value is None:
        return _factor(use)
    made = value.producer()
    if value.dtype is not None and value.dtype.is_floating_point() and made is None:
        return None
    return between(0, 1, whole=True, marked=True, hard=False)


def _exponent(use: Use) -> Want | None:
    return between(0, 3, hard=False) if use.is_integer(use.at) else None


def _shift(use: Use) -> Want | None:
    value = use.node.inputs[use.at]
    bits = 8 if value is None or value.dtype is None else value.dtype.bitwidth
    return between(0, bits - 1)


def _scale(use: Use) -> Want | None:
    return between(0.01, 0.25)


def _chosen(low: float, high: float, **flags: bool) -> Role:
    return lambda use: between(low, high, **flags)


def _lengths(data: int, axis: int | Callable[[Use], int], low: int = 1) -> Role:
    """Return the role of lengths of sequences."""

    def ask(use: Use) -> Want | None:
        size = use.size(data, axis if isinstance(axis, int) else axis(use))
        return between(min(low, size or low), size or low)

    return ask


def _time_axis(use: Use) -> int:
    return use.integer("time_axis", 0)


def _recurrent_axis(use: Use) -> int:
    return 1 if use.integer("layout", 0) else 0


def _classes(use: Use) -> Want | None:
    size = use.size(0, 1)
    return between(0, (size or 1) - 1)


def _taken(use: Use) -> Want | None:
    """Compress: some are taken, the first one among them."""
    taken: Floats = use.random.integers(0, 2, use.own_sizes()).astype(np.float64)
    taken.ravel()[:1] = 1
    return exactly(taken)


def _unpooled_sizes(use: Use) -> tuple[int, ...] | None:
    """Return the sizes that MaxUnpool gives back."""
    sizes, kernel = use.static(0), attribute_list(use.node, "kernel_shape")
    if sizes is None or kernel is None or len(sizes) != len(kernel) + 2:
        return None
    strides = attribute_list(use.node, "strides") or [1] * len(kernel)
    pads = attribute_list(use.node, "pads") or [0] * (2 * len(kernel))
    grown = [
        (sizes[2 + d] - 1) * strides[d] + kernel[d] - pads[d] - pads[d + len(kernel)]
        for d in range(len(kernel))
    ]
    return (*sizes[:2], *grown)


def _unpooled(use: Use) -> Want | None:
    sizes, grown = use.static(0), _unpooled_sizes(use)
    if sizes is None or grown is None:
        return between(0, 0)
    total = math.prod(grown[1:])
    if not math.prod(sizes[1:]) <= total <= _MAX_DISTINCT:
        return between(0, max(total - 1, 0))
    places = use.random.permutation(total)[: math.prod(sizes[1:])]
    return exactly(np.broadcast_to(places.reshape(1, *sizes[1:]), sizes))


def _unpooled_shape(use: Use) -> Want | None:
    grown = _unpooled_sizes(use)
    return None if grown is None else exactly(grown)


def _boxes(use: Use) -> Want | None:
    """Corners of regions in pixels, the second beyond the first."""
    sizes = use.static(use.at)
    if sizes is None or sizes[-1:] != (4,):
        return None
    first = use.random.uniform(0, 4, (*sizes[:-1], 2))
    return exactly(np.concatenate([first, first + use.random.uniform(1, 8, first.shape)], -1))


def _past_lengths(use: Use) -> Want | None:
    return between(0, max((use.size(0, 1) or 1) - 1, 0))


def _total_length(use: Use) -> Want | None:
    length = use.size(0, 1) or 1
    return between(length, length)


def _cast_text(use: Use) -> Want | None:
    """A string that is cast to a number must be one."""
    value = use.node.inputs[0]
    if value is None or value.dtype is None or value.dtype.name != "STRING":
        return None
    return between(-9, 9)


_MASK = _chosen(0, 1, whole=True, marked=True)
_FALSE, _TRUE = _chosen(0, 0), _chosen(1, 1)
_COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
_RECURRENT = ("GRU", "LSTM", "RNN")

_ONNX: Mapping[str, Mapping[int, Role]] = {
    "Add": {0: _factor, 1: _factor},
    "BatchNormalization": {4: _chosen(0.1, 4)},
    "BitShift": {1: _shift},
    "Bernoulli": {0: _chosen(0, 1)},
    "Cast": {0: _cast_text},
    "Compress": {1: _taken},
    "DequantizeLinear": {1: _scale},
    "Div": {1: _divisor},
    "Dropout": {1: _chosen(0, 0.9), 2: _FALSE},
    "Gather": {1: _index(0)},
    "GatherElements": {1: _index(0)},
    "GatherND": {1: _tuples},
    "GridSample": {1: _chosen(-1, 1, hard=False)},
    "Loop": {0: _chosen(0, 3), 1: _TRUE},
    "MaxUnpool": {1: _unpooled, 2: _unpooled_shape},
    "Mod": {1: _divisor},
    "Mul": {0: _factor, 1: _factor},
    "NegativeLogLikelihoodLoss": {1: _classes},
    "NonMaxSuppression": {2: _chosen(1, 5), 3: _chosen(0.1, 0.9), 4: _chosen(0, 0.5)},
    "OneHot": {0: _chosen(0, 5, hard=False), 1: _chosen(4, 6)},
    "Pow": {1: _exponent},
    "QLinearConv": {1: _scale, 4: _scale, 6: _scale},
    "QLinearMatMul": {1: _scale, 4: _scale, 6: _scale},
    "QuantizeLinear": {1: _scale},
    "ReverseSequence": {1: _lengths(0, _time_axis)},
    "RoiAlign": {1: _boxes, 2: _index(0, 0, negative=False)},
    "RotaryEmbedding": {3: _index(1, 0, negative=False)},
    "Scatter": {1: _scatter_elements},
    "ScatterElements": {1: _scatter_elements},
    "ScatterND": {1: _distinct_tuples},
    "SequenceAt": {1: _chosen(0, 1)},
    "SequenceErase": {1: _chosen(0, 1)},
    "SequenceInsert": {2: _chosen(0, 1)},
    "SoftmaxCrossEntropyLoss": {1: _classes},
    "Sub": {0: _factor, 1: _subtracted},
    "TensorScatter": {2: _chosen(0, 0)},
    **{name: {0: _compared, 1: _compared} for name in _COMPARISONS},
    **{name: {4: _lengths(0, _recurrent_axis)} for name in _RECURRENT},
}

_MICROSOFT: Mapping[str, Mapping[int, Role]] = {
    "Attention": {3: _MASK},
    "DequantizeLinear": {1: _scale},
    "EmbedLayerNormalization": {
        0: _index(2, 0, negative=False),
        1: _index(4, 0, negative=False),
        7: _MASK,
        8: _index(3, 0, negative=False),
    },
    "GatherBlockQuantized": {1: _index(0, negative=False)},
    "GatherND": {1: _tuples},
    "GroupQueryAttention": {5: _past_lengths, 6: _total_length},
    "MultiHeadAttention": {4: _MASK},
    "QAttention": {5: _MASK},
    "QuantizeLinear": {1: _scale},
    "RotaryEmbedding": {1: _index(2, 0, negative=False)},
}

ROLES: Mapping[tuple[str, str], Mapping[int, Role]] = {
    **{("", name): roles for name, roles in (*_ONNX.items(), *SHAPE_ROLES.items())},
    **{("com.microsoft", name): roles for name, roles in _MICROSOFT.items()},
}
"""By domain and operator: the operands of which something is asked, and what."""
