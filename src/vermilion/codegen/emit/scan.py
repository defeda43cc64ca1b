"""Running sums and products along a dimension: CumSum and CumProd."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from vermilion.codegen.emit.arithmetic import KIND_OF_STORAGE, Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.rows import each_vector, load, outer_rows, store
from vermilion.codegen.emit.values import Value, constant
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa
from vermilion.codegen.tensor import STORAGE_BYTES, Storage
from vermilion.ir.expression import Constant, Operand, apply
from vermilion.ir.symbolic import is_one


@dataclass(frozen=True)
class ScanSpec:
    """`output[kept, k] = input[kept, 0] ∘ … ∘ input[kept, k]`, without the last if `is_exclusive`.

    `kept` are dimensions: (size, (input stride, output stride)). Vectors run along the last of
    them where it is dense. To scan backwards, strides are negative and pointers at the end.
    """

    combine: Literal["add", "mul"]
    storage: Storage
    out_storage: Storage
    kept: tuple[tuple[int, tuple[int, ...]], ...]
    size: int
    stride: int
    out_stride: int
    is_exclusive: bool

    family = "scan"

    @property
    def _is_dense(self) -> bool:
        return (
            bool(self.kept) and all(map(is_one, self.kept[-1][1])) and not is_one(self.kept[-1][0])
        )

    @property
    def _outer(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        return self.kept[:-1] if self._is_dense else self.kept

    @property
    def units(self) -> int:
        """One unit a row, or all rows that vectors run across."""
        return math.prod(size for size, _ in self._outer)

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, pointers, units = begin_kernel(module, name, 2)
        sizes = (STORAGE_BYTES[self.storage], STORAGE_BYTES[self.out_storage])
        with f.loop(*units) as unit:
            come, go = outer_rows(f, unit, self._outer, pointers, sizes)
            if self._is_dense:
                self._columns(f, Arithmetic(f, isa.lanes), (come, go))
            else:
                self._walk(f, Arithmetic(f, 1), (come, go), constant("i64", 0), None)
        f.finish()

    def _columns(self, f: Function, arithmetic: Arithmetic, pointers: tuple[Value, Value]) -> None:
        for at, mask in each_vector(arithmetic, self.kept[-1][0]):
            self._walk(f, arithmetic, pointers, at, mask)

    def _walk(
        self,
        f: Function,
        arithmetic: Arithmetic,
        pointers: tuple[Value, Value],
        at: Value,
        mask: Value | None,
    ) -> None:
        kind = KIND_OF_STORAGE[self.storage]
        start = Constant(0 if self.combine == "add" else 1, kind)
        total = f.slot(arithmetic.constant(start))
        join = apply(self.combine, Operand(0, kind), Operand(1, kind))
        with f.loop(0, self.size) as k:
            come = f.at(pointers[0], f.multiply(k, self.stride * STORAGE_BYTES[self.storage]))
            go = f.at(pointers[1], f.multiply(k, self.out_stride * STORAGE_BYTES[self.out_storage]))
            before = total.get()
            values = (before, load(arithmetic, self.storage, come, at, 1, mask))
            after = arithmetic.evaluate(join, lambda index, v=values: v[index])  # type: ignore[misc]
            total.set(after)
            result = before if self.is_exclusive else after
            store(arithmetic, self.out_storage, result, go, at, 1, mask)
