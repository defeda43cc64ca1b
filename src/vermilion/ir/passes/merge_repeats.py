"""Computing once what is computed twice (common subexpressions)."""

from __future__ import annotations

import onnx_ir as ir

from vermilion.ir.opset import is_random, where
from vermilion.ir.passes.report import Notes

# Comparing attributes must not cost more than the node: larger tensors are left alone.
MAX_ATTRIBUTE_BYTES = 1024

_BODIES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def merge_repeats(model: ir.Model, notes: Notes) -> None:
    """Before → after: two nodes with one operator, inputs and attributes → the first of them.

    Only in the main graph. Nodes with bodies and random nodes are left alone.
    """
    seen: dict[tuple[object, ...], ir.Node] = {}
    for node in model.graph:
        key = _key(node)
        if key is None:
            continue
        first = seen.setdefault(key, node)
        if first is node:
            continue
        if is_random(node):
            notes.refuse(where(node), "it may give another result each time")
            continue
        if any(value.is_graph_output() for value in node.outputs):
            notes.refuse(where(node), "its result is an output of the model with its own name")
            continue
        for old, new in zip(node.outputs, first.outputs, strict=True):
            if old.uses():
                old.replace_all_uses_with(new)
        model.graph.remove(node, safe=True)
        notes.fired += 1


def _key(node: ir.Node) -> tuple[object, ...] | None:
    """Return what makes two nodes equal, None where that cannot be told cheaply."""
    attributes: list[tuple[str, object]] = []
    for name, attribute in sorted(node.attributes.items()):
        value = _comparable(attribute)
        if value is None:
            return None
        attributes.append((name, value))
    return (
        node.op_identifier(),
        tuple(id(value) if value is not None else None for value in node.inputs),
        tuple(bool(value.name) for value in node.outputs),
        tuple(attributes),
    )


def _comparable(attribute: ir.Attr) -> object | None:
    if attribute.is_ref() or attribute.type in _BODIES:
        return None
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        if tensor.dtype == ir.DataType.STRING or tensor.nbytes > MAX_ATTRIBUTE_BYTES:
            return None
        return (tensor.dtype, tuple(tensor.shape), tensor.tobytes())
    if attribute.type in (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS):
        return (attribute.type, repr(attribute.value))  # tells -0.0 from 0.0
    if attribute.type in (ir.AttributeType.INTS, ir.AttributeType.STRINGS):
        return (attribute.type, tuple(attribute.value))
    if attribute.type in (ir.AttributeType.INT, ir.AttributeType.STRING):
        return (attribute.type, attribute.value)
    return None
