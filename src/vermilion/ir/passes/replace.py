"""The one way passes take a node out: readers and outputs keep their names."""

from __future__ import annotations

import onnx_ir as ir

from vermilion.ir.opset import tensor_sizes


def cannot_bypass(node: ir.Node, source: ir.Value | None) -> str:
    """Say why `node` cannot be replaced by `source`, its input; empty where it can."""
    if source is None:
        return "it has no input"
    if not node.outputs[0].is_graph_output():
        return ""
    if source.is_graph_input() or source.is_initializer():
        return "it ties an input or a weight straight to an output of the model"
    if source.is_graph_output():
        return "it gives one result a second output name"
    if source.producer() is None or source.graph is not node.graph:
        return "its input belongs to an outer graph"
    return ""


def bypass(node: ir.Node, source: ir.Value) -> None:
    """Remove `node`, whose first output equals `source`; an output keeps its name.

    The caller has asked `cannot_bypass` first.
    """
    value = node.outputs[0]
    graph = node.graph
    assert graph is not None, "the node stands in a graph"
    learn_type(source, value)
    if value.is_graph_output():
        name, value_type, shape = value.name, value.type, value.shape
        value.replace_all_uses_with(source, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        source.name = name
        source.type, source.shape = value_type, shape
        return
    value.replace_all_uses_with(source)
    graph.remove(node, safe=True)


def learn_type(target: ir.Value, known: ir.Value) -> None:
    """Fill in a type or shape of `target` that only `known`, its equal, has."""
    if target.type is None:
        target.type = known.type
    if target.shape is None:
        target.shape = known.shape


def new_weight(graph: ir.Graph, near: str, tensor: ir.TensorProtocol) -> ir.Value:
    """Register `tensor` as a weight with a free name that begins like `near`."""
    name = near
    taken = graph.initializers
    number = 0
    used = {value.name for node in graph for value in node.outputs} if near in taken else set()
    while name in taken or name in used:
        number += 1
        name = f"{near}_{number}"
    value = make_weight(name, tensor)
    graph.register_initializer(value)
    return value


def make_weight(name: str | None, tensor: ir.TensorProtocol) -> ir.Value:
    """Return a value that holds `tensor`, not yet part of a graph."""
    return ir.Value(
        name=name,
        shape=ir.Shape(tensor_sizes(tensor)),
        type=ir.TensorType(tensor.dtype),
        const_value=tensor,
    )


def drop_if_unread(graph: ir.Graph, value: ir.Value | None) -> None:
    """Remove a weight that nothing reads any more."""
    if value is None or not value.is_initializer() or value.graph is not graph:
        return
    if not (value.uses() or value.is_graph_output() or value.is_graph_input()):
        del graph.initializers[value.name or ""]
