"""A part cut at every tensor that its compiled form keeps: each piece is judged by itself.

    x → A → a → B → b → C → y      becomes      x → A → a
                                                a' → B → b      (a', b': what was computed)
                                                b' → C → y

Roundings do not add up from piece to piece, so that bounds can be narrow however deep the model
is, and what is wrong is wrong at its own place. All pieces run in one literal run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from vermilion.ir.arrays import Array


def given_name(name: str) -> str:
    """Return the name of the input that takes a cut tensor's place."""
    return f"{name}/given"


@dataclass(frozen=True)
class CutModel:
    """A model whose inner tensors are inputs as well as outputs. `names` are those tensors."""

    model: ir.Model
    names: tuple[str, ...]

    def inputs(self, given: Mapping[str, Array], computed: Mapping[str, Array]) -> dict[str, Array]:
        """Return the inputs: those of the model, and what was computed for each cut."""
        wanted = {str(v.name): v for v in self.model.graph.inputs}
        found = {name: array for name, array in given.items() if name in wanted}
        for name in self.names:
            value = wanted.get(given_name(name))
            if value is not None and value.dtype is not None:
                found[str(value.name)] = computed[name].astype(value.dtype.numpy(), copy=False)
        return found


def cut_at(model: ir.Model, names: Collection[str]) -> CutModel:
    """Return `model`, which stays as it is, cut at the named results of nodes."""
    work = model.clone()
    graph = work.graph
    made = {str(v.name): v for node in graph for v in node.outputs if v.name in names}
    for name, value in made.items():
        uses = list(value.uses())
        if not uses:
            continue
        given = ir.Value(name=given_name(name), type=value.type, shape=value.shape)
        for use in uses:
            use.node.replace_input_with(use.idx, given)
        graph.inputs.append(given)
    graph.outputs.clear()
    graph.outputs.extend(made.values())
    return CutModel(work, tuple(made))


def piece_of(cut: CutModel, *names: str) -> ir.Model:
    """Return the nodes of a cut model that compute these tensors, as a model of its own."""
    work = cut.model.clone()
    graph = work.graph
    wanted = [v for v in graph.outputs if v.name in names]
    graph.outputs.clear()
    graph.outputs.extend(wanted)
    needed: set[ir.Node] = set()
    pending = list(wanted)
    while pending:
        node = pending.pop().producer()
        if node is None or node in needed:
            continue
        needed.add(node)
        pending += [v for v in node.inputs if v is not None]
        pending += [
            v
            for attribute in node.attributes.values()
            for inner in _graphs(attribute)
            for inside in ir.traversal.RecursiveGraphIterator(inner)
            for v in inside.inputs
            if v is not None and v.graph is graph
        ]
    for node in reversed(list(graph)):
        if node not in needed:
            graph.remove(node, safe=False)
    read = {id(v) for node in ir.traversal.RecursiveGraphIterator(graph) for v in node.inputs}
    inputs = [v for v in graph.inputs if id(v) in read]
    graph.inputs.clear()
    graph.inputs.extend(inputs)
    for key, value in list(graph.initializers.items()):
        if id(value) not in read and value not in wanted:
            del graph.initializers[key]
    return work


def node_names(piece: ir.Model) -> tuple[str, ...]:
    """Return the nodes of a piece as errors name them."""
    return tuple(f"`{node.name or node.outputs[0].name}` ({node.op_type})" for node in piece.graph)


def _graphs(attribute: ir.Attr) -> list[ir.Graph]:
    if attribute.type == ir.AttributeType.GRAPH:
        return [attribute.as_graph()]
    if attribute.type == ir.AttributeType.GRAPHS:
        return list(attribute.as_graphs())
    return []
