"""Types of weights whose codes are places in a grid: eight or four values at a time.

A value of a grid is one of a few numbers, with a sign: of sixteen there are, which its code says.
The grids are those of the package `gguf`, which is asked for them where a file has such a type.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.errors import UnsupportedError
from vermilion.llm.engine.block_forms import (
    Array,
    BlockColumns,
    BlockForm,
    BlockType,
    Bytes,
    Floats,
    bits_of,
    fields,
    grouped,
    half_of,
)

# Sizes of the values of each grid; a code of 8 and more is the same with a minus.
_IQ2 = (8, 25, 43)
_IQ3_XXS = (4, 12, 20, 28, 36, 44, 52, 62)
_IQ3_S = (1, 3, 5, 7, 9, 11, 13, 15)
# Eight times a value of -1, 0 or 1 with an eighth added to it, or taken off.
_IQ1 = (-9, -7, -1, 1, 7, 9)


def _signed(sizes: tuple[int, ...]) -> tuple[int, ...]:
    plus = (*sizes, *(0,) * (8 - len(sizes)))
    return (*plus, *(-one for one in plus))


@cache
def _grid(name: str) -> NDArray[np.float32]:
    """Return a grid: (places, values of one).

    Raises: UnsupportedError without the package that has them.
    """
    try:
        quants: Any = import_module("gguf.quants")
    except ImportError as error:
        raise UnsupportedError(
            f"weights of the type {name} need the grids of the package `gguf`",
            hint="pip install 'vermilion[llm]'",
        ) from error
    kind = getattr(quants, name)
    kind.init_grid()
    grid: NDArray[np.float32] = kind.grid.reshape(kind.grid_shape)
    return grid


@cache
def _codes(name: str, sizes: tuple[int, ...]) -> Bytes:
    """Return a grid's values as places in `sizes`."""
    return np.searchsorted(np.array(sizes, np.float32), _grid(name)).astype(np.uint8)


@cache
def _signs() -> Bytes:
    """Return the signs of eight values that seven bits say: the eighth makes their number even."""
    seven = np.arange(128, dtype=np.uint8)
    ones = np.unpackbits(seven[:, None], axis=1).sum(axis=1) % 2
    signs: Bytes = seven | (ones.astype(np.uint8) << np.uint8(7))
    return signs


def _with_signs(codes: Bytes, signs: Bytes) -> Bytes:
    """Add 8 to codes whose sign is set: of bytes of signs, one for eight codes."""
    minus = np.unpackbits(np.ascontiguousarray(signs).reshape(-1, 1), axis=1, bitorder="little")
    return codes.reshape(len(codes), -1) | (minus.reshape(len(codes), -1) << np.uint8(3))


def _seven(words: NDArray[np.uint32]) -> Bytes:
    """Return the signs of the 32 values of a word: four times seven bits."""
    shifts = np.array([0, 7, 14, 21], np.uint32)
    places = (words[:, :, None] >> shifts) & np.uint32(127)
    signs: Bytes = _signs()[places].reshape(len(words), -1)
    return signs


def _odd(scales: Array) -> Array:
    """Return 2 s + 1: a scale of s and a half, in halves."""
    return scales.astype(np.int8) * np.int8(2) + np.int8(1)


def _iq2_xxs(rows: Bytes) -> BlockColumns:
    d, qs = fields(rows, 2, 64)
    pairs = np.ascontiguousarray(qs).view(np.uint32).reshape(len(qs), -1, 2)
    places = np.ascontiguousarray(pairs[:, :, 0]).view(np.uint8)
    codes = _with_signs(_codes("IQ2_XXS", _IQ2)[places], _seven(pairs[:, :, 1]))
    return grouped(rows, codes, 32, _odd(pairs[:, :, 1] >> 28), (half_of(d) * np.float32(1 / 8),))


def _iq2_xs(rows: Bytes) -> BlockColumns:
    d, qs, scales = fields(rows, 2, 64, 8)
    places = np.ascontiguousarray(qs).view(np.uint16)
    codes = _codes("IQ2_XS", _IQ2)[places & np.uint16(511)]
    codes = _with_signs(codes, _signs()[places >> np.uint16(9)])
    return grouped(
        rows, codes, 16, _odd(bits_of(scales, 1, (0, 4), 15)), (half_of(d) * np.float32(1 / 8),)
    )


