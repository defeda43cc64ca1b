"""Depthwise convolution: each channel with its own small kernel, vectors of channels at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vermilion.codegen.emit.arithmetic import KIND_OF_STORAGE, Arithmetic
from vermilion.codegen.emit.builder import Function, Module, Value
from vermilion.codegen.emit.epilogue import Epilogue, PixelAccess
from vermilion.codegen.expression import Expression
from vermilion.codegen.isa import Isa
from vermilion.codegen.tensor import STORAGE_BYTES, Storage


@dataclass(frozen=True)
class DepthwiseSpec:
    """`out[pixel][c] = expression(Σ over taps of in[pixel, tap][c] × weights[tap][c])`.

    Strides count elements; the border is in the input's buffer. Weights are float32, [tap][c].
    """

    storage: Storage
    images: int
    rows: int
    columns: int
    channels: int
    taps_y: int
    taps_x: int
    in_image: int
    in_row: int
    in_column: int
    in_tap_y: int
    in_tap_x: int
    output: PixelAccess
    operands: tuple[PixelAccess, ...]
    expression: Expression

    family = "depthwise"

    @property
    def units(self) -> int:
        """One unit a row of output."""
        return self.images * self.rows

    def pixels(self, isa: Isa) -> int:
        """Pixels computed side by side: independent sums hide the latency of each."""
        return min(self.columns, 8 if isa.registers == 32 else 6)

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function and its tiles."""
        f = Function(module, name, [("args", "ptr"), ("begin", "i64"), ("end", "i64")])
        pointers = [
            f.load("ptr", f.arguments[0], 8 * i, align=8) for i in range(3 + len(self.operands))
        ]
        width = self.pixels(isa)
        vectors = -(-self.channels // isa.lanes)
        with f.loop(f.arguments[1], f.arguments[2]) as unit:
            image, row = f.divide(unit, self.rows), f.remainder(unit, self.rows)
            with f.loop(0, vectors - (self.channels % isa.lanes > 0)) as vector:
                self._row(f, (module, name, isa), (image, row, vector), pointers, width, 0)
            if self.channels % isa.lanes:
                last = f.index(vectors - 1)
                tail = self.channels % isa.lanes
                self._row(f, (module, name, isa), (image, row, last), pointers, width, tail)
        f.finish()

    def _row(
        self,
        f: Function,
        making: tuple[Module, str, Isa],
        where: tuple[Value, Value, Value],
        pointers: Sequence[Value],
        width: int,
        tail: int,
    ) -> None:
        module, name, isa = making
        image, row, vector = where
        channel = f.multiply(vector, isa.lanes)
        weights = f.at(pointers[1], f.multiply(channel, 4))

        def call(columns: int, column: Value) -> None:
            tile = self._tile(module, name, isa, columns, tail)
            size = STORAGE_BYTES[self.storage]
            offset = f.multiply(image, self.in_image * size)
            offset = f.add(offset, f.multiply(row, self.in_row * size))
            offset = f.add(offset, f.multiply(column, self.in_column * size))
            source = f.at(pointers[0], f.add(offset, f.multiply(channel, size)))
            targets = [
                access.origin(f, pointer, (image, row, column, channel))
                for pointer, access in zip(pointers[2:], (self.output, *self.operands), strict=True)
            ]
            f.call_void(tile, [source, weights, *targets])

        rest = self.columns % width
        with f.loop(0, self.columns - rest, width) as column:
            call(width, column)
        if rest:
            call(rest, f.index(self.columns - rest))

    def _tile(self, module: Module, name: str, isa: Isa, columns: int, tail: int) -> str:
        tile = f"{name}_{columns}_{tail}"
        if module.has(tile):
            return tile
        labels = [
            "source",
            "weights",
            "output",
            *(f"operand{i}" for i in range(len(self.operands))),
        ]
        f = Function(module, tile, [(label, "ptr") for label in labels])
        arithmetic = Arithmetic(f, isa.lanes)
        mask = arithmetic.tail_mask(tail) if tail else None
        totals = [arithmetic.math.number(0.0) for _ in range(columns)]
        size = STORAGE_BYTES[self.storage]
        for y in range(self.taps_y):
            for x in range(self.taps_x):
                at = (y * self.taps_x + x) * self.channels * 4
                weight = arithmetic.load("f32", f.at(f.arguments[1], at), mask=mask)
                for p in range(columns):
                    offset = y * self.in_tap_y + x * self.in_tap_x + p * self.in_column
                    value = arithmetic.load(
                        self.storage, f.at(f.arguments[0], offset * size), mask=mask
                    )
                    if KIND_OF_STORAGE[self.storage] == "int":
                        value = f.convert("sitofp", value, arithmetic.type("float"))
                    totals[p] = arithmetic.math.fma(value, weight, totals[p])
        epilogue = Epilogue(
            arithmetic, self.expression, self.output, self.operands, f.arguments[2:]
        )
        for p, total in enumerate(totals):
            epilogue.finish((0, p, 0), total, mask)
        f.finish()
        return tile
