"""onnx's shape inference, kept from filling the memory, with sizes of Resize and pools made right.

onnx 1.23 multiplies in double: 10 rows times float32(0.7) are 6.9999999, so 6; ONNX Runtime
multiplies in float32, where they are 7. What runs decides, so inference is led to the same size.

Inference can follow the values of shapes through Gather, Concat and the like. To do so it makes an
object for each element of any vector that it knows the length of: a file of a hundred bytes can
name a vector of 2^40. Those vectors, and those that may turn out to be such, are hidden from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from numpy.typing import NDArray

from vermilion.ir.onnx_shapes import infer_by_onnx
from vermilion.ir.pool_windows import pools_to_change, with_pools, without_pools
from vermilion.ir.protobuf import inner_graphs

_SCALED = ("Resize", "Upsample")
_PREFIX = "\N{NULL}scales of "

Scales = NDArray[np.float32]


def scales_to_change(inferred: onnx.GraphProto) -> dict[int, tuple[int, Scales]]:
    """Return the nodes whose inferred size is another than ONNX Runtime's, by position.

    Each with the input that has its scales, and scales of which the double product is cut to the
    size that float32 has: one rounding up is more than what the float32 product was rounded by.
    """
    if not any(node.op_type in _SCALED for node in inferred.node):
        return {}
    types = {v.name: v.type for v in (*inferred.input, *inferred.value_info, *inferred.output)}
    constants = dict(_constants(inferred))
    found = {}
    for at, node in enumerate(inferred.node):
        which = 1 if node.op_type == "Upsample" or len(node.input) == 2 else 2
        if node.op_type not in _SCALED or len(node.input) != which + 1:
            continue
        scales = constants.get(node.input[which])
        before, after = _sizes(types, node.input[0]), _sizes(types, node.output[0])
        if scales is None or len(before) != len(after) or _crops(node):
            continue
        axes = _axes(node, len(before))
        if len(axes) != len(scales):
            continue
        wanted = scales.copy()
        for number, (axis, scale) in enumerate(zip(axes, scales, strict=True)):
            if before[axis] and _cut(before[axis], scale) != after[axis]:
                wanted[number] = np.nextafter(scale, np.float32(np.inf))
        if not np.array_equal(wanted, scales):
            found[at] = (which, wanted)
    return found


def with_scales(model: onnx.ModelProto, changed: Mapping[int, tuple[int, Scales]]) -> None:
    """Let nodes read other scales, in place."""
    for at, (which, scales) in changed.items():
        name = f"{_PREFIX}{at}"
        model.graph.initializer.append(onnx.numpy_helper.from_array(scales, name))
        model.graph.node[at].input[which] = name


def without_scales(inferred: onnx.ModelProto, model: onnx.ModelProto) -> None:
    """Undo `with_scales` in what was inferred of the changed model."""
    for node, original in zip(inferred.graph.node, model.graph.node, strict=True):
        if any(name.startswith(_PREFIX) for name in node.input):
            node.input[:] = original.input
    kept = [t for t in inferred.graph.initializer if not t.name.startswith(_PREFIX)]
    del inferred.graph.initializer[:]
    inferred.graph.initializer.extend(kept)


def _constants(graph: onnx.GraphProto) -> Iterator[tuple[str, Scales]]:
    read = {name for node in graph.node if node.op_type in _SCALED for name in node.input[1:]}
    for tensor in graph.initializer:
        if tensor.name in read and _holds_floats(tensor):
            yield tensor.name, onnx.numpy_helper.to_array(tensor).reshape(-1)
    for node in graph.node:
        if node.op_type == "Constant" and node.output[0] in read:
            for attribute in node.attribute:
                if attribute.name == "value" and _holds_floats(attribute.t):
                    yield node.output[0], onnx.numpy_helper.to_array(attribute.t).reshape(-1)
                elif attribute.name == "value_floats":
                    yield node.output[0], np.array(attribute.floats, np.float32)


def _holds_floats(tensor: onnx.TensorProto) -> bool:
    is_here = tensor.data_location != onnx.TensorProto.EXTERNAL
    has_values = bool(tensor.raw_data or tensor.float_data)
    return is_here and has_values and tensor.data_type == onnx.TensorProto.FLOAT


def _sizes(types: Mapping[str, onnx.TypeProto], name: str) -> list[int]:
    """Return the sizes of a value, 0 for each that is not known."""
    if name not in types or not types[name].tensor_type.HasField("shape"):
        return []
    return [int(dim.dim_value) for dim in types[name].tensor_type.shape.dim]


def _axes(node: onnx.NodeProto, rank: int) -> list[int]:
    named = [list(a.ints) for a in node.attribute if a.name == "axes"]
    axes = named[0] if named else list(range(rank))
    return [axis % rank for axis in axes] if all(-rank <= axis < rank for axis in axes) else []


def _crops(node: onnx.NodeProto) -> bool:
    """Say whether the size also depends on a region of interest."""
    return any(
        a.name == "coordinate_transformation_mode" and a.s == b"tf_crop_and_resize"
        for a in node.attribute
    )


def _cut(size: int, scale: np.float32) -> int:
    product = float(np.float32(size) * scale)
    return math.floor(product) if math.isfinite(product) else -1


MAX_FOLLOWED = 4096
"""Elements of a followed vector. Shapes have rank elements, lists of indices some hundreds."""

INFERENCE_ERRORS = (
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
    RuntimeError,
    ValueError,
    MemoryError,  # it makes lists as long as the model says
)
"""What inference raises for models that it does not like."""

# Operators of ONNX that have a data propagation function (`OpSchema`, onnx 1.23).
_ARITHMETIC = {"Add", "Mul", "Sub"}
_FOLLOWED = (
    _ARITHMETIC | {"Cast", "Concat", "Gather", "Shape", "Size", "Slice", "Squeeze"} | {"Unsqueeze"}
)
# Has the same shapes and types as the arithmetic operators, and no data propagation function.
_UNFOLLOWED = "Div"
_MAX_SHAPE = 64  # the longest result of Shape: the most dimensions that a tensor has
_UNKNOWN = MAX_FOLLOWED + 1
_HIDDEN = "\N{NULL}"  # before a name: no exporter writes such names
_MAX_ROUNDS = 8  # what one round makes known the next one need not hide

_Types = Mapping[str, onnx.TypeProto]


def infer(model: onnx.ModelProto, *, follow: bool = True, strict: bool = False) -> onnx.ModelProto:
    """Return the model with the shapes that onnx finds; `follow` also through values of shapes.

    Names that onnx makes up for open sizes are left out. A `strict` inference raises where shapes
    contradict each other; any other leaves them open there.

    Raises: one of `INFERENCE_ERRORS`.
    """
    known = _infer(model, follow=False, strict=strict)
    _forget_names(known.graph, model.graph)
    if not follow or _body_follows(known.graph):
        return known
    open_before = _count_open(known.graph)
    for _ in range(_MAX_ROUNDS):
        if not open_before:
            break
        known = _infer(_followed(known, strict=strict), follow=False, strict=strict)
        _forget_names(known.graph, model.graph)
        open_now = _count_open(known.graph)
        if open_now >= open_before:
            break
        open_before = open_now
    return known


def _infer(model: onnx.ModelProto, *, follow: bool, strict: bool) -> onnx.ModelProto:
    pools = pools_to_change(model.graph)
    inferred = _infer_scaled(with_pools(model, pools), follow=follow, strict=strict)
    without_pools(inferred, model, pools)
    return inferred


def _infer_scaled(model: onnx.ModelProto, *, follow: bool, strict: bool) -> onnx.ModelProto:
    inferred = infer_by_onnx(model, follow=follow, strict=strict)
    changed: dict[int, tuple[int, Scales]] = {}
    for _ in range(_MAX_ROUNDS):
        # One Resize after the other: a size that changes changes what the next one reads.
        more = {
            at: row for at, row in scales_to_change(inferred.graph).items() if at not in changed
        }
        if not more:
            break
        changed |= more
        other = onnx.ModelProto()
        other.CopyFrom(model)
        with_scales(other, changed)
        inferred = infer_by_onnx(other, follow=follow, strict=strict)
        without_scales(inferred, model)
    return inferred


def _followed(known: onnx.ModelProto, *, strict: bool) -> onnx.ModelProto:
    """Return the model with what following the values of shapes adds to what is known."""
    guarded = onnx.ModelProto()
    guarded.CopyFrom(known)
    _hide_vectors(guarded.graph)
    inferred = _infer(guarded, follow=True, strict=strict)
    _restore(known.graph, inferred.graph)
    return inferred


def _shapes(graph: onnx.GraphProto) -> Iterator[tuple[str, list[onnx.TensorShapeProto.Dimension]]]:
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.tensor_type.HasField("shape"):
            yield value.name, list(value.type.tensor_type.shape.dim)


def _count_open(graph: onnx.GraphProto) -> int:
    """Count the nodes' results of which some size is neither a number nor an input's symbol."""
    symbols = {dim.dim_param for v in graph.input for dim in v.type.tensor_type.shape.dim} - {""}
    known = {
        name
        for name, dims in _shapes(graph)
        if all(dim.HasField("dim_value") or dim.dim_param in symbols for dim in dims)
    }
    return sum(name not in known for node in graph.node for name in node.output if name)


def _forget_names(inferred: onnx.GraphProto, model: onnx.GraphProto) -> None:
    """Leave out names of sizes that the model does not have: made up, they hide better ones."""
    own = {dim.dim_param for _, dims in _shapes(model) for dim in dims}
    for _, dims in _shapes(inferred):
        for dim in dims:
            if dim.dim_param and dim.dim_param not in own:
                dim.ClearField("dim_param")


def _body_follows(graph: onnx.GraphProto) -> bool:
    """Say whether a body (of If, Loop, Scan) has an operator that inference would follow."""
    pending = [body for node in graph.node for body in inner_graphs(node)]
    while pending:
        body = pending.pop()
        if any(node.op_type in _FOLLOWED for node in body.node):
            return True
        pending.extend(inner for node in body.node for inner in inner_graphs(node))
    return False


def _hide_vectors(graph: onnx.GraphProto) -> None:
    """Let no followed node read a vector that is long or may turn out to be.

    Before → after: Add, Sub, Mul → Div. Of the others, the input `v` → a graph input of the type
    and rank of `v` that says nothing of its length.
    """
    types = {v.name: v.type for v in (*graph.input, *graph.value_info, *graph.output)}
    # Values whose elements are followed, and how many these are at most.
    followed = {tensor.name: _elements(tensor) for tensor in graph.initializer}
    # An input's open length stays open; that of another value may become known on the way.
    followed |= {v.name: 0 for v in graph.input if _length(v.name, types) == _UNKNOWN}
    hidden: set[str] = set()
    for node in graph.node:
        if node.op_type not in _FOLLOWED or node.domain not in ("", "ai.onnx"):
            continue
        names = [name for name in node.input if name and node.op_type != "Shape"]
        lengths = {name: followed.get(name, _length(name, types)) for name in names}
        long = {name for name, length in lengths.items() if length and length > MAX_FOLLOWED}
        if long and node.op_type in _ARITHMETIC:
            node.op_type = _UNFOLLOWED
            continue
        for at, name in enumerate(node.input):
            if name in long:
                hidden.add(name)
                node.input[at] = _HIDDEN + name
        made = None if long else _made_length(node.op_type, [lengths[name] for name in names])
        if made is not None:
            followed |= dict.fromkeys(node.output, made)
    graph.input.extend(_unknown(name, types.get(name)) for name in sorted(hidden))


def _made_length(op_type: str, lengths: list[int | None]) -> int | None:
    """Return the most elements that a node's result can have, None where it is not followed."""
    if op_type in ("Shape", "Size"):
        return _MAX_SHAPE
    known = [length for length in lengths if length is not None]
    if len(known) < len(lengths):
        return None
    return sum(known) if op_type == "Concat" else max(known, default=0)


