"""Inputs to try a model with where the user gave none: the same ones each time."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.errors import ModelError, UnsupportedError
from vermilion.ir.opset import required_inputs

Array = NDArray[Any]

MAX_INPUT_BYTES = 1 << 30
"""A model that lies about its input sizes must not fill the machine's memory."""

IMAGE_SIDE = 64
"""Taken for an open height or width: divisible by 32, the usual total stride of a network."""

_FLOATS = {
    ir.DataType.FLOAT,
    ir.DataType.DOUBLE,
    ir.DataType.FLOAT16,
    ir.DataType.BFLOAT16,
}
_INTEGERS = {
    ir.DataType.INT8,
    ir.DataType.INT16,
    ir.DataType.INT32,
    ir.DataType.INT64,
    ir.DataType.UINT8,
    ir.DataType.UINT16,
    ir.DataType.UINT32,
    ir.DataType.UINT64,
}


def sample_inputs(model: ir.Model, seed: int = 0) -> dict[str, Array]:
    """Give one array for each input that has no default, by name.

    Floats are drawn from the standard normal distribution; integers are 0 or 1, safe as token
    ids, masks and indices; booleans alternate, beginning with true; strings are `a`.
    An open dimension becomes 1; the last two of a rank-4 float input become `IMAGE_SIDE`.

    Raises: UnsupportedError for an input that is not a plain tensor; ModelError where the input
    would need more than `MAX_INPUT_BYTES`.
    """
    random = np.random.default_rng(seed)
    return {
        value.name or "": _sample(value, sample_shape(value), random)
        for value in required_inputs(model)
    }


def sample_shape(value: ir.Value) -> tuple[int, ...]:
    """Give the sizes that `sample_inputs` takes for this input."""
    if value.shape is None:
        return ()
    image = len(value.shape) == 4 and value.dtype in _FLOATS
    return tuple(
        size if isinstance(size, int) and size >= 0 else IMAGE_SIDE if image and axis >= 2 else 1
        for axis, size in enumerate(value.shape.dims)
    )


def _sample(value: ir.Value, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    place = f"input `{value.name}`"
    dtype = value.dtype
    if dtype is None or not isinstance(value.type, ir.TensorType):
        raise UnsupportedError(
            "no sample can be made for an input that is not a plain tensor",
            where=place,
            hint="supply the inputs yourself",
        )
    count = 1
    for size in shape:
        count *= size
    element_bytes = 16 if dtype == ir.DataType.STRING else max(1, dtype.bitwidth // 8)
    if count * element_bytes > MAX_INPUT_BYTES:
        raise ModelError(
            f"a sample of shape {list(shape)} would need more than {MAX_INPUT_BYTES >> 20} MiB",
            where=place,
            hint="bind a smaller size with `--dim`",
        )
    if dtype in _FLOATS:
        return random.standard_normal(shape, dtype=np.float32).astype(dtype.numpy())
    if dtype in _INTEGERS:
        return random.integers(0, 2, shape).astype(dtype.numpy())
    if dtype == ir.DataType.BOOL:
        alternating: Array = np.arange(count) % 2 == 0
        return alternating.reshape(shape)
    if dtype == ir.DataType.STRING:
        return np.full(shape, "a", dtype=object)
    raise UnsupportedError(
        f"no sample can be made for the type {dtype.name}",
        where=place,
        hint="supply the inputs yourself",
    )
