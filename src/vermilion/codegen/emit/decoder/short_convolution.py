"""A causal convolution over the last few positions, each number on its own, between two gates.

What is remembered of a position is `before · value`; it lies where another layer has its keys and
values: the first half of the numbers among the keys, the second among the values, position after
position. So sequences are cut, copied and taken back as everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.decoder.control import LENGTH, PAST, ROOM, Control
from vermilion.codegen.emit.decoder.weights import LANES
from vermilion.codegen.emit.values import Value, constant, float_constant
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa
from vermilion.codegen.tensor import STORAGE_BYTES, Storage


@dataclass(frozen=True)
class RememberedRows:
    """How positions lie in the cache: `width` numbers, half of them in each of its two parts."""

    storage: Storage
    width: int

    @property
    def half(self) -> int:
        """Numbers of a position in each part."""
        return self.width // 2

    @property
    def row_bytes(self) -> int:
        """Bytes of a position in each part."""
        return self.half * STORAGE_BYTES[self.storage]


@dataclass(frozen=True)
class RememberSpec:
    """`cache = before · value` of each row. Arguments: control, before, value, both parts.

    `rows` are the numbers from one row to the next of what it reads.
    """

    cache: RememberedRows
    rows: tuple[int, int]
    max_rows: int

    family = "remembered_rows"

    @property
    def units(self) -> int:
        """One unit a row."""
        return self.max_rows

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, pointers, (begin, end) = begin_kernel(module, name, 5)
        control, arithmetic = Control(f, pointers[0]), Arithmetic(f, LANES)
        with f.loop(*control.share(begin, end, self.units, control.rows)) as row:
            position, room = _place(f, control, row)
            read = [
                f.at(pointer, f.multiply(row, 4 * step))
                for pointer, step in zip(pointers[1:3], self.rows, strict=True)
            ]
            place = f.multiply(f.add(room, position), self.cache.row_bytes)
            for part, pointer in enumerate(pointers[3:]):
                target = f.at(pointer, place)
                with f.loop(0, self.cache.half, LANES) as at:
                    offset = f.multiply(f.add(at, part * self.cache.half), 4)
                    values = [arithmetic.load("f32", f.at(one, offset)) for one in read]
                    size = self.cache.row_bytes // self.cache.half
                    arithmetic.store(
                        self.cache.storage, arithmetic.math.multiply(*values),
                        f.at(target, f.multiply(at, size)),
                    )  # fmt: skip
        f.finish()


@dataclass(frozen=True)
class ConvolutionSpec:
    """`out = after · (Σ_k taps[k] · cache of k positions ago + bias)` of each row.

    Arguments: control, after, both parts of the cache, taps (count, width), bias if any, out.
    `row` and `out_row` are the numbers from one row to the next of what it reads and writes.
    """

    cache: RememberedRows
    taps: int
    row: int
    out_row: int
    max_rows: int
    has_bias: bool = False

    family = "short_convolution"

    @property
    def units(self) -> int:
        """One unit a row."""
        return self.max_rows

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, pointers, (begin, end) = begin_kernel(module, name, 6 + self.has_bias)
        control, arithmetic = Control(f, pointers[0]), Arithmetic(f, LANES)
        after, *parts = pointers[1:4]
        taps, *bias, out = pointers[4:]
        m, cache = arithmetic.math, self.cache
        size = cache.row_bytes // cache.half
        with f.loop(*control.share(begin, end, self.units, control.rows)) as row:
            position, room = _place(f, control, row)
            gate, target = (
                f.at(pointer, f.multiply(row, 4 * step))
                for pointer, step in ((after, self.row), (out, self.out_row))
            )
            # Before the first position there are zeros: what is read in their place counts nothing.
            places, shares = [], []
            for ago in range(self.taps):
                there = f.compare("sge", position, constant("i64", ago))
                own = f.select(there, f.subtract(position, ago), constant("i64", 0))
                places.append(f.multiply(f.add(room, own), cache.row_bytes))
                one = f.select(there, float_constant(1.0), float_constant(0.0))
                shares.append(arithmetic.splat(one))
            for part, pointer in enumerate(parts):
                with f.loop(0, cache.half, LANES) as at:
                    number = f.add(at, part * cache.half)
                    offset = f.multiply(number, 4)
                    total = Value(m.type, "zeroinitializer")
                    if bias:
                        total = arithmetic.load("f32", f.at(bias[0], offset))
                    for ago, (place, share) in enumerate(zip(places, shares, strict=True)):
                        there = f.at(f.at(pointer, place), f.multiply(at, size))
                        tap = f.at(f.at(taps, ago * cache.width * 4), offset)
                        own = m.multiply(arithmetic.load("f32", tap), share)
                        total = m.fma(own, arithmetic.load(cache.storage, there), total)
                    value = m.multiply(total, arithmetic.load("f32", f.at(gate, offset)))
                    arithmetic.store("f32", value, f.at(target, offset))
        f.finish()


def _place(f: Function, control: Control, row: Value) -> tuple[Value, Value]:
    """Return a row's position in its sequence, and where the sequence's room begins."""
    length = control.word(LENGTH)
    sequence = control.sequence(f.binary("udiv", row, length))
    position = f.add(f.binary("urem", row, length), sequence.word(PAST))
    return position, sequence.word(ROOM)
