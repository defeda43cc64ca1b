"""Operators of `com.microsoft`: what ONNX Runtime's own optimizer and exporters write.

Source of every definition: ONNX Runtime's `docs/ContribOperators.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.ir.literal.attention import attended, heads_apart, heads_joined, rotated
from vermilion.ir.literal.call import Call, Table, Typed, computes
from vermilion.ir.literal.elementwise import gelu, sigmoid
from vermilion.ir.literal.normalize import OPERATORS as NORMALIZATIONS
from vermilion.ir.literal.normalize import centred
from vermilion.ir.literal.products import convolution, product
from vermilion.ir.literal.reduce import mean

Array = NDArray[Any]

_SKIP_EPSILON = float(np.float32(1e-12))

# Activations that are fused behind products; (x, first parameter, second).
_ACTIVATIONS: Mapping[str, Callable[[Array, float, float], Array]] = {
    "Relu": lambda x, a, b: np.maximum(x, 0.0),
    "Tanh": lambda x, a, b: np.tanh(x),
    "Sigmoid": lambda x, a, b: sigmoid(x),
    "LeakyRelu": lambda x, a, b: np.where(x < 0, a * x, x),
    "Clip": lambda x, a, b: np.clip(x, a, b),
    "HardSigmoid": lambda x, a, b: np.clip(a * x + b, 0.0, 1.0),
}


def _activated(call: Call, x: Array) -> Array:
    name = call.text("activation", "")
    if not name:
        return x
    if name not in _ACTIVATIONS:
        raise call.unsupported(f"the fused activation `{name}` is not interpreted")
    written = call.node.attributes.get("activation_params")
    given = [] if written is None else [*written.as_floats()]
    first = given[0] if given else call.number("activation_alpha", 0.01)
    second = given[1] if len(given) > 1 else call.number("activation_beta", 0.0)
    return _ACTIVATIONS[name](x, first, second)


def _turned(call: Call, x: Array, side: str) -> Array:
    """Return an operand of FusedMatMul as its attributes lay it out."""
    if x.ndim > 2 and call.integer(f"transBatch{side}", 0):
        x = np.moveaxis(x, 0, -2)
    return x.swapaxes(-1, -2) if x.ndim > 1 and call.integer(f"trans{side}", 0) else x


def _fused_matmul(call: Call) -> Array:
    result = product(_turned(call, call[0], "A"), _turned(call, call[1], "B"))
    return result * call.number("alpha", 1.0)


def _fused_gemm(call: Call) -> Array:
    a, b = _turned(call, call[0], "A"), _turned(call, call[1], "B")
    result = product(a, b) * call.number("alpha", 1.0)
    if call.has(2):
        result = result + call[2] * call.number("beta", 1.0)
    return _activated(call, result)


def _fused_conv(call: Call) -> Array:
    result = convolution(call, call[0], call[1], call.get(2))
    return _activated(call, result + call[3] if call.has(3) else result)


def _gelu(call: Call) -> Array:
    return gelu(call[0])


def _bias_gelu(call: Call) -> Array:
    return gelu(call[0] + call[1])


def _fast_gelu(call: Call) -> Array:
    return gelu(call[0] + call[1] if call.has(1) else call[0], is_tanh=True)


def _quick_gelu(call: Call) -> Array:
    return call[0] * sigmoid(call.number("alpha", float(np.float32(1.702))) * call[0])


def _bias_add(call: Call) -> Array:
    return call[0] + call[1] + call[2]


def _layer(total: Array, gamma: Array, beta: Array | None, epsilon: float) -> Array:
    _, rest = centred(total, (total.ndim - 1,))
    variance = mean(np.square(rest), (rest.ndim - 1,))
    result = rest / np.sqrt(variance + epsilon) * gamma
    return np.asarray(result if beta is None else result + beta)


def _skip_layer(call: Call) -> tuple[Any, ...]:
    total = call[0] + call[1]
    if call.has(4):
        total = total + call[4]
    epsilon = call.number("epsilon", _SKIP_EPSILON)
    result = _layer(total, call[2], call.get(3), epsilon)
    middle, rest = centred(total, (total.ndim - 1,))
    inverse = 1.0 / np.sqrt(mean(np.square(rest), (rest.ndim - 1,)) + epsilon)
    stash = ir.DataType.FLOAT
    return result, Typed(middle, stash), Typed(inverse, stash), total


def _skip_simplified(call: Call) -> tuple[Any, ...]:
    total = call[0] + call[1]
    if call.has(3):
        total = total + call[3]
    squares = mean(np.square(total), (total.ndim - 1,))
    inverse = 1.0 / np.sqrt(squares + call.number("epsilon", _SKIP_EPSILON))
    stash = ir.DataType.FLOAT
    return (
        total * inverse * call[2],
        Typed(np.zeros_like(inverse), stash),
        Typed(inverse, stash),
        total,
    )


def _picked(call: Call, table: Array, places: Array) -> Array:
    rows = places.astype(np.int64)
    if rows.size and (rows.min() < 0 or rows.max() >= table.shape[0]):
        raise call.error(f"an index is not among the {table.shape[0]} rows of its table")
    return np.asarray(table[rows])


def _embed_layer(call: Call) -> tuple[Any, ...]:
    ids = call[0]
    places = call[8] if call.has(8) else np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    total = _picked(call, call[2], ids) + _picked(call, call[3], places)
    if call.has(1) and call.has(4):
        total = total + _picked(call, call[4], call[1])
    y = _layer(total, call[5], call[6], call.number("epsilon", _SKIP_EPSILON))
    mask = call[7].sum(axis=1) if call.has(7) else np.zeros(ids.shape[0])
    return Typed(y, call.type(2)), mask.astype(np.int32), Typed(total, call.type(2))


def _positions(call: Call, batch: int, steps: int) -> Array:
    given = call[1].astype(np.int64)
    if given.size == 1 and given.ndim == 1:
        return np.broadcast_to(given[0] + np.arange(steps), (batch, steps))
    return given.reshape(batch, steps)


def _rotary(call: Call) -> Array:
    x = call[0]
    if call.integer("is_packed_batching", 0):
        raise call.unsupported("RotaryEmbedding over a packed batch is not interpreted")
    is_flat = x.ndim == 3
    cosine, sine = call[2], call[3]
    heads = call.integer("num_heads", 0) or x.shape[-1] // (2 * cosine.shape[-1])
    rows = x.reshape(*x.shape[:2], heads, -1) if is_flat else x.transpose(0, 2, 1, 3)
    places = _positions(call, rows.shape[0], rows.shape[1])
    angles = (_picked(call, table, places) for table in (cosine, sine))
    turned = rotated(rows, *angles, is_interleaved=bool(call.integer("interleaved", 0)))
    return turned.reshape(x.shape) if is_flat else turned.transpose(0, 2, 1, 3)


def _multi_head(call: Call) -> tuple[Any, ...]:
    query, heads = call[0], call.integer("num_heads")
    if query.ndim != 3 or not call.has(1) or not call.has(2):
        raise call.unsupported("MultiHeadAttention of packed inputs is not interpreted")
    key, value = call[1], call[2]
    if call.has(3):
        hidden = query.shape[2]
        bias = call[3]
        query = query + bias[:hidden]
        key = key + bias[hidden : 2 * hidden] if key.ndim == 3 else key
        value = value + bias[2 * hidden :] if value.ndim == 3 else value
    query = heads_apart(query, heads)
    key = heads_apart(key, heads) if key.ndim == 3 else key
    value = heads_apart(value, heads) if value.ndim == 3 else value
    past = 0
    if call.has(6):
        past = call[6].shape[2]
        key, value = np.concatenate([call[6], key], 2), np.concatenate([call[7], value], 2)
    scale = call.number("scale", 0.0) or 1.0 / math.sqrt(query.shape[3])
    scores = np.matmul(query, key.swapaxes(-1, -2)) * scale
    if call.has(5):
        scores = scores + call[5]
    filled = call.number("mask_filter_value", -10000.0)
    if call.has(4):
        scores = np.where(_padding(call, scores.shape), scores, scores + filled)
    if call.integer("unidirectional", 0):
        rows, columns = np.arange(scores.shape[2])[:, None] + past, np.arange(scores.shape[3])
        scores = np.where(columns <= rows, scores, -np.inf)
    result, _ = attended(scores, value)
    return heads_joined(result), key, value, scores


def _padding(call: Call, shape: tuple[int, ...]) -> Array:
    """Return which keys are no padding, as (batch, 1, 1 or queries, keys)."""
    mask = call[4]
    if mask.ndim == 1 and mask.size == shape[0]:
        return np.asarray(np.arange(shape[3]) < mask.reshape(-1, 1, 1, 1))
    if mask.ndim == 2:
        return np.asarray(mask[:, None, None, :] != 0)
    if mask.ndim == 3:
        return np.asarray(mask[:, None, :, :] != 0)
    raise call.unsupported("a padding mask of cumulated lengths is not interpreted")


def _grouped_query(call: Call) -> tuple[Any, ...]:
    """Attention over a cache whose first `past` rows are there, which differs by batch."""
    heads, kv_heads = call.integer("num_heads"), call.integer("kv_num_heads")
    query, key, value = _grouped_operands(call, heads, kv_heads)
    batch, _, steps, size = query.shape
    totals = call[5].astype(np.int64).reshape(-1) + 1
    before = np.maximum(totals - steps, 0)
    if call.integer("do_rotary", 0):
        places = before[:, None] + np.arange(steps)
        if call.has(9):
            places = call[9].astype(np.int64)
        angles = [_picked(call, call[at], places) for at in (7, 8)]
        way = bool(call.integer("rotary_interleaved", 0))
        query, key = (
            rotated(part.swapaxes(1, 2), *angles, is_interleaved=way).swapaxes(1, 2)
            for part in (query, key)
        )
    room = max(int(call.scalar(6)), call[3].shape[2] if call.has(3) else 0)
    caches = []
    for part, at in ((key, 3), (value, 4)):
        cache = np.zeros((batch, kv_heads, room, size))
        if call.has(at):
            cache[:, :, : call[at].shape[2]] = call[at]
        for image, start in enumerate(before):
            cache[image, :, start : start + steps] = part[image]
        caches.append(cache)
    keys, values = (np.repeat(cache, heads // kv_heads, axis=1) for cache in caches)
    scale = call.number("scale", 0.0) or 1.0 / math.sqrt(size)
    scores = np.matmul(query, keys.swapaxes(-1, -2)) * scale
    cap = call.number("softcap", 0.0)
    scores = cap * np.tanh(scores / cap) if cap else scores
    if call.has(10):
        bias = call[10]
        scores[..., : bias.shape[-1]] += bias
    rows = (before[:, None] + np.arange(steps))[:, None, :, None]
    columns = np.arange(room)
    allowed = columns <= rows
    window = call.integer("local_window_size", -1)
    if window > 0:
        allowed = allowed & (columns > rows - window)
    result, _ = attended(np.where(allowed, scores, -np.inf), values)
    return heads_joined(result), caches[0], caches[1]


def _grouped_operands(call: Call, heads: int, kv_heads: int) -> tuple[Array, Array, Array]:
    if call.has(1) and call.has(2):
        parts = (call[0], call[1], call[2])
    else:
        size = call[0].shape[2] // (heads + 2 * kv_heads)
        ends = [heads * size, (heads + kv_heads) * size]
        first, second, third = np.split(call[0], ends, axis=2)
        parts = (first, second, third)
    if any(call.has(at) for at in (11, 12, 13)):
        raise call.unsupported("GroupQueryAttention with sinks or a quantized cache")
    return (
        heads_apart(parts[0], heads),
        heads_apart(parts[1], kv_heads),
        heads_apart(parts[2], kv_heads),
    )


OPERATORS: Table = {
    "FusedMatMul": computes(_fused_matmul),
    "FusedGemm": computes(_fused_gemm),
    "FusedConv": computes(_fused_conv),
    "Gelu": computes(_gelu),
    "BiasGelu": computes(_bias_gelu),
    "FastGelu": computes(_fast_gelu),
    "QuickGelu": computes(_quick_gelu),
    "BiasAdd": computes(_bias_add),
    "SkipLayerNormalization": computes(_skip_layer),
    "SkipSimplifiedLayerNormalization": computes(_skip_simplified),
    "SimplifiedLayerNormalization": NORMALIZATIONS["SimplifiedLayerNormalization"],
    "EmbedLayerNormalization": computes(_embed_layer),
    "RotaryEmbedding": computes(_rotary),
    "MultiHeadAttention": computes(_multi_head),
    "GroupQueryAttention": computes(_grouped_query),
}
