"""Builders of convolutions and matrix products, their weights quantized in quantized graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from random_graphs.elementwise import Build
from random_graphs.graph_writer import GraphWriter, IllegalError, Value
from random_graphs.quantized import weight


def _bias(w: GraphWriter, channels: int) -> list[Value]:
    return [w.constant(w.floats((channels,)))] if w.maybe(0.5) else []


def windows(w: GraphWriter, size: tuple[int, ...], most: int = 4) -> dict[str, Any]:
    """Draw kernel, strides, dilations and pads of a window over images that it fits into."""
    rank = len(size)
    kernel = [w.one_of([1, 2, 3, 3, most]) for _ in range(rank)]
    dilations = [w.one_of([1, 1, 1, 2, 3]) for _ in range(rank)]
    if w.maybe(0.4):
        kernel, dilations = [kernel[0]] * rank, [dilations[0]] * rank
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    named: dict[str, Any] = {"kernel_shape": kernel}
    if dilations != [1] * rank or w.maybe(0.3):
        named["dilations"] = dilations
    strides = [w.one_of([1, 1, 2, 3]) for _ in range(rank)]
    if strides != [1] * rank or w.maybe(0.3):
        named["strides"] = strides
    if w.maybe(0.2):
        named["auto_pad"] = w.one_of(["SAME_UPPER", "SAME_LOWER", "VALID"])
        if named["auto_pad"] != "VALID":
            return named
        pads = [0] * (2 * rank)
    elif w.maybe(0.35):
        half = [(r - 1) // 2 for r in reach]
        pads = [*half, *half]
    else:
        pads = [w.whole(0, max(0, min(3, (r - 1)))) for r in (*reach, *reach)]
    if "auto_pad" not in named and (any(pads) or w.maybe(0.3)):
        named["pads"] = pads
    if any(s + pads[i] + pads[rank + i] < reach[i] for i, s in enumerate(size)):
        raise IllegalError("a window larger than the image")
    return named


def image(w: GraphWriter, *ranks: int) -> Value:
    """Return images: batch, channels, then one or two dimensions."""
    rank = w.one_of(ranks)
    shape = (w.one_of([1, 1, 2]), w.one_of([1, 2, 3, 4, 8, 16, 17, 31]), *w.shape(rank - 2, 17))
    return w.take(
        lambda v: v.rank in ranks and v.array.dtype == w.float_type and v.shape[1] <= 96,
        lambda: w.settled(w.new(shape)),
    )


def wide_windows(w: GraphWriter, size: tuple[int, ...]) -> dict[str, Any]:
    """Draw a window that reaches far over the edges: many of its taps lie in the border."""
    rank = len(size)
    kernel = [w.one_of([3, 3, 5, 7, 9]) for _ in range(rank)]
    dilations = [w.one_of([1, 1, 4, 6, 12]) if k < 7 else 1 for k in kernel]
    strides = [w.one_of([1, 1, 1, 2]) for _ in range(rank)]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    before = [w.one_of([r // 2, r // 2, r - 1]) for r in reach]
    pads = [*before, *(max(r // 2, r - s - b) for r, s, b in zip(reach, size, before, strict=True))]
    return {"kernel_shape": kernel, "dilations": dilations, "strides": strides, "pads": pads}


def conv(w: GraphWriter) -> object:
    x = image(w, 3, 4, 4, 4)
    channels = x.shape[1]
    named = (wide_windows if w.maybe(0.25) else windows)(w, x.shape[2:])
    form = w.random.random()
    divisors = [d for d in range(1, channels + 1) if channels % d == 0]
    group, outputs = 1, w.size(33)
    if form < 0.2:
        group = channels
        outputs = channels * w.one_of([1, 1, 1, 2])
    elif form < 0.4:
        group = int(w.one_of(divisors))
        outputs = group * w.one_of([1, 2, 3, 8])
    if group > 1 or w.maybe(0.2):
        named["group"] = group
    shape = (outputs, channels // group, *named["kernel_shape"])
    if w.maybe(0.2):
        named.pop("kernel_shape")
    scale = 1.0 / np.sqrt(np.prod(shape[1:]))
    y = w.op("Conv", x, weight(w, w.floats(shape, scale), 0), *_bias(w, outputs), **named)
    return w.settled(ending(w, y))


def ending(w: GraphWriter, y: Value) -> Value:
    """Return what networks put after a product: an activation, a batch norm, a residual."""
    kind = w.random.random()
    if kind < 0.25:
        return w.op("Relu", y)
    if kind < 0.32:
        return w.op("Mul", y, w.op("Sigmoid", y))
    if kind < 0.38 and w.opset >= 11:
        return w.op("Clip", y, w.number(0.0), w.number(6.0))
    if kind < 0.48:
        alike = [v for v in w.values if v.shape == y.shape and v is not y and v.is_tame
                 and v.array.dtype == y.array.dtype]  # fmt: skip
        return w.op("Add", y, w.one_of(alike)) if alike else y
    if kind < 0.53 and y.rank > 2:
        shape = (y.shape[1], *[1] * (y.rank - 2))
        return w.op("Mul", y, w.constant(w.floats(shape)))
    if kind < 0.57:
        return w.op("LeakyRelu", y, alpha=0.1)
    return y


def large(w: GraphWriter) -> object:
    """A product large enough for another algorithm: Winograd's, Strassen's, more tiles."""
    if w.maybe(0.6):
        channels, size = w.one_of([16, 32, 64]), w.one_of([14, 17, 28])
        step = w.one_of([1, 1, 2, 3])
        x = w.new((1, channels, size, w.one_of([size, size + 1])))
        outputs = w.one_of([16, 32, 48])
        values = w.floats((outputs, channels, 3, 3), 1 / np.sqrt(9 * channels))
        pads = [step * pad for pad in w.one_of([[1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0]])]
        named = {"pads": pads, "dilations": [step, step]}
        y = w.op("Conv", x, weight(w, values, 0), *_bias(w, outputs), **named)
    else:
        rows, inner, columns = (w.one_of([64, 65, 128, 130, 200]) for _ in range(3))
        x = w.new((rows, inner))
        y = w.op("MatMul", x, weight(w, w.floats((inner, columns), inner**-0.5), 1))
    return w.settled(ending(w, y))


def conv_transpose(w: GraphWriter) -> object:
    x = image(w, 3, 4, 4, 4)
    rank, channels = x.rank - 2, x.shape[1]
    kernel = [w.one_of([1, 2, 3, 4]) for _ in range(rank)]
    strides = [w.one_of([1, 2, 2, 3]) for _ in range(rank)]
    named: dict[str, Any] = {"kernel_shape": kernel, "strides": strides}
    if w.maybe(0.15):
        named["dilations"] = [w.one_of([1, 2]) for _ in range(rank)]
    group = 1
    if w.maybe(0.15):
        group = named["group"] = w.one_of([d for d in range(1, channels + 1) if channels % d == 0])
    kind = w.random.random()
    if kind < 0.5:
        named["pads"] = [w.whole(0, k - 1) for k in (*kernel, *kernel)]
    elif kind < 0.6:
        named["auto_pad"] = w.one_of(["SAME_UPPER", "SAME_LOWER", "VALID"])
        # Of less than a stride, ONNX Runtime gives another size than the standard's formula.
        named["kernel_shape"] = kernel = [max(k, s) for k, s in zip(kernel, strides, strict=True)]
    elif kind < 0.7:
        named["output_shape"] = [s * t for s, t in zip(x.shape[2:], strides, strict=True)]
    if "output_shape" not in named and w.maybe(0.3):
        named["output_padding"] = [w.whole(0, s - 1) for s in strides]
    per_group = w.one_of([1, 2, 3, 8, 17])
    scale = 1.0 / np.sqrt(channels / group)
    shape = (channels, per_group, *kernel)
    y = w.op(
        "ConvTranspose", x, weight(w, w.floats(shape, scale), 1),
        *_bias(w, per_group * group), **named,
    )  # fmt: skip
    return w.settled(ending(w, y))


def gemm(w: GraphWriter) -> object:
    x = w.float_value(2)
    trans_a, trans_b = w.maybe(0.2), w.maybe(0.5)
    rows, inner = x.shape[::-1] if trans_a else x.shape
    outputs = w.size()
    b = w.floats((outputs, inner) if trans_b else (inner, outputs), 1 / np.sqrt(inner))
    right = weight(w, b, 0 if trans_b else 1) if w.maybe(0.8) else w.input(b)
    rest = []
    if w.opset < 11 or w.maybe(0.7):
        forms = [(outputs,), (1, outputs), (rows, outputs), (rows, 1), (1,), (1, 1)]
        c = w.floats(w.one_of([*forms[:1], *forms, *([()] if w.opset >= 11 else [])]))
        rest = [w.constant(c) if w.maybe(0.8) else w.input(c)]
    named: dict[str, Any] = {}
    named |= {"transA": 1} if trans_a else {}
    named |= {"transB": 1} if trans_b else {}
    named |= {"alpha": w.one_of([0.5, 2.0])} if w.maybe(0.2) else {}
    named |= {"beta": w.one_of([0.5, 0.0, -1.0])} if w.maybe(0.2) else {}
    return w.settled(ending(w, w.op("Gemm", x, right, *rest, **named)))


def matmul(w: GraphWriter) -> object:
    x = w.float_value(1, 2, 3, 3, 4)
    inner = x.shape[-1]
    kind = w.random.random()
    scale = 1 / np.sqrt(inner)
    if kind < 0.5:
        right = weight(w, w.floats((inner, w.size()), scale), 1)
    elif kind < 0.6:
        right = w.constant(w.floats((inner,), scale))
    else:
        stack = tuple(s if w.maybe(0.7) else 1 for s in x.shape[:-2])[
            w.whole(0, max(0, x.rank - 2)) :
        ]
        shape = (*stack, inner, w.size(33))

        def fits(v: Value) -> bool:
            return v.shape == shape

        right = w.take(fits, lambda: w.new(shape), 0.3)
    if w.maybe(0.15) and x.rank >= 2:
        left = w.new((*x.shape[:-2], w.size(17), x.shape[-2]))
        return w.settled(w.op("MatMul", left, x))
    y = w.op("MatMul", x, right)
    if w.maybe(0.5) and y.rank:
        y = w.op("Add", y, w.constant(w.floats(y.shape[-1:])))
    return w.settled(ending(w, y))


BUILDERS: Mapping[str, tuple[int, Build]] = {
    "Conv": (7, conv), "ConvTranspose": (7, conv_transpose), "Gemm": (7, gemm),
    "MatMul": (7, matmul), "large product": (7, large),
}  # fmt: skip
