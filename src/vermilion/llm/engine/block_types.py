"""Types of weights in GGUF files: the bytes of rows → codes, scales and what is added to them.

Nothing is rounded: what codes and scales come to, in float32, is bit for bit what the reference
dequantizes. Sources: ggml-org/ggml, `ggml-common.h` and `ggml-quants.c`, whose Python reference is
the package `gguf` (`quants.py`); block sizes from `gguf/constants.py` 0.19.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.emit.decoder.weights import BlockWeights, Scale

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Array = NDArray[np.generic]

# Values of the 16 codes of IQ4_NL and IQ4_XS, and twice those of a 4-bit float (E2M1).
_NOT_LINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_TWICE_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


@dataclass(frozen=True)
class BlockForm:
    """How numbers follow from what is stored; see `BlockWeights`."""

    bits: Literal[4, 8]
    block: int
    scale: Scale
    has_zeros: bool = False
    has_mins: bool = False
    table: tuple[int, ...] | None = None
    group: int = 0

    def weights(self, depth: int, columns: int) -> BlockWeights:
        """Return a matrix of this form."""
        return BlockWeights(
            depth, columns, self.bits, self.block, self.scale, self.has_zeros, self.has_mins,
            self.table, self.group,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class BlockColumns:
    """Some columns of a matrix: (columns, blocks, block) codes, one in a byte; the rest by block.

    `shared` are the float32 that whole-number scales are multiplied with, and those of `mins`:
    (columns, groups).
    """

    codes: Bytes
    scales: Array
    zeros: Bytes | None = None
    mins: Array | None = None
    shared: tuple[Floats, ...] | None = None

    @staticmethod
    def joined(pieces: Sequence[BlockColumns], more: int) -> BlockColumns:
        """Return them one behind the other, and so many columns of zeros."""

        def join(arrays: Sequence[Array]) -> Array:
            if more:
                shape = (more, *arrays[0].shape[1:])
                arrays = [*arrays, np.zeros(shape, arrays[0].dtype)]
            return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

        zeros = [one.zeros for one in pieces if one.zeros is not None]
        mins = [one.mins for one in pieces if one.mins is not None]
        shared = [one.shared for one in pieces if one.shared is not None]
        return BlockColumns(
            cast("Bytes", join([one.codes for one in pieces])),
            join([one.scales for one in pieces]),
            cast("Bytes", join(zeros)) if zeros else None,
            join(mins) if mins else None,
            tuple(cast("Floats", join(some)) for some in zip(*shared, strict=True))
            if shared
            else None,
        )


@dataclass(frozen=True)
class BlockType:
    """A type: values and bytes of one of its blocks, and what its rows come to.

    `unpack` is given rows, (rows, bytes), of whole blocks.
    """

    name: str
    values: int
    bytes: int
    form: BlockForm
    unpack: Callable[[Bytes], BlockColumns]

    @property
    def packed_bits(self) -> float:
        """Bits of a weight as the kernels read it."""
        w = self.form.weights(self.form.block * 256, 32)
        return w.size_bytes * 8 / (w.depth * w.columns)

    @property
    def stored_bits(self) -> float:
        """Bits of a weight in a file."""
        return self.bytes * 8 / self.values

    def dequantize(self, rows: Bytes) -> Floats:
        """Return the numbers of rows, as the reference computes them."""
        return numbers_of(self.form, self.unpack(rows))


def numbers_of(form: BlockForm, own: BlockColumns) -> Floats:
    """Return the numbers of columns: (columns, depth)."""
    if form.table is not None:
        values = np.array(form.table, np.float32)[own.codes]
    else:
        values = own.codes.astype(np.float32)
        if own.zeros is not None:
            values -= own.zeros[:, :, None].astype(np.float32)
        elif own.mins is None:
            values -= np.float32(1 << (form.bits - 1))
    shared = own.shared or (None, None)
    values *= _floats(form, own.scales, shared[0])[:, :, None]
    if own.mins is not None:
        values += _floats(form, own.mins, shared[-1])[:, :, None]
    return values.reshape(len(values), -1)


def _floats(form: BlockForm, stored: Array, shared: Floats | None) -> Floats:
    if shared is not None:
        return stored.astype(np.float32) * np.repeat(shared, form.group, axis=1)
    if form.scale != "e8m0":
        return stored.astype(np.float32)
    exponent = stored.astype(np.uint32)
    small = np.uint32(1 << 21) << np.minimum(exponent, 1)
    above = np.maximum(exponent, 1) - np.uint32(1)
    return cast("Floats", np.where(exponent < 2, small, above << np.uint32(23)).view(np.float32))


# Taking rows apart -------------------------------------------------------------------------------


def _fields(rows: Bytes, *sizes: int) -> list[Bytes]:
    """Return the fields of all blocks: (rows · blocks, bytes of a field) each."""
    blocks = np.ascontiguousarray(rows).reshape(-1, sum(sizes))
    ends = np.cumsum(sizes)
    return [blocks[:, end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _half(field: Bytes) -> Floats:
    """Return the float16 of every block as float32: (blocks,)."""
    return np.ascontiguousarray(field).view(np.float16).reshape(-1).astype(np.float32)


def _bits(field: Bytes, run: int, shifts: Sequence[int], mask: int) -> Bytes:
    """Return parts of bytes, of each `run` bytes first those at the first shift: (blocks, …)."""
    steps = np.array(shifts, np.uint8).reshape(1, 1, -1, 1)
    parts = (field.reshape(len(field), -1, 1, run) >> steps) & np.uint8(mask)
    return parts.reshape(len(field), -1)


def _by_row(rows: Bytes, codes: Bytes, block: int) -> Bytes:
    return codes.reshape(len(rows), -1, block)


def _one_scale(rows: Bytes, field: Bytes) -> Array:
    """Return float16 scales as they are: (rows, blocks)."""
    return np.ascontiguousarray(field).view(np.float16).reshape(len(rows), -1)


def _grouped(
    rows: Bytes, codes: Bytes, block: int, scales: Array, shared: Sequence[Floats],
    mins: Array | None = None,
) -> BlockColumns:  # fmt: skip
    """Put together what has whole-number scales: (blocks, scales of one), (blocks,) shared."""
    count = len(rows)
    return BlockColumns(
        _by_row(rows, codes, block),
        scales.astype(np.int8).reshape(count, -1),
        mins=None if mins is None else mins.astype(np.int8).reshape(count, -1),
        shared=tuple(one.reshape(count, -1) for one in shared),
    )


# The types ---------------------------------------------------------------------------------------


def _q4_0(rows: Bytes) -> BlockColumns:
    d, qs = _fields(rows, 2, 16)
    return BlockColumns(_by_row(rows, _bits(qs, 16, (0, 4), 15), 32), _one_scale(rows, d))


def _q4_1(rows: Bytes) -> BlockColumns:
    d, m, qs = _fields(rows, 2, 2, 16)
    codes = _by_row(rows, _bits(qs, 16, (0, 4), 15), 32)
    return BlockColumns(codes, _one_scale(rows, d), mins=_one_scale(rows, m))


def _fifth(qh: Bytes, qs: Bytes) -> Bytes:
    """Return codes of five bits, of which the fifth of all lie apart."""
    high = np.unpackbits(np.ascontiguousarray(qh), axis=1, bitorder="little")
    return _bits(qs, 16, (0, 4), 15) | (high << np.uint8(4))


def _q5_0(rows: Bytes) -> BlockColumns:
    d, qh, qs = _fields(rows, 2, 4, 16)
    codes = _fifth(qh, qs) + np.uint8(128 - 16)
    return BlockColumns(_by_row(rows, codes, 32), _one_scale(rows, d))


def _q5_1(rows: Bytes) -> BlockColumns:
    d, m, qh, qs = _fields(rows, 2, 2, 4, 16)
    codes = _by_row(rows, _fifth(qh, qs), 32)
    return BlockColumns(codes, _one_scale(rows, d), mins=_one_scale(rows, m))


def _q8_0(rows: Bytes) -> BlockColumns:
    d, qs = _fields(rows, 2, 32)
    return BlockColumns(_by_row(rows, qs ^ np.uint8(128), 32), _one_scale(rows, d))


def _q2_k(rows: Bytes) -> BlockColumns:
    scales, qs, d, m = _fields(rows, 16, 64, 2, 2)
    codes = _bits(qs, 32, (0, 2, 4, 6), 3)
    shared = (_half(d), -_half(m))
    return _grouped(rows, codes, 16, scales & np.uint8(15), shared, scales >> np.uint8(4))


def _q3_k(rows: Bytes) -> BlockColumns:
    high, qs, packed, d = _fields(rows, 32, 64, 12, 2)
    low_scales = _bits(packed[:, :8], 8, (0, 4), 15)
    high_scales = _bits(packed[:, 8:], 4, (0, 2, 4, 6), 3)
    scales = (low_scales | (high_scales << np.uint8(4))).astype(np.int8) - np.int8(32)
    # The third bit says that 4 is not taken off.
    third = _bits(high, 32, range(8), 1)
    codes = _bits(qs, 32, (0, 2, 4, 6), 3) + np.uint8(4) + (third << np.uint8(2))
    return _grouped(rows, codes, 16, scales, (_half(d),))


def _scales_and_mins(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Return the eight scales and eight minimums of six bits that twelve bytes hold."""
    low, low_mins, both = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = [low & np.uint8(63), (both & np.uint8(15)) | ((low >> np.uint8(2)) & np.uint8(48))]
    mins = [
        low_mins & np.uint8(63),
        (both >> np.uint8(4)) | ((low_mins >> np.uint8(2)) & np.uint8(48)),
    ]
    return np.concatenate(scales, axis=1), np.concatenate(mins, axis=1)


