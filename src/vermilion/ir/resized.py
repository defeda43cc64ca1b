"""Sizes that Resize gives: the product with a scale is rounded to float32 before it is cut.

onnx 1.23 multiplies in double: 10 rows times float32(0.7) are 6.9999999, so 6; ONNX Runtime
multiplies in float32, where they are 7. What runs decides, so inference is led to the same size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from numpy.typing import NDArray

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
