"""Patterns of several operators as exporters write them: attention, norms, GELU, rotary angles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from random_graphs.elementwise import Build
from random_graphs.graph_writer import GraphWriter, Value
from random_graphs.quantized import weight


def _mean(w: GraphWriter, x: Value, keep: bool = True) -> Value:
    named: dict[str, Any] = {} if keep and w.maybe(0.5) else {"keepdims": int(keep)}
    if w.opset >= 18:
        return w.op("ReduceMean", x, w.ints([-1]), **named)
    return w.op("ReduceMean", x, axes=[-1] if w.opset >= 11 else [x.rank - 1], **named)


def layer_norm(w: GraphWriter) -> object:
    """Layer norm or root mean square norm, in a dozen nodes."""
    x = w.float_value(2, 3, 4)
    centred = w.op("Sub", x, _mean(w, x)) if w.maybe(0.6) else x
    square = w.op("Pow", centred, w.number(2.0)) if w.maybe(0.5) else w.op("Mul", centred, centred)
    shifted = w.op("Add", _mean(w, square), w.number(w.one_of([1e-5, 1e-6])))
    root = w.op("Sqrt", shifted)
    kind = w.random.random()
    if kind < 0.6:
        y = w.op("Div", centred, root)
    elif kind < 0.8:
        y = w.op("Mul", centred, w.op("Reciprocal", root))
    else:
        y = w.op("Mul", centred, w.op("Div", w.number(1.0), root))
    if w.maybe(0.8):
        scale = w.constant(w.floats(x.shape[-1:]))
        y = w.op("Mul", y, scale) if w.maybe(0.5) else w.op("Mul", scale, y)
    if w.maybe(0.6):
        y = w.op("Add", y, w.constant(w.floats(x.shape[-1:])))
    return w.settled(y)


def look_alike(w: GraphWriter) -> object:
    """What is nearly a layer norm: the mean without its dimension, on a square."""
    size = w.size(17)
    x = w.new((size, size))
    centred = w.op("Sub", x, _mean(w, x, keep=False))
    variance = _mean(w, w.op("Mul", centred, centred), keep=w.maybe(0.5))
    return w.op("Div", centred, w.op("Sqrt", w.op("Add", variance, w.number(1e-5))))


def gelu(w: GraphWriter) -> object:
    x = w.float_value()
    if w.maybe(0.5) and w.opset >= 9:
        inner = (
            w.op("Div", x, w.number(np.sqrt(2.0))) if w.maybe(0.5)
            else w.op("Mul", x, w.number(np.sqrt(0.5)))
        )  # fmt: skip
        gate = w.op("Add", w.op("Erf", inner), w.number(1.0))
    else:
        cube = w.op("Pow", x, w.number(3.0)) if w.maybe(0.5) else w.op("Mul", w.op("Mul", x, x), x)
        inner = w.op("Add", x, w.op("Mul", cube, w.number(0.044715)))
        gate = w.op("Add", w.number(1.0), w.op("Tanh", w.op("Mul", inner, w.number(0.79788456))))
    if w.maybe(0.5):
        return w.settled(w.op("Mul", w.op("Mul", x, gate), w.number(0.5)))
    return w.settled(w.op("Mul", w.op("Mul", x, w.number(0.5)), gate))


def attention(w: GraphWriter) -> object:
    """Softmax attention: with a mask, without, causal, of heads side by side or stacked."""
    batch, heads = w.one_of([1, 1, 2]), w.one_of([1, 2, 3])
    rows, keys, width = (
        w.one_of([1, 2, 5, 8, 17]),
        w.one_of([1, 3, 7, 16, 33]),
        w.one_of([1, 4, 8, 16]),
    )
    stack = w.one_of([(), (batch,), (batch, heads)])
    if len(stack) == 2 and w.maybe(0.5):
        q, k, v = _heads(w, batch, heads, rows, width)
        keys = rows
    else:
        q, k, v = (w.settled(w.new((*stack, n, width))) for n in (rows, keys, keys))
    rank = q.rank
    order = [*range(rank - 2), rank - 1, rank - 2]
    if w.maybe(0.3):
        q = w.op("Mul", q, w.number(width**-0.5))
    scores = w.op("MatMul", q, w.op("Transpose", k, perm=order))
    kind = w.random.random()
    if kind < 0.4:
        scores = w.op("Div", scores, w.number(width**0.5))
    elif kind < 0.7:
        scores = w.op("Mul", scores, w.number(width**-0.5))
    kind = w.random.random()
    if kind < 0.3:
        shape = w.one_of([(rows, keys), (1, keys), (*scores.shape[:-2], rows, keys)])
        blocked = w.random.random(shape) < 0.3
        blocked[..., 0] = False
        mask = np.where(blocked, w.one_of([-1e4, -60.0]), 0.0).astype(w.float_type)
        scores = w.op("Add", scores, w.constant(mask) if w.maybe(0.5) else w.input(mask))
    elif kind < 0.45 and w.opset >= 9:
        allowed = np.tril(np.ones((rows, keys), np.bool_))
        scores = w.op("Where", w.constant(allowed), scores, w.number(-1e4))
    scores = w.settled(scores) if w.maybe(0.3) else scores
    weights = w.op("Softmax", scores, axis=-1 if w.opset >= 13 or w.opset >= 11 else rank - 1)
    y = w.op("MatMul", w.settled(weights) if w.maybe(0.5) else weights, v)
    if y.rank == 4 and w.maybe(0.6):
        y = w.op("Transpose", y, perm=[0, 2, 1, 3])
        y = w.op("Reshape", y, w.ints([0, 0, y.shape[2] * y.shape[3]]))
    return w.settled(y)


def _heads(w: GraphWriter, batch: int, heads: int, rows: int, width: int) -> list[Value]:
    """Project tokens and part the heads, as exporters do."""
    x = w.new((batch, rows, heads * width))
    found = []
    for _ in range(3):
        size = heads * width
        y = w.op("MatMul", x, weight(w, w.floats((size, size), size**-0.5), 1))
        if w.maybe(0.6):
            y = w.op("Add", y, w.constant(w.floats((size,))))
        y = w.settled(y)
        parted = w.op("Reshape", y, w.ints([batch, -1, heads, width]))
        found.append(w.op("Transpose", parted, perm=[0, 2, 1, 3]))
    return found


def rotary(w: GraphWriter) -> object:
    """Turn halves of each row by tabled angles."""
    half = w.one_of([1, 2, 4, 8])
    rows = w.one_of([1, 3, 7])
    x = w.new((w.one_of([1, 2]), w.one_of([1, 2]), rows, 2 * half))
    left, right = w.ops("Split", 2, x, axis=3) if w.opset < 18 else w.ops(
        "Split", 2, x, axis=3, num_outputs=2
    )  # fmt: skip
    turned = w.op("Concat", w.op("Neg", right), left, axis=3)
    angles = w.random.normal(0, 2, (rows, half))
    angles = np.concatenate([angles, angles], axis=1)
    cos, sin = (w.constant(np.asarray(f(angles), w.float_type)) for f in (np.cos, np.sin))
    return w.settled(w.op("Add", w.op("Mul", x, cos), w.op("Mul", turned, sin)))


def gated(w: GraphWriter) -> object:
    """Squeeze and excite, or x · sigmoid(x)."""
    x = w.float_value(4, most=17)
    if w.maybe(0.4):
        return w.settled(w.op("Mul", x, w.op("Sigmoid", x)))
    channels, small = x.shape[1], w.one_of([1, 2, 4])
    y = w.settled(w.op("GlobalAveragePool", x))
    y = w.op("Conv", y, weight(w, w.floats((small, channels, 1, 1), channels**-0.5), 0))
    y = w.op("Conv", w.op("Relu", y), weight(w, w.floats((channels, small, 1, 1)), 0))
    return w.settled(w.op("Mul", x, w.settled(w.op("Sigmoid", y))))


def attention_operator(w: GraphWriter) -> object:
    """Attention of opset 23: heads stacked or side by side, shared keys, masks, causal, capped."""
    batch, shared, group = w.one_of([1, 2]), w.one_of([1, 2]), w.one_of([1, 1, 2, 3])
    rows, keys, width = w.one_of([1, 2, 5, 17]), w.one_of([1, 3, 16, 33]), w.one_of([1, 4, 8])
    heads, value_width = shared * group, w.one_of([width, width, 2 * width])
    named: dict[str, Any] = {}
    sizes = ((heads, rows, width), (shared, keys, width), (shared, keys, value_width))
    if w.maybe(0.5):
        q, k, v = (w.new((batch, length, count * size)) for count, length, size in sizes)
        named |= {"q_num_heads": heads, "kv_num_heads": shared}
    else:
        q, k, v = (w.new((batch, *size)) for size in sizes)
    if w.maybe(0.3):
        named["scale"] = w.one_of([0.2, 0.5])
    if w.maybe(0.2):
        named["softcap"] = w.one_of([1.0, 20.0])
    if w.maybe(0.3):
        named["is_causal"] = 1
    if w.maybe(0.5):
        shape = w.one_of([(rows, keys), (1, 1, rows, keys), (batch, heads, rows, keys)])
        blocked = w.random.random(shape) < 0.3
        blocked[..., 0] = False
        mask = ~blocked if w.maybe(0.5) else np.where(blocked, -60.0, 0.0).astype(w.float_type)
        return w.op("Attention", q, k, v, w.constant(mask) if w.maybe(0.5) else w.input(mask),
                    **named)  # fmt: skip
    return w.op("Attention", q, k, v, **named)


def rotary_operator(w: GraphWriter) -> object:
    """RotaryEmbedding of opset 23: by tables or angles, of pairs or halves, whole or in part."""
    batch, heads, rows, half = (
        w.one_of([1, 2]),
        w.one_of([1, 3]),
        w.one_of([1, 5]),
        w.one_of([1, 4]),
    )
    size = 2 * half + w.one_of([0, 0, 6])
    named: dict[str, Any] = {"interleaved": int(w.maybe(0.5))}
    if size > 2 * half:
        named["rotary_embedding_dim"] = 2 * half
    if w.maybe(0.5) or size > 2 * half:
        x = w.new((batch, rows, heads * size))
        named["num_heads"] = heads
    else:
        x = w.new((batch, heads, rows, size))
    is_table = w.maybe(0.5)
    angles = w.random.normal(0, 2, (9, half) if is_table else (batch, rows, half))
    given = [w.constant(np.asarray(f(angles), w.float_type)) for f in (np.cos, np.sin)]
    if is_table:
        given.append(w.input(w.random.integers(0, 9, (batch, rows))))
    return w.settled(w.op("RotaryEmbedding", x, *given, **named))


BUILDERS: Mapping[str, tuple[int, Build]] = {
    "Attention": (23, attention_operator), "RotaryEmbedding": (23, rotary_operator),
    "layer norm in nodes": (7, layer_norm), "layer norm look-alike": (7, look_alike),
    "GELU in nodes": (7, gelu), "attention": (7, attention), "rotary": (7, rotary),
    "gated": (7, gated),
}  # fmt: skip
