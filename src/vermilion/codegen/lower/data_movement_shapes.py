"""Shapes of what moves data, renames it or picks from it.

Source of every formula: the operator's page at https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from vermilion.codegen.lower.window_shapes import (
    Shape,
    constants,
    needed,
    require,
    shape_of,
    whole_numbers,
)
from vermilion.ir.attributes import integer, integers
from vermilion.ir.formula import at_least, formula
from vermilion.ir.opset import constant_of, is_operator
from vermilion.ir.symbolic import is_known, is_one, larger, lesser, same, strict_comparisons

Results = list[Shape]


def joined(shapes: Sequence[Shape]) -> Shape:
    """Return the shape to which shapes broadcast by numpy's rules."""
    rank = max(map(len, shapes))
    result = [1] * rank
    for shape in shapes:
        for at, size in enumerate(shape, rank - len(shape)):
            if is_one(size) or is_one(result[at]) or same(size, result[at]):
                result[at] = size if is_one(result[at]) else result[at]
                continue
            # Open sizes that are equal in the examples have to be so in every run.
            require(
                size == result[at],
                f"{' and '.join(str(list(s)) for s in shapes)} do not broadcast",
            )
            result[at] = min(size, result[at], key=lambda one: len(str(formula(one))))
    return tuple(result)


def checked_axis(axis: int, rank: int) -> int:
    """Return an axis counted from the front, which has to be there."""
    require(-rank <= axis < rank, f"axis {axis} of {rank} dimensions")
    return axis % rank


def axes_of(node: ir.Node, rank: int, index: int = 1) -> list[int] | None:
    """Return axes from an input or an attribute, None where none are given."""
    numbers = constants(node, index)
    if numbers is None:
        found = integers(node, "axes", None)
        numbers = None if found is None else list(found)
    if numbers is None:
        return None
    axes = [checked_axis(axis, rank) for axis in numbers]
    require(len(set(axes)) == len(axes), "an axis is named twice")
    return axes


def reshaped(node: ir.Node) -> Results:
    """Reshape to constant sizes."""
    data, sizes = shape_of(node, 0), needed(node, 1)
    if not integer(node, "allowzero", 0):
        require(all(size or at < len(data) for at, size in enumerate(sizes)), "a size is missing")
        sizes = [data[at] if size == 0 else size for at, size in enumerate(sizes)]
    is_rest = [is_known(size) and size == -1 for size in sizes]
    rest = math.prod(size for size, left in zip(sizes, is_rest, strict=True) if not left)
    require(sum(is_rest) < 2 and all(at_least(n, -1) for n in sizes), f"sizes {sizes}")
    if any(is_rest):
        require(rest > 0 and math.prod(data) % rest == 0, f"{list(data)} into {sizes}")
        whole = math.prod(data) // rest
        sizes = [whole if left else n for n, left in zip(sizes, is_rest, strict=True)]
    require(math.prod(sizes) == math.prod(data), f"{list(data)} into {sizes}")
    return [tuple(sizes)]


def flattened(node: ir.Node) -> Results:
    """Flatten."""
    data = shape_of(node, 0)
    axis = integer(node, "axis", 1)
    require(-len(data) <= axis <= len(data), f"axis {axis} of {len(data)} dimensions")
    axis += len(data) if axis < 0 else 0
    return [(math.prod(data[:axis]), math.prod(data[axis:]))]


def squeezed(node: ir.Node) -> Results:
    """Squeeze."""
    data = shape_of(node, 0)
    axes = axes_of(node, len(data))
    if axes is None:
        with strict_comparisons():
            axes = [at for at, size in enumerate(data) if size == 1]
    require(all(data[axis] == 1 for axis in axes), f"{list(data)} without the axes {axes}")
    return [tuple(size for at, size in enumerate(data) if at not in axes)]


def unsqueezed(node: ir.Node) -> Results:
    """Unsqueeze."""
    data = shape_of(node, 0)
    given_axes = constants(node, 1)
    numbers = integers(node, "axes", ()) if given_axes is None else tuple(given_axes)
    rank = len(data) + len(numbers)
    axes = {checked_axis(axis, rank) for axis in numbers}
    require(len(axes) == len(numbers), "an axis is named twice")
    rest = iter(data)
    return [tuple(1 if at in axes else next(rest) for at in range(rank))]


def permuted(node: ir.Node) -> Results:
    """Transpose."""
    data = shape_of(node, 0)
    order = integers(node, "perm", range(len(data))[::-1])
    require(sorted(order) == list(range(len(data))), f"`perm` is {list(order)}")
    return [tuple(data[axis] for axis in order)]


