"""Types of values that ONNX's own inference does not know."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from vermilion.errors import VermilionError
from vermilion.ir.element_types import numpy_type
from vermilion.ir.literal.engine import OutputFound
from vermilion.ir.literal.run import open_literally


def complete_types(model: ir.Model) -> None:
    """Set the type that ONNX Runtime finds, and the known sizes, of values that have no type.

    ONNX's own inference stops at operators of other domains. Left open where ONNX Runtime cannot
    open the model either. It says `[]` of a number and of a tensor whose rank it does not know,
    too: which of both it is, a Shape of the tensor tells, which has a size only where there is a
    rank.
    """
    untyped = {
        value.name: value
        for node in model.graph
        for value in node.outputs
        if value.name and value.type is None and (value.uses() or value.is_graph_output())
    }
    if not untyped:
        return
    pointless: set[str] = set()
    for found in _described(model, list(untyped)):
        value = untyped.get(found.name)
        dtype = numpy_type(found.type)
        if value is None or dtype is None:
            continue
        kind = ir.DataType.STRING if dtype.kind == "O" else ir.DataType.from_numpy(dtype)
        value.type = ir.TensorType(kind)
        if found.shape:
            value.shape = ir.Shape(
                [size if isinstance(size, int) else None for size in found.shape]
            )
        elif value.shape is None:
            pointless.add(found.name)
    ranks = {_SHAPE_OF + name: name for name in sorted(pointless)}
    for found in _described(model, [], sorted(pointless)) if pointless else ():
        if found.name in ranks and list(found.shape) == [0]:
            untyped[ranks[found.name]].shape = ir.Shape([])


_SHAPE_OF = "vermilion/shape of "


def _described(
    model: ir.Model, names: Sequence[str], measured: Sequence[str] = ()
) -> Sequence[OutputFound]:
    """Return what ONNX Runtime says of values, and of the Shape of others; nothing if it fails."""
    clone = model.clone()
    outputs = {value.name for value in clone.graph.outputs}
    made = {value.name: value for node in clone.graph for value in node.outputs}
    clone.graph.outputs.extend(made[name] for name in names if name not in outputs)
    for name in measured:
        node = ir.Node("", "Shape", [made[name]], name=_SHAPE_OF + name)
        node.outputs[0].name = _SHAPE_OF + name
        node.outputs[0].type = ir.TensorType(ir.DataType.INT64)
        clone.graph.append(node)
        clone.graph.outputs.append(node.outputs[0])
    try:
        return open_literally(clone).described
    except VermilionError:
        return ()
