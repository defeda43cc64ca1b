"""Types and shapes of what nodes give, computed from their inputs and held against the graph's.

Generated code lays out its memory by the shapes of values. Those that a file declares are not
believed: a node is taken only where what it gives can be computed here from the shapes of its
inputs, its attributes and constants, and is what the graph says.

Source of every formula: the operator's page at https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from vermilion.codegen.lower.window_shapes import (
    Shape,
    UnknownShape,
    constants,
    convolution,
    given,
    pool,
    recurrent,
    require,
    resized,
    shape_of,
    transposed,
)
from vermilion.ir.attributes import integer, integers
from vermilion.ir.opset import constant_of, static_shape

Results = list[Shape]
Rule = Callable[[ir.Node], Results]


def contradiction(node: ir.Node) -> str:
    """Say how what a node gives differs from what the graph says of it, empty if it does not.

    A node whose result cannot be computed differs.
    """
    try:
        shapes = _rule_of(node)(node)
    except UnknownShape as reason:
        return f"what {node.op_type} gives cannot be computed: {reason}"
    for value, shape in zip(node.outputs, shapes, strict=False):
        if not value.name:
            continue
        declared = static_shape(value)
        dtype = _dtype_of(node, value)
        if declared != shape or value.dtype != dtype:
            return (
                f"{node.op_type} gives {_written(dtype, shape)}, and `{value.name}` is declared "
                f"as {_written(value.dtype, declared)}"
            )
    if len(shapes) < len([value for value in node.outputs if value.name]):
        return f"{node.op_type} with {len(node.outputs)} results"
    return ""


def _written(dtype: ir.DataType | None, shape: Shape | None) -> str:
    name = "?" if dtype is None else dtype.name.lower()
    return f"{name}{'[?]' if shape is None else list(shape)}"


def _rule_of(node: ir.Node) -> Rule:
    if node.op_type in _RULES:
        return _RULES[node.op_type]
    return _reduced if node.op_type.startswith("Reduce") else _broadcast


# Types ------------------------------------------------------------------------------------------

_BOOLEAN = frozenset(
    {
        "And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not",
        "Or", "Xor",
    }
)  # fmt: skip


def _dtype_of(node: ir.Node, value: ir.Value) -> ir.DataType | None:
    """Return the element type of one of a node's results."""
    kind = node.op_type
    if value is not node.outputs[0]:
        if kind == "MaxPool":
            return ir.DataType.INT64
        if kind == "Dropout":
            return ir.DataType.BOOL
        if kind in ("LayerNormalization", "RMSNormalization"):
            return ir.DataType(integer(node, "stash_type", ir.DataType.FLOAT))
    if kind in _BOOLEAN:
        return ir.DataType.BOOL
    if kind in ("ArgMax", "ArgMin"):
        return ir.DataType.INT64
    if kind == "Cast":
        return ir.DataType(integer(node, "to"))
    if kind in ("QuantizeLinear", "DequantizeLinear"):
        return _quantized_dtype(node)
    return _dtype_at(node, {"Where": 1, "QLinearConv": 7, "QLinearMatMul": 7}.get(kind, 0))


def _quantized_dtype(node: ir.Node) -> ir.DataType | None:
    chosen = integer(node, "output_dtype", 0)
    if chosen:
        return ir.DataType(chosen)
    if node.op_type == "DequantizeLinear":
        return _dtype_at(node, 1)
    return _dtype_at(node, 2) if given(node, 2) else ir.DataType.UINT8


def _dtype_at(node: ir.Node, index: int) -> ir.DataType | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None else value.dtype


# Shapes -----------------------------------------------------------------------------------------


def joined(shapes: Sequence[Shape]) -> Shape:
    """Return the shape to which shapes broadcast by numpy's rules."""
    rank = max(map(len, shapes))
    result = [1] * rank
    for shape in shapes:
        for at, size in enumerate(shape, rank - len(shape)):
            require(
                size == result[at] or 1 in (size, result[at]),
                f"{' and '.join(str(list(s)) for s in shapes)} do not broadcast",
            )
            result[at] = size if result[at] == 1 else result[at]
    return tuple(result)


