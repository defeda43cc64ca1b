"""Winograd's F(4×4, 3×3) and F(2×2, 3×3): 36 products instead of 144, 16 instead of 36.

Three kernels in a row: the input transform BᵀdB of every patch, one matrix product for each of a
patch's positions, and the output transform AᵀmA with the epilogue. Channels lie last, so transforms
run over vectors of channels.

Source of the matrices: Lavin and Gray 2015, "Fast Algorithms for Convolutional Neural Networks".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.epilogue import Epilogue
from vermilion.codegen.emit.rows import each_vector
from vermilion.codegen.emit.values import Value
from vermilion.codegen.emit.walk import Access, begin_kernel
from vermilion.codegen.isa import Isa
from vermilion.codegen.tensor import STORAGE_BYTES, Storage
from vermilion.ir.expression import Expression
from vermilion.ir.symbolic import is_known


@dataclass(frozen=True)
class Scheme:
    """The matrices of one F(tile × tile, 3 × 3): transforms of input, output and weights."""

    tile: int
    input: tuple[tuple[float, ...], ...]
    output: tuple[tuple[float, ...], ...]
    weight: tuple[tuple[float, ...], ...]

    @property
    def patch(self) -> int:
        """Pixels along the side of a patch."""
        return self.tile + 2

    @property
    def positions(self) -> int:
        """Products for each tile."""
        return self.patch**2


SCHEMES: dict[int, Scheme] = {
    2: Scheme(
        2,
        ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, -1, 0, 1)),
        ((1, 1, 1, 0), (0, 1, -1, 1)),
        ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
    ),
    4: Scheme(
        4,
        (
            (4, 0, -5, 0, 1, 0),
            (0, -4, -4, 1, 1, 0),
            (0, 4, -4, -1, 1, 0),
            (0, -2, -1, 2, 1, 0),
            (0, 2, -1, -2, 1, 0),
            (0, 4, 0, -5, 0, 1),
        ),
        (
            (1, 1, 1, 1, 1, 0),
            (0, 1, -1, 2, -2, 0),
            (0, 1, 1, 4, 4, 0),
            (0, 1, -1, 8, -8, 1),
        ),
        (
            (1 / 4, 0, 0),
            (-1 / 6, -1 / 6, -1 / 6),
            (-1 / 6, 1 / 6, -1 / 6),
            (1 / 24, 1 / 12, 1 / 6),
            (1 / 24, -1 / 12, 1 / 6),
            (0, 0, 1),
        ),
    ),
}


_CHANNELS_AT_ONCE = 64


def transform_weights(weights: NDArray[np.float32], scheme: Scheme) -> NDArray[np.float32]:
    """Return GgGᵀ in float64, rounded once.

    Shapes: (channels out, 3, 3, channels in) → (positions, channels out, channels in).
    """
    g = np.array(scheme.weight)
    # One matrix product for both axes, of some channels at a time: float64 of all would be large.
    both = np.einsum("ay,bx->abyx", g, g).reshape(scheme.positions, 9)
    channels, _, _, inputs = weights.shape
    taps = weights.reshape(channels, 9, inputs)
    sets = np.empty((scheme.positions, channels, inputs), np.float32)
    for at in range(0, channels, _CHANNELS_AT_ONCE):
        some = taps[at : at + _CHANNELS_AT_ONCE].astype(np.float64)
        sets[:, at : at + _CHANNELS_AT_ONCE] = np.tensordot(both, some, (1, 1))
    return sets


def _combine(
    arithmetic: Arithmetic, coefficients: Sequence[float], values: Sequence[Value]
) -> Value:
    """Return the sum of coefficient × value, without the products by 0 and ±1."""
    m = arithmetic.math
    total: Value | None = None
    ordered = sorted(zip(coefficients, values, strict=True), key=lambda item: item[0] != 1)
    for coefficient, value in ordered:
        if coefficient == 0:
            continue
        if total is None:
            total = value if coefficient == 1 else m.multiply(value, m.number(coefficient))
        elif coefficient == 1:
            total = m.add(total, value)
        elif coefficient == -1:
            total = m.subtract(total, value)
        else:
            total = m.fma(value, m.number(coefficient), total)
    assert total is not None
    return total


@dataclass(frozen=True)
class InputTransformSpec:
    """Transform patches: image (strides image, row, column) → (positions, tiles, channels).

    One patch starts every `tile` pixels. The border must reach the last patch.
    """

    tile: int
    storage: Storage
    images: int
    tile_rows: int
    tile_columns: int
    channels: int
    source: tuple[int, int, int]

    family = "winograd_input"

    @property
    def tiles(self) -> int:
        """Tiles of all images."""
        return self.images * self.tile_rows * self.tile_columns

    @property
    def units(self) -> int:
        """One unit a row of tiles."""
        return self.images * self.tile_rows

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, (source, target), units = begin_kernel(module, name, 2)
        arithmetic, size = Arithmetic(f, isa.lanes), STORAGE_BYTES[self.storage]
        image_stride, row_stride, column_stride = (stride * size for stride in self.source)
        with f.loop(*units) as unit:
            image, row = f.divide(unit, self.tile_rows), f.remainder(unit, self.tile_rows)
            line = f.at(source, f.multiply(image, image_stride))
            line = f.at(line, f.multiply(row, self.tile * row_stride))
            first = f.multiply(unit, self.tile_columns)
            with f.loop(0, self.tile_columns) as column:
                patch = f.at(line, f.multiply(column, self.tile * column_stride))
                out = f.at(target, f.multiply(f.add(first, column), self.channels * 4))
                for channel, mask in each_vector(arithmetic, self.channels):
                    self._vector(f, arithmetic, patch, out, channel, mask)
        f.finish()

    def _vector(
        self,
        f: Function,
        arithmetic: Arithmetic,
        patch: Value,
        out: Value,
        channel: Value,
        mask: Value | None,
    ) -> None:
        scheme = SCHEMES[self.tile]
        size = STORAGE_BYTES[self.storage]
        _, row, column = (stride * size for stride in self.source)
        here = f.at(patch, f.multiply(channel, size))
        there = f.at(out, f.multiply(channel, 4))
        half: list[list[Value]] = [[] for _ in range(scheme.patch)]
        for x in range(scheme.patch):
            values = [
                arithmetic.load(self.storage, f.at(here, y * row + x * column), mask=mask)
                for y in range(scheme.patch)
            ]
            for y in range(scheme.patch):
                half[y].append(_combine(arithmetic, scheme.input[y], values))
        plane = self.tiles * self.channels * 4
        for y in range(scheme.patch):
            for x in range(scheme.patch):
                value = _combine(arithmetic, scheme.input[x], half[y])
                place = f.at(there, (y * scheme.patch + x) * plane)
                arithmetic.store("f32", value, place, mask=mask)


@dataclass(frozen=True)
class OutputTransformSpec:
    """Transform products back: (positions, tiles, channels) → image, with the epilogue.

    The expression's operand 0 is the convolution's result.
    """

    tile: int
    images: int
    tile_rows: int
    tile_columns: int
    rows: int
    columns: int
    channels: int
    output: Access
    operands: tuple[Access, ...]
    expression: Expression

    family = "winograd_output"

    @property
    def tiles(self) -> int:
        """Tiles of all images."""
        return self.images * self.tile_rows * self.tile_columns

    @property
    def units(self) -> int:
        """One unit a row of tiles."""
        return self.images * self.tile_rows

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, pointers, units = begin_kernel(module, name, 2 + len(self.operands))
        arithmetic = Arithmetic(f, isa.lanes)
        with f.loop(*units) as unit:
            image, tile_row = f.divide(unit, self.tile_rows), f.remainder(unit, self.tile_rows)
            row = f.multiply(tile_row, self.tile)
            first = f.multiply(unit, self.tile_columns)
            with f.loop(0, self.tile_columns) as tile_column:
                column = f.multiply(tile_column, self.tile)
                tile = f.add(first, tile_column)
                where = (image, row, column, tile)
                for channel, mask in each_vector(arithmetic, self.channels):
                    self._vector(f, arithmetic, pointers, where, channel, mask)
        f.finish()

    def _vector(
        self,
        f: Function,
        arithmetic: Arithmetic,
        pointers: Sequence[Value],
        where: tuple[Value, Value, Value, Value],
        channel: Value,
        mask: Value | None,
    ) -> None:
        scheme = SCHEMES[self.tile]
        image, row, column, tile = where
        plane = self.tiles * self.channels * 4
        here = f.at(pointers[0], f.multiply(f.add(f.multiply(tile, self.channels), channel), 4))
        half: list[list[Value]] = [[] for _ in range(scheme.tile)]
        for x in range(scheme.patch):
            values = [
                arithmetic.load("f32", f.at(here, (y * scheme.patch + x) * plane), mask=mask)
                for y in range(scheme.patch)
            ]
            for y in range(scheme.tile):
                half[y].append(_combine(arithmetic, scheme.output[y], values))
        for y in range(scheme.tile):
            for x in range(scheme.tile):
                value = _combine(arithmetic, scheme.output[x], half[y])
                at = (image, f.add(row, y), f.add(column, x), channel)
                inside = self._inside(f, at, y, x)
                if inside is None:
                    self._finish(f, arithmetic, pointers, value, at, mask)
                else:
                    with f.when(inside):
                        self._finish(f, arithmetic, pointers, value, at, mask)

    def _inside(self, f: Function, at: tuple[Value, ...], y: int, x: int) -> Value | None:
        """Return the condition that a pixel of the last tile lies in the image, None if all do."""
        conditions = []
        for size, offset, place in ((self.rows, y, at[1]), (self.columns, x, at[2])):
            # The first pixel of a tile is always there.
            if offset and (not is_known(size) or offset >= (size - 1) % self.tile + 1):
                conditions.append(f.compare("slt", place, f.index(size)))
        if not conditions:
            return None
        return conditions[0] if len(conditions) == 1 else f.binary("and", *conditions)

    def _finish(
        self,
        f: Function,
        arithmetic: Arithmetic,
        pointers: Sequence[Value],
        value: Value,
        at: tuple[Value, Value, Value, Value],
        mask: Value | None,
    ) -> None:
        epilogue = Epilogue(
            arithmetic, (self.expression,), (self.output,), self.operands, pointers[1:]
        )
        epilogue.finish(at, [value], mask)
