"""Results without elements: nothing has to be computed for them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from vermilion.ir.opset import constant_of, static_shape
from vermilion.ir.passes.constant_nodes import inferred, replace_by_weights
from vermilion.ir.passes.rewrite import Notes, new_weight

_NO_ARRAY = (ir.DataType.STRING, ir.DataType.UNDEFINED)


def fold_empty(model: ir.Model, notes: Notes) -> None:
    """Before → after: `y = F (x)` of a size of 0 → a weight `y`, or `Identity` of one.

    The sizes are those that onnx infers from the node's inputs. ONNX Runtime's kernels (1.32) of
    GRU, InstanceNormalization, ConvInteger and Unique end the process on what has no elements.
    """
    for node in list(model.graph):
        if not _is_empty(model, node):
            continue
        arrays = {
            str(v.name): np.empty(static_shape(v) or (), v.dtype.numpy())
            for v in node.outputs
            if v.name and v.dtype is not None
        }
        for value in node.outputs:
            if value.is_graph_output():
                _stand_in(model.graph, node, value, arrays[str(value.name)])
        replace_by_weights(model.graph, node, arrays)
        notes.fired += 1


def _is_empty(model: ir.Model, node: ir.Node) -> bool:
    results = [value for value in node.outputs if value.name]
    if node.domain != "" or not results or any(v.dtype in _NO_ARRAY for v in results):
        return False
    if not all(v.dtype is not None and 0 in (static_shape(v) or ()) for v in results):
        return False
    if node.op_type == "Identity" and constant_of(node.inputs[0]) is not None:
        return False  # what this pass writes
    bodies = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    if any(attribute.type in bodies for attribute in node.attributes.values()):
        return False
    # What a file says of a result may be wrong.
    found = inferred(model, node)
    return [(v.dtype, static_shape(v)) for v in results] == found


def _stand_in(graph: ir.Graph, node: ir.Node, value: ir.Value, array: np.ndarray) -> None:
    """Let an output of the model come from a node that copies a weight."""
    weight = new_weight(graph, f"{value.name}/empty", ir.tensor(array))
    made = ir.node("Identity", [weight], name=f"{node.name or value.name}/empty")
    new, name = made.outputs[0], value.name
    new.type, new.shape = value.type, value.shape
    graph.insert_before(node, made)
    value.replace_all_uses_with(new, replace_graph_outputs=True)
    value.name = None
    new.name = name