def _broadcast(node: ir.Node) -> Results:
    if node.op_type in ("Div", "Mod") and (divisor := constant_of(node.inputs[1])) is not None:
        divides_by_zero = divisor.dtype.is_integer() and not divisor.numpy().all()
        require(not divides_by_zero, "integer division by zero")
    return [joined([shape_of(node, at) for at in range(len(node.inputs)) if given(node, at)])]


def _first(node: ir.Node) -> Results:
    """The first input's shape, for a result and a mask beside it."""
    return [shape_of(node, 0)] * 2


def _first_of_all(node: ir.Node) -> Results:
    """The first input's shape, to which the others have to broadcast."""
    (shape,) = _broadcast(node)
    require(shape == shape_of(node, 0), "an input is larger than the first")
    return [shape]


def _by_channel(node: ir.Node) -> Results:
    """The first input's shape; the others have a number for each channel."""
    data = shape_of(node, 0)
    require(len(data) >= 2, "data without channels")
    for at in range(1, len(node.inputs)):
        has = math.prod(shape_of(node, at))
        allowed = (data[1], integer(node, "num_groups", data[1]))
        require(has in allowed, f"input {at} has {has} numbers, the data {data[1]} channels")
    if node.op_type == "GroupNormalization":
        groups = integer(node, "num_groups", 1)
        require(groups > 0 and data[1] % groups == 0, f"{data[1]} channels in {groups} groups")
    return [data]


def _normalized(node: ir.Node) -> Results:
    data = shape_of(node, 0)
    axis = _axis(integer(node, "axis", -1), len(data))
    single = (*data[:axis], *(1 for _ in data[axis:]))
    return [data, single, single]


def _axis(axis: int, rank: int) -> int:
    require(-rank <= axis < rank, f"axis {axis} of {rank} dimensions")
    return axis % rank


def _axes(node: ir.Node, rank: int, index: int = 1) -> list[int] | None:
    """Return axes from an input or an attribute, None where none are given."""
    numbers = constants(node, index)
    if numbers is None:
        found = integers(node, "axes", None)
        numbers = None if found is None else list(found)
    if numbers is None:
        return None
    axes = [_axis(axis, rank) for axis in numbers]
    require(len(set(axes)) == len(axes), "an axis is named twice")
    return axes


def _reduced(node: ir.Node) -> Results:
    data = shape_of(node, 0)
    axes = _axes(node, len(data)) or range(len(data))
    if integer(node, "keepdims", 1):
        return [tuple(1 if at in axes else size for at, size in enumerate(data))]
    return [tuple(size for at, size in enumerate(data) if at not in axes)]


def _global(node: ir.Node) -> Results:
    data = shape_of(node, 0)
    require(len(data) > 2, "data that are not images")
    return [(*data[:2], *(1 for _ in data[2:]))]


def _extreme(node: ir.Node) -> Results:
    data = shape_of(node, 0)
    axis = _axis(integer(node, "axis", 0), len(data))
    kept = (1,) if integer(node, "keepdims", 1) else ()
    return [(*data[:axis], *kept, *data[axis + 1 :])]


def _along(node: ir.Node) -> Results:
    data = shape_of(node, 0)
    _axis(integer(node, "axis", -1), len(data))
    return [data]


def _scanned(node: ir.Node) -> Results:
    data = shape_of(node, 0)
    axes = constants(node, 1) or []
    require(len(axes) == 1, "an axis that is not one number")
    _axis(axes[0], len(data))
    return [data]