def _iq2_s(rows: Bytes) -> BlockColumns:
    d, qs, signs, qh, scales = fields(rows, 2, 32, 32, 8, 8)
    high = bits_of(qh, 1, (0, 2, 4, 6), 3).astype(np.uint16) << np.uint16(8)
    codes = _with_signs(_codes("IQ2_S", _IQ2)[qs | high], signs)
    return grouped(
        rows, codes, 16, _odd(bits_of(scales, 1, (0, 4), 15)), (half_of(d) * np.float32(1 / 8),)
    )


def _iq3_xxs(rows: Bytes) -> BlockColumns:
    d, qs, words = fields(rows, 2, 64, 32)
    own = np.ascontiguousarray(words).view(np.uint32)
    codes = _with_signs(_codes("IQ3_XXS", _IQ3_XXS)[qs], _seven(own))
    return grouped(rows, codes, 32, _odd(own >> 28), (half_of(d) * np.float32(1 / 4),))


def _iq3_s(rows: Bytes) -> BlockColumns:
    d, qs, qh, signs, scales = fields(rows, 2, 64, 8, 32, 4)
    high = bits_of(qh, 1, range(8), 1).astype(np.uint16) << np.uint16(8)
    codes = _with_signs(_codes("IQ3_S", _IQ3_S)[qs | high], signs)
    return grouped(rows, codes, 32, _odd(bits_of(scales, 1, (0, 4), 15)), (half_of(d),))


def _iq1(places: NDArray[np.uint16], is_less: NDArray[np.bool_]) -> Bytes:
    """Return codes of values of a grid, an eighth less where it is said, else more."""
    eighths = np.where(is_less, -1, 1).astype(np.int8)[..., None]
    values = (_grid("IQ1_S")[places] * 8).astype(np.int8) + eighths
    codes = np.searchsorted(np.array(_IQ1), values).astype(np.uint8)
    return codes.reshape(len(codes), -1)


def _iq1_s(rows: Bytes) -> BlockColumns:
    d, qs, qh = fields(rows, 2, 32, 16)
    words = np.ascontiguousarray(qh).view(np.uint16)
    high = (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16)) & np.uint16(7)
    places = qs | (high.reshape(len(qs), -1) << np.uint16(8))
    is_less = np.repeat((words & np.uint16(0x8000)) != 0, 4, axis=1)
    scales = _odd((words >> np.uint16(12)) & np.uint16(7))
    return grouped(rows, _iq1(places, is_less), 32, scales, (half_of(d) * np.float32(1 / 8),))


def _iq1_m(rows: Bytes) -> BlockColumns:
    qs, qh, scales = fields(rows, 32, 16, 8)
    words = np.ascontiguousarray(scales).view(np.uint16)
    # The float16 that all share lies in the highest four bits of four words.
    parts = (words & np.uint16(0xF000)) >> np.array([12, 8, 4, 0], np.uint16)
    d: Floats = np.bitwise_or.reduce(parts, axis=1).view(np.float16).astype(np.float32)
    own = (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16)) & np.uint16(7)
    high = bits_of(qh, 1, (0, 4), 15)
    places = qs | ((high & np.uint8(7)).astype(np.uint16) << np.uint16(8))
    codes = _iq1(places, (high & np.uint8(8)) != 0)
    return grouped(rows, codes, 16, _odd(own.reshape(len(qs), -1)), (d * np.float32(1 / 8),))


def _form(block: int, table: tuple[int, ...]) -> BlockForm:
    padded = (*table, *(0,) * (16 - len(table)))
    return BlockForm(4, block, "s8", table=padded, group=256 // block)


GRID_TYPES: tuple[BlockType, ...] = (
    BlockType("IQ2_XXS", 256, 66, _form(32, _signed(_IQ2)), _iq2_xxs),
    BlockType("IQ2_XS", 256, 74, _form(16, _signed(_IQ2)), _iq2_xs),
    BlockType("IQ2_S", 256, 82, _form(16, _signed(_IQ2)), _iq2_s),
    BlockType("IQ3_XXS", 256, 98, _form(32, _signed(_IQ3_XXS)), _iq3_xxs),
    BlockType("IQ3_S", 256, 110, _form(32, _signed(_IQ3_S)), _iq3_s),
    BlockType("IQ1_S", 256, 50, _form(32, _IQ1), _iq1_s),
    BlockType("IQ1_M", 256, 56, _form(16, _IQ1), _iq1_m),
)
