"""The greatest or least elements along a dimension, in order, and where they stand: TopK."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from vermilion.codegen.emit.arithmetic import KIND_OF_STORAGE, Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.rows import load, outer_rows, store
from vermilion.codegen.emit.values import Value, constant
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa
from vermilion.codegen.tensor import STORAGE_BYTES, Storage
from vermilion.ir.expression import Operand, apply


@dataclass(frozen=True)
class TopSpec:
    """`values[kept, :], places[kept, :]` = the `count` best of `input[kept, :]`, the best first.

    `kept` are dimensions: (size, (input stride, values stride, places stride)). Places are int64;
    of equal elements the first comes first. Each element is put into the list of places if it
    beats the last of it, so that the time is that of one pass where the order is random.
    """

    operation: Literal["max", "min"]
    storage: Storage
    out_storage: Storage
    kept: tuple[tuple[int, tuple[int, ...]], ...]
    size: int
    count: int
    stride: int
    out_stride: int
    place_stride: int

    family = "top"

    @property
    def units(self) -> int:
        """One unit a row."""
        return math.prod(size for size, _ in self.kept)

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, pointers, units = begin_kernel(module, name, 3)
        sizes = (STORAGE_BYTES[self.storage], STORAGE_BYTES[self.out_storage], 8)
        with f.loop(*units) as unit:
            come, go, places = outer_rows(f, unit, self.kept, pointers, sizes)
            arithmetic = Arithmetic(f, 1)
            self._choose(f, arithmetic, come, places)
            with f.loop(0, self.count) as rank:
                value = self._element(arithmetic, come, self._place(f, places, rank))
                store(arithmetic, self.out_storage, value, go, rank, self.out_stride, None)
        f.finish()

    def _choose(self, f: Function, arithmetic: Arithmetic, come: Value, places: Value) -> None:
        last = self.count - 1
        worst = f.slot(self._element(arithmetic, come, constant("i64", 0)))
        with f.loop(0, self.size) as at:
            value = self._element(arithmetic, come, at)
            has_room = f.compare("slt", at, f.index(self.count))
            is_better = self._is_better(arithmetic, value, worst.get())
            with f.when(f.binary("or", has_room, is_better)):
                self._insert(f, arithmetic, (come, places), value, at)
                lowest = self._place(f, places, f.minimum(at, last))
                worst.set(self._element(arithmetic, come, lowest))

    def _insert(
        self, f: Function, arithmetic: Arithmetic, pointers: tuple[Value, Value], value: Value,
        at: Value,
    ) -> None:  # fmt: skip
        """Move what is worse one rank down, from the last one up, and put the element there."""
        come, places = pointers
        rank = f.slot(f.minimum(at, self.count - 1))
        with f.repeat() as (_, done):
            compare, move = f.label("compare"), f.label("move")
            f.branch(f.compare("sgt", rank.get(), f.index(0)), compare, done)
            f.block(compare)
            above = f.add(rank.get(), -1)
            other = self._place(f, places, above)
            is_better = self._is_better(arithmetic, value, self._element(arithmetic, come, other))
            f.branch(is_better, move, done)
            f.block(move)
            self._put(f, places, rank.get(), other)
            rank.set(above)
        self._put(f, places, rank.get(), at)

    def _element(self, arithmetic: Arithmetic, come: Value, at: Value) -> Value:
        return load(arithmetic, self.storage, come, at, self.stride, None)

    def _place(self, f: Function, places: Value, rank: Value) -> Value:
        return f.load("i64", places, f.multiply(rank, 8 * self.place_stride), align=8)

    def _put(self, f: Function, places: Value, rank: Value, at: Value) -> None:
        f.store(at, places, f.multiply(rank, 8 * self.place_stride), align=8)

    def _is_better(self, arithmetic: Arithmetic, value: Value, other: Value) -> Value:
        kind = KIND_OF_STORAGE[self.storage]
        name = "greater" if self.operation == "max" else "less"
        values = (value, other)
        mask = arithmetic.evaluate(
            apply(name, Operand(0, kind), Operand(1, kind)), lambda index: values[index]
        )
        return arithmetic.f.emit("i1", f"extractelement {mask}, i32 0")
