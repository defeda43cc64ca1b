"""Writing Softmax so that it means the same in every version of the operators."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from vermilion.ir.attributes import integer
from vermilion.ir.opset import is_operator, opset_of, static_shape
from vermilion.ir.passes.replace import new_weight
from vermilion.ir.passes.report import Notes

# Since opset 13 they run along one axis; before, along all axes from it on, taken together.
_ONE_AXIS_SINCE = 13


def settle_softmax(model: ir.Model, notes: Notes) -> None:
    """Before → after: `Softmax<axis = k> (x)` → `Reshape (Softmax<axis = 1> (Flatten<k> (x)), …)`.

    Where nothing but the axis itself counts, the axis is written down, which was 1 by default.
    For models that `raise_opset` had to leave: what reads them afterwards need not know their
    version. Source: ONNX Softmax-1, -11 and -13; LogSoftmax and Hardmax are as Softmax.
    """
    if not 0 < opset_of(model) < _ONE_AXIS_SINCE:
        return
    for node in list(model.graph.all_nodes()):
        if is_operator(node, "Softmax", "LogSoftmax", "Hardmax"):
            notes.fired += _settle(model.graph, node)


def _settle(main: ir.Graph, node: ir.Node) -> bool:
    source, graph = node.inputs[0], node.graph
    assert source is not None
    assert graph is not None
    axis = integer(node, "axis", 1)
    if source.shape is not None and len(source.shape) > 0:
        axis %= len(source.shape)
        if all(size == 1 for size in source.shape.dims[axis + 1 :]):
            is_new = "axis" not in node.attributes
            node.attributes.add(ir.AttrInt64("axis", axis))
            return is_new
    result = node.outputs[0]
    sizes = static_shape(source)
    flat, flat_result, shape = (
        ir.Value(name=f"{result.name}/{what}", type=source.type)
        for what in ("flat", "flat result", "shape")
    )
    for value in (flat, flat_result):  # two axes, which a second look sees
        value.shape = ir.Shape(
            [None, None] if sizes is None else [math.prod(sizes[:axis]), math.prod(sizes[axis:])]
        )
    flatten = ir.Node(
        "", "Flatten", [source], [ir.AttrInt64("axis", axis)], outputs=[flat],
        name=f"{result.name}/Flatten",
    )  # fmt: skip
    made = [flatten]
    if sizes is not None and graph is main:
        shape = new_weight(main, f"{result.name}/shape", ir.tensor(np.array(sizes, np.int64)))
    else:
        shape.type = ir.TensorType(ir.DataType.INT64)
        made.append(ir.Node("", "Shape", [source], outputs=[shape], name=f"{result.name}/Shape"))
    copy = ir.Node(
        "", node.op_type, [flat], [ir.AttrInt64("axis", 1)], outputs=[flat_result], name=node.name
    )  # fmt: skip
    back = ir.Node("", "Reshape", [flat_result, shape], name=f"{result.name}/Reshape")
    graph.insert_before(node, [*made, copy, back])
    new = back.outputs[0]
    name, new.type, new.shape = result.name, result.type, result.shape
    result.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    new.name = name
    return True
