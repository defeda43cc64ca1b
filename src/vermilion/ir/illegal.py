"""Nodes that break a rule of their operator, as errors of the model that name them.

Amounts that are too few, axes out of range, channels that do not fit: onnx's inference knows most
of these rules, `lengths` those that it leaves to whoever computes. What still fails in ONNX
Runtime is given the node's own name.
"""

from __future__ import annotations

import re

import onnx
import onnx_ir as ir

from vermilion.errors import ModelError, UnsupportedError
from vermilion.ir.attributes import EXPORT
from vermilion.ir.inference import INFERENCE_ERRORS
from vermilion.ir.opset import where
from vermilion.ir.passes.infer_shapes import without_weights

# How `onnx/shape_inference/implementation.cc` words a node that it refuses, and how a failed run
# names a node here (`execute`).
_REFUSED = re.compile(
    r"\(op_type:\w+, node name: (?P<number>\d+)\): \[\w+InferenceError\] (?P<words>[^\n]*)"
)
_FAILED = re.compile(r"^node `(?P<name>.*)`, (?P<operator>\w+)$")
# Of what a file says of a value beside what is inferred, and of an operator's definition as a
# function, whose attributes onnx 1.23 does not hand down: neither is a rule that the node breaks.
_OTHER = re.compile(r"existing|^Inference error")


def check_rules(model: ir.Model) -> None:
    """Let onnx's inference look at every node of a model that has no bodies, types inferred.

    A branch that is never taken may break every rule: exporters guard a Squeeze with an If. What
    it says of nodes whose inputs it does not know, behind operators of other domains, is no rule.

    Raises: ModelError for the first node that breaks a rule of its operator.
    """
    if any(graph is not model.graph for graph in model.graphs()):
        return
    nodes = list(model.graph)
    try:
        with without_weights(model) as proto:
            for number, node in enumerate(proto.graph.node):
                node.name = str(number)  # a file may leave names empty, or give one twice
            onnx.shape_inference.infer_shapes(proto, strict_mode=True)
    except INFERENCE_ERRORS as error:
        for found in _REFUSED.finditer(str(error)):
            node = nodes[int(found["number"])]
            if not _OTHER.search(found["words"]) and _is_known(node):
                raise ModelError(found["words"].rstrip(), where=where(node), hint=EXPORT) from error


def _is_known(node: ir.Node) -> bool:
    values = [value for value in node.inputs if value is not None and value.name]
    return all(value.type is not None and value.shape is not None for value in values)


def with_node(error: UnsupportedError, model: ir.Model) -> UnsupportedError:
    """Return the error of a failed run with the node's name in `model`."""
    failed = _FAILED.match(error.where)
    if failed is None:
        return error
    operator = failed["operator"]
    place = _place(_nodes(model, failed["name"], operator), operator)
    return UnsupportedError(error.message, where=place, hint=error.hint)


def _nodes(model: ir.Model, name: str, operator: str) -> list[ir.Node]:
    """Return the nodes that may be meant: ONNX Runtime renames what it rewrites."""
    nodes = [node for node in model.graph if node.op_type == operator]
    named = [node for node in nodes if name and node.name == name]
    return named or [node for node in nodes if not node.name] or nodes


def _place(nodes: list[ir.Node], operator: str) -> str:
    """Name one node, by its first output where it has no name of its own."""
    if len(nodes) == 1:
        return where(nodes[0])
    if nodes:
        return f"one of {len(nodes)} nodes {operator}, the first of which is {where(nodes[0])}"
    return f"a node {operator}"
