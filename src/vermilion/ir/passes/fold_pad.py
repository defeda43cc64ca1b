"""Taking a Pad of zeros into the convolutions that read it."""

from __future__ import annotations

import onnx_ir as ir

from vermilion.ir.attributes import integers, text
from vermilion.ir.opset import constant_of, is_operator
from vermilion.ir.passes.replace import bypass, cannot_bypass, drop_if_unread
from vermilion.ir.passes.report import Notes


def fold_pad(model: ir.Model, notes: Notes) -> None:
    """Before → after: `Conv (Pad (x, p), w)` → `Conv<pads += p> (x, w)`."""
    for node in list(model.graph):
        if not is_operator(node, "Pad"):
            continue
        pads = _spatial_pads(node)
        reason = pads if isinstance(pads, str) else _unfit_reader(node)
        if reason or isinstance(pads, str):
            notes.refuse(node.name or "?", str(reason))
            continue
        for reader in node.outputs[0].consumers():
            _widen(reader, pads)
        amounts = [value for value in node.inputs[1:] if value is not None]
        source = node.inputs[0]
        assert source is not None, "a Pad has an input"
        bypass(node, source)
        for value in amounts:
            drop_if_unread(model.graph, value)
        notes.fired += 1


def _spatial_pads(node: ir.Node) -> tuple[int, ...] | str:
    """Return the pads of height and width as Conv spells them, or why there are none."""
    mode = text(node, "mode", "constant")
    if mode != "constant":
        return f"it pads by {mode}, not by zeros"
    amounts = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    if amounts is None:
        return "its amounts are computed"
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        return "it pads some axes only"
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is not None and value.name:
        filling = constant_of(value)
        if filling is None or filling.numpy().any():
            return "it does not pad by zeros"
    pads = [int(amount) for amount in amounts.numpy().ravel()]
    rank = len(pads) // 2
    before, after = pads[:rank], pads[rank:]
    if any(before[:2]) or any(after[:2]) or min(pads, default=0) < 0:
        return "it pads other axes than height and width, or cuts"
    return (*before[2:], *after[2:])


def _unfit_reader(node: ir.Node) -> str:
    readers = node.outputs[0].consumers()
    if not readers or node.outputs[0].is_graph_output():
        return "its result leaves the model"
    for reader in readers:
        if not is_operator(reader, "Conv") or reader.inputs[0] is not node.outputs[0]:
            return f"{reader.op_type} reads it, not a convolution"
        if text(reader, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
            return "the convolution chooses its own padding"
    return cannot_bypass(node, node.inputs[0])


def _widen(conv: ir.Node, pads: tuple[int, ...]) -> None:
    own = integers(conv, "pads", (0,) * len(pads))
    if "auto_pad" in conv.attributes:
        del conv.attributes["auto_pad"]
    both = tuple(a + b for a, b in zip(own, pads, strict=True))
    conv.attributes.add(ir.AttrInt64s("pads", both))
