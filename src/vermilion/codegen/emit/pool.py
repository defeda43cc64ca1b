"""Pooling over windows: channels side by side, one vector of them at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vermilion.codegen.emit.arithmetic import KIND_OF_STORAGE, Arithmetic
from vermilion.codegen.emit.builder import Function, Module, Value, constant, splat_integer
from vermilion.codegen.isa import Isa
from vermilion.codegen.tensor import STORAGE_BYTES, Storage


@dataclass(frozen=True)
class PoolSpec:
    """Reduce a window of pixels to one, for each channel.

    Strides count elements: image, row, column of input and output; channels lie side by side.
    Both storages are floats, or both are the same integers.
    Windows that hang over the edge are cut; `divisor` is the full window's size, or 0 to divide an
    average by the pixels that are inside.
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
    pads: tuple[int, int]  # top, left
    source: tuple[int, int, int]
    target: tuple[int, int, int]
    divisor: int

    family = "pool"

    @property
    def units(self) -> int:
        """One unit a row of output."""
        return self.images * self.rows

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f = Function(module, name, [("args", "ptr"), ("begin", "i64"), ("end", "i64")])
        source = f.load("ptr", f.arguments[0], 0, align=8)
        target = f.load("ptr", f.arguments[0], 8, align=8)
        size, out_size = STORAGE_BYTES[self.storage], STORAGE_BYTES[self.out_storage]
        with f.loop(f.arguments[1], f.arguments[2]) as unit:
            image, row = f.divide(unit, self.rows), f.remainder(unit, self.rows)
            from_image = f.at(source, f.multiply(image, self.source[0] * size))
            to_row = f.at(target, f.multiply(image, self.target[0] * out_size))
            to_row = f.at(to_row, f.multiply(row, self.target[1] * out_size))
            top, bottom = self._window(f, row, 0, self.in_rows)
            y = f.subtract(f.multiply(row, self.strides[0]), self.pads[0])
            line = f.at(from_image, f.multiply(y, self.source[1] * size))
            with f.loop(0, self.columns) as column:
                left, right = self._window(f, column, 1, self.in_columns)
                pixel = f.at(to_row, f.multiply(column, self.target[2] * out_size))
                # The window's first tap may lie outside; the taps inside are reached from it.
                x = f.subtract(f.multiply(column, self.strides[1]), self.pads[1])
                origin = f.at(line, f.multiply(x, self.source[2] * size))
                self._channels(f, isa, (origin, pixel), (top, bottom, left, right))
        f.finish()

    def _window(self, f: Function, at: Value, axis: int, size: int) -> tuple[Value, Value]:
        """Give the first and the last-but-one tap that lie inside the image, as tap numbers."""
        step, dilation, pad = self.strides[axis], self.dilations[axis], self.pads[axis]
        start = f.subtract(f.multiply(at, step), pad)
        # taps k with 0 ≤ start + k·dilation < size
        missing = f.subtract(0, start)
        low = f.emit("i64", f"sdiv {f.add(missing, dilation - 1)}, {dilation}")
        low = f.select(f.compare("sgt", low, constant("i64", 0)), low, constant("i64", 0))
        room = f.subtract(size + dilation - 1, start)
        high = f.emit("i64", f"sdiv {room}, {dilation}")
        return low, f.minimum(high, self.kernel[axis])

    def _channels(
        self,
        f: Function,
        isa: Isa,
        pointers: tuple[Value, Value],
        window: tuple[Value, Value, Value, Value],
    ) -> None:
        lanes = isa.lanes
        arithmetic = Arithmetic(f, lanes)
        whole = self.channels - self.channels % lanes
        with f.loop(0, whole, lanes) as channel:
            self._vector(f, arithmetic, pointers, window, channel, None)
        if self.channels % lanes:
            mask = arithmetic.tail_mask(self.channels % lanes)
            self._vector(f, arithmetic, pointers, window, constant("i64", whole), mask)

    def _vector(
        self,
        f: Function,
        arithmetic: Arithmetic,
        pointers: tuple[Value, Value],
        window: tuple[Value, Value, Value, Value],
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
        if self.operation == "average":
            count = self._count(f, window)
            ones = f.convert("sitofp", count, "float")
            result = arithmetic.math.divide(result, arithmetic.splat(ones))
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
            return arithmetic.math.maximum(value, total)
        name = f"llvm.smax.v{arithmetic.lanes}i32"
        return f.intrinsic(name, total.type, [value, total])

    def _count(self, f: Function, window: tuple[Value, Value, Value, Value]) -> Value:
        if self.divisor:
            return constant("i64", self.divisor)
        top, bottom, left, right = window
        return f.multiply(f.subtract(bottom, top), f.subtract(right, left))
