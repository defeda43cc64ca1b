"""Products whose sums are kept as they are: int32, before any expression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module, Slot
from vermilion.codegen.emit.product import ProductSpec, _Writer
from vermilion.codegen.isa import Isa


@dataclass(frozen=True)
class ExactSumsSpec(ProductSpec):
    """A product of 8-bit integers that stores its accumulators; the expression is not looked at."""

    family = "exact_sums"

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function and the tile functions that it calls."""
        writer = _SumsWriter(self, module, name, isa)
        f = Function(module, name, [("args", "ptr"), ("begin", "i64"), ("end", "i64")])
        pointers = [f.load("ptr", f.arguments[0], 8 * i, align=8) for i in range(3)]
        with f.loop(f.arguments[1], f.arguments[2]) as unit:
            writer.unit(f, unit, pointers)
        f.finish()


class _SumsWriter(_Writer):
    def _finish(
        self,
        f: Function,
        pixels: Sequence[tuple[int, int]],
        accumulators: Sequence[Sequence[Slot]],
        tail: int,
    ) -> None:
        """Store the accumulators, pixel by pixel."""
        output = self.spec.output
        assert output.storage == "i32", "sums of 8-bit integers are 32 bits wide"
        arithmetic = Arithmetic(f, self.isa.lanes)
        vectors = len(accumulators[0])
        for (y, x), row in zip(pixels, accumulators, strict=True):
            for n, slot in enumerate(row):
                offset = y * output.row + x * output.column + n * self.isa.lanes
                mask = arithmetic.tail_mask(tail) if tail and n == vectors - 1 else None
                arithmetic.store("i32", slot.get(), f.at(f.arguments[2], offset * 4), mask=mask)
