"""Turning CastLike into Cast where the type that it asks for is known."""

from __future__ import annotations

import onnx_ir as ir

from vermilion.ir.opset import constant_of, is_operator, where
from vermilion.ir.passes.report import Notes


def settle_casts(model: ir.Model, notes: Notes) -> None:
    """Before → after: `y = CastLike(x, t)` → `y = Cast<to = type of t>(x)`.

    The new node does not read `t`: what is cast may be a constant, which can then be folded.
    """
    for node in list(model.graph):
        if not is_operator(node, "CastLike") or len(node.inputs) != 2:
            continue
        dtype = _type_of(node.inputs[1])
        if dtype is None:
            notes.refuse(where(node), "the type that it asks for is not known")
            continue
        kept = [a for name, a in node.attributes.items() if name in ("saturate", "round_mode")]
        cast = ir.Node(
            "", "Cast", [node.inputs[0]], [ir.AttrInt64("to", int(dtype)), *kept],
            name=node.name,
        )  # fmt: skip
        copy, output = cast.outputs[0], node.outputs[0]
        copy.name, copy.type, copy.shape = output.name, ir.TensorType(dtype), output.shape
        model.graph.insert_before(node, cast)
        output.replace_all_uses_with(copy, replace_graph_outputs=True)
        model.graph.remove(node, safe=True)
        notes.fired += 1


def _type_of(value: ir.Value | None) -> ir.DataType | None:
    constant = constant_of(value)
    if constant is not None:
        return constant.dtype
    return None if value is None else value.dtype
