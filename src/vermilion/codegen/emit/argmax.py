"""Where the greatest or least element along a dimension stands: ArgMax and ArgMin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vermilion.codegen.emit.arithmetic import KIND_OF_STORAGE, Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.rows import across, each_vector, load, outer_rows, store
from vermilion.codegen.emit.values import Value, constant, splat_integer
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa
from vermilion.codegen.tensor import STORAGE_BYTES, Storage
from vermilion.ir.expression import Operand, apply
from vermilion.ir.symbolic import is_known, is_one


@dataclass(frozen=True)
class ExtremePlaceSpec:
    """`output[kept] = index of the extreme of input[kept, :]`, as int64.

    `kept` are dimensions: (size, (input stride, output stride)). Of equal elements the first
    counts, or the last. Vectors run along the last kept dimension where it is dense, along the
    searched one where floats lie dense there; else elements are taken one by one.
    """

    operation: Literal["max", "min"]
    storage: Storage
    kept: tuple[tuple[int, tuple[int, ...]], ...]
    size: int
    stride: int
    takes_last: bool
    lanes: int

    family = "extreme_place"

    @property
    def across_rows(self) -> bool:
        """Whether vectors run along the last kept dimension."""
        return (
            bool(self.kept) and all(map(is_one, self.kept[-1][1])) and not is_one(self.kept[-1][0])
        )

    @property
    def along_row(self) -> bool:
        """Whether vectors run along the searched dimension."""
        is_float = KIND_OF_STORAGE[self.storage] == "float"
        is_long = is_known(self.size) and self.size >= self.lanes
        return is_float and not self.across_rows and is_one(self.stride) and is_long

    @property
    def _outer(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        return self.kept[:-1] if self.across_rows else self.kept

    @property
    def units(self) -> int:
        """One unit a row, or all of the rows that vectors run across."""
        return math.prod(size for size, _ in self._outer)

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, pointers, units = begin_kernel(module, name, 2)
        sizes = (STORAGE_BYTES[self.storage], 8)
        with f.loop(*units) as unit:
            come, go = outer_rows(f, unit, self._outer, pointers, sizes)
            if self.along_row:
                self._row(f, Arithmetic(f, isa.lanes), come, go)
            elif self.across_rows:
                self._columns(f, Arithmetic(f, isa.lanes), come, go)
            else:
                self._walk(f, Arithmetic(f, 1), (come, go), constant("i64", 0), None)
        f.finish()

    def _columns(self, f: Function, arithmetic: Arithmetic, come: Value, go: Value) -> None:
        for at, mask in each_vector(arithmetic, self.kept[-1][0]):
            self._walk(f, arithmetic, (come, go), at, mask)

    def _walk(
        self,
        f: Function,
        arithmetic: Arithmetic,
        pointers: Sequence[Value],
        at: Value,
        mask: Value | None,
    ) -> None:
        """Search down the dimension, for a vector of neighbours at once."""
        come, go = pointers
        best = f.slot(load(arithmetic, self.storage, come, at, 1, mask))
        place = f.slot(splat_integer(0, arithmetic.lanes))
        with f.loop(1, self.size) as k:
            there = f.at(come, f.multiply(k, self.stride * STORAGE_BYTES[self.storage]))
            value = load(arithmetic, self.storage, there, at, 1, mask)
            is_better = self._is_better(arithmetic, value, best.get())
            best.set(f.select(is_better, value, best.get()))
            here = arithmetic.splat(f.convert("trunc", k, "i32"))
            place.set(f.select(is_better, here, place.get()))
        wide = f.convert("sext", place.get(), arithmetic.type("long"))
        store(arithmetic, "i64", wide, go, at, 1, mask)

    def _is_better(self, arithmetic: Arithmetic, value: Value, best: Value) -> Value:
        kind = KIND_OF_STORAGE[self.storage]
        name = "greater" if self.operation == "max" else "less"
        node = apply(
            f"{name}_equal" if self.takes_last else name, Operand(0, kind), Operand(1, kind)
        )
        values = (value, best)
        return arithmetic.evaluate(node, lambda index: values[index])

    def _row(self, f: Function, arithmetic: Arithmetic, come: Value, go: Value) -> None:
        """Search along dense floats: each lane its own best, joined at the end."""
        lanes = arithmetic.lanes
        start = -math.inf if self.operation == "max" else math.inf
        best = f.slot(arithmetic.math.number(start))
        place = f.slot(splat_integer(0, lanes))
        numbers = f.convert("trunc", arithmetic.lane_numbers, arithmetic.type("int"))

        for at, mask in each_vector(arithmetic, self.size):
            value = load(arithmetic, self.storage, come, at, 1, mask)
            is_better = self._is_better(arithmetic, value, best.get())
            if mask is not None:
                is_better = f.binary("and", is_better, mask)
            best.set(f.select(is_better, value, best.get()))
            here = arithmetic.splat(f.convert("trunc", at, "i32"))
            place.set(f.select(is_better, f.binary("add", here, numbers), place.get()))

        top = across(arithmetic, self.operation, best.get())
        is_top = f.compare_floats("oeq", best.get(), top)
        nowhere = splat_integer(-1 if self.takes_last else 2**31 - 1, lanes)
        candidates = f.select(is_top, place.get(), nowhere)
        name = f"llvm.vector.reduce.s{'max' if self.takes_last else 'min'}.v{lanes}i32"
        found = f.intrinsic(name, "i32", [candidates])
        # Nothing is better than a NaN that comes first, as where elements are taken one by one.
        first = load(arithmetic, self.storage, come, constant("i64", 0), 1, None)
        first = f.emit("float", f"extractelement {first}, i32 0")
        found = f.select(f.compare_floats("uno", first, first), constant("i32", 0), found)
        f.store(f.convert("sext", found, "i64"), go, align=8)
