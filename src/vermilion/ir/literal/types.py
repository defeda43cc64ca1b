"""Types of values that ONNX's own inference does not know."""

from __future__ import annotations

import onnx_ir as ir

from vermilion.errors import VermilionError
from vermilion.ir.element_types import numpy_type
from vermilion.ir.literal.run import open_literally


def complete_types(model: ir.Model) -> None:
    """Give values without a type the one that ONNX Runtime finds, and their sizes as far as known.

    ONNX's own inference stops at operators of other domains. Left open where ONNX Runtime cannot
    open the model either.
    """
    untyped = {
        value.name: value
        for node in model.graph
        for value in node.outputs
        if value.name and value.type is None and (value.uses() or value.is_graph_output())
    }
    if not untyped:
        return
    clone = model.clone()
    outputs = {value.name for value in clone.graph.outputs}
    made = {value.name: value for node in clone.graph for value in node.outputs}
    clone.graph.outputs.extend(made[name] for name in untyped if name not in outputs)
    try:
        opened = open_literally(clone)
    except VermilionError:
        return
    for found in opened.described:
        value = untyped.get(found.name)
        dtype = numpy_type(found.type)
        if value is not None and dtype is not None:
            kind = ir.DataType.STRING if dtype.kind == "O" else ir.DataType.from_numpy(dtype)
            value.type = ir.TensorType(kind)
            value.shape = ir.Shape(
                [size if isinstance(size, int) else None for size in found.shape]
            )