def _q4_k(rows: Bytes) -> BlockColumns:
    d, m, packed, qs = _fields(rows, 2, 2, 12, 128)
    scales, mins = _scales_and_mins(packed)
    codes = _bits(qs, 32, (0, 4), 15)
    return _grouped(rows, codes, 32, scales, (_half(d), -_half(m)), mins)


def _q5_k(rows: Bytes) -> BlockColumns:
    d, m, packed, qh, qs = _fields(rows, 2, 2, 12, 32, 128)
    scales, mins = _scales_and_mins(packed)
    codes = _bits(qs, 32, (0, 4), 15) | (_bits(qh, 32, range(8), 1) << np.uint8(4))
    return _grouped(rows, codes, 32, scales, (_half(d), -_half(m)), mins)


def _q6_k(rows: Bytes) -> BlockColumns:
    ql, qh, scales, d = _fields(rows, 128, 64, 16, 2)
    codes = _bits(ql, 64, (0, 4), 15) | (_bits(qh, 32, (0, 2, 4, 6), 3) << np.uint8(4))
    codes += np.uint8(128 - 32)
    return _grouped(rows, codes, 16, scales.view(np.int8), (_half(d),))


def _iq4_nl(rows: Bytes) -> BlockColumns:
    return _q4_0(rows)


