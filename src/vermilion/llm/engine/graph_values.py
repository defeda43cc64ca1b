"""Constants and attributes of a decoder's nodes, and the error for what is not understood."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.errors import UnsupportedError


def refuse(node: ir.Node, reason: str) -> UnsupportedError:
    """Return the error for a node that the native decoder cannot take."""
    return UnsupportedError(
        f"the native decoder cannot take this graph: {reason}",
        where=f"node `{node.name}` ({node.op_type})",
        hint="it runs on ONNX Runtime",
    )


def constant_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor of a value that is stored, or that a Constant gives."""
    if value is None:
        return None
    if value.const_value is not None:
        return value.const_value
    producer = value.producer()
    if producer is not None and producer.op_type == "Constant":
        attribute = producer.attributes.get("value")
        return attribute.as_tensor() if attribute is not None else None
    return None


def scalar_of(value: ir.Value | None) -> float | None:
    """Return the number of a constant that is one number, None of anything else."""
    tensor = constant_of(value)
    if tensor is None or tensor.size != 1:
        return None
    return float(np.asarray(tensor.numpy()).reshape(-1)[0])


def array_of(node: ir.Node, index: int) -> NDArray[np.generic]:
    """Return a stored input.

    Raises: UnsupportedError where it is computed.
    """
    value = node.inputs[index] if index < len(node.inputs) else None
    tensor = constant_of(value)
    if tensor is None:
        raise refuse(node, f"input {index} is not stored in the model")
    return np.asarray(tensor.numpy())


def floats_of(node: ir.Node, index: int) -> NDArray[np.float32]:
    """Return a stored input as float32."""
    return np.ascontiguousarray(array_of(node, index), np.float32)


def is_there(node: ir.Node, index: int) -> bool:
    """Say whether an optional input is given."""
    return index < len(node.inputs) and node.inputs[index] is not None
