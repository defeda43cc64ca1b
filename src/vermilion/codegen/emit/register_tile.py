"""A patch of a matrix product kept in registers: rows of the left side times vectors of the right.

The left side is read in place, one group of values broadcast to all lanes. The right side is read
as vectors: panels packed for it, or rows of a matrix whose columns lie side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Index, Slot, Value, constant
from vermilion.codegen.isa import Isa
from vermilion.codegen.numeric import NUMERICS, NumericName

# Multiply-adds that must be in flight to hide their latency: 4 cycles, 2 started in each.
_CHAINS = 8
# Steps whose sum is kept in one float32 before it is added to the others.
_LONGEST_RUN = 512
Prefetch = Callable[[Value], None]


@dataclass(frozen=True)
class Side:
    """Where an operand of the product lies: a pointer, and bytes from row (or step) to the next."""

    pointer: Value
    step_bytes: int


class RegisterTile:
    """Accumulators of `rows × vectors`, and the loop that fills them."""

    def __init__(
        self, f: Function, isa: Isa, numeric: NumericName, rows: int, vectors: int
    ) -> None:
        self.f = f
        self.isa = isa
        self.numeric = NUMERICS[numeric]
        self.rows = rows
        self.vectors = vectors
        self._arithmetic = Arithmetic(f, isa.lanes)
        self.accumulators = self._zeros()

    def _zeros(self) -> list[list[Slot]]:
        zero = Value(self._arithmetic.type("float"), "zeroinitializer")
        return [[self.f.slot(zero) for _ in range(self.vectors)] for _ in range(self.rows)]

    @property
    def _weight_type(self) -> str:
        lanes = self.isa.lanes
        return f"<{lanes} x float>" if self.numeric.group == 1 else f"<{lanes * 2} x bfloat>"

    def multiply(
        self,
        left: Side,
        right: Side,
        depth: int,
        *,
        mask: Value | None = None,
        prefetch: Prefetch | None = None,
    ) -> None:
        """Add the product over `depth` values to the accumulators.

        `mask` says which lanes of the last vector may be read where the right side is no panel.
        `prefetch` is called with the number of each step.
        """
        group = self.numeric.group
        steps, rest = depth // group, depth % group
        copies = self._copies(steps)
        sets = [self.accumulators, *(self._zeros() for _ in range(copies - 1))]
        whole = steps - steps % copies
        a, b = self.f.slot(left.pointer), self.f.slot(right.pointer)

        def step(accumulators: list[list[Slot]], *, half: bool = False) -> None:
            self._step(accumulators, Side(a.get(), left.step_bytes), b.get(), mask, half)
            a.set(self.f.at(a.get(), group * self.numeric.activation_bytes))
            b.set(self.f.at(b.get(), right.step_bytes))

        def run(start: Index, stop: Index) -> None:
            with self.f.loop(start, stop, copies) as k:
                if prefetch is not None:
                    prefetch(k)
                for accumulators in sets:
                    step(accumulators)

        self._in_runs(whole, copies, sets, run)
        for number in range(steps % copies):
            step(sets[number])
        if rest:
            step(sets[0], half=True)
        self._join(sets)

    def _in_runs(
        self,
        steps: int,
        copies: int,
        sets: list[list[list[Slot]]],
        run: Callable[[Index, Index], None],
    ) -> None:
        """Run all steps: at once, or in runs whose sums are added up, which rounds less."""
        count = round(steps / _LONGEST_RUN) if self.numeric.group == 1 else 1
        if count < 2:
            if steps:
                run(0, steps)
            return
        size = -(-steps // (count * copies)) * copies
        slots = [slot for rows in sets for vectors in rows for slot in vectors]
        sums = self.f.scratch(len(slots) * self.isa.vector_bytes)
        zero = Value(self._arithmetic.type("float"), "zeroinitializer")
        with self.f.loop(0, steps, size) as start:
            run(start, self.f.minimum(self.f.add(start, size), steps))
            with self.f.when(
                self.f.compare("slt", self.f.add(start, size), constant("i64", steps))
            ):
                self._put_aside(slots, sums, start)
        for number, slot in enumerate(slots):
            place = number * self.isa.vector_bytes
            aside = self.f.load(zero.type, sums, place, align=64)
            slot.set(self._arithmetic.math.add(aside, slot.get()))

    def _put_aside(self, slots: list[Slot], sums: Value, start: Value) -> None:
        """Move sums to memory, added to what is there after the first run."""
        zero = Value(self._arithmetic.type("float"), "zeroinitializer")
        is_first = self.f.compare("eq", start, constant("i64", 0))
        for number, slot in enumerate(slots):
            place = number * self.isa.vector_bytes
            before = self.f.load(zero.type, sums, place, align=64)
            before = self.f.select(is_first, zero, before)
            total = self._arithmetic.math.add(before, slot.get())
            self.f.store(total, sums, place, align=64)
            slot.set(zero)

    def _copies(self, steps: int) -> int:
        """Return how many sums run side by side, so that few accumulators do not wait for each."""
        chains = self.rows * self.vectors
        room = self.isa.registers // (chains + self.vectors)
        return max(1, min(-(-_CHAINS // chains), room, steps))

    def _join(self, sets: list[list[list[Slot]]]) -> None:
        for other in sets[1:]:
            for slots, more in zip(sets[0], other, strict=True):
                for slot, extra in zip(slots, more, strict=True):
                    slot.set(self._arithmetic.math.add(slot.get(), extra.get()))

    def _step(
        self,
        accumulators: list[list[Slot]],
        left: Side,
        right: Value,
        mask: Value | None,
        half: bool,
    ) -> None:
        loaded = [self._vector(right, n, mask) for n in range(self.vectors)]
        for y, slots in enumerate(accumulators):
            value = self._broadcast(left.pointer, y * left.step_bytes, half)
            for slot, vector in zip(slots, loaded, strict=True):
                slot.set(self._multiply_add(slot.get(), value, vector))

    def _vector(self, right: Value, n: int, mask: Value | None) -> Value:
        place = self.f.at(right, n * self.isa.vector_bytes)
        if mask is not None and n == self.vectors - 1:
            return self._arithmetic.load("f32", place, mask=mask)
        return self.f.load(self._weight_type, place, align=4)

    def _broadcast(self, pointer: Value, offset: int, half: bool) -> Value:
        """Load one group of the left side into all lanes; of a last odd pair only its first."""
        f = self.f
        if self.numeric.group == 1:
            return self._arithmetic.splat(f.load("float", pointer, offset, align=4))
        if half:
            word = f.convert("zext", f.load("i16", pointer, offset, align=2), "i32")
        else:
            word = f.load("i32", pointer, offset, align=2)
        return f.convert("bitcast", self._arithmetic.splat(word), self._weight_type)

    def _multiply_add(self, total: Value, value: Value, vector: Value) -> Value:
        lanes = self.isa.lanes
        if self.numeric.group == 1:
            return self.f.intrinsic(f"llvm.fma.v{lanes}f32", total.type, [value, vector, total])
        assert lanes == 16, "bfloat16 products need 512-bit registers"
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        return self.f.intrinsic(name, total.type, [total, value, vector])


def prefetch_line(
    f: Function, pointer: Value, level: Literal[1, 2, "once"] = 2, *, is_written: bool = False
) -> None:
    """Ask for a cache line to be brought into the first- or second-level cache.

    `once`: into the first, and no further when it leaves that, for it is not read again.
    """
    locality = constant("i32", 0 if level == "once" else 4 - level)
    name = f.module.declare("llvm.prefetch.p0", "void", ["ptr", "i32", "i32", "i32"])
    f.call_void(name, [pointer, constant("i32", int(is_written)), locality, constant("i32", 1)])