def _iq4_xs(rows: Bytes) -> BlockColumns:
    d, high, low, qs = _fields(rows, 2, 2, 4, 128)
    top = np.ascontiguousarray(high).view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16)
    scales = _bits(low, 1, (0, 4), 15) | ((top & np.uint16(3)).astype(np.uint8) << np.uint8(4))
    codes = _bits(qs, 16, (0, 4), 15)
    return _grouped(rows, codes, 32, scales.astype(np.int8) - np.int8(32), (_half(d),))


def _mxfp4(rows: Bytes) -> BlockColumns:
    e, qs = _fields(rows, 1, 16)
    return BlockColumns(_by_row(rows, _bits(qs, 16, (0, 4), 15), 32), e.reshape(len(rows), -1))


def _nvfp4(rows: Bytes) -> BlockColumns:
    d, qs = _fields(rows, 4, 32)
    exponent, mantissa = (d >> np.uint8(3)) & np.uint8(15), (d & np.uint8(7)).astype(np.float32)
    power = np.exp2(exponent.astype(np.float32) - 8)  # with half of it: values are twice E2M1's
    scales = np.where(exponent == 0, mantissa * np.float32(2.0**-10), (1 + mantissa / 8) * power)
    scales = np.where((d == 0) | (d == 0x7F), np.float32(0), scales).astype(np.float32)
    codes = _bits(qs, 8, (0, 4), 15)
    return BlockColumns(_by_row(rows, codes, 16), scales.reshape(len(rows), -1))


