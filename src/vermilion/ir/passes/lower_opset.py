"""Lowering newer models to the version of the operators that the NPU's compiler is made for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from vermilion.ir.attributes import integer
from vermilion.ir.opset import OPSET, constant_of, opset_of
from vermilion.ir.passes.replace import drop_if_unread
from vermilion.ir.passes.report import Notes

# Since opset 18 these take `axes` as an input, before as an attribute (ONNX ReduceMean-18, …).
# ReduceSum has had the input since 13.
_REDUCTIONS = frozenset(
    f"Reduce{name}"
    for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
)


@dataclass(frozen=True)
class _Change:
    """What one node gives up: an input that becomes `axes`, attributes that 17 does not have."""

    node: ir.Node
    axes: tuple[int, ...] | None = None
    dropped: tuple[str, ...] = ()


def lower_opset(model: ir.Model, notes: Notes) -> None:
    """Before → after: opset 18 and newer → 17, where every operator means the same there.

    Most versions since 17 only add number formats. An operator, an input or an attribute that 17
    does not have is a refusal, and nothing is changed. The caller compares the outputs.
    """
    version = opset_of(model)
    if version <= OPSET:
        return
    changes: list[_Change] = []
    for node in model.graph.all_nodes():
        change = _change(node) if node.domain == "" else None
        if isinstance(change, str):
            notes.refuse(node.name or "?", change, f"export the model with opset {OPSET}")
            return
        if change is not None:
            changes.append(change)
    for change in changes:
        _carry_out(model.graph, change)
    imports = model.graph.opset_imports
    imports["ai.onnx" if "ai.onnx" in imports else ""] = OPSET
    notes.fired += version - OPSET


def _change(node: ir.Node) -> _Change | str | None:
    """Return what has to change in a node, why it cannot be lowered, or None."""
    try:
        schema = onnx.defs.get_schema(node.op_type, OPSET, "")
    except onnx.defs.SchemaError:
        return f"opset {OPSET} has no {node.op_type}"
    axes: tuple[int, ...] | None = None
    inputs = len(node.inputs)
    if node.op_type in _REDUCTIONS and inputs > 1 and node.inputs[1] is not None:
        tensor = constant_of(node.inputs[1])
        if tensor is None:
            return f"the axes of {node.op_type} are computed"
        axes, inputs = tuple(int(axis) for axis in tensor.numpy().ravel()), 1
    if inputs > schema.max_input and any(v is not None for v in node.inputs[schema.max_input :]):
        return f"{node.op_type} of opset {OPSET} takes {schema.max_input} inputs"
    newer = [name for name in node.attributes if name not in schema.attributes]
    needed = [name for name in newer if not _is_default(node, name)]
    if needed:
        return f"{node.op_type} of opset {OPSET} has no `{needed[0]}`"
    return _Change(node, axes, tuple(newer)) if newer or axes is not None else None


def _is_default(node: ir.Node, name: str) -> bool:
    """Say whether an attribute that 17 does not have says what 17 does anyway."""
    value = node.attributes[name].value
    if node.op_type == "Split" and name == "num_outputs":
        source = node.inputs[0]
        axis = integer(node, "axis", 0)
        shape = source.shape if source is not None else None
        size = shape[axis] if shape is not None else None
        return isinstance(size, int) and size % len(node.outputs) == 0
    if name == "noop_with_empty_axes":
        return len(node.inputs) > 1 and node.inputs[1] is not None
    schema = onnx.defs.get_schema(node.op_type, "")
    known = schema.attributes.get(name)
    if known is None or not known.default_value.name:
        return False
    default = onnx.helper.get_attribute_value(known.default_value)
    default = default.decode() if isinstance(default, bytes) else default
    return bool(_plain(value) == _plain(default))


def _plain(value: object) -> object:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _carry_out(graph: ir.Graph, change: _Change) -> None:
    node = change.node
    for name in change.dropped:
        del node.attributes[name]
    if change.axes is None:
        return
    source = node.inputs[1]
    node.replace_input_with(1, None)
    node.resize_inputs(1)
    node.attributes.add(ir.AttrInt64s("axes", change.axes))
    drop_if_unread(graph, source)
