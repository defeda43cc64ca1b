"""What passes are made of: the type of a rewrite, its notes and report, and edits of a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import onnx_ir as ir

from vermilion.errors import Refusal
from vermilion.ir.opset import tensor_sizes


@dataclass(frozen=True)
class PassStep:
    """One pass as it went over one model."""

    name: str
    fired: int = 0
    refusals: tuple[tuple[str, Refusal], ...] = ()


@dataclass
class Notes:
    """Filled by a pass while it works."""

    fired: int = 0
    refusals: list[tuple[str, Refusal]] = field(default_factory=list)

    def refuse(self, where: str, reason: str, hint: str = "") -> None:
        """Keep why the pass left the thing at `where` alone."""
        self.refusals.append((where, Refusal(reason, hint)))


Rewrite = Callable[[ir.Model, Notes], None]
"""A pass proper: changes the model in place, counts and explains in the notes."""


class GraphPass(ir.passes.InPlacePass):
    """A rewrite in the shape that onnx_ir's pass manager takes; `step` tells how it went."""

    def __init__(self, rewrite: Rewrite, name: str = "") -> None:
        self.name = name or rewrite.__name__.replace("_", "-")
        self.step = PassStep(self.name)
        self._rewrite = rewrite

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the rewrite over the whole model."""
        notes = Notes()
        self._rewrite(model, notes)
        self.step = PassStep(self.name, notes.fired, tuple(notes.refusals))
        return ir.passes.PassResult(model, modified=notes.fired > 0)


def run_pass(rewrite: Rewrite, model: ir.Model) -> PassStep:
    """Run one rewrite on `model` in place; give its report."""
    graph_pass = GraphPass(rewrite)
    graph_pass(model)
    return graph_pass.step


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


def read_instead(graph: ir.Graph, old: ir.Value, new: ir.Value, *keepers: ir.Node) -> None:
    """Let the readers of `old`, but the nodes `keepers`, and the graph's outputs have `new`."""
    for use in tuple(old.uses()):
        if all(use.node is not keeper for keeper in keepers):
            use.node.replace_input_with(use.idx, new)
    for place, output in enumerate(graph.outputs):
        if output is old:
            graph.outputs[place] = new


def take_place(graph: ir.Graph, node: ir.Node, new: ir.Value) -> None:
    """Put `new`, which a node in the graph makes, in the place of the one result of `node`.

    It has its name, type and shape then. The node is removed, and reads nothing any more.
    """
    old = node.outputs[0]
    new.type, new.shape = old.type, old.shape
    read_instead(graph, old, new)
    graph.remove(node, safe=False)
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)
    new.name = old.name


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
    if value is not None and is_unread(graph, value):
        del graph.initializers[value.name or ""]


def is_unread(graph: ir.Graph, value: ir.Value) -> bool:
    """Say whether a value is a weight of this graph that nothing reads."""
    if not value.is_initializer() or value.graph is not graph:
        return False
    return not (value.uses() or value.is_graph_output() or value.is_graph_input())
