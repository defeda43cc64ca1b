"""Attention and RotaryEmbedding of opset 23, written out as the operators that define them.

    Y = Softmax(Q · Kᵀ · scale + bias) · V

Sources: https://onnx.ai/onnx/operators/onnx__Attention.html and onnx__RotaryEmbedding.html.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from vermilion.codegen.lower.data_movement_shapes import joined
from vermilion.codegen.lower.patterns.writer import DefinitionWriter, input_of, sizes_of
from vermilion.ir.attributes import integer, number
from vermilion.ir.opset import static_shape
from vermilion.ir.symbolic import is_known, is_one

_PAST_KEY, _PAST_VALUE, _LENGTHS = 4, 5, 6


def check_attention(node: ir.Node) -> str:
    """Say why an Attention is not generated, empty if it is."""
    if any(_given(node, at) for at in (_PAST_KEY, _PAST_VALUE, _LENGTHS)):
        return "Attention with a cache"
    if any(integer(node, name, -1) >= 0 for name in ("left_window_size", "right_window_size")):
        return "Attention in a window"
    mask = static_shape(node.inputs[3]) if _given(node, 3) else None
    keys = static_shape(node.inputs[1])
    if mask and keys and not (is_one(mask[-1]) or mask[-1] == keys[-2]):
        return "Attention with a mask that is shorter than the keys"
    return ""


def _given(node: ir.Node, at: int) -> bool:
    value = node.inputs[at] if at < len(node.inputs) else None
    return value is not None and bool(value.name)


def attention(w: DefinitionWriter, node: ir.Node) -> ir.Value:
    """Write out Attention. Query heads that share keys become rows of one product."""
    is_flat = len(sizes_of(node.inputs[0])) == 3
    query, key, value = (input_of(node, at) for at in range(3))
    if is_flat:
        query = _heads_apart(w, query, integer(node, "q_num_heads", 1))
        key, value = (_heads_apart(w, x, integer(node, "kv_num_heads", 1)) for x in (key, value))
    batch, heads, length, size = sizes_of(query)
    shared, keys = sizes_of(key)[1:3]
    group = heads // shared
    rows = (batch, shared, group * length)
    scale = number(node, "scale", 0.0) if "scale" in node.attributes else 1.0 / math.sqrt(size)
    query = _reshaped(w, query, (*rows, size))
    turned = w("Transpose", (batch, shared, size, keys), key, perm=[0, 1, 3, 2])
    scores = w("MatMul", (*rows, keys), query, turned)
    scores = w("Mul", (*rows, keys), scores, w.number(scale, scores))
    if cap := number(node, "softcap", 0.0):
        limit = w.number(cap, scores)
        steps = w("Tanh", (*rows, keys), w("Div", (*rows, keys), scores, limit))
        scores = w("Mul", (*rows, keys), steps, limit)
    bias = _bias(w, node, scores, (batch, heads, length, keys), shared)
    if bias is not None:
        scores = w("Add", (*rows, keys), scores, bias)
    weights = w("Softmax", (*rows, keys), scores, axis=3)
    width = sizes_of(value)[-1]
    result = w("MatMul", (*rows, width), weights, value)
    if bias is not None and _given(node, 3):
        result = _nought_where_masked(w, result, bias)
    result = _reshaped(w, result, (batch, heads, length, width))
    if not is_flat:
        return result
    rows_first = w("Transpose", (batch, length, heads, width), result, perm=[0, 2, 1, 3])
    return _reshaped(w, rows_first, (batch, length, heads * width))


def _reshaped(w: DefinitionWriter, x: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    if sizes_of(x) == shape:
        return x
    return w.reshaped(x, shape)


def _heads_apart(w: DefinitionWriter, x: ir.Value, heads: int) -> ir.Value:
    batch, length, width = sizes_of(x)
    size = width // heads
    apart = _reshaped(w, x, (batch, length, heads, size))
    return w("Transpose", (batch, heads, length, size), apart, perm=[0, 2, 1, 3])


def _bias(
    w: DefinitionWriter,
    node: ir.Node,
    scores: ir.Value,
    shape: tuple[int, ...],
    shared: int,
) -> ir.Value | None:
    """Return what is added to the scores of grouped rows; None where nothing is.

    `shape` is that of the scores of all heads: (batch, heads, length, keys).
    """
    _, heads, length, keys = shape
    causal = integer(node, "is_causal", 0)
    found: ir.Value | None = None
    if _given(node, 3):
        found = input_of(node, 3)
        sizes = sizes_of(found)
        found = _reshaped(w, found, (*[1] * (4 - len(sizes)), *sizes))
        if found.dtype == ir.DataType.BOOL:
            nought, never = w.number(0.0, scores), w.number(-math.inf, scores)
            found = w("Where", sizes_of(found), found, nought, never)
            found.type = scores.type
    if causal:
        mask = _causal(w, scores, length, keys)
        if found is None:
            found = mask
        else:
            both = joined([sizes_of(found), sizes_of(mask)])
            found = w("Add", both, found, mask)
    return None if found is None else _for_groups(w, found, heads, shared)


def _causal(w: DefinitionWriter, scores: ir.Value, length: int, keys: int) -> ir.Value:
    """Return what hides from each row the keys behind its own: (1, 1, length, keys)."""
    shape = (1, 1, length, keys)
    if is_known(length) and is_known(keys):
        order = np.where(np.arange(keys) <= np.arange(length)[:, None], 0.0, -np.inf)
        assert scores.dtype is not None
        return w.constant(order.astype(scores.dtype.numpy()).reshape(shape))
    rows, columns = (w("Range", (n,), *map(w.size, (0, n, 1))) for n in (length, keys))
    is_seen = w("LessOrEqual", shape, columns, w.reshaped(rows, (1, 1, length, 1)))
    is_seen.type = ir.TensorType(ir.DataType.BOOL)
    mask = w("Where", shape, is_seen, w.number(0.0, scores), w.number(-math.inf, scores))
    mask.type = scores.type
    return mask


def _for_groups(w: DefinitionWriter, bias: ir.Value, heads: int, shared: int) -> ir.Value:
    """Return a bias for rows that are those of each query head of a group, one after the other."""
    batch, own, length, keys = sizes_of(bias)
    group = heads // shared
    if group == 1 or (own == 1 and length == 1):
        return bias
    if own > 1:
        if length == 1:  # each head has a row of its own: one for each of its queries
            rows = sizes_of(w.node.inputs[0])[-2]
            bias = w("Concat", (batch, own, rows, keys), *[bias] * rows, axis=2)
            length = rows
        return _reshaped(w, bias, (batch, shared, group * length, keys))
    return w("Concat", (batch, 1, group * length, keys), *[bias] * group, axis=2)


def _nought_where_masked(w: DefinitionWriter, result: ir.Value, bias: ir.Value) -> ir.Value:
    """Return 0 in rows of which nothing may be attended: their softmax is that of -∞ alone."""
    top = w.reduced("ReduceMax", bias, [3])
    is_masked = w("Equal", sizes_of(top), top, w.number(-math.inf, bias))
    is_masked.type = ir.TensorType(ir.DataType.BOOL)
    found = w("Where", sizes_of(result), is_masked, w.number(0.0, result), result)
    found.type = result.type
    return found


def rotary_embedding(w: DefinitionWriter, node: ir.Node) -> ir.Value:
    """Write out RotaryEmbedding: pairs of numbers turned by the angle of their position."""
    x = input_of(node, 0)
    given = sizes_of(x)
    heads_at = 2
    if len(given) == 3:
        heads = integer(node, "num_heads", 0)
        x = _reshaped(w, x, (*given[:2], heads, given[2] // heads))
    else:
        heads_at = 1
    shape = sizes_of(x)
    half = (integer(node, "rotary_embedding_dim", 0) or shape[3]) // 2
    cosine, sine = (_angles(w, node, at, heads_at) for at in (1, 2))
    if integer(node, "interleaved", 0):
        first, second = (_part(w, x, start, 2 * half, 2) for start in (0, 1))
    else:
        first, second = _part(w, x, 0, half), _part(w, x, half, 2 * half)
    part = sizes_of(first)

    def combined(op_type: str, a: ir.Value, b: ir.Value) -> ir.Value:
        return w(op_type, part, w("Mul", part, first, a), w("Mul", part, second, b))

    turned = [combined("Sub", cosine, sine), combined("Add", sine, cosine)]
    if integer(node, "interleaved", 0):
        pairs = [_reshaped(w, each, (*part, 1)) for each in turned]
        both = w("Concat", (*part, 2), *pairs, axis=4)
        turned = [_reshaped(w, both, (*part[:3], 2 * half))]
    if 2 * half < shape[3]:
        turned.append(_part(w, x, 2 * half, shape[3]))
    whole = turned[0] if len(turned) == 1 else w("Concat", shape, *turned, axis=3)
    return _reshaped(w, whole, given)


def _part(w: DefinitionWriter, x: ir.Value, start: int, stop: int, step: int = 1) -> ir.Value:
    shape = (*sizes_of(x)[:3], len(range(start, stop, step)))
    numbers = (w.sizes([n]) for n in (start, stop, 3, step))
    return w("Slice", shape, x, *numbers)


def _angles(w: DefinitionWriter, node: ir.Node, at: int, heads_at: int) -> ir.Value:
    """Return cosines or sines of (batch, sequence), with one size for all heads."""
    table = input_of(node, at)
    if _given(node, 3):
        places = input_of(node, 3)
        shape = (*sizes_of(places), sizes_of(table)[-1])
        table = w("Gather", shape, table, places, axis=0)
    sizes = sizes_of(table)
    return _reshaped(w, table, (*sizes[:heads_at], 1, *sizes[heads_at:]))
