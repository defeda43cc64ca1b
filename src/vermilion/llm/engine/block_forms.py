"""Weights in blocks: how their numbers follow from codes, scales and what is added to them.

Nothing is rounded: what codes and scales come to, in float32, is bit for bit what a file's own
reference dequantizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.emit.decoder.weights import BlockWeights, Scale

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Array = NDArray[np.generic]
# Twice the values of the 16 codes of a 4-bit float (E2M1).
TWICE_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


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
    values *= floats_of_scales(form, own.scales, shared[0])[:, :, None]
    if own.mins is not None:
        values += floats_of_scales(form, own.mins, shared[-1])[:, :, None]
    return values.reshape(len(values), -1)


def floats_of_scales(form: BlockForm, stored: Array, shared: Floats | None) -> Floats:
    """Return scales, or minimums, in float32: (columns, blocks)."""
    if shared is not None:
        return stored.astype(np.float32) * np.repeat(shared, form.group, axis=1)
    if form.scale != "e8m0":
        return stored.astype(np.float32)
    exponent = stored.astype(np.uint32)
    small = np.uint32(1 << 21) << np.minimum(exponent, 1)
    above = np.maximum(exponent, 1) - np.uint32(1)
    return cast("Floats", np.where(exponent < 2, small, above << np.uint32(23)).view(np.float32))


# Taking rows apart -------------------------------------------------------------------------------


def fields(rows: Bytes, *sizes: int) -> list[Bytes]:
    """Return the fields of all blocks: (rows · blocks, bytes of a field) each."""
    blocks = np.ascontiguousarray(rows).reshape(-1, sum(sizes))
    ends = np.cumsum(sizes)
    return [blocks[:, end - size : end] for size, end in zip(sizes, ends, strict=True)]


def half_of(field: Bytes) -> Floats:
    """Return the float16 of every block as float32: (blocks,)."""
    return np.ascontiguousarray(field).view(np.float16).reshape(-1).astype(np.float32)


def bits_of(field: Bytes, run: int, shifts: Sequence[int], mask: int) -> Bytes:
    """Return parts of bytes, of each `run` bytes first those at the first shift: (blocks, …)."""
    steps = np.array(shifts, np.uint8).reshape(1, 1, -1, 1)
    parts = (field.reshape(len(field), -1, 1, run) >> steps) & np.uint8(mask)
    return parts.reshape(len(field), -1)


def by_row(rows: Bytes, codes: Bytes, block: int) -> Bytes:
    """Return codes by row and block: (rows, blocks, block)."""
    return codes.reshape(len(rows), -1, block)


def one_scale(rows: Bytes, field: Bytes) -> Array:
    """Return float16 scales as they are: (rows, blocks)."""
    return np.ascontiguousarray(field).view(np.float16).reshape(len(rows), -1)


def grouped(
    rows: Bytes, codes: Bytes, block: int, scales: Array, shared: Sequence[Floats],
    mins: Array | None = None,
) -> BlockColumns:  # fmt: skip
    """Put together what has whole-number scales: (blocks, scales of one), (blocks,) shared."""
    count = len(rows)
    return BlockColumns(
        by_row(rows, codes, block),
        scales.astype(np.int8).reshape(count, -1),
        mins=None if mins is None else mins.astype(np.int8).reshape(count, -1),
        shared=tuple(one.reshape(count, -1) for one in shared),
    )
