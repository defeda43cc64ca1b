"""Builders of pooling, reductions, resizing and normalizations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from random_graphs.elementwise import Build
from random_graphs.graph_writer import GraphWriter, IllegalError, Value
from random_graphs.moving import signed
from random_graphs.products import image, windows


def pool(op_type: str) -> Build:
    def build(w: GraphWriter) -> object:
        x = image(w, 3, 4, 4)
        named = windows(w, x.shape[2:])
        since = 10 if op_type == "MaxPool" else 19
        if w.opset < since or w.maybe(0.5):
            named.pop("dilations", None)
        if w.opset >= 10 and w.maybe(0.4):
            named["ceil_mode"] = 1
        kernel = named["kernel_shape"]
        if op_type == "AveragePool" and w.maybe(0.5):
            named["count_include_pad"] = int(w.maybe(0.7))
        pads = named.get("pads", [])
        named["pads"] = [min(p, kernel[i % len(kernel)] - 1) for i, p in enumerate(pads)]
        if not pads:
            named.pop("pads")
        reach = [
            (k - 1) * d + 1
            for k, d in zip(kernel, named.get("dilations", [1] * len(kernel)), strict=True)
        ]
        pads, rank = named.get("pads", [0] * 2 * len(kernel)), len(kernel)
        if any(s + pads[i] + pads[rank + i] < reach[i] for i, s in enumerate(x.shape[2:])):
            raise IllegalError("a window larger than the image")
        y = w.op(op_type, x, **named)
        if not np.isfinite(y.array.astype(np.float64)).all() or y.array.min() < -6e4:
            raise IllegalError("a window in the padding alone, of which the standard says nothing")
        return w.settled(y)

    return build


def whole_pool(op_type: str) -> Build:
    return lambda w: w.settled(w.op(op_type, image(w, 3, 4)))


def reduce(op_type: str) -> Build:
    def build(w: GraphWriter) -> object:
        x = w.float_value(0, 1, 2, 3, 4, 5)
        if op_type in ("ReduceLogSum", "ReduceProd"):
            x = w.op("Add", w.op("Sigmoid", x), w.number(0.5))
        named: dict[str, Any] = {"keepdims": int(w.maybe(0.5))} if w.maybe(0.7) else {}
        since = 13 if op_type == "ReduceSum" else 18
        if w.maybe(0.15) or not x.rank:
            return w.settled(w.op(op_type, x, **named))
        axes = sorted({w.whole(0, x.rank - 1) for _ in range(w.whole(1, x.rank))})
        axes = [signed(w, a, x.rank) if w.opset >= 11 else a for a in axes]
        if w.opset < since:
            return w.settled(w.op(op_type, x, axes=axes, **named))
        if w.maybe(0.1):
            named["noop_with_empty_axes"] = int(w.maybe(0.5))
            axes = [] if w.maybe(0.5) else axes
        return w.settled(w.op(op_type, x, w.ints(axes), **named))

    return build


def softmax(op_type: str) -> Build:
    def build(w: GraphWriter) -> object:
        x = w.float_value(1, 2, 3, 4)
        axis = w.whole(0, x.rank - 1) if w.maybe(0.5) else x.rank - 1
        if w.maybe(0.2) and (w.opset >= 13 or x.rank > 1):
            return w.settled(w.op(op_type, x))
        return w.settled(w.op(op_type, x, axis=signed(w, axis, x.rank) if w.opset >= 11 else axis))

    return build


_COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


def resize(w: GraphWriter) -> object:
    x = image(w, 4, 4, 4, 3)
    mode = w.one_of(["nearest", "nearest", "linear", "linear", "cubic"])
    scales = [1.0, 1.0, *(w.one_of([1.0, 2.0, 2.0, 3.0, 0.5, 1.5, 0.7]) for _ in x.shape[2:])]
    if any(int(s * f) < 1 for s, f in zip(x.shape, scales, strict=True)):
        raise IllegalError("nothing is left")
    table = w.constant(np.array(scales, np.float32))
    if w.opset < 10:
        if mode == "cubic" or min(scales) < 1:
            raise IllegalError("Upsample knows two modes")
        if w.opset < 9:
            return w.settled(w.op("Upsample", x, mode=mode, scales=scales))
        return w.settled(w.op("Upsample", x, table, mode=mode))
    if w.opset == 10:
        if mode == "cubic":
            raise IllegalError("Resize-10 knows two modes")
        return w.settled(w.op("Resize", x, table, mode=mode))
    named: dict[str, Any] = {"mode": mode}
    if w.maybe(0.85):
        named["coordinate_transformation_mode"] = w.one_of(_COORDINATES)
    if mode == "nearest" and w.maybe(0.7):
        named["nearest_mode"] = w.one_of(
            ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
        )
    if mode == "cubic" and w.maybe(0.5):
        named["cubic_coeff_a"] = w.one_of([-0.5, -0.75])
    if mode in ("cubic", "linear") and w.maybe(0.2):
        named["exclude_outside"] = 1 if mode == "cubic" else 0
    if w.opset >= 18 and mode != "nearest" and w.maybe(0.15):
        named["antialias"] = 1
    # Version 11 wants all of its inputs.
    nothing = w.constant(np.zeros(0, np.float32)) if w.opset < 13 else None
    if w.maybe(0.6):
        return w.settled(w.op("Resize", x, nothing, table, **named))
    sizes = w.ints(
        [*x.shape[:2], *(max(1, int(s * w.one_of([1, 2, 0.5, 1.4]))) for s in x.shape[2:])]
    )
    return w.settled(w.op("Resize", x, nothing, nothing, sizes, **named))


def _each(w: GraphWriter, channels: int, low: float = -1.0) -> Value:
    return w.constant(np.asarray(low + 2.0 * w.random.random(channels), w.float_type))


def batch_norm(w: GraphWriter) -> object:
    x = w.float_value(2, 3, 4)
    c = x.shape[1]
    rest = [_each(w, c), _each(w, c), _each(w, c), _each(w, c, 0.1)]
    named = {"epsilon": w.one_of([1e-5, 1e-3])} if w.maybe(0.5) else {}
    return w.settled(w.op("BatchNormalization", x, *rest, **named))


def instance_norm(w: GraphWriter) -> object:
    x = image(w, 3, 4)
    c = x.shape[1]
    return w.settled(w.op("InstanceNormalization", x, _each(w, c), _each(w, c)))


def group_norm(w: GraphWriter) -> object:
    x = image(w, 3, 4)
    c = x.shape[1]
    groups = int(w.one_of([d for d in range(1, c + 1) if c % d == 0]))
    if groups == c and x.array[0, 0].size == 1:
        raise IllegalError("one number has no deviation")
    named = {"num_groups": groups, **({"epsilon": 1e-3} if w.maybe(0.3) else {})}
    return w.settled(w.op("GroupNormalization", x, _each(w, c), _each(w, c), **named))


def layer_norm(op_type: str) -> Build:
    def build(w: GraphWriter) -> object:
        x = w.float_value(1, 2, 3, 4)
        axis = w.whole(0, x.rank - 1) if w.maybe(0.4) else x.rank - 1
        inner = x.shape[axis:]
        rest = [w.constant(w.floats(inner))]
        if op_type == "LayerNormalization" and w.maybe(0.7):
            rest.append(w.constant(w.floats(inner)))
        named = {"epsilon": w.one_of([1e-5, 1e-6, 1e-2])} if w.maybe(0.5) else {}
        if axis != x.rank - 1 or w.maybe(0.4):
            named["axis"] = signed(w, axis, x.rank)
        return w.settled(w.op(op_type, x, *rest, **named))

    return build


def local_response(w: GraphWriter) -> object:
    x = image(w, 4)
    named = {k: v for k, v in (("alpha", 0.3), ("beta", 0.5), ("bias", 2.0)) if w.maybe(0.5)}
    return w.settled(w.op("LRN", x, size=w.one_of([1, 3, 5]), **named))


def lp_norm(w: GraphWriter) -> object:
    x = w.float_value(1, 2, 3, 4)
    named: dict[str, Any] = {"p": w.one_of([1, 2])} if w.maybe(0.6) else {}
    if w.maybe(0.7):
        named["axis"] = signed(w, w.whole(0, x.rank - 1), x.rank)
    return w.settled(w.op("LpNormalization", x, **named))


BUILDERS: Mapping[str, tuple[int, Build]] = {
    "MaxPool": (8, pool("MaxPool")), "AveragePool": (7, pool("AveragePool")),
    **{name: (7, whole_pool(name)) for name in ("GlobalAveragePool", "GlobalMaxPool")},
    **{
        name: (7, reduce(name))
        for name in (
            "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare",
            "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp",
        )
    },
    "Softmax": (7, softmax("Softmax")), "LogSoftmax": (7, softmax("LogSoftmax")),
    "Resize": (7, resize), "BatchNormalization": (9, batch_norm),
    "InstanceNormalization": (7, instance_norm), "GroupNormalization": (21, group_norm),
    "LayerNormalization": (17, layer_norm("LayerNormalization")),
    "RMSNormalization": (23, layer_norm("RMSNormalization")), "LRN": (7, local_response),
    "LpNormalization": (7, lp_norm),
}  # fmt: skip
