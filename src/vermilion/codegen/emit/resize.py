"""Resizing images: each output pixel is a weighted sum of a few input pixels, by table."""

from __future__ import annotations

from dataclasses import dataclass

from vermilion.codegen.emit.arithmetic import KIND_OF_STORAGE, Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.rows import each_vector
from vermilion.codegen.emit.values import Value
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa
from vermilion.codegen.tensor import STORAGE_BYTES, Storage


@dataclass(frozen=True)
class ResizeSpec:
    """`out[y, x] = Σ wy·wx · in[iy, ix]` over `taps` rows and columns.

    Arguments: input, output, then for rows and for columns a table of byte offsets (int64) and one
    of weights (float32), `taps` entries an output coordinate. Channels lie side by side.
    """

    storage: Storage
    images: int
    channels: int
    rows: int
    columns: int
    taps_y: int
    taps_x: int
    in_image: int
    out_image: int
    out_row: int
    out_column: int

    family = "resize"

    @property
    def units(self) -> int:
        """One unit a row of output."""
        return self.images * self.rows

    @property
    def copies(self) -> bool:
        """Whether a pixel is one of the input's, so that no arithmetic is needed."""
        return self.taps_y == self.taps_x == 1

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, pointers, units = begin_kernel(module, name, 6)
        source, target, y_at, y_weight, x_at, x_weight = pointers
        size = STORAGE_BYTES[self.storage]
        with f.loop(*units) as unit:
            image, row = f.divide(unit, self.rows), f.remainder(unit, self.rows)
            come = f.at(source, f.multiply(image, self.in_image * size))
            go = f.at(target, f.multiply(image, self.out_image * size))
            go = f.at(go, f.multiply(row, self.out_row * size))
            lines = self._entries(f, y_at, y_weight, row, self.taps_y)
            with f.loop(0, self.columns) as column:
                spots = self._entries(f, x_at, x_weight, column, self.taps_x)
                pixel = f.at(go, f.multiply(column, self.out_column * size))
                taps = [
                    (f.at(f.at(come, line), spot), wy, wx)
                    for line, wy in lines
                    for spot, wx in spots
                ]
                self._pixel(f, isa, taps, pixel)
        f.finish()

    def _entries(
        self, f: Function, offsets: Value, weights: Value, at: Value, taps: int
    ) -> list[tuple[Value, Value]]:
        first = f.multiply(at, taps)
        return [
            (
                f.load("i64", offsets, f.multiply(f.add(first, tap), 8), align=8),
                f.load("float", weights, f.multiply(f.add(first, tap), 4), align=4),
            )
            for tap in range(taps)
        ]

    def _pixel(
        self, f: Function, isa: Isa, taps: list[tuple[Value, Value, Value]], pixel: Value
    ) -> None:
        arithmetic = Arithmetic(f, isa.lanes)
        factors = [arithmetic.splat(f.binary("fmul", wy, wx)) for _, wy, wx in taps]
        for channel, mask in each_vector(arithmetic, self.channels):
            self._vector(f, arithmetic, taps, factors, pixel, channel, mask)

    def _vector(
        self,
        f: Function,
        arithmetic: Arithmetic,
        taps: list[tuple[Value, Value, Value]],
        factors: list[Value],
        pixel: Value,
        channel: Value,
        mask: Value | None,
    ) -> None:
        offset = f.multiply(channel, STORAGE_BYTES[self.storage])
        total: Value | None = None
        for (place, _, _), factor in zip(taps, factors, strict=True):
            value = arithmetic.load(self.storage, f.at(place, offset), mask=mask)
            if self.copies:
                total = value
            elif total is None:
                total = arithmetic.math.multiply(value, factor)
            else:
                total = arithmetic.math.fma(value, factor, total)
        assert total is not None
        assert self.copies or KIND_OF_STORAGE[self.storage] == "float"
        arithmetic.store(self.storage, total, f.at(pixel, offset), mask=mask)
