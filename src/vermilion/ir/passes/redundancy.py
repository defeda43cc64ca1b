"""Nodes that no output needs: dead ones, identities, repeats (common subexpressions)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from vermilion.ir.opset import (
    constant_of,
    is_inference_dropout,
    is_operator,
    is_random,
    static_shape,
    where,
)
from vermilion.ir.passes.rewrite import Notes, bypass, cannot_bypass


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


def remove_identities(model: ir.Model, notes: Notes) -> None:
    """Before → after: `y = F(x)` with F provably the identity → every reader of `y` reads `x`.

    So is a Concat with what is empty, as exporters write rotations of all of a head.

    Only in the main graph: bodies of If, Loop and Scan have outputs whose count and order are
    their contract.
    """
    for node in model.graph:
        notes.fired += _drop_empty(node)
        rule = _RULES.get(node.op_type) if node.domain == "" else None
        if rule is None:
            continue
        reason = _unprovable(node, rule)
        if reason is None:
            continue
        if reason:
            notes.refuse(where(node), reason)
            continue
        source = node.inputs[0]
        assert source is not None, "cannot_bypass has seen the input"
        bypass(node, source)
        notes.fired += 1


def _drop_empty(node: ir.Node) -> bool:
    """Leave out what a Concat takes nothing from; say whether there was any."""
    if not is_operator(node, "Concat") or "axis" not in node.attributes:
        return False
    axis = node.attributes["axis"]
    kept = [value for value in node.inputs if not _is_empty_along(value, axis)]
    if not kept or len(kept) == len(node.inputs):
        return False
    for at, value in enumerate(kept):
        node.replace_input_with(at, value)
    node.resize_inputs(len(kept))
    return True


def _is_empty_along(value: ir.Value | None, axis: ir.Attr) -> bool:
    if value is None or value.shape is None or axis.is_ref():
        return False
    number, rank = axis.as_int(), len(value.shape)
    return -rank <= number < rank and value.shape[number] == 0


def _unprovable(node: ir.Node, rule: Callable[[ir.Node], str | None]) -> str | None:
    """Return empty text to go ahead, a reason to report, None where there is nothing to say."""
    if not node.inputs or node.inputs[0] is None:
        return None
    reason = rule(node)
    if reason == "":
        return cannot_bypass(node, node.inputs[0])
    return reason


def _always(node: ir.Node) -> str | None:
    return ""


def _single_input(node: ir.Node) -> str | None:
    return "" if len(node.inputs) == 1 else None


def _dropout(node: ir.Node) -> str | None:
    if len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output()):
        return "its mask is used"
    return "" if is_inference_dropout(node) else "it may be in training mode"


def _cast(node: ir.Node) -> str | None:
    source = node.inputs[0]
    target = node.attributes.get("to")
    if source is None or source.dtype is None or target is None or target.is_ref():
        return "the type of its input is not known"
    return "" if int(source.dtype) == target.as_int() else None


def _same_shape(node: ir.Node) -> str | None:
    """Same sizes in and out: no element moves in Reshape, Flatten, Expand, Squeeze, Unsqueeze."""
    source, result = static_shape(node.inputs[0]), static_shape(node.outputs[0])
    if source is None or result is None:
        return "its shapes are not all known"
    return "" if source == result else None


def _transpose(node: ir.Node) -> str | None:
    order = node.attributes.get("perm")
    if order is None or order.is_ref():
        return None
    axes = list(order.as_ints())
    return "" if axes == sorted(axes) else None


def _pad(node: ir.Node) -> str | None:
    if "pads" in node.attributes:  # an attribute before opset 11
        return "" if not any(node.attributes["pads"].as_ints()) else None
    pads = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    if pads is None:
        return "its pads are computed while running"
    return None if pads.numpy().any() else ""


def _slice(node: ir.Node) -> str | None:
    source, result = static_shape(node.inputs[0]), static_shape(node.outputs[0])
    if source is None or result is None:
        return "its shapes are not all known"
    if source != result:
        return None
    if len(node.inputs) < 5 or node.inputs[4] is None:
        return ""  # steps are 1: the same size means all of it
    steps = constant_of(node.inputs[4])
    if steps is None:
        return "its steps are computed while running"
    # A step of -1 reverses; any other step keeps the size only where the size is at most 1.
    return "" if bool(np.all(steps.numpy() == 1)) else None


def _tile(node: ir.Node) -> str | None:
    repeats = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    if repeats is None:
        return "its repeats are computed while running"
    return "" if bool(np.all(repeats.numpy() == 1)) else None


def _clip(node: ir.Node) -> str | None:
    if node.attributes or any(value is not None for value in node.inputs[1:]):
        return None
    source = node.inputs[0]
    # Before opset 11 missing bounds meant the largest float, which this type cannot exceed.
    return "" if source is not None and source.dtype is not None else None


_RULES: dict[str, Callable[[ir.Node], str | None]] = {
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _single_input,
    "Dropout": _dropout,
    "Expand": _same_shape,
    "Flatten": _same_shape,
    "Identity": _always,
    "Max": _single_input,
    "Mean": _single_input,
    "Min": _single_input,
    "Pad": _pad,
    "Reshape": _same_shape,
    "Slice": _slice,
    "Squeeze": _same_shape,
    "Sum": _single_input,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _same_shape,
}


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
