"""Filling the border of an image with its padding value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.values import Value
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa
from vermilion.codegen.tensor import STORAGE_BYTES
from vermilion.ir.symbolic import is_known, is_one


@dataclass(frozen=True)
class BorderSpec:
    """Write `byte` around the inside of each of `images` (height × width × pixel bytes).

    `top`, `bottom`, `left` and `right` count pixels of border; height and width include them.
    A value is the same in each of its bytes: 0 in any format, or an 8-bit zero point. One that
    only the run has is read from memory (`is_read`).
    """

    images: int
    height: int
    width: int
    pixel_bytes: int
    top: int
    bottom: int
    left: int
    right: int
    byte: int
    is_read: bool = False

    @property
    def family(self) -> str:
        """A border that is known is written once for all runs."""
        return "border_of_run" if self.is_read else "border"

    @property
    def units(self) -> int:
        """One unit an image."""
        return self.images

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, pointers, units = begin_kernel(module, name, 2 if self.is_read else 1)
        base, row = pointers[0], self.width * self.pixel_bytes
        byte = f.load("i8", pointers[1], align=1) if self.is_read else Value("i8", str(self.byte))
        with f.loop(*units) as image:
            start = f.at(base, f.multiply(image, self.height * row))
            # The right border of a row and the left of the next lie side by side.
            first = self.top * row + self.left * self.pixel_bytes
            self._set(f, byte, start, first)
            inside = self.height - self.top - self.bottom
            gap = (self.left + self.right) * self.pixel_bytes
            if (not is_known(gap) or gap) and not is_one(inside):
                with f.loop(0, inside - 1) as y:
                    end_of_row = f.add(f.multiply(y, row), first + row - gap)
                    self._set(f, byte, f.at(start, end_of_row), gap)
            last = first + inside * row - gap
            self._set(f, byte, f.at(start, last), self.height * row - last)
        f.finish()

    def _set(self, f: Function, byte: Value, pointer: Value, count: int) -> None:
        if is_known(count) and count <= 0:
            return
        name = f.module.declare("llvm.memset.p0.i64", "void", ["ptr", "i8", "i64", "i1"])
        f.call_void(name, [pointer, byte, f.index(count), Value("i1", "false")])


@dataclass(frozen=True)
class RangeSpec:
    """`output[i] = start + i · step`, whole numbers side by side."""

    storage: Literal["i32", "i64"]
    count: int
    start: int
    step: int

    family = "range"

    @property
    def units(self) -> int:
        """One unit: as many numbers as a dimension has."""
        return 1

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, (target,), units = begin_kernel(module, name, 1)
        size = STORAGE_BYTES[self.storage]
        with f.loop(*units), f.loop(0, self.count) as i:
            number = f.add(f.multiply(i, self.step), self.start)
            value = number if self.storage == "i64" else f.convert("trunc", number, "i32")
            f.store(value, target, f.multiply(i, size), align=size)
        f.finish()


@dataclass(frozen=True)
class SizesSpec:
    """`output[i] = numbers[i]`: whole numbers that follow from sizes, where a tensor is wanted."""

    storage: Literal["i32", "i64"]
    numbers: tuple[int, ...]

    family = "sizes"

    @property
    def units(self) -> int:
        """One unit for all."""
        return 1

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, (target,), units = begin_kernel(module, name, 1)
        size = STORAGE_BYTES[self.storage]
        with f.loop(*units):
            for at, number in enumerate(self.numbers):
                value = f.index(number)
                value = value if self.storage == "i64" else f.convert("trunc", value, "i32")
                f.store(value, target, at * size, align=size)
        f.finish()
