"""A product's weights in floats, from a `MatMulNBits` or a `MatMul` of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.errors import ModelError

Float32 = NDArray[np.float32]


def node_of(model: ir.Model, shape: Mapping[str, int]) -> ir.Node | None:
    """Return the first product of a graph that has a shape; None where there is none.

    A shape with `bits` and `block` wants weights that are stored so, with zero points if named.
    """
    for node in model.graph:
        if _size(node) != (shape["K"], shape["N"]):
            continue
        if "bits" not in shape or _is_stored(node, shape):
            return node
    return None


def _is_stored(node: ir.Node, shape: Mapping[str, int]) -> bool:
    if node.op_type != "MatMulNBits":
        return False
    has_zeros = len(node.inputs) > 3 and node.inputs[3] is not None
    stored = (node.attributes["bits"].as_int(), node.attributes["block_size"].as_int(), has_zeros)
    return stored == (shape["bits"], shape["block"], "zero_points" in shape)


def weights_of(node: ir.Node) -> Float32:
    """Return the weights (N, K) of a product.

    Source: onnxruntime, `docs/ContribOperators.md`, MatMulNBits: codes (N, blocks, bytes), low
    halves first, scales by block, zero points packed like the codes, 2^(bits-1) where none are.

    Raises: ModelError where shapes disagree.
    """
    size = _size(node)
    if size is None:
        raise ModelError(f"`{node.op_type}` has no stored weights", where=f"node `{node.name}`")
    depth, columns = size
    if node.op_type == "MatMul":
        return np.ascontiguousarray(_array(node, 1).astype(np.float32).T)
    bits, block = node.attributes["bits"].as_int(), node.attributes["block_size"].as_int()
    blocks = -(-depth // block)
    try:
        codes = _unpacked(_array(node, 1).reshape(columns, -1), bits)
        codes = codes.reshape(columns, blocks, block).astype(np.float32)
        scales = _array(node, 2).astype(np.float32).reshape(columns, blocks, 1)
        zeros = _zero_points(node, bits, columns, blocks)
    except ValueError as error:
        raise ModelError(
            f"the weights are not of K {depth}, N {columns}: {error}", where=f"node `{node.name}`"
        ) from error
    values: Float32 = ((codes - zeros) * scales).reshape(columns, blocks * block)[:, :depth]
    return np.ascontiguousarray(values)


def _zero_points(node: ir.Node, bits: int, columns: int, blocks: int) -> Float32:
    stored = node.inputs[3] if len(node.inputs) > 3 else None
    if stored is None:
        return np.full((columns, blocks, 1), float(1 << (bits - 1)), np.float32)
    array = _array(node, 3)
    if array.dtype == np.uint8:
        # A row of zero points ends with a whole byte.
        array = _unpacked(array.reshape(columns, -1), bits)[:, :blocks]
    return array.astype(np.float32).reshape(columns, blocks, 1)


def _unpacked(packed: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Return the codes of a row of bytes, low bits first."""
    if bits == 8:
        return packed.astype(np.uint8)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed[..., None].astype(np.uint8) >> shifts) & np.uint8((1 << bits) - 1)
    return parts.reshape(*packed.shape[:-1], -1)


def _array(node: ir.Node, index: int) -> NDArray[Any]:
    value = node.inputs[index]
    if value is None or value.const_value is None:
        raise ModelError("its weights are no constant", where=f"node `{node.name}`")
    return value.const_value.numpy()


def _size(node: ir.Node) -> tuple[int, int] | None:
    if node.op_type == "MatMulNBits" and {"K", "N", "bits", "block_size"} <= set(node.attributes):
        return node.attributes["K"].as_int(), node.attributes["N"].as_int()
    if node.op_type == "MatMul":
        value = node.inputs[1]
        if (
            value is not None
            and value.const_value is not None
            and len(value.const_value.shape) == 2
        ):
            depth, columns = value.const_value.shape.numpy()
            return int(depth), int(columns)
    return None
