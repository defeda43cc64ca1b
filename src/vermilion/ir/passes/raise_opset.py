"""Raising old models to the version of the operators that all else is written for."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from vermilion.ir.opset import OPSET, opset_of
from vermilion.ir.passes.infer_shapes import without_weights
from vermilion.ir.passes.report import Notes

# The lowest format version that onnx pairs with opset 17 (onnx `helper.VERSION_TABLE`, 1.12).
_IR_VERSION = 8


def raise_opset(model: ir.Model, notes: Notes) -> None:
    """Raise the default domain to `OPSET` with onnx's converter; names and shapes stay.

    Refuses where the model has another domain's nodes, functions or bodies, which onnx's
    converter does not follow, or where it has no rule for an operator.
    """
    version = opset_of(model)
    if version == 0 or version >= OPSET:
        return
    reason = _out_of_reach(model)
    if reason:
        notes.refuse("model", reason, f"export it with opset {OPSET}")
        return
    try:
        with without_weights(model) as proto:
            converted = onnx.version_converter.convert_version(proto, OPSET)
    except Exception as error:  # the converter's C++ asserts come as RuntimeError and others
        notes.refuse(
            "model",
            f"onnx cannot convert it from opset {version}: {_first_line(error)}",
            f"export it with opset {OPSET}",
        )
        return
    _take_over(model, ir.from_proto(converted))
    notes.fired += OPSET - version


def _out_of_reach(model: ir.Model) -> str:
    if model.functions:
        return "it has functions, which the converter does not follow"
    for node in model.graph.all_nodes():
        if node.domain != "":
            return f"it has nodes of the domain `{node.domain}`"
        for attribute in node.attributes.values():
            if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
                return f"it has {node.op_type} nodes, whose bodies the converter does not follow"
    return ""


def _take_over(model: ir.Model, converted: ir.Model) -> None:
    """Put the converted graph in place, with the weights that were kept aside."""
    old, new = model.graph, converted.graph
    given = {value.name for value in old.inputs}
    for value in list(new.inputs):
        weight = old.initializers.get(value.name or "")
        if weight is None or weight.const_value is None:
            continue
        value.const_value = weight.const_value
        new.register_initializer(value)
    kept = [value for value in new.inputs if value.name in given]
    new.inputs.clear()
    new.inputs.extend(kept)
    types = {
        value.name: value
        for value in [*old.inputs, *(out for node in old for out in node.outputs)]
        if value.name
    }
    for value in [*new.inputs, *(out for node in new for out in node.outputs)]:
        known = types.get(value.name or "")
        if known is not None:
            value.type, value.shape = known.type, known.shape
    new.doc_string = old.doc_string
    new.metadata_props.update(old.metadata_props)
    model.graph = new
    model.ir_version = max(model.ir_version or 0, _IR_VERSION)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