def _length(name: str, types: _Types) -> int | None:
    """Return how many elements inference may make of a value, None where it makes none."""
    if name not in types or not types[name].tensor_type.HasField("shape"):
        return _UNKNOWN
    dims = types[name].tensor_type.shape.dim
    if len(dims) != 1:
        return 1 if not dims else None
    return int(dims[0].dim_value) if dims[0].HasField("dim_value") else _UNKNOWN


def _elements(tensor: onnx.TensorProto) -> int:
    count = 1
    for size in tensor.dims:
        count *= size
    return count


def _unknown(name: str, kind: onnx.TypeProto | None) -> onnx.ValueInfoProto:
    value = onnx.ValueInfoProto(name=_HIDDEN + name)
    if kind is None:
        return value
    value.type.tensor_type.elem_type = kind.tensor_type.elem_type
    if kind.tensor_type.HasField("shape"):
        for _ in kind.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim.add()
    return value


def _restore(known: onnx.GraphProto, inferred: onnx.GraphProto) -> None:
    """Undo `_hide_vectors`, and give back what was known before something was hidden."""
    for node, original in zip(inferred.node, known.node, strict=True):
        node.op_type = original.op_type
        node.input[:] = original.input
    del inferred.input[:]
    inferred.input.extend(known.input)
    found = {value.name: value for value in (*inferred.value_info, *inferred.output)}
    for value in (*known.value_info, *known.output):
        other = found.get(value.name)
        if other is None:
            inferred.value_info.append(value)
        elif not other.type.tensor_type.HasField("shape"):
            other.type.CopyFrom(value.type)
