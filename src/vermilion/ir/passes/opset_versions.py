"""Models of other versions of the operators: old ones raised, newer ones lowered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from vermilion.errors import first_line
from vermilion.ir.attributes import integer, text
from vermilion.ir.opset import OPSET, constant_of, is_operator, opset_of, static_shape
from vermilion.ir.passes.infer_shapes import without_weights
from vermilion.ir.passes.rewrite import Notes, drop_if_unread, new_weight

# The lowest format version that onnx pairs with opset 17 (onnx `helper.VERSION_TABLE`, 1.12).
_IR_VERSION = 8

# From here on weights need not be inputs as well (ONNX IR specification, "Graphs").
_IR_OF_WEIGHTS = 4


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
    if all(_means_the_same(node, version) for node in model.graph):  # the converter takes 8 ms
        imports = model.graph.opset_imports
        imports["ai.onnx" if "ai.onnx" in imports else ""] = OPSET
        model.ir_version = max(model.ir_version or 0, _IR_VERSION)
        notes.fired += OPSET - version
        return
    _settle_hardmax(model, version)
    try:
        with without_weights(model) as proto:
            # Of an older one, the converter looks for weights among the inputs only.
            proto.ir_version = max(proto.ir_version, _IR_OF_WEIGHTS)
            converted = onnx.version_converter.convert_version(proto, OPSET)
    except Exception as error:  # the converter's C++ asserts come as RuntimeError and others
        notes.refuse(
            "model",
            f"onnx cannot convert it from opset {version}: {first_line(error)}",
            f"export it with opset {OPSET}",
        )
        return
    raised = ir.from_proto(converted)
    _settle_resizes(raised, version)
    _settle_pads(raised)
    _take_over(model, raised)
    notes.fired += OPSET - version


def _means_the_same(node: ir.Node, version: int) -> bool:
    """Say whether an operator has not changed from `version` to `OPSET`: nothing to convert."""
    try:
        schemas = [onnx.defs.get_schema(node.op_type, each, "") for each in (version, OPSET)]
    except onnx.defs.SchemaError:
        return False
    return schemas[0].since_version == schemas[1].since_version


# Softmax and its kin run along one axis since; before, along all axes from it on, taken together.
_ONE_AXIS_SINCE = 13


def _settle_hardmax(model: ir.Model, version: int) -> None:
    """Write old Hardmaxes over one axis: onnx's converter (1.23) leaves them as they are.

    Of all operators that have changed up to `OPSET` it is the only one of which 1,700 random nodes
    gave other numbers after the converter.
    """
    if version < _ONE_AXIS_SINCE:
        for node in list(model.graph):
            if is_operator(node, "Hardmax"):
                _settle(model.graph, node)


# Since opset 11 a Resize says how places of the result become places of the source.
_RESIZE_SAYS_SINCE = 11


def _settle_resizes(raised: ir.Model, version: int) -> None:
    """Write down what older resizing means, which onnx's converter leaves to another default.

    Source: ONNX Upsample-9 and Resize-10 have no such attribute, and ONNX Runtime divides by the
    scale (`asymmetric`) and takes the place before (`floor`).
    """
    if version >= _RESIZE_SAYS_SINCE:
        return
    # All of them are old ones; their results may have other names than before.
    for node in raised.graph:
        if is_operator(node, "Resize"):
            node.attributes.add(ir.AttrString("coordinate_transformation_mode", "asymmetric"))
            node.attributes.add(ir.AttrString("nearest_mode", "floor"))


def _settle_pads(raised: ir.Model) -> None:
    """Drop the number that an old Pad names and does not use, which onnx's converter leaves."""
    for node in raised.graph:
        if is_operator(node, "Pad") and text(node, "mode", "constant") != "constant":
            node.attributes.pop("value", None)


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


def settle_softmax(model: ir.Model, notes: Notes) -> None:
    """Before → after: `Softmax<axis = k> (x)` → `Reshape (Softmax<axis = 1> (Flatten<k> (x)), …)`.

    Where nothing but the axis itself counts, the axis is written down, which was 1 by default.
    For models that `raise_opset` had to leave: what reads them afterwards need not know their
    version. Source: ONNX Softmax-1, -11 and -13; LogSoftmax and Hardmax are as Softmax.
    """
    if not 0 < opset_of(model) < _ONE_AXIS_SINCE:
        return
    for node in list(model.graph.all_nodes()):
        if is_operator(node, "Softmax", "LogSoftmax", "Hardmax"):
            notes.fired += _settle(model.graph, node)


def _settle(main: ir.Graph, node: ir.Node) -> bool:
    source, graph = node.inputs[0], node.graph
    assert source is not None
    assert graph is not None
    axis = integer(node, "axis", 1)
    if source.shape is not None and len(source.shape) > 0:
        axis %= len(source.shape)
        if all(size == 1 for size in source.shape.dims[axis + 1 :]):
            is_new = "axis" not in node.attributes
            node.attributes.add(ir.AttrInt64("axis", axis))
            return is_new
    result = node.outputs[0]
    sizes = static_shape(source)
    flat, flat_result, shape = (
        ir.Value(name=f"{result.name}/{what}", type=source.type)
        for what in ("flat", "flat result", "shape")
    )
    for value in (flat, flat_result):  # two axes, which a second look sees
        value.shape = ir.Shape(
            [None, None] if sizes is None else [math.prod(sizes[:axis]), math.prod(sizes[axis:])]
        )
    flatten = ir.Node(
        "", "Flatten", [source], [ir.AttrInt64("axis", axis)], outputs=[flat],
        name=f"{result.name}/Flatten",
    )  # fmt: skip
    made = [flatten]
    if sizes is not None and graph is main:
        shape = new_weight(main, f"{result.name}/shape", ir.tensor(np.array(sizes, np.int64)))
    else:
        shape.type = ir.TensorType(ir.DataType.INT64)
        made.append(ir.Node("", "Shape", [source], outputs=[shape], name=f"{result.name}/Shape"))
    copy = ir.Node(
        "", node.op_type, [flat], [ir.AttrInt64("axis", 1)], outputs=[flat_result], name=node.name
    )  # fmt: skip
    back = ir.Node("", "Reshape", [flat_result, shape], name=f"{result.name}/Reshape")
    graph.insert_before(node, [*made, copy, back])
    new = back.outputs[0]
    name, new.type, new.shape = result.name, result.type, result.shape
    result.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    new.name = name
    return True


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
