"""`com.microsoft`'s Attention and MultiHeadAttention, without a cache, in ONNX's own operators."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from vermilion.ir.attributes import integer, integers, number
from vermilion.ir.passes.contrib_quantized import integer_product
from vermilion.ir.passes.contrib_writer import (
    Definition,
    Left,
    Writer,
    array_of,
    given,
    rank_of,
    required,
)

_FILTER = -10000.0


def _heads(w: Writer, x: ir.Value, heads: int) -> ir.Value:
    """(batch, rows, heads × size) → (batch, heads, rows, size)."""
    return w("Transpose", w.reshaped(x, 0, 0, heads, -1), perm=[0, 2, 1, 3])


def _attended(
    w: Writer,
    node: ir.Node,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    size: int,
    mask: ir.Value | None,
    bias: ir.Value | None,
) -> ir.Value:
    """Return softmax (query · key ÷ √size + what is masked) · value, heads joined again."""
    scale = number(node, "scale", 0.0) or 1.0 / math.sqrt(size)
    scores = w("MatMul", query, w("Transpose", key, perm=[0, 1, 3, 2]))
    scores = w("Mul", scores, w.number(scale))
    if bias is not None:
        scores = w("Add", scores, bias)
    if mask is not None:
        scores = w("Add", scores, _masked(w, node, mask, key))
    if integer(node, "unidirectional", 0):
        rows, columns = _places(w, query, 2), _places(w, key, 2)
        allowed = w("LessOrEqual", columns, w.unsqueezed(rows, 1))
        allowed.type = ir.TensorType(ir.DataType.BOOL)
        scores = w("Where", allowed, scores, w.number(-math.inf))
        scores.type = query.type
    shares = w("Softmax", scores, axis=-1)
    joined = w("Transpose", w("MatMul", shares, value), perm=[0, 2, 1, 3])
    return w.reshaped(joined, 0, 0, -1)


def _places(w: Writer, x: ir.Value, axis: int) -> ir.Value:
    zero, one = (w.constant(np.array(value, np.int64)) for value in (0, 1))
    return w("Range", zero, w.axis_sizes(x, axis), one)


def _masked(w: Writer, node: ir.Node, mask: ir.Value, key: ir.Value) -> ir.Value:
    """Return what is added to the scores of keys that are padding, else 0."""
    match rank_of(mask):
        case 1:  # lengths; twice as many numbers are last and first places of keys
            batch = required(node, 0).shape
            if mask.shape is None or batch is None or mask.shape[0] != batch[0]:
                raise Left(f"{node.op_type} with a mask that is not one length a row")
            lengths = w.unsqueezed(w.cast(mask, ir.DataType.INT64), 1)
            kept = w("Less", _places(w, key, 2), lengths)
            kept.type = ir.TensorType(ir.DataType.BOOL)
            kept = w.unsqueezed(kept, 1, 2)
        case 2:
            kept = w.unsqueezed(w.cast(mask, ir.DataType.BOOL), 1, 2)
        case 3:
            kept = w.unsqueezed(w.cast(mask, ir.DataType.BOOL), 1)
        case rank:
            raise Left(f"{node.op_type} with a mask of {rank} axes")
    filled = number(node, "mask_filter_value", _FILTER)
    added = w("Where", kept, w.number(0.0), w.number(filled))
    added.type = ir.TensorType(w.float_type)
    return added


def _attention(w: Writer, node: ir.Node) -> list[ir.Value]:
    if given(node, 4) is not None or given(node, 6) is not None or len(node.outputs) > 1:
        raise Left("Attention with a cache")
    parts = _parts(node)
    whole = w("MatMul", required(node, 0), required(node, 1))
    if (bias := given(node, 2)) is not None:
        whole = w("Add", whole, bias)
    return [_in_parts(w, node, whole, parts, given(node, 3), given(node, 5))]


def _quantized_attention(w: Writer, node: ir.Node) -> list[ir.Value]:
    """Attention whose first product is one of integers."""
    if given(node, 8) is not None or len(node.outputs) > 1:
        raise Left("QAttention with a cache")
    parts = _parts(node)
    sides = [required(node, 0), required(node, 1), given(node, 6), given(node, 7)]
    scale = w("Mul", required(node, 3), required(node, 4))
    (whole,) = integer_product(w, node, sides, scale, 2)
    return [_in_parts(w, node, whole, parts, given(node, 5), None)]


def _parts(node: ir.Node) -> tuple[int, ...]:
    """Return the columns of queries, keys and values in the weights of all."""
    if integer(node, "do_rotary", 0):
        raise Left(f"{node.op_type} that turns its operands by position")
    weights = array_of(required(node, 1))
    if weights is None:
        raise Left(f"{node.op_type} with weights that are not constant")
    parts = tuple(integers(node, "qkv_hidden_sizes", (weights.shape[1] // 3,) * 3))
    if len(set(parts[:2])) != 1 or sum(parts) != weights.shape[1]:
        raise Left(f"{node.op_type} whose queries and keys differ in size")
    return parts


def _in_parts(
    w: Writer,
    node: ir.Node,
    whole: ir.Value,
    parts: tuple[int, ...],
    mask: ir.Value | None,
    bias: ir.Value | None,
) -> ir.Value:
    """Attend with queries, keys and values that lie side by side."""
    heads, ends = integer(node, "num_heads"), np.cumsum((0, *parts))
    query, key, value = (
        _heads(w, w.part(whole, 2, int(ends[at]), int(ends[at + 1])), heads) for at in range(3)
    )
    return _attended(w, node, query, key, value, parts[0] // heads, mask, bias)


def _multi_head(w: Writer, node: ir.Node) -> list[ir.Value]:
    if any(given(node, at) is not None for at in (6, 7)) or len(node.outputs) > 1:
        raise Left("MultiHeadAttention with a cache")
    operands = [required(node, at) for at in range(3)]
    if any(rank_of(one) != 3 for one in operands):
        raise Left("MultiHeadAttention of packed operands")
    heads, hidden = integer(node, "num_heads"), operands[0].shape[2]  # type: ignore[index]
    if not isinstance(hidden, int):
        raise Left("MultiHeadAttention of an open size")
    if (bias := given(node, 3)) is not None:
        array = array_of(bias)
        if array is None:
            raise Left("MultiHeadAttention with a bias that is not constant")
        cuts = np.split(array, [hidden, 2 * hidden])
        operands = [
            w("Add", one, w.constant(np.ascontiguousarray(cut)))
            for one, cut in zip(operands, cuts, strict=True)
        ]
    query, key, value = (_heads(w, one, heads) for one in operands)
    size = hidden // heads
    return [_attended(w, node, query, key, value, size, given(node, 4), given(node, 5))]


DEFINITIONS: Mapping[str, Definition] = {
    "Attention": _attention,
    "QAttention": _quantized_attention,
    "MultiHeadAttention": _multi_head,
}
