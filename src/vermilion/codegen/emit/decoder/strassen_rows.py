"""Rows of activations → the seven left sums of quarters that Strassen's products read.

Row r of the first half of the rows is joined with row r of the second. What a sum is rounded by
goes to both, so each row is first brought near 1 by a power of two: a row of large numbers (the
first token of a sequence has some) would else leave nothing of the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.decoder.activation_layout import ActivationLayout
from vermilion.codegen.emit.decoder.control import Control
from vermilion.codegen.emit.decoder.lanes import narrow_pairs, signed_sum, widened_pairs
from vermilion.codegen.emit.decoder.row import lanes_sum
from vermilion.codegen.emit.decoder.weights import LANES
from vermilion.codegen.emit.values import Value, constant, float_constant, splat_integer
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa
from vermilion.codegen.strassen import PRODUCTS

_EXPONENT, _EXPONENT_AT = 0xFF, 23


@dataclass(frozen=True)
class HalvedRows:
    """How the sums of rows of `width` numbers lie in memory, and of at most how many rows.

    A run of the depth after the other; in it one sum after the other, and of each its rows. Then
    for each row the float32 that its results are to be multiplied with.
    """

    width: int
    run: int
    max_rows: int

    @property
    def depth(self) -> int:
        """Numbers of a half row."""
        return self.width // 2

    @property
    def runs(self) -> int:
        """Runs of the depth."""
        return -(-self.depth // self.run)

    @property
    def part(self) -> ActivationLayout:
        """A run of a row as a product reads it."""
        return ActivationLayout("bf16", self.run)

    @property
    def sum_bytes(self) -> int:
        """Bytes of a run of one sum."""
        return self.max_rows // 2 * self.part.row_bytes

    @property
    def run_bytes(self) -> int:
        """Bytes of a run of all sums."""
        return len(PRODUCTS) * self.sum_bytes

    @property
    def factors_at(self) -> int:
        """Bytes before the factors: those of the first half of the rows, then of the second."""
        return self.runs * self.run_bytes

    @property
    def half_factors_bytes(self) -> int:
        """Bytes of the factors of half of the rows."""
        return self.max_rows // 2 * 4

    @property
    def size_bytes(self) -> int:
        """Bytes in all."""
        return self.factors_at + 2 * self.half_factors_bytes


def half_of(f: Function, rows: Value) -> Value:
    """Return the rows of a half: four at a time, and at most as many as there are buffers for."""
    return f.multiply(f.divide(f.add(rows, 7), 8), 4)


@dataclass(frozen=True)
class HalvedRowsSpec:
    """Sums of rows in bfloat16. Arguments: control, rows, sums.

    It does nothing for less than `least_rows`. A row that is not there counts as zeros; one with
    numbers that are none as well, and its factor is none.
    """

    rows: ActivationLayout
    form: HalvedRows
    least_rows: int

    family = "halved_rows"

    @property
    def units(self) -> int:
        """One unit a pair of rows."""
        return self.form.max_rows // 2

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        form = self.form
        assert form.max_rows % 8 == 0, "halves are whole fours"
        assert form.depth % 32 == 0 == form.run % 32, "runs are whole vectors"
        f, (control, rows, sums), (begin, end) = begin_kernel(module, name, 3)
        count = Control(f, control).rows
        half = half_of(f, count)
        is_many = f.compare("sge", count, f.index(self.least_rows))
        pairs = f.select(is_many, half, f.index(0))
        with f.loop(*Control(f, control).share(begin, end, self.units, pairs)) as row:
            _Pair(self, f, rows, sums).write(row, f.add(row, half), count)
        f.finish()


@dataclass(frozen=True)
class _Row:
    """Where a row is, what its numbers are multiplied with, and which bits of them count."""

    pointer: Value
    scale: Value
    mask: Value


class _Pair:
    def __init__(self, spec: HalvedRowsSpec, f: Function, rows: Value, sums: Value) -> None:
        self.spec = spec
        self.f = f
        self.rows = rows
        self.sums = sums
        self.arithmetic = Arithmetic(f, LANES)

    def write(self, top: Value, bottom: Value, count: Value) -> None:
        """Write the sums of a row of the first half and one of the second, and their factors."""
        f, form = self.f, self.spec.form
        own = f.multiply(top, form.part.row_bytes)
        halves = [self._row(row, top, number, count) for number, row in enumerate((top, bottom))]
        with f.loop(0, form.depth, 2 * LANES) as at:
            quarters = []
            for row in halves:
                for first in (0, form.depth):
                    place = f.at(row.pointer, f.multiply(f.add(at, first), 2))
                    quarters.append(self._numbers(row, place))
            run = f.at(self.sums, f.multiply(f.divide(at, form.run), form.run_bytes))
            place = f.at(f.at(run, own), f.multiply(f.remainder(at, form.run), 2))
            for number, (terms, _) in enumerate(PRODUCTS):
                pair = [
                    signed_sum(self.arithmetic.math, [quarter[turn] for quarter in quarters], terms)
                    for turn in range(2)
                ]
                f.store(narrow_pairs(f, *pair), place, number * form.sum_bytes, align=64)

    def _numbers(self, row: _Row, place: Value) -> list[Value]:
        """Load 32 numbers of a row: those with even places, and those with odd ones."""
        words = self.f.load(f"<{LANES} x i32>", place, align=64)
        kept = self.f.binary("and", words, row.mask)
        return [self.arithmetic.math.multiply(x, row.scale) for x in widened_pairs(self.f, kept)]

    def _row(self, row: Value, number: Value, half: int, count: Value) -> _Row:
        """Return a row of a half, and write its factor."""
        f, form, m = self.f, self.spec.form, self.arithmetic.math
        is_there = f.compare("slt", row, count)
        pointer = f.at(self.rows, f.multiply(row, self.spec.rows.row_bytes))
        squares = f.slot(Value(m.type, "zeroinitializer"))
        with f.loop(0, form.width, 2 * LANES) as at:
            words = f.load(f"<{LANES} x i32>", f.at(pointer, f.multiply(at, 2)), align=64)
            for x in widened_pairs(f, words):
                squares.set(m.fma(x, x, squares.get()))
        mean = f.binary("fmul", lanes_sum(f, squares.get()), float_constant(1.0 / form.width))
        bits = f.convert("bitcast", mean, "i32")
        exponent = f.binary("lshr", bits, constant("i32", _EXPONENT_AT))
        is_number = f.compare("ult", exponent, constant("i32", _EXPONENT))
        # Of the square's exponent, half: of the numbers'.
        power = f.binary(
            "ashr", f.binary("sub", exponent, constant("i32", 127)), constant("i32", 1)
        )
        factor = self._power_of_two(f.binary("add", power, constant("i32", 127)))
        scale = self._power_of_two(f.binary("sub", constant("i32", 127), power))
        factor = f.select(is_number, factor, Value("float", "0x7FF8000000000000"))
        place = f.add(f.multiply(number, 4), form.factors_at + half * form.half_factors_bytes)
        f.store(factor, f.at(self.sums, place), align=4)
        mask = f.select(
            f.binary("and", is_number, is_there), splat_integer(-1, LANES), splat_integer(0, LANES)
        )
        return _Row(pointer, self.arithmetic.splat(scale), mask)

    def _power_of_two(self, biased: Value) -> Value:
        shifted = self.f.binary("shl", biased, constant("i32", _EXPONENT_AT))
        return self.f.convert("bitcast", shifted, "float")
