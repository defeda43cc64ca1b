"""Weights as the graph stores them → the panels that the kernels read."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.emit.decoder.weights import (
    LANES,
    PANEL,
    VECTORS,
    BlockWeights,
    PlainWeights,
    Weights,
)

Bytes = NDArray[np.uint8]
# The range in which a float16 has all its 11 bits.
_SMALLEST_HALF, _LARGEST_HALF = 2.0**-14, 65504.0
# Columns that are packed at a time, so that what is unpacked in between stays small.
_SLICE = PANEL * 64


@dataclass(frozen=True, eq=False)
class BlockMatrix:
    """Codes in blocks, as `MatMulNBits` has them; zero points None are the middle of the range.

    Shapes: codes (columns, blocks, bytes), scales (columns, blocks), zeros (columns, blocks) with
    one in a byte.
    """

    depth: int
    bits: Literal[4, 8]
    block: int
    codes: Bytes
    scales: NDArray[np.generic]
    zeros: Bytes | None

    @property
    def columns(self) -> int:
        """Columns of the product."""
        return len(self.codes)


@dataclass(frozen=True, eq=False)
class PlainMatrix:
    """Numbers: (depth, columns)."""

    values: NDArray[np.generic]

    @property
    def depth(self) -> int:
        """Rows of the matrix."""
        return int(self.values.shape[0])

    @property
    def columns(self) -> int:
        """Columns of the product."""
        return int(self.values.shape[1])


@dataclass(frozen=True, eq=False)
class Matrix:
    """One matrix, or several with the same source side by side."""

    parts: tuple[BlockMatrix, ...] | tuple[PlainMatrix, ...]

    @property
    def columns(self) -> int:
        """Columns of all parts."""
        return sum(part.columns for part in self.parts)

    @property
    def is_block(self) -> bool:
        """Whether it is codes."""
        return isinstance(self.parts[0], BlockMatrix)

    def joins(self, other: Matrix) -> bool:
        """Say whether both can be one matrix."""
        mine, its = self.parts[0], other.parts[0]
        if isinstance(mine, PlainMatrix) or isinstance(its, PlainMatrix):
            return type(mine) is type(its)
        return (mine.bits, mine.block, mine.zeros is None) == (
            its.bits,
            its.block,
            its.zeros is None,
        )

    def joined(self, other: Matrix) -> Matrix:
        """Return both side by side."""
        return Matrix((*self.parts, *other.parts))

    def form(self) -> Weights:
        """Return how it is packed."""
        first = self.parts[0]
        if isinstance(first, PlainMatrix):
            return PlainWeights(first.depth, self.columns)
        parts: Sequence[BlockMatrix] = self.parts  # type: ignore[assignment]
        fits = all(_fits_half(part.scales) for part in parts)
        return BlockWeights(
            first.depth, self.columns, first.bits, first.block, "f16" if fits else "f32",
            has_zeros=first.zeros is not None,
        )  # fmt: skip

    def pack(self, form: Weights, out: Bytes) -> None:
        """Write the panels into `out`."""
        if isinstance(form, PlainWeights):
            _pack_plain(self.parts, form, out)  # type: ignore[arg-type]
        else:
            _pack_blocks(self.parts, form, out)  # type: ignore[arg-type]
        for part in self.parts:
            _let_go(part.values if isinstance(part, PlainMatrix) else part.codes)


def _let_go(array: NDArray[np.generic]) -> None:
    """Return back the memory of pages that were read from a file: it is read again if need be.

    Without this, the peak would count the file's bytes and the packed ones.
    """
    owner: object = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    if isinstance(owner, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
        owner.madvise(mmap.MADV_DONTNEED)


def _fits_half(scales: NDArray[np.generic]) -> bool:
    if scales.dtype == np.float16:
        return True
    sizes = np.abs(scales.astype(np.float32, copy=False))
    there = sizes[sizes > 0]
    return not there.size or bool(there.min() >= _SMALLEST_HALF and there.max() <= _LARGEST_HALF)


def _pack_plain(parts: Sequence[PlainMatrix], form: PlainWeights, out: Bytes) -> None:
    panels = out.view(np.float32).reshape(form.panels, form.depth, PANEL)
    at = 0
    for part in parts:
        first = 0
        while first < part.columns:
            panel, inside = divmod(at + first, PANEL)
            count = min(part.columns - first, PANEL - inside)
            panels[panel, :, inside : inside + count] = part.values[:, first : first + count]
            first += count
        at += part.columns
    if at % PANEL:
        panels[-1, :, at % PANEL :] = 0


def _pack_blocks(parts: Sequence[BlockMatrix], form: BlockWeights, out: Bytes) -> None:
    panels = out.reshape(form.panels, form.blocks, form.block_bytes)
    codes = _Joined([part.codes for part in parts])
    scales = _Joined([part.scales for part in parts])
    zeros = _Joined([part.zeros for part in parts if part.zeros is not None])
    for first in range(0, form.panels * PANEL, _SLICE):
        count = min(_SLICE, form.panels * PANEL - first)
        target = panels[first // PANEL : (first + count) // PANEL]
        end = VECTORS * form.code_bytes
        target[:, :, :end] = _ordered_codes(codes.columns(first, count).view(np.uint8), form)
        scale_type = np.float16 if form.scale == "f16" else np.float32
        own = scales.columns(first, count).astype(scale_type)
        target[:, :, end : form.zeros_at] = _by_panel(own, form).view(np.uint8)
        if form.has_zeros:
            target[:, :, form.zeros_at :] = _by_panel(zeros.columns(first, count), form)


def _by_panel(values: NDArray[np.generic], form: BlockWeights) -> NDArray[np.generic]:
    """(columns, blocks) → (panels, blocks, columns of a panel)."""
    shaped = values.reshape(-1, PANEL, form.blocks).transpose(0, 2, 1)
    return np.ascontiguousarray(shaped)


def _ordered_codes(codes: Bytes, form: BlockWeights) -> Bytes:
    """(columns, blocks, bytes) → (panels, blocks, code bytes of a panel)."""
    if form.bits == 8:
        quads = codes.view(np.uint32).reshape(-1, VECTORS, LANES, form.blocks, form.block // 4)
        ordered = quads.transpose(0, 3, 1, 4, 2)
        return (
            np.ascontiguousarray(ordered)
            .view(np.uint8)
            .reshape(-1, form.blocks, form.block * PANEL)
        )
    # Four bytes are eight codes of the depth, c0 c1 … c7 by half bytes from the low end. In the
    # panel, the low halves of the four bytes are c0 … c3 and the high ones c4 … c7.
    words = codes.view(np.uint32)
    low, high = _spread(words & np.uint32(0xFFFF)), _spread(words >> np.uint32(16))
    mixed = low | (high << np.uint32(4))
    groups = mixed.reshape(-1, VECTORS, LANES, form.blocks, form.block // 8)
    ordered = groups.transpose(0, 3, 1, 4, 2)
    size = VECTORS * form.code_bytes
    return np.ascontiguousarray(ordered).view(np.uint8).reshape(-1, form.blocks, size)


def _spread(halves: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the four half bytes of 16 bits in the low halves of four bytes."""
    pairs = (halves | (halves << np.uint32(8))) & np.uint32(0x00FF00FF)
    return (pairs | (pairs << np.uint32(4))) & np.uint32(0x0F0F0F0F)


class _Joined:
    """Arrays one behind the other along their first dimension, read a range at a time."""

    def __init__(self, arrays: Sequence[NDArray[np.generic]]) -> None:
        self._arrays = arrays

    def columns(self, first: int, count: int) -> NDArray[np.generic]:
        """Return `count` entries from `first`; zeros beyond the end."""
        pieces: list[NDArray[np.generic]] = []
        left = count
        for array in self._arrays:
            if first < len(array) and left:
                piece = array[first : first + left]
                pieces.append(piece)
                left -= len(piece)
                first = 0
            else:
                first -= len(array) if left else 0
        if left:
            pieces.append(np.zeros((left, *self._arrays[0].shape[1:]), self._arrays[0].dtype))
        return np.ascontiguousarray(pieces[0] if len(pieces) == 1 else np.concatenate(pieces))
