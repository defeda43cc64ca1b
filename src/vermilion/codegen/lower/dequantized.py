"""Constants that are stored as integers: what a DequantizeLinear of constants gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.ir.attributes import flag, integer
from vermilion.ir.opset import constant_of, is_operator

Array = NDArray[Any]


def dequantized_constant(value: ir.Value | None) -> Array | None:
    """Return a constant's numbers, of a DequantizeLinear of constants too, else None."""
    constant = constant_of(value)
    if constant is not None:
        return constant.numpy()
    node = None if value is None else value.producer()
    tensors = None if node is None else _constants(node)
    if node is None or tensors is None:
        return None
    integers, scale = tensors[0].astype(np.int64), tensors[1].astype(np.float32)
    axis, block = integer(node, "axis", 1), integer(node, "block_size", 0)
    scale = _spread(scale, integers.shape, axis, block)
    if len(tensors) > 2:
        integers = integers - _spread(tensors[2].astype(np.int64), integers.shape, axis, block)
    numbers = integers.astype(np.float32) * scale
    return numbers.astype(tensors[1].dtype)


def _spread(values: Array, shape: tuple[int, ...], axis: int, block: int) -> Array:
    """Return one number, one for each entry of an axis, or one for each block of it, for all."""
    rank = max(1, len(shape))
    if block:
        wide = np.repeat(values, block, axis % rank)
        return wide[tuple(slice(size) for size in shape)]
    return along(values, len(shape), axis % rank)


def _constants(node: ir.Node) -> list[Array] | None:
    """Return the inputs of a DequantizeLinear, None where one is not a constant."""
    if not is_operator(node, "DequantizeLinear"):
        return None
    found = [constant_of(value) for value in node.inputs if value is not None]
    return None if any(t is None for t in found) else [t.numpy() for t in found if t is not None]


def is_constant(value: ir.Value | None) -> bool:
    """Say whether a value is a constant, or a DequantizeLinear of constants."""
    if value is None or constant_of(value) is not None:
        return value is not None
    node = value.producer()
    return (
        node is not None
        and is_operator(node, "DequantizeLinear")
        and all(item is None or constant_of(item) is not None for item in node.inputs)
    )


def quantized_constant(value: ir.Value) -> tuple[Array, Array, int] | None:
    """Return a dequantized constant's integers less their zero point, its scales and their axis."""
    node = value.producer()
    tensors = None if node is None else _constants(node)
    if node is None or tensors is None or flag(node, "block_size"):
        return None
    integers, scale = tensors[:2]
    axis = integer(node, "axis", 1) % max(1, integers.ndim)
    wide = integers.astype(np.int64)
    if len(tensors) > 2:
        wide = wide - along(tensors[2].astype(np.int64), integers.ndim, axis)
    return wide, scale.astype(np.float32), axis


def along(values: Array, rank: int, axis: int) -> Array:
    """Return one value, or one for each entry of `axis`, that broadcasts over `rank` axes."""
    if values.size == 1:
        return values.reshape(())
    shape = [1] * rank
    shape[axis] = values.size
    return values.reshape(shape)
