"""What follows an accumulation: the expression over it, and the store, pixel by pixel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Value
from vermilion.codegen.tensor import STORAGE_BYTES, Storage
from vermilion.ir.expression import Expression


@dataclass(frozen=True)
class PixelAccess:
    """How a tensor is walked: strides in elements of image, row, column, channel (0 or 1)."""

    storage: Storage
    image: int
    row: int
    column: int
    channel: int

    def origin(self, f: Function, base: Value, where: Sequence[Value]) -> Value:
        """Return the pointer to the element at (image, row, column, channel)."""
        size = STORAGE_BYTES[self.storage]
        offset = f.index(0)
        strides = (self.image, self.row, self.column, self.channel)
        for index, stride in zip(where, strides, strict=True):
            if stride:
                offset = f.add(offset, f.multiply(index, stride * size))
        return f.at(base, offset)


@dataclass
class Epilogue:
    """The epilogue of one tile. Operand 0 of the expression is the accumulator as float32.

    `pointers` are the output's and then each operand's, at the tile's first pixel and channel.
    """

    arithmetic: Arithmetic
    expression: Expression
    output: PixelAccess
    operands: Sequence[PixelAccess]
    pointers: Sequence[Value]
    # Operands that are the same for every pixel are loaded once a tile.
    _shared: dict[tuple[int, int], Value] = field(default_factory=dict)

    def finish(self, at: tuple[int, int, int], total: Value, mask: Value | None) -> None:
        """Compute and store the vector of channels at (row, column, vector)."""
        y, x, n = at

        def operand(index: int) -> Value:
            return total if index == 0 else self._operand(index - 1, at, mask)

        result = self.arithmetic.evaluate(
            self.expression, operand, lambda index: self.pointers[index]
        )
        lanes = self.arithmetic.lanes
        offset = y * self.output.row + x * self.output.column + n * lanes
        place = self.arithmetic.f.at(self.pointers[0], offset * STORAGE_BYTES[self.output.storage])
        self.arithmetic.store(self.output.storage, result, place, mask=mask)

    def _operand(self, number: int, at: tuple[int, int, int], mask: Value | None) -> Value:
        access = self.operands[number]
        y, x, n = at
        is_shared = not (access.row or access.column)
        key = (number, n if access.channel else 0)
        if is_shared and key in self._shared:
            return self._shared[key]
        lanes = self.arithmetic.lanes
        offset = y * access.row + x * access.column + n * lanes * access.channel
        place = self.arithmetic.f.at(
            self.pointers[1 + number], offset * STORAGE_BYTES[access.storage]
        )
        if access.channel == 0:
            value = self.arithmetic.load_splat(access.storage, place)
        else:
            value = self.arithmetic.load(access.storage, place, mask=mask)
        if is_shared:
            self._shared[key] = value
        return value
