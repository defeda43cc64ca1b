"""Number formats as the interpreter holds them: floats in float64, rounded once to their type."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

Array = NDArray[Any]

# Floats that a wide run holds in float64. The smaller ones are codes, like integers.
WIDENED = frozenset(
    {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
)

# The largest value of each. Source: ONNX "Float stored in 8 bits".
_MOST = {
    ir.DataType.FLOAT8E4M3FN: 448.0,
    ir.DataType.FLOAT8E4M3FNUZ: 240.0,
    ir.DataType.FLOAT8E5M2: 57344.0,
    ir.DataType.FLOAT8E5M2FNUZ: 57344.0,
}
FLOAT8 = frozenset(_MOST)

# Smallest and largest of the integers that numpy's `iinfo` does not know.
_NARROW = {
    ir.DataType.INT4: (-8, 7),
    ir.DataType.UINT4: (0, 15),
    ir.DataType.INT2: (-2, 1),
    ir.DataType.UINT2: (0, 3),
}

_MANTISSA_BITS = {
    ir.DataType.DOUBLE: 53,
    ir.DataType.FLOAT: 24,
    ir.DataType.FLOAT16: 11,
    ir.DataType.BFLOAT16: 8,
}

# What is worked on at once: float64, float32 and masks of it lie in a core's cache.
_BLOCK_ELEMENTS = 16 * 1024

_EXPONENT_BITS = {
    ir.DataType.DOUBLE: 11,
    ir.DataType.FLOAT: 8,
    ir.DataType.FLOAT16: 5,
    ir.DataType.BFLOAT16: 8,
}


def type_of(array: Array) -> ir.DataType:
    """Return ONNX's number of the array's element type."""
    return ir.DataType.STRING if array.dtype.kind in "OUS" else ir.DataType.from_numpy(array.dtype)


def is_float(array: Array) -> bool:
    """Say whether the elements are floats of any size."""
    return array.dtype.kind == "f" or type_of(array).is_floating_point()


def widened(array: Array) -> Array:
    """Return floats of any size in float64, all else as it is."""
    return array.astype(np.float64, copy=False) if is_float(array) else array


def holds_all_of(wanted: ir.DataType, given: ir.DataType) -> bool:
    """Say whether every value of the float type `given` is one of `wanted`."""
    if wanted not in _MANTISSA_BITS or given not in _MANTISSA_BITS:
        return False
    return (
        _MANTISSA_BITS[wanted] >= _MANTISSA_BITS[given]
        and _EXPONENT_BITS[wanted] >= _EXPONENT_BITS[given]
    )


def rounded(array: Array, dtype: ir.DataType) -> Array:
    """Return float64 rounded once, half to even, to a float type.

    Source: Boldo and Melquiond, "When double rounding is odd": through float32 rounded to odd the
    result is the one of a single rounding; ml_dtypes goes through float32 rounded to nearest.
    """
    kind = dtype.numpy()
    if kind == np.float64 or array.dtype == kind:
        return array.astype(kind, copy=False)
    if array.dtype != np.float64 or kind in (np.float32, np.float16):
        return array.astype(kind)
    return _rounded_to_odd(array).astype(kind)


def _rounded_to_odd(array: Array) -> Array:
    """Return float32 towards zero, with the last bit set where that is not exact."""
    wide = array.reshape(-1)
    found = np.empty(wide.size, np.float32)
    for begin in range(0, wide.size, _BLOCK_ELEMENTS):
        exact = wide[begin : begin + _BLOCK_ELEMENTS]
        nearest = found[begin : begin + _BLOCK_ELEMENTS]
        nearest[:] = exact
        is_off = np.isfinite(nearest) & (nearest != exact)
        is_beyond = is_off & (np.abs(nearest) > np.abs(exact))
        bits = nearest.view(np.int32)
        bits -= is_beyond  # one step in the magnitude is one step in the bits
        bits |= is_off
    return found.reshape(array.shape)


def rounded_to_float8(array: Array, dtype: ir.DataType, *, saturate: bool) -> Array:
    """Return floats as float8, out of range by the tables of ONNX Cast-19."""
    kind = dtype.numpy()
    most = _MOST[dtype]
    wide = widened(array)
    codes = rounded(wide, dtype)
    if saturate:
        ends = np.copysign(most, wide).astype(kind)
        is_out = ~np.isnan(wide) & ~np.isfinite(codes.astype(np.float64))
        return np.where(is_out, ends, codes).astype(kind)
    return codes


def integer_range(dtype: ir.DataType) -> tuple[int, int]:
    """Return the smallest and the largest value of an integer type."""
    if dtype in _NARROW:
        return _NARROW[dtype]
    info = np.iinfo(dtype.numpy())
    return int(info.min), int(info.max)
