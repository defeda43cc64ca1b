"""Operators that lay data out anew: shapes, slices, joins, pads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.ir.literal.call import Call, Table, Typed, moves

Array = NDArray[Any]


def _identity(call: Call) -> Any:
    return call.inputs[0]


def _dropout(call: Call) -> tuple[Array, Array]:
    if call.version >= 12:
        trains = call.has(2) and bool(call.scalar(2)) and (not call.has(1) or call.scalar(1) != 0)
    else:
        trains = call.version < 7 and not call.integer("is_test", 0)
    if trains:
        raise call.unsupported("Dropout in training mode gives random numbers")
    # Before version 10 the mask has the type of the data.
    kind = np.bool_ if call.version >= 10 else call[0].dtype
    return call[0], np.ones(call[0].shape, kind)


def _reshape(call: Call) -> Array:
    x = call[0]
    wanted = call.ints(1) if call.version >= 5 else call.integers("shape") or []
    allows_zero = call.version >= 14 and call.integer("allowzero", 0)
    sizes = []
    for at, size in enumerate(wanted):
        if size == 0 and not allows_zero:
            if at >= x.ndim:
                raise call.error(f"dimension {at} of the new shape is 0, and the input has none")
            size = x.shape[at]
        sizes.append(size)
    if sizes.count(-1) > 1:
        raise call.error("more than one size is -1")
    if -1 in sizes:
        rest = -math.prod(sizes)
        if rest == 0 or x.size % rest:
            raise call.error(f"{x.size} elements cannot have the shape {sizes}")
        sizes[sizes.index(-1)] = x.size // rest
    if math.prod(sizes) != x.size:
        raise call.error(f"{x.size} elements cannot have the shape {sizes}")
    return x.reshape(sizes)


def _flatten(call: Call) -> Array:
    x, axis = call[0], call.integer("axis", 1)
    at = x.ndim if axis == x.ndim else call.axis(axis, x.ndim)
    return x.reshape(math.prod(x.shape[:at]), math.prod(x.shape[at:]))


def _axes_given(call: Call) -> list[int] | None:
    if call.version < 13:
        return call.integers("axes")
    return call.ints(1) if call.has(1) else None


def _squeeze(call: Call) -> Array:
    x, axes = call[0], _axes_given(call)
    if axes is None:
        return x.reshape([size for size in x.shape if size != 1])
    return np.squeeze(x, tuple(call.axis(axis, x.ndim) for axis in axes))


def _unsqueeze(call: Call) -> Array:
    axes = _axes_given(call)
    if axes is None:
        raise call.error("its axes are missing")
    rank = call[0].ndim + len(axes)
    places = [call.axis(axis, rank) for axis in axes]
    if len(set(places)) != len(places):
        raise call.error(f"its axes {axes} name one twice")
    return np.expand_dims(call[0], tuple(places))


def _transpose(call: Call) -> Array:
    x, order = call[0], call.integers("perm")
    if order is None:
        return x.transpose()
    if sorted(order) != list(range(x.ndim)):
        raise call.error(f"`perm` {order} is no order of {x.ndim} dimensions")
    return x.transpose(order)


def _shape(call: Call) -> Array:
    shape = call[0].shape
    if call.version < 15:
        return np.array(shape, np.int64)
    start, end = call.integer("start", 0), call.integer("end", len(shape))
    return np.array(shape[slice(start, end)], np.int64)


def _size(call: Call) -> Array:
    return np.array(call[0].size, np.int64)


def _concat(call: Call) -> Array:
    parts = [call[index] for index in range(len(call.inputs))]
    axis = call.axis(call.integer("axis", 1 if call.version < 4 else None), parts[0].ndim)
    return np.concatenate(parts, axis)


def _split(call: Call) -> tuple[Array, ...]:
    x, count = call[0], len(call.node.outputs)
    axis = call.axis(call.integer("axis", 0), x.ndim)
    if 2 <= call.version < 13:
        sizes = call.integers("split")
    else:
        sizes = call.ints(1) if call.has(1) else None
    length = x.shape[axis]
    if sizes is None:
        count = call.integer("num_outputs", count)
        each = -(-length // count)
        sizes = [max(0, min(each, length - each * part)) for part in range(count)]
        if call.version < 18 and length % count:
            raise call.error(f"{length} cannot be split into {count} equal parts")
    if sum(sizes) != length or min(sizes, default=0) < 0:
        raise call.error(f"the parts {sizes} do not sum up to {length}")
    ends = np.cumsum(sizes)[:-1].tolist()
    return tuple(np.split(x, ends, axis))


def _slice(call: Call) -> Array:
    x = call[0]
    if call.version < 10:
        starts, ends = call.integers("starts") or [], call.integers("ends") or []
        axes, steps = call.integers("axes"), None
    else:
        starts, ends = call.ints(1), call.ints(2)
        axes = call.ints(3) if call.has(3) else None
        steps = call.ints(4) if call.has(4) else None
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise call.error("its starts, ends, axes and steps are not equally many")
    places = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        at = call.axis(axis, x.ndim)
        places[at] = _range_of(call, start, end, step, x.shape[at])
    return x[tuple(places)]


def _range_of(call: Call, start: int, end: int, step: int, length: int) -> slice:
    """Return the range clamped as the standard says: backwards the end may lie before 0."""
    if step == 0:
        raise call.error("a step is 0")
    start = start + length if start < 0 else start
    end = end + length if end < 0 else end
    if step > 0:
        return slice(min(max(start, 0), length), min(max(end, 0), length), step)
    start, end = min(max(start, 0), length - 1), min(max(end, -1), length - 1)
    if length == 0 or end >= start:
        return slice(0, 0)
    return slice(start, None if end < 0 else end, step)


def _expand(call: Call) -> Array:
    x, wanted = call[0], call.ints(1)
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(wanted)))


def _tile(call: Call) -> Array:
    if call.version < 6:
        repeats = [1] * call[0].ndim
        repeats[int(call.scalar(2))] = int(call.scalar(1))
    else:
        repeats = call.ints(1)
    if len(repeats) != call[0].ndim or min(repeats, default=0) < 0:
        raise call.error(f"its repeats {repeats} do not fit {call[0].ndim} dimensions")
    return np.tile(call[0], repeats)


def _pad(call: Call) -> Array:
    x, mode = call[0], call.text("mode", "constant")
    fill: Any = 0
    if call.version < 11:
        pads = call.integers("pads") or call.integers("paddings") or []
        fill = call.number("value", 0.0)
    else:
        pads = call.ints(1)
        if call.has(2) and call[2].size:
            fill = call.scalar(2)
        elif x.dtype == object:
            fill = ""
    axes = call.ints(3) if call.has(3) else list(range(x.ndim))
    if len(pads) != 2 * len(axes):
        raise call.error(f"it has {len(pads)} pads for {len(axes)} axes")
    amounts = [(0, 0)] * x.ndim
    for at, axis in enumerate(axes):
        amounts[call.axis(axis, x.ndim)] = (pads[at], pads[at + len(axes)])
    # Pads below zero cut. They are cut first: what is repeated lies in what is left.
    cuts = tuple(
        slice(max(0, -before), size - max(0, -after))
        for size, (before, after) in zip(x.shape, amounts, strict=True)
    )
    x = x[cuts]
    grows = [(max(0, before), max(0, after)) for before, after in amounts]
    if mode == "constant":
        whole = np.full(
            [n + b + a for n, (b, a) in zip(x.shape, grows, strict=True)], fill, x.dtype
        )
        inner = tuple(slice(b, b + n) for n, (b, _) in zip(x.shape, grows, strict=True))
        whole[inner] = x
        return whole
    result = x
    for axis, (before, after) in enumerate(grows):
        if before or after:
            result = np.take(result, _repeated(call, x.shape[axis], before, after, mode), axis)
    return result


def _repeated(call: Call, length: int, before: int, after: int, mode: str) -> Array:
    """Return which rows stand where, for the modes that repeat them."""
    if length == 0:
        raise call.error(f"nothing can be repeated by the mode `{mode}`")
    places = np.arange(-before, length + after)
    if mode == "edge":
        return np.clip(places, 0, length - 1)
    if mode == "wrap":
        return places % length
    if mode != "reflect":
        raise call.error(f"the mode `{mode}` is none of Pad")
    if length == 1:
        return np.zeros_like(places)
    turn = 2 * (length - 1)
    folded = places % turn
    return np.where(folded < length, folded, turn - folded)


def _depth_to_space(call: Call) -> Array:
    x, size = call[0], call.integer("blocksize")
    n, c, h, w = x.shape
    if call.text("mode", "DCR") == "DCR":
        blocks = x.reshape(n, size, size, c // size**2, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        blocks = x.reshape(n, c // size**2, size, size, h, w).transpose(0, 1, 4, 2, 5, 3)
    return blocks.reshape(n, c // size**2, h * size, w * size)


def _space_to_depth(call: Call) -> Array:
    x, size = call[0], call.integer("blocksize")
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // size, size, w // size, size)
    is_blocks_first = call.text("mode", "DCR") == "DCR"
    blocks = blocks.transpose((0, 3, 5, 1, 2, 4) if is_blocks_first else (0, 1, 3, 5, 2, 4))
    return blocks.reshape(n, c * size**2, h // size, w // size)


def _trilu(call: Call) -> Array:
    x = call[0]
    offset = int(call.scalar(1)) if call.has(1) else 0
    rows, columns = np.arange(x.shape[-2])[:, None], np.arange(x.shape[-1])
    distance = columns - rows
    kept = distance >= offset if call.integer("upper", 1) else distance <= offset
    return np.where(kept, x, np.zeros((), x.dtype))


def _eye_like(call: Call) -> Typed:
    declared = call.node.attributes.get("dtype")
    dtype = call.type(0) if declared is None else ir.DataType(declared.as_int())
    n, m = call[0].shape
    return Typed(np.eye(n, m, call.integer("k", 0)).astype(dtype.numpy()), dtype)


def _range(call: Call) -> Typed:
    start, limit, delta = (call.scalar(index) for index in range(3))
    if delta == 0:
        raise call.error("its delta is 0")
    dtype = call.type(0)
    if dtype.is_floating_point():
        start, limit, delta = float(start), float(limit), float(delta)
        count = max(0, math.ceil((limit - start) / delta))
        return Typed(start + delta * np.arange(count, dtype=np.float64), dtype)
    start, limit, delta = int(start), int(limit), int(delta)
    count = max(0, -((start - limit) // delta))
    return Typed((start + delta * np.arange(count)).astype(dtype.numpy()), dtype)


def _constant_of_shape(call: Call) -> Array:
    value = call.node.attributes.get("value")
    fill = np.zeros(1, np.float32) if value is None else value.as_tensor().numpy()
    sizes = call.ints(0)
    if min(sizes, default=0) < 0:
        raise call.error(f"its shape {sizes} has a size below 0")
    return np.full(sizes, fill.reshape(-1)[0], fill.dtype)


def _constant(call: Call) -> Any:
    attributes = call.node.attributes
    if "value" in attributes:
        return attributes["value"].as_tensor().numpy()
    if "value_float" in attributes:
        return np.array(attributes["value_float"].as_float(), np.float32)
    if "value_floats" in attributes:
        return np.array(attributes["value_floats"].as_floats(), np.float32)
    if "value_int" in attributes:
        return np.array(attributes["value_int"].as_int(), np.int64)
    if "value_ints" in attributes:
        return np.array(attributes["value_ints"].as_ints(), np.int64)
    if "value_string" in attributes:
        return np.array(attributes["value_string"].as_string(), object)
    if "value_strings" in attributes:
        return np.array(attributes["value_strings"].as_strings(), object)
    raise call.unsupported("a sparse constant is not interpreted")


OPERATORS: Table = {
    "Identity": moves(_identity),
    "Dropout": moves(_dropout),
    "Reshape": moves(_reshape),
    "Flatten": moves(_flatten),
    "Squeeze": moves(_squeeze),
    "Unsqueeze": moves(_unsqueeze),
    "Transpose": moves(_transpose),
    "Shape": moves(_shape),
    "Size": moves(_size),
    "Concat": moves(_concat),
    "Split": moves(_split),
    "Slice": moves(_slice),
    "Expand": moves(_expand),
    "Tile": moves(_tile),
    "Pad": moves(_pad),
    "DepthToSpace": moves(_depth_to_space),
    "SpaceToDepth": moves(_space_to_depth),
    "Trilu": moves(_trilu),
    "EyeLike": moves(_eye_like),
    "Range": moves(_range),
    "ConstantOfShape": moves(_constant_of_shape),
    "Constant": moves(_constant),
}
