"""The order in which requests go back through a graph, its bodies (of If, Loop, Scan) included."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import onnx_ir as ir

Pair = tuple[ir.Value, ir.Value | None]
"""A value of which something is wanted, and the one that must then be so."""


def readers_first(
    model: ir.Model, values: Iterable[ir.Value], carries: Callable[[ir.Node], bool]
) -> Iterator[ir.Node]:
    """Yield the nodes that the values' elements reach, each after all that read its results.

    `carries` says through which nodes they go.
    """
    owners: dict[ir.Graph, ir.Node] = {}

    def readers(of: Iterable[ir.Value]) -> Iterator[ir.Node]:
        for value in of:
            for node, _ in value.uses():
                yield node
            if value.is_graph_output() and value.graph is not model.graph:
                if not owners:
                    owners.update(_owners(model))
                owner = owners.get(value.graph) if isinstance(value.graph, ir.Graph) else None
                if owner is not None:
                    yield owner

    seen: set[ir.Node] = set()
    pending: list[tuple[ir.Node | None, Iterator[ir.Node]]] = [(None, readers(values))]
    while pending:
        node, following = pending[-1]
        reader = next((reader for reader in following if reader not in seen), None)
        if reader is not None:
            seen.add(reader)
            bodies = _bodies(reader)
            inner = [value for body in bodies for value in body.inputs]
            onwards = [*reader.outputs, *inner] if bodies or carries(reader) else []
            pending.append((reader, readers(onwards)))
            continue
        pending.pop()
        if node is not None:
            yield node


def body_inputs(node: ir.Node) -> Iterator[Pair]:
    """Pair the inputs of a Loop's or a Scan's body with what the node hands to them.

    The number of the round is not one that is handed over.
    """
    if node.op_type in ("Loop", "Scan"):
        first = 1 if node.op_type == "Loop" else 0
        for body in _bodies(node):
            yield from zip(body.inputs[first:], node.inputs[first:], strict=False)


def body_outputs(node: ir.Node) -> Iterator[Pair]:
    """Pair the node's results with what its bodies make for them."""
    for body in _bodies(node):
        made = body.outputs[1:] if node.op_type == "Loop" else body.outputs
        yield from zip(node.outputs, made, strict=False)


def _bodies(node: ir.Node) -> list[ir.Graph]:
    return [
        attribute.as_graph()
        for attribute in node.attributes.values()
        if attribute.type == ir.AttributeType.GRAPH
    ]


def _owners(model: ir.Model) -> Iterator[tuple[ir.Graph, ir.Node]]:
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for body in _bodies(node):
            yield body, node
