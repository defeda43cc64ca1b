"""Types and shapes of what nodes give, computed from their inputs and held against the graph's.

Generated code lays out its memory by the shapes of values. Those that a file declares are not
believed: a node is taken only where what it gives can be computed here from the shapes of its
inputs, its attributes and constants, and is what the graph says.

Source of every formula: the operator's page at https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import onnx_ir as ir

from vermilion.codegen.lower.data_movement_shapes import (
    axes_of,
    checked_axis,
    concatenated,
    expanded,
    flattened,
    gathered,
    gathered_tuples,
    joined,
    padded,
    permuted,
    picked,
    pieces,
    put_in_place,
    ranged,
    reshaped,
    scattered,
    sliced,
    squeezed,
    tiled,
    to_depth,
    to_space,
    unsqueezed,
)
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
from vermilion.ir.attributes import integer
from vermilion.ir.elementwise import elementwise
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


def result_shapes(node: ir.Node) -> Results:
    """Return the shapes of what a node gives, computed from its inputs. Raises: UnknownShape."""
    return _rule_of(node)(node)


def _written(dtype: ir.DataType | None, shape: Shape | None) -> str:
    name = "?" if dtype is None else dtype.name.lower()
    return f"{name}{'[?]' if shape is None else list(shape)}"


def _rule_of(node: ir.Node) -> Rule:
    if node.op_type in _RULES:
        return _RULES[node.op_type]
    return _reduced if node.op_type.startswith("Reduce") else _broadcast


# Types ------------------------------------------------------------------------------------------


def _dtype_of(node: ir.Node, value: ir.Value) -> ir.DataType | None:
    """Return the element type of one of a node's results."""
    kind = node.op_type
    if value is not node.outputs[0]:
        if kind in ("MaxPool", "TopK"):
            return ir.DataType.INT64
        if kind == "Dropout":
            return ir.DataType.BOOL
        if kind == "DynamicQuantizeLinear":
            return ir.DataType.FLOAT if value is node.outputs[1] else ir.DataType.UINT8
        if kind in ("LayerNormalization", "RMSNormalization"):
            return ir.DataType(integer(node, "stash_type", ir.DataType.FLOAT))
    row = elementwise(node)
    if row is not None and row.gives_bool:
        return ir.DataType.BOOL
    fixed = _TYPES.get(kind)
    if fixed is not None:
        return fixed
    if kind == "Cast":
        return ir.DataType(integer(node, "to"))
    if kind in ("QuantizeLinear", "DequantizeLinear"):
        return _quantized_dtype(node)
    return _dtype_at(node, {"Where": 1, "QLinearConv": 7, "QLinearMatMul": 7}.get(kind, 0))


_TYPES = {
    "ArgMax": ir.DataType.INT64, "ArgMin": ir.DataType.INT64,
    "MatMulInteger": ir.DataType.INT32, "ConvInteger": ir.DataType.INT32,
    "DynamicQuantizeLinear": ir.DataType.UINT8,
}  # fmt: skip


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
    axis = checked_axis(integer(node, "axis", -1), len(data))
    single = (*data[:axis], *(1 for _ in data[axis:]))
    return [data, single, single]


def _reduced(node: ir.Node) -> Results:
    data = shape_of(node, 0)
    axes = axes_of(node, len(data)) or range(len(data))
    if integer(node, "keepdims", 1):
        return [tuple(1 if at in axes else size for at, size in enumerate(data))]
    return [tuple(size for at, size in enumerate(data) if at not in axes)]


def _global(node: ir.Node) -> Results:
    data = shape_of(node, 0)
    require(len(data) > 2, "data that are not images")
    return [(*data[:2], *(1 for _ in data[2:]))]


def _extreme(node: ir.Node) -> Results:
    data = shape_of(node, 0)
    axis = checked_axis(integer(node, "axis", 0), len(data))
    kept = (1,) if integer(node, "keepdims", 1) else ()
    return [(*data[:axis], *kept, *data[axis + 1 :])]


def _along(node: ir.Node) -> Results:
    data = shape_of(node, 0)
    checked_axis(integer(node, "axis", -1), len(data))
    return [data]


def _top(node: ir.Node) -> Results:
    data = shape_of(node, 0)
    axis = checked_axis(integer(node, "axis", -1), len(data))
    count = constants(node, 1) or []
    require(len(count) == 1 and 0 < count[0] <= data[axis], f"{count} of {data[axis]} elements")
    return [(*data[:axis], count[0], *data[axis + 1 :])] * 2


