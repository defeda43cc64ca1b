"""What ONNX Runtime says of a node that breaks its operator's rules, as an error of the model.

Amounts that are too few, axes out of range, channels that do not fit: ONNX's own inference and
ONNX Runtime's kernels know the rules of every operator. Their words name a node by a name that it
may not have, and say nothing of whose fault it is.
"""

from __future__ import annotations

import re

import onnx
import onnx_ir as ir

from vermilion.errors import ModelError, UnsupportedError, VermilionError
from vermilion.ir.attributes import EXPORT
from vermilion.ir.inference import INFERENCE_ERRORS
from vermilion.ir.opset import where
from vermilion.ir.passes.infer_shapes import without_weights

# How `core/graph/graph.cc` words a node that onnx's inference refuses, and how a failed run names
# a node here (`execute`).
_REFUSED = re.compile(
    r"Node \((?P<name>.*?)\) Op \((?P<operator>\w+)\) \[\w+InferenceError\] (?P<words>.*)"
)
_FAILED = re.compile(r"^node `(?P<name>.*)`, (?P<operator>\w+)$")


def as_illegal(error: UnsupportedError, model: ir.Model) -> VermilionError:
    """Return the error that names the node of `model` where ONNX's rules refuse one, else as is."""
    refused = _REFUSED.search(error.message)
    if refused is not None and _is_refused(model, refused["operator"]):
        node = _place(model, refused["name"], refused["operator"])
        return ModelError(refused["words"].rstrip(), where=node, hint=EXPORT)
    failed = _FAILED.match(error.where)
    if failed is not None:
        node = _place(model, failed["name"], failed["operator"])
        return UnsupportedError(error.message, where=node, hint=error.hint)
    return error


def _is_refused(model: ir.Model, operator: str) -> bool:
    """Say whether onnx itself finds fault with such a node: ONNX Runtime may have been given less.

    A part that falls back to it, say, has the types that were found here.
    """
    try:
        with without_weights(model) as proto:
            onnx.shape_inference.infer_shapes(proto, strict_mode=True)
    except INFERENCE_ERRORS as error:
        return operator in str(error)
    return False


def _place(model: ir.Model, name: str, operator: str) -> str:
    """Name the node, by its first output where it has no name of its own."""
    nodes = [node for node in model.graph if node.op_type == operator]
    named = [node for node in nodes if name and node.name == name]
    # ONNX Runtime renames what it rewrites, and leaves names empty where the file does.
    found = named or [node for node in nodes if not node.name] or nodes
    if len(found) == 1:
        return where(found[0])
    if found:
        return f"one of {len(found)} nodes {operator}, the first of which is {where(found[0])}"
    return f"node `{name}`, {operator}"
