"""A patch of a product kept in registers: rows of the left side times vectors of the right.

The inner loop of convolutions, matrix products, attention, the decoder's panels and calibration, in
every number format. The left side is read in place, one group of values broadcast to all lanes. The
right side is read as vectors: panels packed for it, or rows of a matrix whose columns lie side by
side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Slot
from vermilion.codegen.emit.values import Index, Value, constant, splat_integer
from vermilion.codegen.isa import Isa
from vermilion.codegen.numeric import NUMERICS, NumericName

# Multiply-adds that must be in flight to hide their latency: 4 cycles, 2 started in each.
_CHAINS = 8
# Steps whose sum is kept in one float32 before it is added to the others.
_LONGEST_RUN = 512
Prefetch = Callable[[Value], None]


@dataclass(frozen=True)
class Side:
    """Where an operand of the product lies: a pointer, and bytes from row (or step) to the next.

    Steps may be `depth_bytes` apart, counted when it runs, and the rows of a left side, or the
    vectors of a right one, at `offsets` in bytes. `align` is that of the vectors of a right side.
    """

    pointer: Value
    step_bytes: int = 0
    depth_bytes: Value | None = None
    offsets: Sequence[Index] = ()
    align: int = 4

    def row(self, number: int) -> Index:
        """Return how many bytes from the pointer a row of a left side begins."""
        return self.offsets[number] if self.offsets else number * self.step_bytes


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

    @property
    def sum_type(self) -> str:
        """Type of an accumulator."""
        return f"<{self.isa.lanes} x {self.numeric.accumulator}>"

    @property
    def step_bytes(self) -> int:
        """Bytes of the panel that one step reads."""
        return self.vectors * self.numeric.parts * self.isa.vector_bytes

    def _zeros(self) -> list[list[Slot]]:
        zero = Value(self.sum_type, "zeroinitializer")
        return [[self.f.slot(zero) for _ in range(self.vectors)] for _ in range(self.rows)]

    @property
    def _weight_type(self) -> str:
        lanes = self.isa.lanes
        match self.numeric.name:
            case "f32":
                return f"<{lanes} x float>"
            case "bf16":
                return f"<{lanes * 2} x bfloat>" if self.isa.has_bf16 else f"<{lanes} x i32>"
            case "bf16_wide":
                return f"<{lanes} x i32>"
            case "u8s8":
                return f"<{lanes * 4} x i8>"
            case "u8s8_wide":
                return f"<{lanes * 2} x i16>"

    def start(self, sums: Sequence[Value]) -> None:
        """Begin every row with these sums, one for each vector."""
        for slots in self.accumulators:
            for slot, value in zip(slots, sums, strict=True):
                slot.set(value)

    def multiply(
        self,
        left: Side,
        right: Side,
        depth: Index,
        *,
        mask: Value | None = None,
        prefetch: Prefetch | None = None,
    ) -> None:
        """Add the product over `depth` values to the accumulators.

        `mask` says which lanes of the last vector may be read where the right side is no panel.
        `prefetch` is called with the number of each step.
        """
        if not isinstance(depth, int):
            self._multiply_open(left, right, depth, mask)
            return
        steps, rest = divmod(depth, self.numeric.group)
        copies = self._copies(steps)
        sets = [self.accumulators, *(self._zeros() for _ in range(copies - 1))]
        whole = steps - steps % copies
        step = self._stepping(left, right, [*[None] * (self.vectors - 1), mask])

        def run(start: Index, stop: Index) -> None:
            with self.f.loop(start, stop, copies) as k:
                if prefetch is not None:
                    prefetch(k)
                for accumulators in sets:
                    step(accumulators, False)

        count = round(whole / _LONGEST_RUN) if self.numeric.group == 1 else 1
        if count > 1:
            self._in_runs(whole, -(-whole // (count * copies)) * copies, sets, run)
        elif whole:
            run(0, whole)
        for number in range(steps % copies):
            step(sets[number], False)
        if rest:
            step(sets[0], True)
        self._join(sets)

    def _multiply_open(self, left: Side, right: Side, depth: Index, mask: Value | None) -> None:
        """Add the product over so many values as the run says; a last odd one has no pair."""
        f, group = self.f, self.numeric.group
        count = f.index(depth)
        steps = f.divide(count, group)
        masks = [*[None] * (self.vectors - 1), mask]
        self.multiply_steps(left, right, steps, masks=masks)
        if group == 1:
            return
        with f.when(f.compare("ne", f.remainder(count, group), constant("i64", 0))):
            self.multiply_last(left, right, steps, masks)

    def multiply_last(
        self, left: Side, right: Side, steps: Index, masks: Sequence[Value | None] = ()
    ) -> None:
        """Add the product of a last odd value, which so many whole groups precede.

        What lies behind it is not read: 0 times an infinity is no number.
        """
        f = self.f
        group_bytes = self.numeric.group * self.numeric.activation_bytes
        a = f.at(left.pointer, f.multiply(steps, left.depth_bytes or group_bytes))
        b = f.at(right.pointer, f.multiply(steps, right.depth_bytes or right.step_bytes))
        here, there = replace(left, pointer=a), replace(right, pointer=b)
        self._step(self.accumulators, here, there, masks or [None] * self.vectors, True)

    def multiply_steps(
        self,
        left: Side,
        right: Side,
        steps: Index,
        *,
        masks: Sequence[Value | None] = (),
        prefetch: Prefetch | None = None,
        in_runs: bool = True,
    ) -> None:
        """Add the product over so many whole groups of values, which may be counted when it runs.

        `masks` say which lanes of each vector may be read, all where there are none. Without
        `in_runs` one chain of float32 additions has all of them.
        """
        step = self._stepping(left, right, masks or [None] * self.vectors)

        def run(start: Index, stop: Index) -> None:
            with self.f.loop(start, stop) as k:
                step(self.accumulators, False)
                if prefetch is not None:
                    prefetch(k)

        if in_runs and self.numeric.group == 1:
            self._in_runs(steps, _LONGEST_RUN, [self.accumulators], run)
        else:
            run(0, steps)

    def _stepping(
        self, left: Side, right: Side, masks: Sequence[Value | None]
    ) -> Callable[[list[list[Slot]], bool], None]:
        """Return what writes one step, or that of a last odd value, and moves on."""
        group_bytes = self.numeric.group * self.numeric.activation_bytes
        a, b = self.f.slot(left.pointer), self.f.slot(right.pointer)

        def step(accumulators: list[list[Slot]], half: bool) -> None:
            here, there = replace(left, pointer=a.get()), replace(right, pointer=b.get())
            self._step(accumulators, here, there, masks, half)
            a.set(self.f.at(a.get(), left.depth_bytes or group_bytes))
            b.set(self.f.at(b.get(), right.depth_bytes or right.step_bytes))

        return step

    def _in_runs(
        self,
        steps: Index,
        size: int,
        sets: list[list[list[Slot]]],
        run: Callable[[Index, Index], None],
    ) -> None:
        """Run all steps, `size` at once: sums of each run are added up, which rounds less."""
        f, math = self.f, self._arithmetic.math
        slots = [slot for rows in sets for vectors in rows for slot in vectors]
        sums = f.scratch(len(slots) * self.isa.vector_bytes)
        zero = math.number(0.0)
        several = f.compare("sgt", f.index(steps), constant("i64", size))

        def aside(number: int) -> Value:
            return f.load(zero.type, sums, number * self.isa.vector_bytes, align=64)

        def put_aside(number: int, value: Value) -> None:
            f.store(value, sums, number * self.isa.vector_bytes, align=64)

        with f.when(several):
            for number in range(len(slots)):
                put_aside(number, zero)
        with f.loop(0, steps, size) as start:
            run(start, f.minimum(f.add(start, size), steps))
            with f.when(f.compare("slt", f.add(start, size), f.index(steps))):
                for number, slot in enumerate(slots):
                    put_aside(number, math.add(aside(number), slot.get()))
                    slot.set(zero)
        with f.when(several):
            for number, slot in enumerate(slots):
                slot.set(math.add(aside(number), slot.get()))

    def _copies(self, steps: int) -> int:
        """Return how many sums run side by side, so that few accumulators do not wait for each."""
        chains = self.rows * self.vectors
        room = self.isa.registers // (chains + self.vectors)
        return max(1, min(-(-_CHAINS // chains), room, steps))

    def _join(self, sets: list[list[list[Slot]]]) -> None:
        for other in sets[1:]:
            for slots, more in zip(sets[0], other, strict=True):
                for slot, extra in zip(slots, more, strict=True):
                    operation = "fadd" if self.numeric.accumulator == "float" else "add"
                    slot.set(self.f.binary(operation, slot.get(), extra.get()))

    def _step(
        self,
        accumulators: list[list[Slot]],
        left: Side,
        right: Side,
        masks: Sequence[Value | None],
        half: bool,
    ) -> None:
        parts = self.numeric.parts
        if self.numeric.name == "bf16_wide":
            pairs = [self._vector(right, n, mask) for n, mask in enumerate(masks)]
            loaded = [half for both in pairs for half in self._halves(both)]
        else:
            loaded = [
                self._vector(right, n * parts + part, mask)
                for n, mask in enumerate(masks)
                for part in range(parts)
            ]
        for y, slots in enumerate(accumulators):
            for part, value in enumerate(self._broadcast(left.pointer, left.row(y), half)):
                for slot, vector in zip(slots, loaded[part::parts], strict=True):
                    slot.set(self.multiply_add(slot.get(), value, vector))

    def _vector(self, right: Side, n: int, mask: Value | None) -> Value:
        offset = right.offsets[n] if right.offsets else n * self.isa.vector_bytes
        place = self.f.at(right.pointer, offset)
        if mask is not None:
            return self._arithmetic.load("f32", place, mask=mask)
        return self.f.load(self._weight_type, place, align=right.align)

    def _broadcast(self, pointer: Value, offset: Index, half: bool) -> list[Value]:
        """Load one group of the left side into all lanes, once for each part.

        Of a last odd pair only its first. A last quad that is not whole is read as a whole: what
        it has too much meets zeros in the panel.
        """
        f = self.f
        if self.numeric.activation == "f32":
            place = f.at(pointer, offset)
            return [
                self._arithmetic.splat(f.load("float", place, 4 * number, align=4))
                for number in range(self.numeric.group)
            ]
        if half and self.numeric.group == 2:
            word = f.convert("zext", f.load("i16", pointer, offset, align=2), "i32")
        else:
            word = f.load("i32", pointer, offset, align=self.numeric.activation_bytes)
        return self.parts_of(self._arithmetic.splat(word))

    def load_vectors(self, pointer: Value) -> list[Value]:
        """Load the weights of one group of values for one vector of results: a vector a part."""
        right = Side(pointer, self.step_bytes, align=min(64, self.isa.vector_bytes))
        return [self._vector(right, part, None) for part in range(self.numeric.parts)]

    def parts_of(self, group: Value) -> list[Value]:
        """Return 32-bit lanes of the left side as what each part's instruction multiplies."""
        f = self.f
        if group.type == self._weight_type:
            return [group]
        values = f.convert("bitcast", group, self._weight_type)
        if self.numeric.parts == 1:
            return [values]
        pairs = self.isa.lanes * 2
        even = f.binary("and", values, splat_integer(0x00FF, pairs, "i16"))
        return [even, f.binary("lshr", values, splat_integer(8, pairs, "i16"))]

    def multiply_add(self, total: Value, value: Value, vector: Value) -> Value:
        """Return a sum with the product of one part added."""
        f, lanes = self.f, self.isa.lanes
        match self.numeric.name:
            case "f32" | "bf16_wide":
                return f.intrinsic(f"llvm.fma.v{lanes}f32", total.type, [value, vector, total])
            case "bf16" if not self.isa.has_bf16:
                return self._multiply_pairs(total, value, vector)
            case "bf16":
                assert lanes == 16, "the instruction has 512-bit registers"
                name = "llvm.x86.avx512bf16.dpbf16ps.512"
                return f.intrinsic(name, total.type, [total, value, vector])
            case "u8s8":
                name = "llvm.x86.avx512.vpdpbusd.512"
                return f.intrinsic(name, total.type, [total, value, vector])
            case "u8s8_wide":
                name = "llvm.x86.avx2.pmadd.wd" if lanes == 8 else "llvm.x86.avx512.pmaddw.d.512"
                return f.binary("add", total, f.intrinsic(name, total.type, [value, vector]))

    def _halves(self, pairs: Value) -> list[Value]:
        """Return the two bfloat16 of every lane in float32, the lower one first."""
        f, type_ = self.f, f"<{self.isa.lanes} x float>"
        low = f.binary("shl", pairs, splat_integer(16, self.isa.lanes))
        high = f.binary("and", pairs, splat_integer(-(1 << 16), self.isa.lanes))
        return [f.convert("bitcast", low, type_), f.convert("bitcast", high, type_)]

    def _multiply_pairs(self, total: Value, value: Value, vector: Value) -> Value:
        """Add the products of pairs where no instruction does: the upper ones first, as it does."""
        upper, lower = splat_integer(-(1 << 16), self.isa.lanes), splat_integer(16, self.isa.lanes)
        for operation, bits in (("and", upper), ("shl", lower)):
            a, b = (
                self.f.convert("bitcast", self.f.binary(operation, pairs, bits), total.type)
                for pairs in (value, vector)
            )
            total = self._arithmetic.math.fma(a, b, total)
        return total


def prefetch_line(
    f: Function, pointer: Value, level: Literal[1, 2, "once"] = 2, *, is_written: bool = False
) -> None:
    """Ask for a cache line to be brought into the first- or second-level cache.

    `once`: into the first, and no further when it leaves that, for it is not read again.
    """
    locality = constant("i32", 0 if level == "once" else 4 - level)
    name = f.module.declare("llvm.prefetch.p0", "void", ["ptr", "i32", "i32", "i32"])
    f.call_void(name, [pointer, constant("i32", int(is_written)), locality, constant("i32", 1)])
