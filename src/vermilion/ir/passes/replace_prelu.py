"""Writing PRelu as operators that every NPU has, and that none miscompiles."""

from __future__ import annotations

import onnx_ir as ir

from vermilion.ir.opset import is_operator
from vermilion.ir.passes.replace import bypass, cannot_bypass
from vermilion.ir.passes.report import Notes


def replace_prelu(model: ir.Model, notes: Notes) -> None:
    """Before → after: `PRelu (x, s)` → `Relu (x) - s · (Relu (x) - x)`.

    Both differences are exact: where x is positive the second is 0, where it is negative it is -x.
    Source: ONNX PRelu-16, f(x) = s·x for x < 0, else x. The NPU's BF16 compiler gets PRelu wrong
    for some weights (https://github.com/amd/RyzenAI-SW/issues/390).
    """
    for node in list(model.graph):
        if not is_operator(node, "PRelu"):
            continue
        x, slope = node.inputs[0], node.inputs[1]
        if x is None or slope is None or (x.dtype is not None and not x.dtype.is_floating_point()):
            notes.refuse(node.name or "?", "it is not on floats")
            continue
        relu = _like(node, "Relu", [x], "relu")
        negative = _like(node, "Sub", [relu.outputs[0], x], "negative")
        scaled = _like(node, "Mul", [slope, negative.outputs[0]], "scaled")
        last = _like(node, "Sub", [relu.outputs[0], scaled.outputs[0]], "result")
        model.graph.insert_before(node, [relu, negative, scaled, last])
        reason = cannot_bypass(node, last.outputs[0])
        assert not reason, "its replacement is a plain node's result"
        bypass(node, last.outputs[0])
        notes.fired += 1


def _like(node: ir.Node, op_type: str, inputs: list[ir.Value], suffix: str) -> ir.Node:
    """Return a new node whose result has the type and shape of `node`'s."""
    old = node.outputs[0]
    made = ir.node(op_type, inputs, name=f"{node.name or old.name}/{suffix}")
    made.outputs[0].name = f"{old.name}/{suffix}"
    made.outputs[0].type, made.outputs[0].shape = old.type, old.shape
    return made
