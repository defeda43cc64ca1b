"""Putting each node after what it reads from."""

from __future__ import annotations

import onnx_ir as ir

from vermilion.errors import ModelError
from vermilion.ir.passes.rewrite import Notes


def sort_nodes(model: ir.Model, notes: Notes) -> None:
    """Sort the graph and its bodies, leaving sorted ones as they are; fired counts graphs.

    Raises: ModelError where the graph has a cycle.
    """
    unsorted = sum(not _is_sorted(graph) for graph in model.graphs())
    if not unsorted:
        return
    try:
        model.graph.sort()
    except ValueError as error:
        raise ModelError(
            "the graph has a cycle: some node waits for its own result", hint="export it again"
        ) from error
    notes.fired += unsorted


def _is_sorted(graph: ir.Graph) -> bool:
    seen: set[int] = set()
    for node in graph:
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            if producer is not None and producer.graph is graph and id(producer) not in seen:
                return False
        # A body reads outer values where its node stands.
        for body in node.attributes.values():
            if body.type == ir.AttributeType.GRAPH and not body.is_ref():
                for inner in body.as_graph().all_nodes():
                    for value in inner.inputs:
                        producer = value.producer() if value is not None else None
                        if (
                            producer is not None
                            and producer.graph is graph
                            and id(producer) not in seen
                        ):
                            return False
        seen.add(id(node))
    return True
