"""Pooling over windows: channels side by side, one vector of them at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vermilion.codegen.emit.arithmetic import KIND_OF_STORAGE, Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.rows import each_vector
from vermilion.codegen.emit.values import Value, constant, splat_integer
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa
from vermilion.codegen.tensor import STORAGE_BYTES, Storage
from vermilion.ir.formula import at_least


@dataclass(frozen=True)
class PoolSpec:
    """Reduce a window of pixels to one, for each channel.

    Strides count elements: image, row, column of input and output; channels lie side by side.
    Both storages are floats, or both are the same integers.
    Windows that hang over the edge are cut. An average is divided by the pixels that are inside
    the image, or, with `counts_pads`, inside the image and its pads: what a window of the last row
    or column reaches beyond those counts for nothing.
    """

    operation: Literal["max", "average"]
    storage: Storage
    out_storage: Storage
    images: int
    channels: int
    in_rows: int
    in_columns: int
    rows: int
    columns: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int, int, int]  # top, left, bottom, right
    source: tuple[int, int, int]
    target: tuple[int, int, int]
    counts_pads: bool = False

    family = "pool"

    @property
    def units(self) -> int:
        """One unit a row of output."""
        return self.images * self.rows

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, (source, target), units = begin_kernel(module, name, 2)
        arithmetic = Arithmetic(f, isa.lanes)
        size, out_size = STORAGE_BYTES[self.storage], STORAGE_BYTES[self.out_storage]
        with f.loop(*units) as unit:
            image, row = f.divide(unit, self.rows), f.remainder(unit, self.rows)
            from_image = f.at(source, f.multiply(image, self.source[0] * size))
            to_row = f.at(target, f.multiply(image, self.target[0] * out_size))
            to_row = f.at(to_row, f.multiply(row, self.target[1] * out_size))
            top, bottom = self._window(f, row, 0, self.in_rows)
            y = self._start_of(f, row, 0)
            line = f.at(from_image, f.multiply(y, self.source[1] * size))
            with f.loop(0, self.columns) as column:
                left, right = self._window(f, column, 1, self.in_columns)
                pixel = f.at(to_row, f.multiply(column, self.target[2] * out_size))
                # The window's first tap may lie outside; the taps inside are reached from it.
                x = self._start_of(f, column, 1)
                origin = f.at(line, f.multiply(x, self.source[2] * size))
                window = (top, bottom, left, right)
                share = self._share(f, (row, column), window)
                for channel, mask in each_vector(arithmetic, self.channels):
                    self._vector(f, arithmetic, (origin, pixel), window, share, channel, mask)
        f.finish()

    def _window(self, f: Function, at: Value, axis: int, size: int) -> tuple[Value, Value]:
        """Return the first and the last-but-one tap that lie inside the image, as tap numbers."""
        dilation = self.dilations[axis]
        # taps k with 0 ≤ start + k·dilation < size
        missing = f.subtract(0, self._start_of(f, at, axis))
        low = f.emit("i64", f"sdiv {f.add(missing, dilation - 1)}, {dilation}")
        low = f.select(f.compare("sgt", low, constant("i64", 0)), low, constant("i64", 0))
        return low, self._taps_before(f, at, axis, size)

    def _start_of(self, f: Function, at: Value, axis: int) -> Value:
        """Return the row or column of a window's first tap, negative in the pads."""
        return f.subtract(f.multiply(at, self.strides[axis]), self.pads[axis])

    def _taps_before(self, f: Function, at: Value, axis: int, end: int) -> Value:
        """Return how many taps of a window lie before row or column `end`."""
        dilation = self.dilations[axis]
        room = f.subtract(end + dilation - 1, self._start_of(f, at, axis))
        taps = f.emit("i64", f"sdiv {room}, {dilation}")
        return f.minimum(taps, self.kernel[axis])

    def _vector(
        self,
        f: Function,
        arithmetic: Arithmetic,
        pointers: tuple[Value, Value],
        window: tuple[Value, Value, Value, Value],
        share: Value | None,
        channel: Value,
        mask: Value | None,
    ) -> None:
        size = STORAGE_BYTES[self.storage]
        kind = KIND_OF_STORAGE[self.storage]
        top, bottom, left, right = window
        origin, pixel = pointers
        total = f.slot(self._start(arithmetic))
        with f.loop(top, bottom) as tap_y, f.loop(left, right) as tap_x:
            offset = f.multiply(tap_y, self.dilations[0] * self.source[1] * size)
            offset = f.add(offset, f.multiply(tap_x, self.dilations[1] * self.source[2] * size))
            place = f.at(origin, offset)
            value = arithmetic.load(self.storage, f.at(place, f.multiply(channel, size)), mask=mask)
            total.set(self._combine(f, arithmetic, total.get(), value))
        result = total.get()
        if share is not None:
            result = arithmetic.math.divide(result, arithmetic.splat(share))
        assert kind == "float" or self.operation == "max"
        place = f.at(pixel, f.multiply(channel, STORAGE_BYTES[self.out_storage]))
        arithmetic.store(self.out_storage, result, place, mask=mask)

    def _start(self, arithmetic: Arithmetic) -> Value:
        if self.operation == "average":
            return arithmetic.math.number(0.0)
        if KIND_OF_STORAGE[self.storage] == "float":
            return arithmetic.math.number(float("-inf"))
        return splat_integer(-(2**31), arithmetic.lanes)

    def _combine(self, f: Function, arithmetic: Arithmetic, total: Value, value: Value) -> Value:
        if self.operation == "average":
            return arithmetic.math.add(total, value)
        if KIND_OF_STORAGE[self.storage] == "float":
            return arithmetic.math.maximum_or_nan(value, total)
        name = f"llvm.smax.v{arithmetic.lanes}i32"
        return f.intrinsic(name, total.type, [value, total])

    def _share(
        self, f: Function, at: tuple[Value, Value], window: tuple[Value, Value, Value, Value]
    ) -> Value | None:
        """Return what a sum is divided by, as float32."""
        if self.operation == "max":
            return None
        top, bottom, left, right = window
        rows, columns = f.subtract(bottom, top), f.subtract(right, left)
        if self.counts_pads:
            rows = self._padded_taps(f, at[0], 0, self.in_rows, self.rows)
            columns = self._padded_taps(f, at[1], 1, self.in_columns, self.columns)
        # A window with no pixel in it, as dilations make them, sums up to 0 and gives 0.
        count = f.multiply(rows, columns)
        one = constant("i64", 1)
        count = f.select(f.compare("slt", count, one), one, count)
        return f.convert("sitofp", count, "float")

    def _padded_taps(self, f: Function, at: Value, axis: int, size: int, count: int) -> Value:
        """Return how many taps lie inside the image and its pads; all of them in most pools."""
        end = size + self.pads[2 + axis]
        reach = (self.kernel[axis] - 1) * self.dilations[axis]
        last = (count - 1) * self.strides[axis] - self.pads[axis] + reach
        if at_least(end - last, 1):
            return constant("i64", self.kernel[axis])
        return self._taps_before(f, at, axis, end)
