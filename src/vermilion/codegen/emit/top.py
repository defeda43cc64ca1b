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

# In a longer list, moving what is worse takes longer than going down a heap.
_MOST_LISTED = 24


@dataclass(frozen=True)
class TopSpec:
    """`values[kept, :], places[kept, :]` = the `count` best of `input[kept, :]`, the best first.

    `kept` are dimensions: (size, (input stride, values stride, places stride)). Places are int64;
    of equal elements the first comes first. A few are a list in order, into which an element is
    put that beats the last of it; many are a heap with the worst of them at its root.
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
            if self.count <= _MOST_LISTED:
                self._choose(f, arithmetic, come, places)
            else:
                Heap(f, arithmetic, self, come, places).choose()
            with f.loop(0, self.count) as rank:
                value = self.element(arithmetic, come, self.place(f, places, rank))
                store(arithmetic, self.out_storage, value, go, rank, self.out_stride, None)
        f.finish()

    def _choose(self, f: Function, arithmetic: Arithmetic, come: Value, places: Value) -> None:
        last = self.count - 1
        worst = f.slot(self.element(arithmetic, come, constant("i64", 0)))
        with f.loop(0, self.size) as at:
            value = self.element(arithmetic, come, at)
            has_room = f.compare("slt", at, f.index(self.count))
            is_better = self.is_better(arithmetic, value, worst.get())
            with f.when(f.binary("or", has_room, is_better)):
                self._insert(f, arithmetic, (come, places), value, at)
                lowest = self.place(f, places, f.minimum(at, last))
                worst.set(self.element(arithmetic, come, lowest))

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
            other = self.place(f, places, above)
            is_better = self.is_better(arithmetic, value, self.element(arithmetic, come, other))
            f.branch(is_better, move, done)
            f.block(move)
            self.put(f, places, rank.get(), other)
            rank.set(above)
        self.put(f, places, rank.get(), at)

    def element(self, arithmetic: Arithmetic, come: Value, at: Value) -> Value:
        """Load an element of the row."""
        return load(arithmetic, self.storage, come, at, self.stride, None)

    def place(self, f: Function, places: Value, rank: Value) -> Value:
        """Load the place of a rank."""
        return f.load("i64", places, f.multiply(rank, 8 * self.place_stride), align=8)

    def put(self, f: Function, places: Value, rank: Value, at: Value) -> None:
        """Store the place of a rank."""
        f.store(at, places, f.multiply(rank, 8 * self.place_stride), align=8)

    def is_better(self, arithmetic: Arithmetic, value: Value, other: Value) -> Value:
        """Compare two elements."""
        kind = KIND_OF_STORAGE[self.storage]
        name = "greater" if self.operation == "max" else "less"
        values = (value, other)
        mask = arithmetic.evaluate(
            apply(name, Operand(0, kind), Operand(1, kind)), lambda index: values[index]
        )
        return arithmetic.f.emit("i1", f"extractelement {mask}, i32 0")


class Heap:
    """Places of a row's best elements, each worse than the two below it, while they are chosen."""

    def __init__(
        self, f: Function, arithmetic: Arithmetic, spec: TopSpec, come: Value, places: Value
    ) -> None:
        self._f, self._arithmetic, self._spec = f, arithmetic, spec
        self._come, self._places = come, places

    def choose(self) -> None:
        """Fill the heap, replace its root by what is better, and take it apart, the worst first."""
        f, count = self._f, self._spec.count
        with f.loop(0, count) as rank:
            self._put(rank, rank)
        with f.loop(0, count // 2) as number:
            root = f.subtract(count // 2 - 1, number)
            self._sink(root, self._place(root), f.index(count))
        with f.loop(count, self._spec.size) as at:
            worst = self._element(self._place(f.index(0)))
            with f.when(self._spec.is_better(self._arithmetic, self._element(at), worst)):
                self._sink(f.index(0), at, f.index(count))
        with f.loop(1, count) as number:
            end = f.subtract(count, number)
            last, worst = self._place(end), self._place(f.index(0))
            self._put(end, worst)
            self._sink(f.index(0), last, end)

    def _sink(self, start: Value, item: Value, size: Value) -> None:
        """Put a place at `start`, or as far below it as it is better than others there."""
        f = self._f
        root = f.slot(start)
        with f.repeat() as (_, done):
            first = f.add(f.multiply(root.get(), 2), 1)
            inside, move = f.label("inside"), f.label("move")
            f.branch(f.compare("slt", first, size), inside, done)
            f.block(inside)
            # Beside the last one there is none: it is compared with itself.
            second = f.minimum(f.add(first, 1), f.subtract(size, 1))
            is_second = self._is_worse(self._place(second), self._place(first))
            child = f.select(is_second, second, first)
            below = self._place(child)
            f.branch(self._is_worse(below, item), move, done)
            f.block(move)
            self._put(root.get(), below)
            root.set(child)
        self._put(root.get(), item)

    def _is_worse(self, one: Value, other: Value) -> Value:
        """Compare two places: by their elements, of equal ones by which comes later."""
        f, spec = self._f, self._spec
        first, second = self._element(one), self._element(other)
        is_worse = spec.is_better(self._arithmetic, second, first)
        is_better = spec.is_better(self._arithmetic, first, second)
        is_later = f.compare("sgt", one, other)
        return f.select(is_better, constant("i1", 0), f.binary("or", is_worse, is_later))

    def _element(self, at: Value) -> Value:
        return self._spec.element(self._arithmetic, self._come, at)

    def _place(self, rank: Value) -> Value:
        return self._spec.place(self._f, self._places, rank)

    def _put(self, rank: Value, at: Value) -> None:
        self._spec.put(self._f, self._places, rank, at)
