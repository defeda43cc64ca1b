"""Turning Constant nodes into weights, so that every later pass meets constants in one form."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from vermilion.ir.opset import is_operator, where
from vermilion.ir.passes.replace import learn_type, make_weight, new_weight
from vermilion.ir.passes.report import Notes


def lift_constants(model: ir.Model, notes: Notes) -> None:
    """Before → after: `y = Constant()` and its readers → an initializer `y` and its readers.

    Where `y` is an output of the model: → an initializer and `y = Identity(initializer)`, so that
    a node gives every output. Constants in the bodies of If, Loop and Scan are lifted into the
    body they stand in, unless they are its outputs.
    """
    for graph in model.graphs():
        for node in graph:
            if is_operator(node, "Constant"):
                _lift(graph, node, notes, is_main=graph is model.graph)


def _lift(graph: ir.Graph, node: ir.Node, notes: Notes, *, is_main: bool) -> None:
    value = node.outputs[0]
    if value.is_graph_output() and not is_main:
        notes.refuse(where(node), "the constant is an output of its graph")
        return
    tensor = _tensor_of(node)
    if tensor is None:
        notes.refuse(where(node), "the constant is sparse, or given by the caller of a function")
        return
    if value.is_graph_output():
        stored = new_weight(graph, f"{value.name}/constant", tensor)
        made = ir.Node("", "Identity", [stored], name=node.name)
        graph.insert_before(node, made)
        name, result = value.name, made.outputs[0]
        learn_type(value, stored)
        result.type, result.shape = value.type, value.shape
        value.replace_all_uses_with(result, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        result.name = name
        notes.fired += 1
        return
    weight = make_weight(value.name, tensor)
    value.replace_all_uses_with(weight)
    graph.remove(node, safe=True)
    graph.register_initializer(weight)
    notes.fired += 1


def _tensor_of(node: ir.Node) -> ir.TensorProtocol | None:
    """Read the constant out of whichever of the seven attributes holds it (ONNX Constant-13)."""
    if len(node.attributes) != 1:
        return None
    name, attribute = next(iter(node.attributes.items()))
    if attribute.is_ref():
        return None
    match name:
        case "value":
            return attribute.as_tensor()
        case "value_int":
            return ir.tensor(np.array(attribute.as_int(), np.int64))
        case "value_ints":
            return ir.tensor(np.array(attribute.as_ints(), np.int64))
        case "value_float":
            return ir.tensor(np.array(attribute.as_float(), np.float32))
        case "value_floats":
            return ir.tensor(np.array(attribute.as_floats(), np.float32))
        case "value_string":
            return ir.StringTensor([attribute.as_string().encode()], shape=ir.Shape([]))
        case "value_strings":
            strings = [text.encode() for text in attribute.as_strings()]
            return ir.StringTensor(strings, shape=ir.Shape([len(strings)]))
    return None