def _reshaped(node: ir.Node) -> Results:
    data, sizes = shape_of(node, 0), constants(node, 1)
    assert sizes is not None
    if not integer(node, "allowzero", 0):
        require(all(size or at < len(data) for at, size in enumerate(sizes)), "a size is missing")
        sizes = [data[at] if size == 0 else size for at, size in enumerate(sizes)]
    rest = math.prod(size for size in sizes if size != -1)
    require(sizes.count(-1) < 2 and min(sizes, default=1) >= -1, f"sizes {sizes}")
    if -1 in sizes:
        require(rest > 0 and math.prod(data) % rest == 0, f"{list(data)} into {sizes}")
        sizes = [math.prod(data) // rest if size == -1 else size for size in sizes]
    require(math.prod(sizes) == math.prod(data), f"{list(data)} into {sizes}")
    return [tuple(sizes)]


def _flattened(node: ir.Node) -> Results:
    data = shape_of(node, 0)
    axis = integer(node, "axis", 1)
    require(-len(data) <= axis <= len(data), f"axis {axis} of {len(data)} dimensions")
    axis += len(data) if axis < 0 else 0
    return [(math.prod(data[:axis]), math.prod(data[axis:]))]


def _squeezed(node: ir.Node) -> Results:
    data = shape_of(node, 0)
    axes = _axes(node, len(data))
    if axes is None:
        axes = [at for at, size in enumerate(data) if size == 1]
    require(all(data[axis] == 1 for axis in axes), f"{list(data)} without the axes {axes}")
    return [tuple(size for at, size in enumerate(data) if at not in axes)]


def _unsqueezed(node: ir.Node) -> Results:
    data = shape_of(node, 0)
    given_axes = constants(node, 1)
    numbers = integers(node, "axes", ()) if given_axes is None else tuple(given_axes)
    rank = len(data) + len(numbers)
    axes = {_axis(axis, rank) for axis in numbers}
    require(len(axes) == len(numbers), "an axis is named twice")
    rest = iter(data)
    return [tuple(1 if at in axes else next(rest) for at in range(rank))]


def _transposed(node: ir.Node) -> Results:
    data = shape_of(node, 0)
    order = integers(node, "perm", range(len(data))[::-1])
    require(sorted(order) == list(range(len(data))), f"`perm` is {list(order)}")
    return [tuple(data[axis] for axis in order)]


def _sliced(node: ir.Node) -> Results:
    result = list(shape_of(node, 0))
    starts, ends = constants(node, 1), constants(node, 2)
    require(starts is not None and ends is not None, "no bounds")
    assert starts is not None
    assert ends is not None
    axes = _axes(node, len(result), 3)
    axes = list(range(len(starts))) if axes is None else axes
    steps = constants(node, 4) or [1] * len(starts)
    require(len(starts) == len(ends) == len(axes) == len(steps), "bounds of other lengths")
    require(len(starts) <= len(result) and 0 not in steps, "bounds or steps that are not legal")
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        result[axis] = len(range(*slice(start, end, step).indices(result[axis])))
    return [tuple(result)]


def _split(node: ir.Node) -> Results:
    data = shape_of(node, 0)
    axis = _axis(integer(node, "axis", 0), len(data))
    sizes = constants(node, 1)
    if sizes is None:
        count = len(node.outputs)
        most = -(-data[axis] // count)
        sizes = [min(most, data[axis] - at * most) for at in range(count)]
    require(
        sum(sizes) == data[axis] and min(sizes) >= 0 and len(sizes) == len(node.outputs),
        f"{data[axis]} in pieces of {sizes}",
    )
    return [(*data[:axis], size, *data[axis + 1 :]) for size in sizes]


def _concatenated(node: ir.Node) -> Results:
    shapes = [shape_of(node, at) for at in range(len(node.inputs))]
    axis = _axis(integer(node, "axis", 0), len(shapes[0]))
    rests = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    require(len(rests) == 1, f"{' and '.join(str(list(s)) for s in shapes)} along axis {axis}")
    return [(*shapes[0][:axis], sum(shape[axis] for shape in shapes), *shapes[0][axis + 1 :])]


def _expanded(node: ir.Node) -> Results:
    sizes = constants(node, 1)
    assert sizes is not None
    require(min(sizes, default=1) >= 0, f"sizes {sizes}")
    return [joined([shape_of(node, 0), tuple(sizes)])]


def _gathered(node: ir.Node) -> Results:
    data, index = shape_of(node, 0), shape_of(node, 1)
    axis = _axis(integer(node, "axis", 0), len(data))
    _require_inside(node, data[axis])
    return [(*data[:axis], *index, *data[axis + 1 :])]


def _require_inside(node: ir.Node, size: int) -> None:
    """Raise UnknownShape for a constant index outside a dimension of `size`."""
    constant = constant_of(node.inputs[1])
    if constant is not None and constant.size:
        least, most = int(constant.numpy().min()), int(constant.numpy().max())
        outside = least if least < -size else most
        require(-size <= outside < size, f"index {outside} of {size}")


def _picked(node: ir.Node) -> Results:
    data, index = shape_of(node, 0), shape_of(node, 1)
    axis = _axis(integer(node, "axis", 0), len(data))
    _require_inside(node, data[axis])
    require(len(data) == len(index), "data and indices differ in rank")
    require(
        all(at == axis or index[at] <= size for at, size in enumerate(data)),
        f"indices of {list(index)} reach beyond data of {list(data)}",
    )
    return [index]


def _padded(node: ir.Node) -> Results:
    result = list(shape_of(node, 0))
    axes = _axes(node, len(result), 3)
    axes = list(range(len(result))) if axes is None else axes
    pads = constants(node, 1) or []
    require(len(pads) == 2 * len(axes), f"{len(pads)} amounts for {len(axes)} axes")
    for number, axis in enumerate(axes):
        result[axis] += pads[number] + pads[number + len(axes)]
    return [tuple(result)]


def _tiled(node: ir.Node) -> Results:
    data, repeats = shape_of(node, 0), constants(node, 1) or []
    require(len(repeats) == len(data) and min(repeats, default=1) >= 0, f"repeats {repeats}")
    return [tuple(size * times for size, times in zip(data, repeats, strict=True))]


def _to_space(node: ir.Node) -> Results:
    n, c, h, w = _images(node)
    block = integer(node, "blocksize", 1)
    require(block > 0 and c % (block * block) == 0, f"{c} channels in blocks of {block}")
    return [(n, c // (block * block), h * block, w * block)]


def _to_depth(node: ir.Node) -> Results:
    n, c, h, w = _images(node)
    block = integer(node, "blocksize", 1)
    require(block > 0 and not (h % block or w % block), f"{h} × {w} in blocks of {block}")
    return [(n, c * block * block, h // block, w // block)]


def _images(node: ir.Node) -> Shape:
    data = shape_of(node, 0)
    require(len(data) == 4, "data that are not images")
    return data


def _triangle(node: ir.Node) -> Results:
    require(len(shape_of(node, 0)) >= 2, "data that are not matrices")
    return [shape_of(node, 0)]


def _gemm(node: ir.Node) -> Results:
    left, right = shape_of(node, 0), shape_of(node, 1)
    require(len(left) == len(right) == 2, "data that are not matrices")
    left = left[::-1] if integer(node, "transA", 0) else left
    right = right[::-1] if integer(node, "transB", 0) else right
    require(left[1] == right[0], f"{list(left)} × {list(right)}")
    result = (left[0], right[1])
    if given(node, 2):
        require(joined([result, shape_of(node, 2)]) == result, "a third input that is larger")
    return [result]


def _product(node: ir.Node, right_at: int = 1) -> Results:
    left, right = shape_of(node, 0), shape_of(node, right_at)
    require(bool(left) and bool(right), "a number for a matrix")
    a = left if len(left) > 1 else (1, *left)
    b = right if len(right) > 1 else (*right, 1)
    require(a[-1] == b[-2], f"{list(left)} × {list(right)}")
    rows = a[-2:-1] if len(left) > 1 else ()
    columns = b[-1:] if len(right) > 1 else ()
    return [(*joined([a[:-2], b[:-2]]), *rows, *columns)]


_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("Cast", "Dropout", "Identity", "LRN"), _first),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear", "RoundToBlocks"), _first),
    **dict.fromkeys(("Clip", "PRelu"), _first_of_all),
    **dict.fromkeys(("BatchNormalization", "GroupNormalization", "InstanceNormalization"),
                    _by_channel),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _normalized),
    **dict.fromkeys(("Softmax", "LogSoftmax", "LpNormalization"), _along),
    **dict.fromkeys(("CumSum", "CumProd"), _scanned),
    **dict.fromkeys(("ArgMax", "ArgMin"), _extreme),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _global),
    **dict.fromkeys(("MaxPool", "AveragePool"), pool),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), recurrent),
    "Conv": convolution, "QLinearConv": lambda node: convolution(node, 3),
    "ConvTranspose": transposed, "Resize": resized, "Reshape": _reshaped, "Flatten": _flattened,
    "Squeeze": _squeezed, "Unsqueeze": _unsqueezed, "Transpose": _transposed, "Slice": _sliced,
    "Split": _split, "Concat": _concatenated, "Expand": _expanded, "Gather": _gathered,
    "GatherElements": _picked, "Pad": _padded, "Tile": _tiled, "DepthToSpace": _to_space,
    "SpaceToDepth": _to_depth, "Trilu": _triangle, "Gemm": _gemm, "MatMul": _product,
    "QLinearMatMul": lambda node: _product(node, 3),
}  # fmt: skip
