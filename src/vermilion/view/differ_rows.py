"""What differs between two models, with nodes as numbers of the page's rows."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from vermilion.ir.opset import constant_of
from vermilion.view.differ import KINDS, Difference

# How the map shows a node that a change is about; `changed` for every other kind.
_STATES = {"added": "added", "removed": "removed", "fused": "fused", "split": "fused"}


def as_rows(found: Difference, models: tuple[ir.Model, ir.Model]) -> dict[str, Any]:
    """Return what differs with nodes as numbers of the page's rows, and each node's state."""
    numbers: list[dict[int, int]] = []
    for model in models:
        rows = [node for node in model.graph if constant_of(node.outputs[0]) is None]
        numbers.append({id(node): number for number, node in enumerate(rows)})
    status = [["same"] * len(one) for one in numbers]
    changes = []
    for change in found.changes:
        sides = [
            [one[id(node)] for node in nodes if id(node) in one]
            for one, nodes in zip(numbers, (change.a, change.b), strict=True)
        ]
        for state, side in zip(status, sides, strict=True):
            for node in side:
                state[node] = _STATES.get(change.kind, "changed")
        changes.append(
            {"kind": change.kind, "what": change.what, "a": sides[0], "b": sides[1],
             "size": change.size}
        )  # fmt: skip
    return {**found.as_json(), "changes": changes, "status": status, "kinds": KINDS}
