"""Attention and rotary positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.ir.literal.call import Call, Table, Typed, computes
from vermilion.ir.literal.reduce import softmax

Array = NDArray[Any]


def heads_apart(x: Array, heads: int) -> Array:
    """Return (batch, sequence, heads · size) as (batch, heads, sequence, size)."""
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(0, 2, 1, 3)


def heads_joined(x: Array) -> Array:
    """Return (batch, heads, sequence, size) as (batch, sequence, heads · size)."""
    batch, heads, sequence, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, sequence, heads * size)


def attended(scores: Array, values: Array) -> tuple[Array, Array]:
    """Return the values weighed by the softmax of scores, and the weights.

    A row of scores that are all -∞ attends nothing: its weights are 0.
    """
    is_masked = np.all(np.isneginf(scores), axis=-1, keepdims=True)
    weights = np.where(is_masked, 0.0, softmax(np.where(is_masked, 0.0, scores), -1))
    return np.matmul(weights, values), weights


def _allowed(call: Call, past: int, shape: tuple[int, ...]) -> Array:
    """Return what each query may attend, by the order of positions and by lengths."""
    rows, columns = np.arange(shape[2])[:, None], np.arange(shape[3])
    offset: Array = np.array(past)
    allowed = np.ones((1, 1, *shape[2:]), np.bool_)
    if call.has(6):
        lengths = call[6].astype(np.int64).reshape(-1, 1, 1, 1)
        allowed = allowed & (columns < lengths)
        offset = lengths - shape[2]
    place = rows + offset
    if call.integer("is_causal", 0):
        allowed = allowed & (columns <= place)
    left, right = call.integer("left_window_size", -1), call.integer("right_window_size", -1)
    if left >= 0:
        allowed = allowed & (columns >= place - left)
    if right >= 0:
        allowed = allowed & (columns <= place + right)
    return allowed


def _bias(call: Call, past: int, shape: tuple[int, ...]) -> Array:
    """Return what is added to the scores: the mask, and -∞ where nothing may be attended."""
    bias = np.where(_allowed(call, past, shape), 0.0, -np.inf)
    if not call.has(3):
        return np.broadcast_to(bias, shape)
    mask = call[3]
    given = np.where(mask, 0.0, -np.inf) if mask.dtype == np.bool_ else mask
    missing = shape[3] - given.shape[-1]
    if missing > 0 and given.shape[-1] != 1:
        pads = [(0, 0)] * (given.ndim - 1) + [(0, missing)]
        given = np.pad(given, pads, constant_values=-np.inf)
    return np.broadcast_to(bias + given, shape)


def _attention(call: Call) -> tuple[Any, ...]:
    query, key, value = call[0], call[1], call[2]
    is_flat = query.ndim == 3
    if is_flat:
        query = heads_apart(query, call.integer("q_num_heads"))
        key = heads_apart(key, call.integer("kv_num_heads"))
        value = heads_apart(value, call.integer("kv_num_heads"))
    past = 0
    if call.has(4):
        past = call[4].shape[2]
        key, value = np.concatenate([call[4], key], 2), np.concatenate([call[5], value], 2)
    heads, kv_heads = query.shape[1], key.shape[1]
    if kv_heads == 0 or heads % kv_heads:
        raise call.error(f"{heads} heads of queries do not fit {kv_heads} of keys")
    keys, values = (np.repeat(part, heads // kv_heads, axis=1) for part in (key, value))
    scale = call.number("scale", 0.0) if "scale" in call.node.attributes else None
    scale = 1.0 / math.sqrt(query.shape[3]) if scale is None else scale
    stages = [np.matmul(query * scale, keys.swapaxes(-1, -2))]
    cap = call.number("softcap", 0.0)
    stages.append(cap * np.tanh(stages[0] / cap) if cap else stages[0])
    bias = _bias(call, past, stages[0].shape)
    # What may not be attended is -∞ even where its score is ∞ or none.
    stages.append(np.where(np.isneginf(bias), -np.inf, stages[1] + bias))
    result, weights = attended(stages[2], values)
    stages.append(weights)
    shown = stages[call.integer("qk_matmul_output_mode", 0)]
    return (
        heads_joined(result) if is_flat else result,
        key,
        Typed(value, call.type(2)),
        shown,
    )


def rotated(x: Array, cosine: Array, sine: Array, *, is_interleaved: bool) -> Array:
    """Return the front of each head rotated, as far as the angles go; the rest stays as it is.

    Shapes: x (batch, sequence, heads, size), angles (batch, sequence, half of what is rotated).
    """
    half = cosine.shape[-1]
    cosine, sine = cosine[:, :, None, :], sine[:, :, None, :]
    front, rest = x[..., : 2 * half], x[..., 2 * half :]
    if is_interleaved:
        first, second = front[..., 0::2], front[..., 1::2]
    else:
        first, second = front[..., :half], front[..., half:]
    real, imaginary = cosine * first - sine * second, sine * first + cosine * second
    if is_interleaved:
        turned = np.stack([real, imaginary], -1).reshape(front.shape)
    else:
        turned = np.concatenate([real, imaginary], -1)
    return np.concatenate([turned, rest], -1)


def _rotary(call: Call) -> Array:
    x = call[0]
    is_flat = x.ndim == 3
    if is_flat:
        heads = call.integer("num_heads")
        rows = x.reshape(*x.shape[:2], heads, x.shape[2] // heads)
    else:
        rows = x.transpose(0, 2, 1, 3)
    cosine, sine = call[1], call[2]
    if call.has(3):
        places = call[3].astype(np.int64)
        if places.size and (places.min() < 0 or places.max() >= cosine.shape[0]):
            raise call.error(f"a position is not among the {cosine.shape[0]} of its tables")
        cosine, sine = cosine[places], sine[places]
    size = call.integer("rotary_embedding_dim", 0) or rows.shape[3]
    if cosine.shape[-1] != size // 2:
        raise call.error(f"tables of {cosine.shape[-1]} angles do not fit {size} numbers")
    turned = rotated(rows, cosine, sine, is_interleaved=bool(call.integer("interleaved", 0)))
    return turned.reshape(x.shape) if is_flat else turned.transpose(0, 2, 1, 3)


OPERATORS: Table = {
    "Attention": computes(_attention),
    "RotaryEmbedding": computes(_rotary),
}
