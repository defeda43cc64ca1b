"""The copy that is quantized, and the samples that are kept to compare it.

Opset 11 and 12 are raised to 13 by rules, where onnx's converter does not follow: it follows no
branches and bodies, and no nodes of other domains. From 11 to 13, what an operator means changed
for few of them: axes became inputs, and Softmax runs along one axis alone.
Source: onnx, docs/Changelog.md.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from vermilion.errors import ModelError
from vermilion.ir.attributes import integer, integers
from vermilion.ir.opset import is_operator, opset_of
from vermilion.ir.passes.einsum import write_einsum
from vermilion.ir.passes.infer_shapes import infer_shapes
from vermilion.ir.passes.opset_versions import raise_opset
from vermilion.ir.passes.redundancy import remove_dead_nodes
from vermilion.ir.passes.rewrite import Notes
from vermilion.quantize.addends import settle_addends
from vermilion.quantize.names import Names
from vermilion.quantize.operators import QUANTIZED_OPERATORS
from vermilion.quantize.widen import widened

# A scale for each channel came with opset 13, bfloat16 as well, and with it all else that is
# written here.
WANTED_OPSET = 13

# Source: onnx `helper.VERSION_TABLE`: the first that goes with opset 13.
_IR_VERSION = 7

# QuantizeLinear and DequantizeLinear came with opset 10.
OLDEST_QUANTIZED_OPSET = 10


def working_copy(model: ir.Model, oldest: int = WANTED_OPSET) -> ir.Model:
    """Return a copy whose constants are all initializers and whose names are all unique.

    An old model is raised; one that cannot be stays as it is down to opset `oldest`.

    Raises: ModelError for a model that is quantized already or too old.
    """
    opset = opset_of(model)
    found = next((n for n in model.graph.all_nodes() if n.op_type in QUANTIZED_OPERATORS), None)
    if found is not None:
        raise ModelError(
            "the model is quantized already",
            where=f"node `{found.name}`, operator `{found.op_type}`",
            hint="quantize the float model it was made from",
        )
    work = widened(model).clone()
    common.RemoveInitializersFromInputsPass()(work)
    work.ir_version = max(work.ir_version or 0, _IR_VERSION)
    if opset < WANTED_OPSET:
        notes = Notes()
        raise_opset(work, notes)
        if opset_of(work) < WANTED_OPSET:
            infer_shapes(work, Notes())
            raise_by_rules(work)
        if opset_of(work) < oldest:
            reasons = "; ".join(refusal.reason for _, refusal in notes.refusals)
            raise ModelError(
                f"opset {opset} cannot hold quantized tensors, and raising it fails: {reasons}",
                hint=f"export the model with opset 17 ({oldest} is the oldest possible)",
            )
    _lift_constants(work)
    if any(is_operator(node, "Einsum") for node in work.graph.all_nodes()):
        infer_shapes(work, Notes())
        write_einsum(work, Notes())  # what products get, it gets
        _lift_constants(work)
        remove_dead_nodes(work, Notes())  # weights as they were
    settle_addends(work)
    _read_weights_once(work)
    if any(value.shape is None for node in work.graph.all_nodes() for value in node.outputs):
        infer_shapes(work, Notes())
    return work


def _lift_constants(work: ir.Model) -> None:
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(work)
    common.NameFixPass()(work)
    _tell_apart(work.graph)


def _tell_apart(graph: ir.Graph) -> None:
    """Give nodes in branches and bodies names of their own: options and reports go by them."""
    taken: set[str] = set()
    for node in graph.all_nodes():
        name, number = str(node.name or node.op_type), 1
        while name in taken:
            number += 1
            name = f"{node.name or node.op_type}_{number}"
        node.name = name
        taken.add(name)


def _read_weights_once(work: ir.Model) -> None:
    """Hold the weights that lie in a message as arrays.

    A message copies a tensor each time that its numbers are asked for, and here that is five times.
    """
    for value in work.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.TensorProtoTensor) and tensor.dtype == ir.DataType.FLOAT:
            value.const_value = ir.Tensor(tensor.numpy(), name=value.name)


_FROM, _TO = 11, 13
# Which attribute became an input, and at which place.
_AXES = {
    "Squeeze": ("axes", 1),
    "Unsqueeze": ("axes", 1),
    "ReduceSum": ("axes", 1),
    "Split": ("split", 1),
}
_ONE_AXIS = frozenset({"Softmax", "LogSoftmax", "Hardmax"})


def raise_by_rules(work: ir.Model) -> bool:
    """Raise a model of opset 11 or 12 to 13 in place, if all of its operators allow it."""
    version = opset_of(work)
    nodes = [node for node in work.graph.all_nodes() if node.domain in ("", "ai.onnx")]
    if work.functions or not _FROM <= version < _TO:
        return False
    if not all(_can_be_raised(node, version) for node in nodes):
        return False
    names = Names(work.graph)
    for node in nodes:
        graph = node.graph
        assert isinstance(graph, ir.Graph), "it is in a graph"
        if node.op_type in _AXES:
            _move_axes(node, names.within(graph))
        elif node.op_type in _ONE_AXIS:
            node.attributes["axis"] = ir.AttrInt64("axis", integer(node, "axis", 1))
    for graph in (work.graph, *work.graph.subgraphs()):
        for domain in ("", "ai.onnx"):
            if domain in graph.opset_imports:
                graph.opset_imports[domain] = _TO
    return True


def _can_be_raised(node: ir.Node, version: int) -> bool:
    try:
        old, new = (onnx.defs.get_schema(node.op_type, v) for v in (version, _TO))
    except onnx.defs.SchemaError:
        return False
    if new.deprecated:
        return False
    if old.since_version == new.since_version or node.op_type in _AXES:
        return True
    if node.op_type in _ONE_AXIS:
        return _is_along_one(node)
    alike = [i.name for i in old.inputs] == [i.name for i in new.inputs]
    return alike and old.attributes.keys() == new.attributes.keys()


def _is_along_one(node: ir.Node) -> bool:
    """Say whether all axes from the given one on, which count together, are but one."""
    source = node.inputs[0]
    if source is None or source.shape is None or not len(source.shape):
        return False
    axis = integer(node, "axis", 1) % len(source.shape)
    return all(length == 1 for length in source.shape.dims[axis + 1 :])


def _move_axes(node: ir.Node, names: Names) -> None:
    name, place = _AXES[node.op_type]
    axes = integers(node, name, None)
    if axes is None:
        return
    node.attributes.pop(name)
    node.resize_inputs(place + 1)
    node.replace_input_with(
        place, names.constant(f"{node.name}_{name}", np.asarray(axes, np.int64))
    )
