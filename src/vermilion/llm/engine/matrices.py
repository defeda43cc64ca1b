"""Weights as a model stores them → the panels that the kernels read."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import ml_dtypes
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
from vermilion.llm.engine.block_forms import TWICE_E2M1, BlockColumns, BlockForm, BlockType

Bytes = NDArray[np.uint8]
_STORAGES: dict[str, Literal["f32", "f16", "bf16"]] = {"float16": "f16", "bfloat16": "bf16"}
# The range in which a float16 has all its 11 bits.
_SMALLEST_HALF, _LARGEST_HALF = 2.0**-14, 65504.0
# Columns that are packed at a time, so that what is unpacked in between stays small.
_SLICE = PANEL * 64


@dataclass(frozen=True, eq=False)
class BlockMatrix:
    """Codes in blocks, as `MatMulNBits` has them; zero points None are the middle of the range.

    Shapes: codes (columns, blocks, bytes), scales (columns, blocks), zeros (columns, blocks) with
    one in a byte. With `is_microscaled` codes are floats of 4 bits, and scales exponents in a byte
    (MXFP4). `order` says which row is which column, None: they are in order.
    """

    depth: int
    bits: Literal[4, 8]
    block: int
    codes: Bytes
    scales: NDArray[np.generic]
    zeros: Bytes | None
    is_microscaled: bool = False
    order: NDArray[np.int64] | None = None

    @property
    def columns(self) -> int:
        """Columns of the product."""
        return len(self.codes) if self.order is None else len(self.order)

    @property
    def form(self) -> BlockForm:
        """How its numbers follow from what is stored; scales in 16 bits where they fit."""
        if self.is_microscaled:
            return BlockForm(4, self.block, "e8m0", table=TWICE_E2M1)
        scale: Literal["f16", "f32"] = "f16" if _fits_half(self.scales) else "f32"
        return BlockForm(self.bits, self.block, scale, has_zeros=self.zeros is not None)

    def take(self, first: int, count: int) -> BlockColumns:
        """Return some columns."""
        own: slice | NDArray[np.int64] = slice(first, first + count)
        if self.order is not None:
            own = self.order[own]
        codes = self.codes[own].view(np.uint8)
        if self.bits == 4:
            codes = _one_a_byte(codes)
        zeros = None if self.zeros is None else self.zeros[own]
        return BlockColumns(codes, self.scales[own], zeros=zeros)

    @property
    def stored(self) -> NDArray[np.generic]:
        """What most of its bytes are."""
        return self.codes


@dataclass(frozen=True, eq=False)
class StoredMatrix:
    """Rows of a file, in one of its block types: (columns, bytes of a row).

    `order` says which row is which column, None: they are in order.
    """

    depth: int
    type: BlockType
    stored: Bytes
    order: NDArray[np.int64] | None = None

    @property
    def columns(self) -> int:
        """Columns of the product."""
        return len(self.stored) if self.order is None else len(self.order)

    @property
    def form(self) -> BlockForm:
        """How its numbers follow from what is stored."""
        return self.type.form

    def take(self, first: int, count: int) -> BlockColumns:
        """Return some columns."""
        own = slice(first, first + count)
        return self.type.unpack(self.stored[own if self.order is None else self.order[own]])


@dataclass(frozen=True, eq=False)
class PlainMatrix:
    """Numbers: (depth, columns)."""

    values: NDArray[np.generic]
    order: NDArray[np.int64] | None = None

    @property
    def depth(self) -> int:
        """Rows of the matrix."""
        return int(self.values.shape[0])

    @property
    def columns(self) -> int:
        """Columns of the product."""
        return int(self.values.shape[1]) if self.order is None else len(self.order)

    @property
    def storage(self) -> Literal["f32", "f16", "bf16"]:
        """In what its numbers are packed: those of 16 bits stay what they are."""
        return _STORAGES.get(self.values.dtype.name, "f32")

    @property
    def stored(self) -> NDArray[np.generic]:
        """What its bytes are."""
        return self.values

    def take(self, first: int, count: int) -> NDArray[np.generic]:
        """Return some columns."""
        own = slice(first, first + count)
        return self.values[:, own if self.order is None else self.order[own]]


Part = BlockMatrix | StoredMatrix | PlainMatrix


@dataclass(frozen=True, eq=False)
class Matrix:
    """One matrix, or several with the same source side by side."""

    parts: tuple[Part, ...]

    @property
    def columns(self) -> int:
        """Columns of all parts."""
        return sum(part.columns for part in self.parts)

    @property
    def is_block(self) -> bool:
        """Whether it is codes."""
        return not isinstance(self.parts[0], PlainMatrix)

    def joins(self, other: Matrix) -> bool:
        """Say whether both can be one matrix."""
        mine, its = self.parts[0], other.parts[0]
        if isinstance(mine, PlainMatrix) or isinstance(its, PlainMatrix):
            are_plain = isinstance(mine, PlainMatrix) and isinstance(its, PlainMatrix)
            return are_plain and mine.storage == its.storage  # type: ignore[union-attr]
        if isinstance(mine, BlockMatrix) and isinstance(its, BlockMatrix):
            return (mine.bits, mine.block, mine.zeros is None, mine.is_microscaled) == (
                its.bits,
                its.block,
                its.zeros is None,
                its.is_microscaled,
            )
        return mine.form == its.form

    def joined(self, other: Matrix) -> Matrix:
        """Return both side by side."""
        return Matrix((*self.parts, *other.parts))

    def form(self) -> Weights:
        """Return how it is packed."""
        first = self.parts[0]
        if isinstance(first, PlainMatrix):
            return PlainWeights(first.depth, self.columns, first.storage)
        forms = [part.form for part in self.parts if not isinstance(part, PlainMatrix)]
        own = forms[0]
        if any(form.scale == "f32" for form in forms):
            own = replace(own, scale="f32")
        return own.weights(first.depth, self.columns)

    def pack(self, form: Weights, out: Bytes) -> None:
        """Write the panels into `out`."""
        if isinstance(form, PlainWeights):
            _pack_plain([p for p in self.parts if isinstance(p, PlainMatrix)], form, out)
        else:
            _pack_blocks([p for p in self.parts if not isinstance(p, PlainMatrix)], form, out)
        for part in self.parts:
            _let_go(part.stored)


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


def _one_a_byte(packed: Bytes) -> Bytes:
    """Return two codes of each byte, the low one first."""
    out = np.empty((*packed.shape[:-1], packed.shape[-1] * 2), np.uint8)
    np.bitwise_and(packed, 15, out=out[..., ::2])
    np.right_shift(packed, 4, out=out[..., 1::2])
    return out


def _pack_plain(parts: Sequence[PlainMatrix], form: PlainWeights, out: Bytes) -> None:
    type_ = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[form.storage]
    panels = out.view(type_).reshape(form.panels, form.depth, PANEL)
    at = 0
    for part in parts:
        first = 0
        while first < part.columns:
            panel, inside = divmod(at + first, PANEL)
            count = min(part.columns - first, PANEL - inside)
            panels[panel, :, inside : inside + count] = part.take(first, count)
            first += count
        at += part.columns
    if at % PANEL:
        panels[-1, :, at % PANEL :] = 0


def _pack_blocks(
    parts: Sequence[BlockMatrix | StoredMatrix], form: BlockWeights, out: Bytes
) -> None:
    groups = out.reshape(form.panels, -1, form.step_bytes)
    together = form.group or 1
    blocks = np.lib.stride_tricks.as_strided(
        groups[:, :, form.shared_bytes :],
        (form.panels, groups.shape[1], together, form.block_bytes),
        (*groups.strides[:2], form.block_bytes, 1),
    )
    scale_type = {"f16": np.float16, "f32": np.float32, "e8m0": np.uint8, "s8": np.int8}[form.scale]
    end = VECTORS * form.code_bytes
    for first, own in _slices(parts, form):
        some = slice(first // PANEL, first // PANEL + len(own.scales) // PANEL)

        def put(begin: int, stop: int, values: NDArray[np.generic], some: slice = some) -> None:
            """Write so many bytes of every block: (panels, blocks, …)."""
            target = blocks[some, :, :, begin:stop]
            laid = np.ascontiguousarray(values).view(np.uint8)
            target[:] = laid.reshape(*target.shape)

        put(0, end, _ordered_codes(own.codes, form))
        put(end, form.zeros_at, _by_panel(own.scales.astype(scale_type)))
        if own.zeros is not None:
            put(form.zeros_at, form.block_bytes, _by_panel(own.zeros))
        if own.mins is not None:
            put(form.zeros_at, form.block_bytes, _by_panel(own.mins.astype(scale_type)))
        if own.shared is not None:
            shared = [_by_panel(one.astype(np.float32)) for one in own.shared]
            laid = np.concatenate(shared, axis=2)
            groups[some, :, : form.shared_bytes] = laid.view(np.uint8)


def _slices(
    parts: Sequence[BlockMatrix | StoredMatrix], form: BlockWeights
) -> Iterator[tuple[int, BlockColumns]]:
    """Yield some whole panels of columns at a time: those of all parts, then zeros."""
    width = form.panels * PANEL
    for first in range(0, width, _SLICE):
        left, at, pieces = min(_SLICE, width - first), first, []
        for part in parts:
            if at < part.columns and left:
                piece = part.take(at, min(left, part.columns - at))
                pieces.append(piece)
                left -= len(piece.scales)
                at = 0
            else:
                at -= part.columns if left else 0
        yield first, BlockColumns.joined(pieces, left)


def _by_panel(values: NDArray[np.generic]) -> NDArray[np.generic]:
    """(columns, blocks) → (panels, blocks, columns of a panel)."""
    shaped = values.reshape(-1, PANEL, values.shape[1]).transpose(0, 2, 1)
    return np.ascontiguousarray(shaped)


def _ordered_codes(codes: Bytes, form: BlockWeights) -> Bytes:
    """(columns, blocks, block), one a byte → (panels, blocks, code bytes of a panel)."""
    blocks = codes.shape[1]
    words = codes.view(np.uint32)
    if form.bits == 4:
        # Eight codes of the depth are four bytes: the first four in the low halves, the others in
        # the high ones.
        words = words[:, :, ::2] | (words[:, :, 1::2] << np.uint32(4))
    shaped = words.reshape(-1, VECTORS, LANES, blocks, form.code_bytes // (4 * LANES))
    ordered = np.ascontiguousarray(shaped.transpose(0, 3, 1, 4, 2))
    return ordered.view(np.uint8).reshape(-1, blocks, VECTORS * form.code_bytes)