def sliced(node: ir.Node) -> Results:
    """Slice with constant bounds."""
    result = list(shape_of(node, 0))
    starts, ends = needed(node, 1), needed(node, 2)
    axes = axes_of(node, len(result), 3)
    axes = list(range(len(starts))) if axes is None else axes
    steps = constants(node, 4) or [1] * len(starts)
    require(len(starts) == len(ends) == len(axes) == len(steps), "bounds of other lengths")
    require(len(starts) <= len(result) and 0 not in steps, "bounds or steps that are not legal")
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        _, result[axis] = slice_bounds(start, end, step, result[axis])
    return [tuple(result)]


def slice_bounds(start: int, end: int, step: int, size: int) -> tuple[int, int]:
    """Return where a Slice begins in a dimension of `size`, and how many elements it has."""
    if all(map(is_known, (start, end, size))):
        first, last, stride = slice(start, end, step).indices(size)
        return first, len(range(first, last, stride))
    # Whether a bound counts from the end is known; where it is cut off, the run knows.
    if step < 0:
        first, last = (_inside_backwards(bound, size) for bound in (start, end))
        return first, larger(0, -(-(first - last) // -step))
    first, last = (_inside(bound + size if bound < 0 else bound, size) for bound in (start, end))
    return first, larger(0, -(-(last - first) // step))


def _inside(bound: int, size: int) -> int:
    """Return a bound brought between 0 and a size; one that is more than any size is the size."""
    if (is_known(bound) and bound >= _BEYOND) or same(bound, size):
        return size
    if is_known(bound) and bound == 0:
        return 0
    return larger(0, lesser(bound, size))


def _inside_backwards(bound: int, size: int) -> int:
    """Return a bound of what runs backwards, brought between one before the first and the last."""
    if same(bound, -1) or (is_known(bound) and bound >= _BEYOND):
        return size - 1
    if is_known(bound) and bound <= -_BEYOND:
        return -1
    return larger(-1, lesser(bound + size if bound < 0 else bound, size - 1))


# Exporters write the greatest 32- or 64-bit number for "to the end", or the least backwards.
_BEYOND = 2**31 - 1


def ranged(node: ir.Node) -> Results:
    """Range between whole numbers that are known."""
    bounds = [range_bound(node, at) for at in range(3)]
    require(None not in bounds, "bounds that are not one whole number each")
    start, limit, step = (bound for bound in bounds if bound is not None)
    require(is_known(step) and step > 0, f"a Range in steps of {step}")
    return [(larger(0, -(-(limit - start) // step)),)]


def range_bound(node: ir.Node, at: int) -> int | None:
    """Return the start, limit or step of a Range where it is a whole number that is known.

    Of floats it may be a size that is converted, as exporters count the pixels of a grid.
    """
    value = node.inputs[at]
    made = None if value is None else value.producer()
    if (
        made is not None
        and is_operator(made, "Cast")
        and made.outputs[0].dtype == ir.DataType.FLOAT
    ):
        value = made.inputs[0]
    constant = constant_of(value)
    if constant is not None and not all(
        float(number).is_integer() for number in constant.numpy().reshape(-1)
    ):
        return None
    numbers = whole_numbers(value) or []
    return numbers[0] if len(numbers) == 1 else None


def pieces(node: ir.Node) -> Results:
    """Split."""
    data = shape_of(node, 0)
    axis = checked_axis(integer(node, "axis", 0), len(data))
    sizes = constants(node, 1) or list(integers(node, "split", ()))
    if not sizes:
        count = len(node.outputs)
        most = -(-data[axis] // count)
        sizes = [min(most, data[axis] - at * most) for at in range(count)]
    require(
        sum(sizes) == data[axis] and min(sizes) >= 0 and len(sizes) == len(node.outputs),
        f"{data[axis]} in pieces of {sizes}",
    )
    return [(*data[:axis], size, *data[axis + 1 :]) for size in sizes]


def concatenated(node: ir.Node) -> Results:
    """Concat."""
    shapes = [shape_of(node, at) for at in range(len(node.inputs))]
    axis = checked_axis(integer(node, "axis", 0), len(shapes[0]))
    rests = [(*shape[:axis], *shape[axis + 1 :]) for shape in shapes]
    are_alike = all(rest == rests[0] for rest in rests)
    require(are_alike, f"{' and '.join(str(list(s)) for s in shapes)} along axis {axis}")
    return [(*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :])]


def expanded(node: ir.Node) -> Results:
    """Expand to constant sizes."""
    sizes = needed(node, 1)
    require(all(at_least(size, 0) for size in sizes), f"sizes {sizes}")
    return [joined([shape_of(node, 0), tuple(sizes)])]


def gathered(node: ir.Node) -> Results:
    """Gather; a constant index lies inside."""
    data, index = shape_of(node, 0), shape_of(node, 1)
    axis = checked_axis(integer(node, "axis", 0), len(data))
    _require_inside(node, data[axis])
    return [(*data[:axis], *index, *data[axis + 1 :])]


def gathered_tuples(node: ir.Node) -> Results:
    """GatherND: the last axis of the indices has a place in each dimension behind the batch."""
    data, index = shape_of(node, 0), shape_of(node, 1)
    batch = integer(node, "batch_dims", 0)
    require(bool(index) and is_known(index[-1]), "indices of a length that is not known")
    behind = batch + index[-1]
    require(0 <= batch < len(index) and batch < behind <= len(data), f"{behind} dimensions picked")
    require(index[:batch] == data[:batch], f"batches {index[:batch]} and {data[:batch]}")
    for number in range(index[-1]):
        _require_inside(node, data[batch + number], number)
    return [(*index[:-1], *data[behind:])]


def scattered(node: ir.Node) -> Results:
    """ScatterND: the data's shape; the updates have a slice for each index."""
    data, index, updates = (shape_of(node, at) for at in range(3))
    require(bool(index) and is_known(index[-1]), "indices of a length that is not known")
    count = index[-1]
    require(0 < count <= len(data), f"{count} of {len(data)} dimensions")
    wanted = (*index[:-1], *data[count:])
    require(updates == wanted, f"updates of {list(updates)} for {list(wanted)}")
    for number in range(count):
        _require_inside(node, data[number], number)
    return [data]


def _require_inside(node: ir.Node, size: int, column: int | None = None) -> None:
    """Raise UnknownShape for a constant index outside a dimension of `size`."""
    constant = constant_of(node.inputs[1])
    if constant is not None and constant.size:
        numbers = constant.numpy() if column is None else constant.numpy()[..., column]
        least, most = int(numbers.min()), int(numbers.max())
        outside = least if least < -size else most
        require(-size <= outside < size, f"index {outside} of {size}")


def picked(node: ir.Node) -> Results:
    """GatherElements; the indices reach no further than the data."""
    data, index = shape_of(node, 0), shape_of(node, 1)
    axis = checked_axis(integer(node, "axis", 0), len(data))
    _require_inside(node, data[axis])
    require(len(data) == len(index), "data and indices differ in rank")
    require(
        all(at == axis or index[at] <= size for at, size in enumerate(data)),
        f"indices of {list(index)} reach beyond data of {list(data)}",
    )
    return [index]


def put_in_place(node: ir.Node) -> Results:
    """ScatterElements: the data's shape; there is an update for each index."""
    data, index, updates = (shape_of(node, at) for at in range(3))
    require(index == updates, f"updates of {list(updates)} for {list(index)}")
    picked(node)
    return [data]


def padded(node: ir.Node) -> Results:
    """Pad by constant amounts."""
    result = list(shape_of(node, 0))
    axes = axes_of(node, len(result), 3)
    axes = list(range(len(result))) if axes is None else axes
    pads = constants(node, 1) or []
    require(len(pads) == 2 * len(axes), f"{len(pads)} amounts for {len(axes)} axes")
    for number, axis in enumerate(axes):
        result[axis] += pads[number] + pads[number + len(axes)]
    return [tuple(result)]


def tiled(node: ir.Node) -> Results:
    """Tile."""
    data, repeats = shape_of(node, 0), constants(node, 1) or []
    require(len(repeats) == len(data) and min(repeats, default=1) >= 0, f"repeats {repeats}")
    return [tuple(size * times for size, times in zip(data, repeats, strict=True))]


def to_space(node: ir.Node) -> Results:
    """DepthToSpace."""
    n, c, h, w = _images(node)
    block = integer(node, "blocksize", 1)
    require(block > 0 and c % (block * block) == 0, f"{c} channels in blocks of {block}")
    return [(n, c // (block * block), h * block, w * block)]


def to_depth(node: ir.Node) -> Results:
    """SpaceToDepth."""
    n, c, h, w = _images(node)
    block = integer(node, "blocksize", 1)
    require(block > 0 and not (h % block or w % block), f"{h} × {w} in blocks of {block}")
    return [(n, c * block * block, h // block, w // block)]


def _images(node: ir.Node) -> Shape:
    data = shape_of(node, 0)
    require(len(data) == 4, "data that are not images")
    return data
