"""Whole numbers that exporters compute from shapes, in one walk down the graph.

Every Reshape of a traced network may take its target from Shape, Gather, Div and Concat of what the
Reshape before it gave. Folding all that is known and then inferring the whole graph would go one
Reshape further each time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.errors import VermilionError
from vermilion.ir.literal.interpret import interpret
from vermilion.ir.opset import constant_of, is_operator, static_shape, tensor_bytes
from vermilion.ir.passes.constant_nodes import inferred, model_of, replace_by_weights
from vermilion.ir.passes.rewrite import Notes

# Bytes of what counts as sizes, axes and the like.
_SMALL_BYTES = 1024

_ARITHMETIC = (
    "Gather", "Slice", "Concat", "Unsqueeze", "Squeeze", "Cast", "Add", "Sub", "Mul", "Div",
    "Reshape", "Identity",
)  # fmt: skip
_WHOLE = (ir.DataType.INT32, ir.DataType.INT64)


def follow_sizes(model: ir.Model, notes: Notes) -> None:
    """Replace small whole numbers by weights, and infer what they make known, node by node."""
    for node in list(model.graph):
        result = None
        if not any(value.is_graph_output() for value in node.outputs):
            size = size_of(node)
            result = _computed(model, node) if size is None else size
        if result is not None:
            replace_by_weights(model.graph, node, {str(node.outputs[0].name): result})
            notes.fired += 1
        else:
            _infer(model, node)


def size_of(node: ir.Node) -> NDArray[np.int64] | None:
    """Return what Shape, Size, and Gather or Slice of a Shape give of known sizes, else None.

    Sizes beside them may be open: `Gather (Shape (x), 2)`.
    """
    if not node.inputs:
        return None
    if is_operator(node, "Size"):
        sizes = static_shape(node.inputs[0])
        return None if sizes is None else np.array(math.prod(sizes), np.int64)
    if is_operator(node, "Shape"):
        found = _sizes_read(node)
    elif is_operator(node, "Gather", "Slice") and node.inputs[0] is not None:
        maker = node.inputs[0].producer()
        sizes_of = _sizes_read(maker) if maker is not None and is_operator(maker, "Shape") else None
        found = None if sizes_of is None else _picked(node, sizes_of)
    else:
        return None
    if found is None or any(size is None for size in np.ravel(found)):
        return None
    return np.asarray(found, np.int64)


def _sizes_read(node: ir.Node) -> NDArray[np.object_] | None:
    """Return what a Shape gives, None in the place of what is open; None where no rank is known."""
    source = node.inputs[0] if node.inputs else None
    if source is None or source.shape is None:
        return None
    start, end = (
        node.attributes[name].as_int() if name in node.attributes else None
        for name in ("start", "end")
    )
    sizes = [size if isinstance(size, int) else None for size in source.shape]
    return np.array(sizes, object)[slice(start, end)]


def _picked(node: ir.Node, sizes: NDArray[np.object_]) -> NDArray[np.object_] | None:
    """Return the sizes that a Gather or a Slice with constants picks."""
    constants = [constant_of(value) for value in node.inputs[1:]]
    if any(constant is None for constant in constants):
        return None
    numbers = [constant.numpy() for constant in constants if constant is not None]
    if not numbers:
        return None
    if node.op_type == "Gather":
        places = numbers[0]
        if places.size and (places.min() < -len(sizes) or places.max() >= len(sizes)):
            return None  # the run says what is wrong
        return np.array(sizes[places], object)
    if len(numbers) < 2 or (
        len(numbers) > 2 and numbers[2].reshape(-1).tolist() not in ([0], [-1])
    ):
        return None
    start, end, *step = (int(array.reshape(-1)[0]) for at, array in enumerate(numbers) if at != 2)
    if step and step[0] < 1:
        return None
    return sizes[slice(start, end, step[0] if step else None)]


def _computed(model: ir.Model, node: ir.Node) -> NDArray[Any] | None:
    """Return what arithmetic on small whole numbers gives, None where it is something else."""
    if not is_operator(node, *_ARITHMETIC) or len(node.outputs) != 1:
        return None
    tensors = [constant_of(value) for value in node.inputs if value is not None]
    if not tensors or any(
        tensor is None or tensor.dtype not in _WHOLE or tensor_bytes(tensor) > _SMALL_BYTES
        for tensor in tensors
    ):
        return None
    if node.op_type == "Cast" and ir.DataType(node.attributes["to"].as_int()) not in _WHOLE:
        return None
    try:
        (found,) = interpret(model_of(model, [node]), {}).values()
    except VermilionError:
        return None  # ONNX Runtime says what is wrong with it
    return found if found.nbytes <= _SMALL_BYTES else None


def _infer(model: ir.Model, node: ir.Node) -> None:
    """Infer what a node gives, where all sizes that it reads are known and its own are not."""
    results = [value for value in node.outputs if value.name]
    if node.domain not in ("", "ai.onnx") or not any(map(_is_open, results)):
        return
    if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) or a.is_ref()
           for a in node.attributes.values()):  # fmt: skip
        return
    inputs = [value for value in node.inputs if value is not None]
    if any(_is_open(value) and constant_of(value) is None for value in inputs):
        return
    for value, (dtype, shape) in zip(results, inferred(model, node), strict=False):
        if dtype is None or shape is None or not _is_open(value) or not _agrees(value, shape):
            continue
        if value.type is None:
            value.type = ir.TensorType(dtype)
        value.shape = ir.Shape(shape)


def _is_open(value: ir.Value) -> bool:
    return value.dtype is None or static_shape(value) is None


def _agrees(value: ir.Value, shape: tuple[int, ...]) -> bool:
    """Say whether what is declared of a value leaves room for a shape."""
    if value.shape is None:
        return True
    return len(value.shape) == len(shape) and all(
        not isinstance(old, int) or old == new
        for old, new in zip(value.shape.dims, shape, strict=True)
    )
