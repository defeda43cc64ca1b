"""Normalization of rows: layer norm (mean and variance) and root mean square norm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.rows import Totals, element, for_vectors, outer_rows
from vermilion.codegen.emit.values import Value
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa
from vermilion.codegen.tensor import STORAGE_BYTES, Storage
from vermilion.ir.symbolic import is_known


@dataclass(frozen=True)
class NormalizeSpec:
    """`(x - mean) ÷ √(variance + epsilon) · scale + shift` over rows of `size` elements.

    `root_mean_square` leaves the mean out. `rows` are dimensions: (size, (input stride, output
    stride)); elements of a row, scale and shift lie side by side. Computed in float32.
    """

    form: Literal["layer", "root_mean_square"]
    storage: Storage
    out_storage: Storage
    rows: tuple[tuple[int, tuple[int, ...]], ...]
    size: int
    epsilon: float
    scale: Storage | None
    shift: Storage | None

    family = "normalize"

    @property
    def units(self) -> int:
        """One unit a row."""
        return math.prod(size for size, _ in self.rows)

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        there = 2 + (self.scale is not None) + (self.shift is not None)
        f, pointers, (begin, end) = begin_kernel(module, name, there)
        sizes = (STORAGE_BYTES[self.storage], STORAGE_BYTES[self.out_storage])
        arithmetic = Arithmetic(f, isa.lanes)
        with f.loop(begin, end) as unit:
            come, go = outer_rows(f, unit, self.rows, pointers[:2], sizes)
            self._row(f, arithmetic, come, go, pointers[2:])
        f.finish()

    def _row(
        self, f: Function, arithmetic: Arithmetic, come: Value, go: Value, rest: list[Value]
    ) -> None:
        m = arithmetic.math
        if is_known(self.size):
            share = m.number(1.0 / self.size)
        else:
            count = f.convert("sitofp", f.index(self.size), "float")
            share = m.divide(m.number(1.0), arithmetic.splat(count))

        def value(at: Value, mask: Value | None) -> Value:
            return arithmetic.load(self.storage, element(f, self.storage, come, at), mask=mask)

        mean: Value | None = None
        if self.form == "layer":
            total = Totals(arithmetic, "add", 0.0)
            for_vectors(
                f, arithmetic, self.size,
                lambda at, mask, number: total.take(number, value(at, mask)),
            )  # fmt: skip
            mean = m.multiply(total.splat(), share)

        def centred(at: Value, mask: Value | None) -> Value:
            return value(at, mask) if mean is None else m.subtract(value(at, mask), mean)

        squares, offs = Totals(arithmetic, "add", 0.0), Totals(arithmetic, "add", 0.0)

        def add_square(at: Value, mask: Value | None, number: int) -> None:
            x = centred(at, mask)
            squares.take(number, m.multiply(x, x), mask)
            if mean is not None:
                offs.take(number, x, mask)

        for_vectors(f, arithmetic, self.size, add_square)
        variance = m.multiply(squares.splat(), share)
        # The mean is rounded, and may be off by more than the numbers differ: of equal ones, all.
        # What is left of their mean says by how much.
        off = None if mean is None else m.multiply(offs.splat(), share)
        if off is not None:
            variance = m.fma(m.subtract(m.number(-0.0), off), off, variance)
            variance = m.maximum(m.number(0.0), variance)
        root = m.unary("sqrt", m.add(variance, m.number(self.epsilon)))
        factor = m.divide(m.number(1.0), root)
        start = None if off is None else m.multiply(m.subtract(m.number(-0.0), off), factor)

        def finish(at: Value, mask: Value | None, number: int) -> None:
            x = centred(at, mask)
            result = m.multiply(x, factor) if start is None else m.fma(x, factor, start)
            others = iter(rest)
            for storage, operation in ((self.scale, m.multiply), (self.shift, m.add)):
                if storage is not None:
                    place = element(f, storage, next(others), at)
                    result = operation(result, arithmetic.load(storage, place, mask=mask))
            place = element(f, self.out_storage, go, at)
            arithmetic.store(self.out_storage, result, place, mask=mask)

        for_vectors(f, arithmetic, self.size, finish)
