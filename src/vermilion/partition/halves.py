"""Where a graph can be cut into two halves that hand little over."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

_MOST_CROSSING = 2  # tensors


def narrow_cuts(model: ir.Model) -> Iterator[tuple[int, tuple[ir.Value, ...]]]:
    """Yield positions between which few tensors are handed over, and those tensors."""
    order = {node: at for at, node in enumerate(model.graph)}
    last: dict[ir.Value, int] = {}
    for node, at in order.items():
        for value in node.inputs:
            if value is not None and value.producer() is not None:
                last[value] = at
    outputs = set(model.graph.outputs)
    alive: dict[ir.Value, None] = {}
    for node, at in order.items():
        alive |= dict.fromkeys(v for v in node.outputs if last.get(v, -1) > at or v in outputs)
        for value in [v for v in alive if v not in outputs and last.get(v, -1) <= at]:
            del alive[value]
        inside = [value for value in alive if value not in outputs]
        if at + 1 < len(order) and len(inside) == len(alive) and len(inside) <= _MOST_CROSSING:
            yield at + 1, tuple(inside)
