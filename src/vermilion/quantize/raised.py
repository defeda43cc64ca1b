"""Opset 11 and 12 raised to 13 by rules, where onnx's converter does not follow.

It follows no branches and bodies, and no nodes of other domains. From 11 to 13, what an operator
means changed for few of them: axes became inputs, and Softmax runs along one axis alone.
Source: onnx, docs/Changelog.md.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from vermilion.ir.attributes import integer, integers
from vermilion.ir.opset import opset_of
from vermilion.quantize.names import Names

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
