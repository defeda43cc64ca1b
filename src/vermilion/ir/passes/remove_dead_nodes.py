"""Dropping what no output depends on: nodes, weights, functions."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from vermilion.ir.passes.report import Notes


def remove_dead_nodes(model: ir.Model, notes: Notes) -> None:
    """Remove nodes, weights and functions without a reader; fired counts them."""
    before = _size(model)
    common.RemoveUnusedNodesPass()(model)
    common.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    notes.fired += before - _size(model)


def _size(model: ir.Model) -> int:
    return len(model.functions) + sum(
        len(graph) + len(graph.initializers) for graph in model.graphs()
    )
