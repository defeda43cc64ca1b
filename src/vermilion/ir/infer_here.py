"""onnx's shape inference in this process, kept from reading at address 0.

What asks for the type of an input that has none does so, and the result of another domain's node
has none. Such a node is hidden until its input has a type. `onnx_shapes` keeps it from more.
"""

from __future__ import annotations

import onnx

from vermilion.ir.protobuf import all_graphs

HIDDEN_DOMAIN = "vermilion.hidden"
# Whose inference fails so (onnx 1.23: every operator of every opset, tried with such an input).
_READ_A_TYPE = ("DictVectorizer", "EyeLike", "LabelEncoder", "RegexFullMatch")


def infer_here(model: onnx.ModelProto, *, follow: bool, strict: bool) -> onnx.ModelProto:
    """Return the same in this process, which a Slice of a size below zero ends.

    Nodes that read the type of their input are inferred when it has one.
    """
    work, hidden = _with_hidden(model)
    while True:
        found: onnx.ModelProto = onnx.shape_inference.infer_shapes(
            work, data_prop=follow, strict_mode=strict
        )
        typed = _typed(found)
        nodes = _nodes(work)
        shown = [at for at, _ in hidden if nodes[at].input and nodes[at].input[0] in typed]
        if not shown:
            break
        for at, domain in hidden:
            nodes[at].domain = domain if at in shown else HIDDEN_DOMAIN
        hidden = [(at, domain) for at, domain in hidden if at not in shown]
    for at, domain in hidden:
        _nodes(found)[at].domain = domain
    if work is not model:
        found.opset_import.pop()
    return found


def _with_hidden(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[tuple[int, str]]]:
    """Return the model without what reads types, and which nodes these are, of which domains."""
    nodes = _nodes(model)
    hidden = [(at, node.domain) for at, node in enumerate(nodes) if node.op_type in _READ_A_TYPE]
    if not hidden:
        return model, hidden
    work = onnx.ModelProto()
    work.CopyFrom(model)
    work.opset_import.append(onnx.helper.make_opsetid(HIDDEN_DOMAIN, 1))
    copies = _nodes(work)
    for at, _ in hidden:
        copies[at].domain = HIDDEN_DOMAIN
    return work, hidden


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    nodes = [node for graph in all_graphs(model.graph) for node in graph.node]
    return nodes + [node for function in model.functions for node in function.node]


def _typed(model: onnx.ModelProto) -> set[str]:
    """Name what has a type; a name of several graphs only where it has one in each of them."""
    typed, untyped = set[str](), set[str]()
    for graph in all_graphs(model.graph):
        values = (*graph.input, *graph.value_info, *graph.output)
        here = {value.name for value in values if value.type.WhichOneof("value")}
        here |= {tensor.name for tensor in graph.initializer}
        untyped |= {name for node in graph.node for name in node.output} - here
        typed |= here
    return typed - untyped