def _tq1_0(rows: Bytes) -> BlockColumns:
    qs, qh, d = _fields(rows, 48, 4, 2)
    powers = np.array([1, 3, 9, 27, 81], np.uint8).reshape(1, 1, 5, 1)
    count = len(qs)
    parts = [
        (qs[:, :32].reshape(count, -1, 1, 32) * powers).reshape(count, -1),
        (qs[:, 32:].reshape(count, -1, 1, 16) * powers).reshape(count, -1),
        (qh.reshape(count, -1, 1, 4) * powers[:, :, :4]).reshape(count, -1),
    ]
    three = ((np.concatenate(parts, axis=1).astype(np.uint16) * 3) >> 8).astype(np.uint8)
    return _ternary(rows, three, d)


def _tq2_0(rows: Bytes) -> BlockColumns:
    qs, d = _fields(rows, 64, 2)
    return _ternary(rows, _bits(qs, 32, (0, 2, 4, 6), 3), d)


def _ternary(rows: Bytes, three: Bytes, d: Bytes) -> BlockColumns:
    """Return codes that count from 1 as ones that count from 8, in blocks of a quarter."""
    scales = np.repeat(_one_scale(rows, d), 4, axis=1)
    return BlockColumns(_by_row(rows, three + np.uint8(7), 64), scales)


_S8: Scale = "s8"
_PLAIN: tuple[BlockType, ...] = (
    BlockType("Q4_0", 32, 18, BlockForm(4, 32, "f16"), _q4_0),
    BlockType("Q4_1", 32, 20, BlockForm(4, 32, "f16", has_mins=True), _q4_1),
    BlockType("Q5_0", 32, 22, BlockForm(8, 32, "f16"), _q5_0),
    BlockType("Q5_1", 32, 24, BlockForm(8, 32, "f16", has_mins=True), _q5_1),
    BlockType("Q8_0", 32, 34, BlockForm(8, 32, "f16"), _q8_0),
    BlockType("Q2_K", 256, 84, BlockForm(4, 16, _S8, has_mins=True, group=16), _q2_k),
    BlockType("Q3_K", 256, 110, BlockForm(4, 16, _S8, group=16), _q3_k),
    BlockType("Q4_K", 256, 144, BlockForm(4, 32, _S8, has_mins=True, group=8), _q4_k),
    BlockType("Q5_K", 256, 176, BlockForm(8, 32, _S8, has_mins=True, group=8), _q5_k),
    BlockType("Q6_K", 256, 210, BlockForm(8, 16, _S8, group=16), _q6_k),
    BlockType("IQ4_NL", 32, 18, BlockForm(4, 32, "f16", table=_NOT_LINEAR), _iq4_nl),
    BlockType("IQ4_XS", 256, 136, BlockForm(4, 32, _S8, table=_NOT_LINEAR, group=8), _iq4_xs),
    BlockType("MXFP4", 32, 17, BlockForm(4, 32, "e8m0", table=_TWICE_E2M1), _mxfp4),
    BlockType("NVFP4", 64, 36, BlockForm(4, 16, "f32", table=_TWICE_E2M1), _nvfp4),
    BlockType("TQ1_0", 256, 54, BlockForm(4, 64, "f16"), _tq1_0),
    BlockType("TQ2_0", 256, 66, BlockForm(4, 64, "f16"), _tq2_0),
)


def block_types() -> Mapping[str, BlockType]:
    """Return all types of blocks, by name."""
    from vermilion.llm.engine.grid_types import GRID_TYPES

    return {one.name: one for one in (*_PLAIN, *GRID_TYPES)}


def block_type(name: str) -> BlockType | None:
    """Return a type of blocks, None for one that is not known."""
    found = next((one for one in _PLAIN if one.name == name), None)
    return found or block_types().get(name)
