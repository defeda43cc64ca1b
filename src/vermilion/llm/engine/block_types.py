"""Types of weights in GGUF files: the bytes of rows → codes, scales and what is added to them.

Sources: ggml-org/ggml, `ggml-common.h` and `ggml-quants.c`, whose Python reference is the package
`gguf` (`quants.py`); block sizes from `gguf/constants.py` 0.19.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vermilion.codegen.emit.decoder.weights import Scale
from vermilion.llm.engine.block_forms import (
    TWICE_E2M1,
    BlockColumns,
    BlockForm,
    BlockType,
    Bytes,
    bits_of,
    by_row,
    fields,
    grouped,
    half_of,
    one_scale,
)
from vermilion.llm.engine.grid_types import GRID_TYPES

# Values of the 16 codes of IQ4_NL and IQ4_XS.
_NOT_LINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def _q4_0(rows: Bytes) -> BlockColumns:
    d, qs = fields(rows, 2, 16)
    return BlockColumns(by_row(rows, bits_of(qs, 16, (0, 4), 15), 32), one_scale(rows, d))


def _q4_1(rows: Bytes) -> BlockColumns:
    d, m, qs = fields(rows, 2, 2, 16)
    codes = by_row(rows, bits_of(qs, 16, (0, 4), 15), 32)
    return BlockColumns(codes, one_scale(rows, d), mins=one_scale(rows, m))


def _fifth(qh: Bytes, qs: Bytes) -> Bytes:
    """Return codes of five bits, of which the fifth of all lie apart."""
    high = np.unpackbits(np.ascontiguousarray(qh), axis=1, bitorder="little")
    return bits_of(qs, 16, (0, 4), 15) | (high << np.uint8(4))


def _q5_0(rows: Bytes) -> BlockColumns:
    d, qh, qs = fields(rows, 2, 4, 16)
    codes = _fifth(qh, qs) + np.uint8(128 - 16)
    return BlockColumns(by_row(rows, codes, 32), one_scale(rows, d))


def _q5_1(rows: Bytes) -> BlockColumns:
    d, m, qh, qs = fields(rows, 2, 2, 4, 16)
    codes = by_row(rows, _fifth(qh, qs), 32)
    return BlockColumns(codes, one_scale(rows, d), mins=one_scale(rows, m))


def _q8_0(rows: Bytes) -> BlockColumns:
    d, qs = fields(rows, 2, 32)
    return BlockColumns(by_row(rows, qs ^ np.uint8(128), 32), one_scale(rows, d))


def _q2_k(rows: Bytes) -> BlockColumns:
    scales, qs, d, m = fields(rows, 16, 64, 2, 2)
    codes = bits_of(qs, 32, (0, 2, 4, 6), 3)
    shared = (half_of(d), -half_of(m))
    return grouped(rows, codes, 16, scales & np.uint8(15), shared, scales >> np.uint8(4))


def _q3_k(rows: Bytes) -> BlockColumns:
    high, qs, packed, d = fields(rows, 32, 64, 12, 2)
    low_scales = bits_of(packed[:, :8], 8, (0, 4), 15)
    high_scales = bits_of(packed[:, 8:], 4, (0, 2, 4, 6), 3)
    scales = (low_scales | (high_scales << np.uint8(4))).astype(np.int8) - np.int8(32)
    # The third bit says that 4 is not taken off.
    third = bits_of(high, 32, range(8), 1)
    codes = bits_of(qs, 32, (0, 2, 4, 6), 3) + np.uint8(4) + (third << np.uint8(2))
    return grouped(rows, codes, 16, scales, (half_of(d),))


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
    d, m, packed, qs = fields(rows, 2, 2, 12, 128)
    scales, mins = _scales_and_mins(packed)
    codes = bits_of(qs, 32, (0, 4), 15)
    return grouped(rows, codes, 32, scales, (half_of(d), -half_of(m)), mins)


def _q5_k(rows: Bytes) -> BlockColumns:
    d, m, packed, qh, qs = fields(rows, 2, 2, 12, 32, 128)
    scales, mins = _scales_and_mins(packed)
    codes = bits_of(qs, 32, (0, 4), 15) | (bits_of(qh, 32, range(8), 1) << np.uint8(4))
    return grouped(rows, codes, 32, scales, (half_of(d), -half_of(m)), mins)


def _q6_k(rows: Bytes) -> BlockColumns:
    ql, qh, scales, d = fields(rows, 128, 64, 16, 2)
    codes = bits_of(ql, 64, (0, 4), 15) | (bits_of(qh, 32, (0, 2, 4, 6), 3) << np.uint8(4))
    codes += np.uint8(128 - 32)
    return grouped(rows, codes, 16, scales.view(np.int8), (half_of(d),))


def _iq4_nl(rows: Bytes) -> BlockColumns:
    return _q4_0(rows)


def _iq4_xs(rows: Bytes) -> BlockColumns:
    d, high, low, qs = fields(rows, 2, 2, 4, 128)
    top = np.ascontiguousarray(high).view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16)
    scales = bits_of(low, 1, (0, 4), 15) | ((top & np.uint16(3)).astype(np.uint8) << np.uint8(4))
    codes = bits_of(qs, 16, (0, 4), 15)
    return grouped(rows, codes, 32, scales.astype(np.int8) - np.int8(32), (half_of(d),))


def _mxfp4(rows: Bytes) -> BlockColumns:
    e, qs = fields(rows, 1, 16)
    return BlockColumns(by_row(rows, bits_of(qs, 16, (0, 4), 15), 32), e.reshape(len(rows), -1))


def _nvfp4(rows: Bytes) -> BlockColumns:
    d, qs = fields(rows, 4, 32)
    exponent, mantissa = (d >> np.uint8(3)) & np.uint8(15), (d & np.uint8(7)).astype(np.float32)
    power = np.exp2(exponent.astype(np.float32) - 8)  # with half of it: values are twice E2M1's
    scales = np.where(exponent == 0, mantissa * np.float32(2.0**-10), (1 + mantissa / 8) * power)
    scales = np.where((d == 0) | (d == 0x7F), np.float32(0), scales).astype(np.float32)
    codes = bits_of(qs, 8, (0, 4), 15)
    return BlockColumns(by_row(rows, codes, 16), scales.reshape(len(rows), -1))


def _tq1_0(rows: Bytes) -> BlockColumns:
    qs, qh, d = fields(rows, 48, 4, 2)
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
    qs, d = fields(rows, 64, 2)
    return _ternary(rows, bits_of(qs, 32, (0, 2, 4, 6), 3), d)


def _ternary(rows: Bytes, three: Bytes, d: Bytes) -> BlockColumns:
    """Return codes that count from 1 as ones that count from 8, in blocks of a quarter."""
    scales = np.repeat(one_scale(rows, d), 4, axis=1)
    return BlockColumns(by_row(rows, three + np.uint8(7), 64), scales)


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
    BlockType("MXFP4", 32, 17, BlockForm(4, 32, "e8m0", table=TWICE_E2M1), _mxfp4),
    BlockType("NVFP4", 64, 36, BlockForm(4, 16, "f32", table=TWICE_E2M1), _nvfp4),
    BlockType("TQ1_0", 256, 54, BlockForm(4, 64, "f16"), _tq1_0),
    BlockType("TQ2_0", 256, 66, BlockForm(4, 64, "f16"), _tq2_0),
)


def block_types() -> Mapping[str, BlockType]:
    """Return all types of blocks, by name."""
    return {one.name: one for one in (*_PLAIN, *GRID_TYPES)}


def block_type(name: str) -> BlockType | None:
    """Return a type of blocks, None for one that is not known."""
    return block_types().get(name)