def _scanned(node: ir.Node) -> Results:
    data = shape_of(node, 0)
    axes = constants(node, 1) or []
    require(len(axes) == 1, "an axis that is not one number")
    checked_axis(axes[0], len(data))
    return [data]


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


def _attended(node: ir.Node) -> Results:
    query, key, value = (shape_of(node, at) for at in range(3))
    is_flat = len(query) == 3
    require(len(key) == len(value) == len(query) and len(query) in (3, 4), "other ranks than 3, 4")
    if is_flat:
        query = _heads_apart(query, integer(node, "q_num_heads", 0))
        key, value = (_heads_apart(x, integer(node, "kv_num_heads", 0)) for x in (key, value))
    batch, heads, length, _ = query
    require(heads % key[1] == 0, f"{heads} heads of queries and {key[1]} of keys")
    require((batch, query[3]) == (key[0], key[3]), f"{list(query)} × {list(key)}")
    require(key[:3] == value[:3], f"keys of {list(key)} and values of {list(value)}")
    if given(node, 3):
        scores = (batch, heads, length, key[2])
        require(joined([scores, shape_of(node, 3)]) == scores, "a mask that is larger")
    if is_flat:
        return [(batch, length, heads * value[3])]
    return [(batch, heads, length, value[3])]


def _heads_apart(shape: Shape, heads: int) -> Shape:
    require(heads > 0 and shape[2] % heads == 0, f"{shape[2]} numbers in {heads} heads")
    return (shape[0], heads, shape[1], shape[2] // heads)


def _turned(node: ir.Node) -> Results:
    data, cosine, sine = (shape_of(node, at) for at in range(3))
    require(len(data) in (3, 4) and cosine == sine, "cosines and sines of other shapes")
    rows = _heads_apart(data, integer(node, "num_heads", 0)) if len(data) == 3 else data
    size = integer(node, "rotary_embedding_dim", 0) or rows[3]
    require(0 < size <= rows[3] and size % 2 == 0, f"{size} of {rows[3]} numbers turned")
    places = (rows[0], rows[2])
    if given(node, 3):
        require(shape_of(node, 3) == places, f"positions for {list(places)}")
        require(len(cosine) == 2 and cosine[1] == size // 2, f"tables of {list(cosine)}")
    else:
        require(cosine == (*places, size // 2), f"angles of {list(cosine)}")
    return [data]


_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("Cast", "Dropout", "Identity", "LRN"), _first),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear", "RoundToBlocks"), _first),
    **dict.fromkeys(("Clip", "PRelu"), _first_of_all),
    **dict.fromkeys(("BatchNormalization", "GroupNormalization", "InstanceNormalization"),
                    _by_channel),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _normalized),
    **dict.fromkeys(("Softmax", "LogSoftmax", "LpNormalization"), _along),
    **dict.fromkeys(("CumSum", "CumProd"), _scanned),
    **dict.fromkeys(("ArgMax", "ArgMin"), _extreme), "TopK": _top,
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _global),
    **dict.fromkeys(("MaxPool", "AveragePool"), pool),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), recurrent),
    "Conv": convolution, "QLinearConv": lambda node: convolution(node, 3),
    "ConvTranspose": transposed, "Resize": resized, "Reshape": reshaped, "Flatten": flattened,
    "Squeeze": squeezed, "Unsqueeze": unsqueezed, "Transpose": permuted, "Slice": sliced,
    "Range": ranged,
    "Split": pieces, "Concat": concatenated, "Expand": expanded, "Gather": gathered,
    "GatherND": gathered_tuples, "ScatterND": scattered,
    "ScatterElements": put_in_place,
    "GatherElements": picked, "Pad": padded, "Tile": tiled, "DepthToSpace": to_space,
    "SpaceToDepth": to_depth, "Trilu": _triangle, "Gemm": _gemm, "MatMul": _product,
    "QLinearMatMul": lambda node: _product(node, 3), "Attention": _attended,
    "RotaryEmbedding": _turned, "MatMulInteger": _product, "ConvInteger": convolution,
    "DynamicQuantizeLinear": lambda node: [shape_of(node, 0), (), ()],
}  # fmt: skip
