"""Operators of `com.microsoft` written as ONNX's own, which every device and our compiler take.

ONNX Runtime's optimizer and its quantizer write them into files. Where such a part stays with ONNX
Runtime, its optimizer finds them again.
Source of every definition: ONNX Runtime's `docs/ContribOperators.md`.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from vermilion.ir.elementwise import elementwise
from vermilion.ir.opset import where
from vermilion.ir.passes import contrib_attention, contrib_float, contrib_quantized
from vermilion.ir.passes.contrib_writer import Definition, Left, Writer
from vermilion.ir.passes.infer_shapes import infer_shapes
from vermilion.ir.passes.rewrite import Notes

DEFINITIONS: Mapping[str, Definition] = {
    **contrib_float.DEFINITIONS,
    **contrib_quantized.DEFINITIONS,
    **contrib_attention.DEFINITIONS,
}
# A shape that one replacement makes known may be what the next one needs.
_ROUNDS = 8


def write_contrib(model: ir.Model, notes: Notes) -> None:
    """Before → after: `com.microsoft.BiasGelu (x, b)` → `Mul (…, Erf (…))`, and others."""
    for _ in range(_ROUNDS):
        left: list[tuple[str, str]] = []
        fired = 0
        for node in list(model.graph.all_nodes()):
            if not is_contrib(node):
                continue
            try:
                _replace(model, node)
            except Left as why:
                left.append((where(node), str(why)))
            else:
                fired += 1
        notes.fired += fired
        if not fired or not left:
            break
        infer_shapes(model, Notes())
    for place, reason in left:
        notes.refuse(place, reason)


def is_contrib(node: ir.Node) -> bool:
    """Say whether a definition of `node` stands in the table, and no row of its own."""
    if node.op_type not in DEFINITIONS or elementwise(node) is not None:
        return False
    # ONNX Runtime writes `SimplifiedLayerNormalization` without a domain.
    return node.domain == "com.microsoft" or node.op_type == "SimplifiedLayerNormalization"


def _replace(model: ir.Model, node: ir.Node) -> None:
    writer = Writer(model, node)
    results = DEFINITIONS[node.op_type](writer, node)
    read = [out for out in node.outputs if out.uses() or out.is_graph_output()]
    if any(out.index() is None or out.index() >= len(results) for out in read):  # type: ignore[operator]
        raise Left(f"{node.op_type} whose other results are read")
    writer.put(results)
