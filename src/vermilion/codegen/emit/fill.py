"""Filling the border of an image with its padding value."""

from __future__ import annotations

from dataclasses import dataclass

from vermilion.codegen.emit.builder import Function, Module, Value
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa


@dataclass(frozen=True)
class BorderSpec:
    """Write `byte` around the inside of each of `images` (height × width × pixel bytes).

    `top`, `bottom`, `left` and `right` count pixels of border; height and width include them.
    A value is the same in each of its bytes: 0 in any format, or an 8-bit zero point.
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

    family = "border"

    @property
    def units(self) -> int:
        """One unit an image."""
        return self.images

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, (base,), units = begin_kernel(module, name, 1)
        row = self.width * self.pixel_bytes
        with f.loop(*units) as image:
            start = f.at(base, f.multiply(image, self.height * row))
            # The right border of a row and the left of the next lie side by side.
            first = self.top * row + self.left * self.pixel_bytes
            self._set(f, start, first)
            inside = self.height - self.top - self.bottom
            gap = (self.left + self.right) * self.pixel_bytes
            if gap and inside > 1:
                with f.loop(0, inside - 1) as y:
                    end_of_row = f.add(f.multiply(y, row), first + row - gap)
                    self._set(f, f.at(start, end_of_row), gap)
            last = first + inside * row - gap
            self._set(f, f.at(start, last), self.height * row - last)
        f.finish()

    def _set(self, f: Function, pointer: Value, count: int) -> None:
        if count <= 0:
            return
        name = f.module.declare("llvm.memset.p0.i64", "void", ["ptr", "i8", "i64", "i1"])
        f.call_void(
            name,
            [pointer, Value("i8", str(self.byte)), f.index(count), Value("i1", "false")],
        )
