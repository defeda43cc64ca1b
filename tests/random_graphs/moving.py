"""Builders of operators that move, choose, join and repeat values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from random_graphs.elementwise import Build
from random_graphs.graph_writer import GraphWriter, IllegalError, Value


def any_value(w: GraphWriter, *ranks: int, most: int = 65) -> Value:
    """Return floats mostly, integers or booleans at times, of one of these ranks."""
    if w.maybe(0.85):
        return w.float_value(*ranks, most=most)
    kind = w.one_of([np.int64, np.int32, np.bool_, np.uint8])
    return w.take(
        lambda v: v.array.dtype == kind and v.rank in ranks,
        lambda: w.new(w.shape(w.one_of(ranks), most), kind),
    )


def signed(w: GraphWriter, axis: int, rank: int) -> int:
    """Return an axis, or the same counted from the end."""
    return axis - rank if w.maybe(0.3) else axis


def transpose(w: GraphWriter) -> object:
    x = any_value(w, 1, 2, 3, 4, 5)
    if w.maybe(0.1):
        return w.op("Transpose", x)
    return w.op("Transpose", x, perm=[int(p) for p in w.random.permutation(x.rank)])


def _factors(w: GraphWriter, count: int) -> list[int]:
    """Draw sizes whose product is `count`."""
    left, sizes = count, []
    while left > 1 and len(sizes) < 4:
        divisors = [d for d in range(1, left + 1) if left % d == 0]
        sizes.append(int(w.one_of(divisors)))
        left //= sizes[-1]
    return [*sizes, left] if left > 1 or not sizes else sizes


def reshape(w: GraphWriter) -> object:
    x = any_value(w, 0, 1, 2, 3, 4, 5)
    sizes = _factors(w, x.array.size)
    if w.maybe(0.2):
        sizes.insert(w.whole(0, len(sizes)), 1)
    given = list(sizes)
    if w.maybe(0.4):
        given[w.whole(0, len(given) - 1)] = -1
    same = [i for i in range(min(len(sizes), x.rank)) if sizes[i] == x.shape[i] and given[i] != -1]
    if same and w.maybe(0.3):
        given[w.one_of(same)] = 0
    return w.op("Reshape", x, w.ints(given))


def flatten(w: GraphWriter) -> object:
    x = any_value(w, 1, 2, 3, 4)
    if w.maybe(0.3):
        return w.op("Flatten", x)
    axis = w.whole(0, x.rank)
    return w.op("Flatten", x, axis=axis - x.rank if w.opset >= 11 and w.maybe(0.3) else axis)


def squeeze(w: GraphWriter) -> object:
    x = any_value(w, 1, 2, 3, 4, 5)
    ones = [axis for axis, size in enumerate(x.shape) if size == 1]
    if w.maybe(0.15):
        return w.op("Squeeze", x)
    if not ones:
        x = unsqueezed(w, x)
        ones = [axis for axis, size in enumerate(x.shape) if size == 1]
    chosen = sorted({int(w.one_of(ones)) for _ in range(2)})
    if w.opset < 13:
        return w.op("Squeeze", x, axes=chosen)
    return w.op("Squeeze", x, w.ints([signed(w, a, x.rank) for a in chosen]))


def unsqueezed(w: GraphWriter, x: Value) -> Value:
    rank = x.rank + w.one_of([1, 1, 2])
    axes = sorted({w.whole(0, rank - 1) for _ in range(rank - x.rank)})
    rank = x.rank + len(axes)
    axes = [min(a, rank - len(axes) + i) for i, a in enumerate(axes)]
    if w.opset < 13:
        return w.op("Unsqueeze", x, axes=axes)
    return w.op("Unsqueeze", x, w.ints([signed(w, a, rank) for a in axes]))


def unsqueeze(w: GraphWriter) -> object:
    return unsqueezed(w, any_value(w, 0, 1, 2, 3))


def identity(w: GraphWriter) -> object:
    return w.op("Identity", any_value(w, 0, 1, 2, 3, 4))


def slice_(w: GraphWriter) -> object:
    x = any_value(w, 1, 2, 3, 4)
    axes = sorted({w.whole(0, x.rank - 1) for _ in range(w.whole(1, 2))})
    starts, ends, steps = [], [], []
    for axis in axes:
        size = x.shape[axis]
        step = w.one_of([1, 1, 1, 2, 3, -1, -2]) if w.opset >= 10 else 1
        low = w.whole(0, size - 1)
        high = w.whole(low + 1, size)
        start, end = (low, high) if step > 0 else (high - 1, low - 1)
        if step > 0:
            start = start - size if w.maybe(0.3) else start
            end = w.one_of([end, size + 5, 2**62]) if end == size else end
            end = end - size if end < size and w.maybe(0.3) else end
        else:
            end = -(2**62) if end < 0 else end
            start = w.one_of([start, size + 3]) if start == size - 1 else start
        starts.append(start)
        ends.append(end)
        steps.append(step)
    if w.opset < 10:
        return w.op("Slice", x, starts=starts, ends=ends, axes=axes)
    named = [signed(w, a, x.rank) for a in axes]
    if axes == list(range(len(axes))) and set(steps) == {1} and w.maybe(0.4):
        return w.op("Slice", x, w.ints(starts), w.ints(ends))
    if set(steps) == {1} and w.maybe(0.5):
        return w.op("Slice", x, w.ints(starts), w.ints(ends), w.ints(named))
    return w.op("Slice", x, w.ints(starts), w.ints(ends), w.ints(named), w.ints(steps))


def split(w: GraphWriter) -> object:
    x = any_value(w, 1, 2, 3, 4)
    axis = int(np.argmax(x.shape)) if w.maybe(0.7) else w.whole(0, x.rank - 1)
    size = x.shape[axis]
    count = min(size, w.one_of([1, 2, 2, 3, 4]))
    named: dict[str, Any] = {"axis": signed(w, axis, x.rank) if w.opset >= 11 else axis}
    is_even = size % count == 0
    if w.maybe(0.4) and (is_even or w.opset >= 18):
        if w.opset >= 18:
            named["num_outputs"] = count
            if -(-size // count) * (count - 1) >= size:
                raise IllegalError("a last part with nothing in it")
        return w.ops("Split", count, x, **named)
    cuts = sorted(w.random.choice(np.arange(1, size), count - 1, replace=False).tolist())
    sizes = [int(s) for s in np.diff([0, *cuts, size])]
    if w.opset < 13:
        return w.ops("Split", count, x, split=sizes, **named)
    return w.ops("Split", count, x, w.ints(sizes), **named)


def concat(w: GraphWriter) -> object:
    x = any_value(w, 1, 2, 3, 4, most=33)
    axis = w.whole(0, x.rank - 1)
    parts = [x]
    for _ in range(w.one_of([0, 1, 1, 2, 3])):

        def fits(v: Value) -> bool:
            same = v.rank == x.rank and v.array.dtype == x.array.dtype
            others = (
                a == b for i, (a, b) in enumerate(zip(v.shape, x.shape, strict=False)) if i != axis
            )
            return same and all(others)

        shape = tuple(w.size(9) if i == axis else s for i, s in enumerate(x.shape))
        parts.append(w.take(fits, lambda shape=shape: w.new(shape, x.array.dtype), 0.2))
    order = [parts[i] for i in w.random.permutation(len(parts))]
    if w.maybe(0.15):
        order.append(w.constant(np.zeros_like(x.array)))
    return w.settled(
        w.op("Concat", *order, axis=signed(w, axis, x.rank) if w.opset >= 11 else axis)
    )


def expand(w: GraphWriter) -> object:
    x = any_value(w, 0, 1, 2, 3, most=17)
    shape = [w.size(7) if s == 1 else w.one_of([s, s, 1]) for s in x.shape]
    if w.maybe(0.5):
        shape = [w.size(4), *shape]
    if not shape:
        shape = [w.size(7)]
    return w.op("Expand", x, w.ints(shape))


def gather(w: GraphWriter) -> object:
    x = any_value(w, 1, 2, 3, 4)
    axis = w.whole(0, x.rank - 1)
    low = -x.shape[axis] if w.opset >= 11 else 0
    kind = w.one_of([np.int64, np.int64, np.int32])
    shape = w.one_of([(), (1,), (w.size(9),), (w.size(4), w.size(4))])
    index = w.integers(shape, kind, low, x.shape[axis] - 1)
    places = w.constant(index) if w.maybe(0.5) else w.input(index)
    if places.name in w.inputs:
        places.is_tame = False  # nobody else changes what it means
    return w.op("Gather", x, places, axis=signed(w, axis, x.rank))


def gather_elements(w: GraphWriter) -> object:
    x = any_value(w, 1, 2, 3)
    axis = w.whole(0, x.rank - 1)
    shape = tuple(w.size(9) if i == axis else w.whole(1, s) for i, s in enumerate(x.shape))
    kind = w.one_of([np.int64, np.int64, np.int32])
    index = w.integers(shape, kind, -x.shape[axis], x.shape[axis] - 1)
    places = w.constant(index) if w.maybe(0.4) else w.input(index)
    return w.op("GatherElements", x, places, axis=signed(w, axis, x.rank))


def gather_nd(w: GraphWriter) -> object:
    x = any_value(w, 1, 2, 3, 4)
    batch = w.whole(0, x.rank - 1) if w.opset >= 12 and w.maybe(0.4) else 0
    count = w.whole(1, x.rank - batch)
    shape = (*x.shape[:batch], *w.one_of([(), (w.size(9),), (w.size(4), w.size(4))]))
    columns = [
        w.integers(shape, np.int64, -size, size - 1) for size in x.shape[batch : batch + count]
    ]
    index = np.stack(columns, axis=-1)
    places = w.constant(index) if w.maybe(0.4) else w.input(index)
    return w.op("GatherND", x, places, **({"batch_dims": batch} if batch else {}))


def scatter_nd(w: GraphWriter) -> object:
    x = any_value(w, 1, 2, 3, 4)
    count = w.whole(1, x.rank)
    most = math.prod(x.shape[:count])
    shape = w.one_of([(), (w.whole(1, most),), (1, w.whole(1, most))])
    flat = w.random.permutation(most)[: math.prod(shape)].reshape(shape)  # no place twice
    index = np.stack(np.unravel_index(flat, x.shape[:count]), axis=-1)
    places = w.constant(index) if w.maybe(0.6) else w.input(index)
    if places.name in w.inputs:
        places.is_tame = False  # nobody else changes what it means
    updates = w.new((*shape, *x.shape[count:]), x.array.dtype)
    adds = w.opset >= 16 and x.array.dtype == np.float32 and w.maybe(0.3)
    return w.op("ScatterND", x, places, updates, **({"reduction": "add"} if adds else {}))


def scatter_elements(w: GraphWriter) -> object:
    x = any_value(w, 1, 2, 3, 4)
    axis = w.whole(0, x.rank - 1)
    # As many places along the axis as there are, none of them twice in a row.
    shape = [w.whole(1, size) for size in x.shape]
    order = np.argsort(w.random.random((*shape[:axis], x.shape[axis], *shape[axis + 1 :])), axis)
    index = np.take(order, np.arange(shape[axis]), axis)
    index = np.where(w.random.random(shape) < 0.2, index - x.shape[axis], index)
    places = w.constant(index) if w.maybe(0.6) else w.input(index)
    if places.name in w.inputs:
        places.is_tame = False  # nobody else changes what it means
    updates = w.new(tuple(shape), x.array.dtype)
    named: dict[str, Any] = {"axis": signed(w, axis, x.rank)} if axis or w.maybe(0.5) else {}
    if w.opset >= 16 and x.array.dtype == np.float32 and w.maybe(0.3):
        named["reduction"] = "add"
    return w.op("ScatterElements", x, places, updates, **named)


def tile(w: GraphWriter) -> object:
    x = any_value(w, 1, 2, 3, 4, most=17)
    return w.op("Tile", x, w.ints([w.one_of([1, 1, 2, 3]) for _ in x.shape]))


def trilu(w: GraphWriter) -> object:
    x = any_value(w, 2, 3, 4)
    named = {"upper": int(w.maybe(0.5))} if w.maybe(0.8) else {}
    if w.maybe(0.4):
        return w.op("Trilu", x, **named)
    return w.op("Trilu", x, w.constant(np.array(w.whole(-4, 4), np.int64)), **named)


def counted(w: GraphWriter) -> object:
    """Range up to a size that is taken from a shape, as exporters count positions."""
    x = any_value(w, 1, 2, 3, 4)
    axis = w.constant(np.array(w.whole(0, x.rank - 1), np.int64))
    size = w.op("Gather", w.op("Shape", x), axis, axis=0)
    start, step = (w.constant(np.array(n, np.int64)) for n in (-w.whole(0, 3), w.whole(1, 3)))
    return w.op("Range", start, size, step)


def cumulative(op_type: str) -> Build:
    def build(w: GraphWriter) -> object:
        x = w.float_value(1, 2, 3, 4)
        if op_type == "CumProd":
            x = w.op("Sigmoid", x)
        axis = w.constant(np.array(signed(w, w.whole(0, x.rank - 1), x.rank), np.int64))
        named = {k: int(w.maybe(0.5)) for k in ("reverse", "exclusive") if w.maybe(0.6)}
        return w.op(op_type, x, axis, **named)

    return build


def extreme_place(op_type: str) -> Build:
    def build(w: GraphWriter) -> object:
        x = w.float_value(1, 2, 3, 4)
        if w.maybe(0.5) and w.opset >= 11:
            x = w.op("Floor", x)  # equal values decide
        named: dict[str, Any] = {}
        if w.maybe(0.8):
            axis = w.whole(0, x.rank - 1)
            named["axis"] = signed(w, axis, x.rank) if w.opset >= 11 else axis
        if w.maybe(0.7):
            named["keepdims"] = int(w.maybe(0.5))
        if w.opset >= 12 and w.maybe(0.5):
            named["select_last_index"] = int(w.maybe(0.6))
        return w.op(op_type, x, **named)

    return build


def top(w: GraphWriter) -> object:
    """TopK: numbers that are no numbers have no order."""
    x = w.take(
        lambda v: v.rank in (1, 2, 3, 4) and v.array.dtype == w.float_type
        and bool(np.isfinite(v.array.astype(np.float32)).all()),
        lambda: w.new((w.size(9), w.size(40))),
    )  # fmt: skip
    if w.maybe(0.5):
        x = w.op("Floor", x)  # equal values decide
    named: dict[str, Any] = {}
    axis = x.rank - 1
    if w.maybe(0.6):
        axis = w.whole(0, x.rank - 1)
        named["axis"] = signed(w, axis, x.rank)
    if w.opset >= 11 and w.maybe(0.6):
        named["largest"] = int(w.maybe(0.4))
    count = w.ints([w.whole(1, x.shape[axis])])
    return w.ops("TopK", 2, x, count, **named)


def depth_to_space(w: GraphWriter) -> object:
    block = w.one_of([1, 2, 2, 3])
    shape = (w.one_of([1, 2]), w.one_of([1, 2, 3, 5]) * block * block, w.size(9), w.size(9))
    x = w.take(
        lambda v: v.rank == 4 and v.array.dtype == w.float_type and v.shape[1] % block**2 == 0,
        lambda: w.new(shape),
    )
    named = {"mode": w.one_of(["DCR", "CRD"])} if w.opset >= 11 and w.maybe(0.7) else {}
    return w.op("DepthToSpace", x, blocksize=block, **named)


def space_to_depth(w: GraphWriter) -> object:
    block = w.one_of([1, 2, 2, 3])
    shape = (w.one_of([1, 2]), w.size(9), w.one_of([1, 2, 3]) * block, w.one_of([1, 2, 5]) * block)
    x = w.take(
        lambda v: v.rank == 4 and v.array.dtype == w.float_type
        and v.shape[2] % block == 0 and v.shape[3] % block == 0,
        lambda: w.new(shape),
    )  # fmt: skip
    return w.op("SpaceToDepth", x, blocksize=block)


def dropout(w: GraphWriter) -> object:
    x = w.float_value()
    if w.opset < 12:
        return w.op("Dropout", x, ratio=0.3)
    if w.maybe(0.5):
        return w.op("Dropout", x)
    rest = [w.constant(np.array(False))] if w.maybe(0.5) else []
    return w.op("Dropout", x, w.constant(np.array(0.3, w.float_type)), *rest)


def pad(w: GraphWriter) -> object:
    x = w.float_value(1, 2, 3, 4)
    modes = ["constant", "constant", "reflect", "edge", *(["wrap"] if w.opset >= 19 else [])]
    mode = w.one_of(modes)
    amounts = []
    for size in x.shape:
        most = {"reflect": size - 1, "wrap": size}.get(mode, 4)
        low = -(size // 3) if mode in ("constant", "edge") and w.maybe(0.3) else 0
        both = [w.whole(low, max(low, min(most, 4))) if w.maybe(0.6) else 0 for _ in range(2)]
        amounts.append(both if size + min(both[0], 0) + min(both[1], 0) > 0 else [0, 0])
    value = w.one_of([0.0, 1.5, -3.0])
    if w.opset < 11:
        pads = [a for a, _ in amounts] + [b for _, b in amounts]
        return w.op("Pad", x, mode=mode, pads=pads, value=value)
    axes = list(range(x.rank))
    if w.opset >= 18 and w.maybe(0.4):
        axes = [int(a) for a in w.random.permutation(x.rank)[: w.whole(1, x.rank)]]
        amounts = [amounts[a] for a in axes]
    pads = w.ints([a for a, _ in amounts] + [b for _, b in amounts])
    fill = w.number(value) if mode == "constant" and w.maybe(0.7) else None
    rest: list[Value | None] = [fill]
    if len(axes) != x.rank or axes != sorted(axes) or (w.opset >= 18 and w.maybe(0.2)):
        rest.append(w.ints([signed(w, a, x.rank) for a in axes]))
    while rest and rest[-1] is None:
        rest.pop()
    return w.settled(w.op("Pad", x, pads, *rest, mode=mode))


BUILDERS: Mapping[str, tuple[int, Build]] = {
    "Transpose": (7, transpose), "Reshape": (7, reshape), "Flatten": (7, flatten),
    "Squeeze": (7, squeeze), "Unsqueeze": (7, unsqueeze), "Identity": (7, identity),
    "Slice": (7, slice_), "Split": (7, split), "Concat": (7, concat), "Expand": (8, expand),
    "Gather": (7, gather), "GatherElements": (11, gather_elements),
    "GatherND": (11, gather_nd), "ScatterND": (11, scatter_nd),
    "ScatterElements": (11, scatter_elements), "Tile": (7, tile),
    "Trilu": (14, trilu), "CumSum": (11, cumulative("CumSum")),
    "CumProd": (26, cumulative("CumProd")), "ArgMax": (7, extreme_place("ArgMax")),
    "ArgMin": (7, extreme_place("ArgMin")), "TopK": (10, top), "DepthToSpace": (7, depth_to_space),
    "SpaceToDepth": (7, space_to_depth), "Range": (11, counted), "Dropout": (7, dropout),
    "Pad": (7, pad),
}  # fmt: skip
