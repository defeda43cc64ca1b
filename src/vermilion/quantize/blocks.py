"""Formats whose values share exponents in blocks, and what rounding to them does to numbers.

All compute in float32 as the hardware's emulation does, bit by bit as the formats are defined:
no logarithms, so that powers of two fall where they must.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]

Kind = Literal["bfp", "microexponent", "mx"]

# The exponent of float32's subnormals, as the 8 bits have it.
_LOWEST_EXPONENT = -127


@dataclass(frozen=True)
class BlockFormat:
    """Blocks of `size` values along one axis.

    bfp: one exponent, that of the largest value, and `mantissa` bits of magnitude below it.
    microexponent: the same, and each pair of values may lie one binary place lower.
    mx: one power of two, and elements with `exponent` bits (0: integers) and `mantissa` bits;
    `emax` is the exponent of the largest element, `highest` its value.
    Rounding is half to even.
    """

    name: str
    kind: Kind
    size: int
    mantissa: int
    exponent: int = 0
    emax: int = 0
    highest: float = 0.0


# Source: bfp16, mx9, mx6, mx4: AMD Quark for ONNX 0.13, BFPQuantizeDequantize and
# MXQuantizeDequantize (microexponents). The others: OCP MX Specification 1.0, section 5.
FORMATS: Mapping[str, BlockFormat] = {
    row.name: row
    for row in (
        BlockFormat("bfp16", "bfp", 8, 7),
        BlockFormat("mx9", "microexponent", 16, 7),
        BlockFormat("mx6", "microexponent", 16, 4),
        BlockFormat("mx4", "microexponent", 16, 2),
        BlockFormat("mxint8", "mx", 32, 6, 0, 0, 127 / 64),
        BlockFormat("mxfp8e4m3", "mx", 32, 3, 4, 8, 448.0),
        BlockFormat("mxfp8e5m2", "mx", 32, 2, 5, 15, 57344.0),
        BlockFormat("mxfp6e2m3", "mx", 32, 3, 2, 2, 7.5),
        BlockFormat("mxfp6e3m2", "mx", 32, 2, 3, 4, 28.0),
        BlockFormat("mxfp4", "mx", 32, 1, 2, 2, 6.0),
    )
}

_PAIR = 2


def round_to(values: Float32, number: str, axis: int) -> Float32:
    """Return the values that `number` can hold, nearest to `values`, in blocks along `axis`."""
    if number == "bf16":
        return values.astype(ml_dtypes.bfloat16).astype(np.float32)
    if number == "fp16":
        ends = np.finfo(np.float16)
        return np.clip(values, ends.min, ends.max).astype(np.float16).astype(np.float32)
    return round_blocks(values, FORMATS[number], axis)


def round_blocks(values: Float32, row: BlockFormat, axis: int) -> Float32:
    """Return `values` as blocks along `axis` hold them; the last block may be short."""
    if values.ndim == 0:
        return round_blocks(values.reshape(1), row, 0).reshape(())
    moved = np.moveaxis(values, axis, -1)
    length = moved.shape[-1]
    short = -length % row.size
    padded = np.pad(moved, [(0, 0)] * (moved.ndim - 1) + [(0, short)])
    blocks = padded.reshape(*padded.shape[:-1], -1, row.size)
    rounded = _ROUNDERS[row.kind](blocks, row).reshape(padded.shape)[..., :length]
    return np.ascontiguousarray(np.moveaxis(rounded, -1, axis))


def _bfp(blocks: Float32, row: BlockFormat) -> Float32:
    finite = np.where(np.isfinite(blocks), blocks, np.float32(0.0))
    top = exponents(np.abs(finite).max(axis=-1, keepdims=True))
    rounded = _fixed(finite, top + 1 - row.mantissa, 2**row.mantissa - 1)
    return np.where(np.isfinite(blocks), rounded, blocks)  # infinity and NaN pass through


def _microexponent(blocks: Float32, row: BlockFormat) -> Float32:
    magnitudes = np.abs(blocks)
    magnitudes[magnitudes < np.finfo(np.float32).tiny] = 0.0  # subnormals are flushed
    top = exponents(magnitudes.max(axis=-1, keepdims=True))
    pairs = magnitudes.reshape(*blocks.shape[:-1], -1, _PAIR)
    lower = top[..., None] - exponents(pairs.max(axis=-1, keepdims=True))
    shift = np.broadcast_to(np.minimum(lower, 1), pairs.shape).reshape(blocks.shape)
    flushed = np.where(magnitudes > 0.0, blocks, np.float32(0.0))
    rounded = _fixed(flushed, top - shift + 1 - row.mantissa, 2**row.mantissa - 1)
    whole = np.isfinite(blocks).all(axis=-1, keepdims=True)
    return np.where(whole, rounded, np.float32(np.nan))  # one that is not finite spoils the block


def _mx(blocks: Float32, row: BlockFormat) -> Float32:
    whole = np.isfinite(blocks).all(axis=-1, keepdims=True)
    finite = np.where(whole, blocks, np.float32(0.0))
    largest = np.abs(finite).max(axis=-1, keepdims=True)
    shared = np.maximum(exponents(largest) - row.emax, _LOWEST_EXPONENT)
    scaled = np.ldexp(finite.astype(np.float64), -shared)
    if row.exponent:
        smallest = 2 - 2 ** (row.exponent - 1)  # exponent of the smallest normal element
        own = np.maximum(np.frexp(scaled)[1] - 1, smallest)
        step = own - row.mantissa
        elements = np.ldexp(np.rint(np.ldexp(scaled, -step)), step)
        elements = np.clip(elements, -row.highest, row.highest)
    else:
        elements = np.rint(scaled * 2.0**row.mantissa) / 2.0**row.mantissa
        elements = np.clip(elements, -2.0, row.highest)  # two's complement has one more below
    rounded = np.ldexp(elements, shared).astype(np.float32)
    return np.where(whole, rounded, np.float32(np.nan))


def _fixed(values: Float32, step: NDArray[np.int32], most: int) -> Float32:
    """Round to multiples of 2^step, no more than `most` of them."""
    counted = np.clip(np.rint(np.ldexp(values.astype(np.float64), -step)), -most, most)
    rounded: Float32 = np.ldexp(counted, step).astype(np.float32)
    return rounded


def exponents(values: Float32) -> NDArray[np.int32]:
    """Return the exponents as float32 stores them: ⌊log2⌋, and -127 for all that is subnormal."""
    found = np.frexp(values)[1] - 1
    lowest = values < np.finfo(np.float32).tiny
    return np.where(lowest, np.int32(_LOWEST_EXPONENT), found).astype(np.int32)


_ROUNDERS = {"bfp": _bfp, "microexponent": _microexponent, "mx": _mx}
