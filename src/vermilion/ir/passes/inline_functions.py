"""Replacing calls of the model's own functions by their bodies."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from vermilion.ir.passes.report import Notes

MAX_NODES = 200_000
"""Functions that call functions can grow without bound: twenty doublings are a million nodes."""


def inline_functions(model: ir.Model, notes: Notes) -> None:
    """Before → after: `y = F(x)` → the nodes of `F`; fired counts the functions that went.

    PyTorch's exporter writes functions; no backend places a node that it cannot look into.
    """
    if not model.functions:
        return
    grown = _nodes_when_inlined(model)
    if grown is None:
        notes.refuse("model", "a function of the model calls itself")
        return
    if grown > MAX_NODES:
        notes.refuse("model", f"inlined, the model would have {grown} nodes")
        return
    before = len(model.functions)
    for function in model.functions.values():
        for domain, version in function.opset_imports.items():
            if model.graph.opset_imports.get(domain, version) != version:
                notes.refuse(
                    f"function `{function.name}`",
                    f"it speaks version {version} of `{domain or 'ai.onnx'}`, the model another",
                )
                return
    common.InlinePass()(model)
    common.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    notes.fired += before - len(model.functions)


def _nodes_when_inlined(model: ir.Model) -> int | None:
    """Count nodes as they would be after inlining, None where a function calls itself."""
    sizes: dict[ir.OperatorIdentifier, int] = {}
    calls = {
        key: [node.op_identifier() for node in function.all_nodes()]
        for key, function in model.functions.items()
    }
    pending = [(key, False) for key in calls]
    active: set[ir.OperatorIdentifier] = set()
    while pending:
        key, called_done = pending.pop()
        if key in sizes:
            continue
        if called_done:
            active.discard(key)
            sizes[key] = sum(sizes.get(name, 1) for name in calls[key])
            continue
        if key in active:
            return None
        active.add(key)
        pending.append((key, True))
        inner = {name for name in calls[key] if name in calls and name not in sizes}
        if inner & active:
            return None
        pending.extend((name, False) for name in inner)
    return sum(sizes.get(node.op_identifier(), 1) for node in model.graph.all_nodes())
