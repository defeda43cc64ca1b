"""Four products of bytes a lane: codes of weights, unsigned, times codes of rows, signed.

With VNNI an instruction multiplies, adds up and accumulates. Without, `vpmaddubsw` adds pairs of
products in 16 bits, where it saturates: codes are multiplied as halves of four bits, whose sums
stay below that for several quads, and `vpmaddwd` makes 32 bits of them. So results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from vermilion.codegen.emit.builder import Function
from vermilion.codegen.emit.decoder.weights import LANES, BlockWeights
from vermilion.codegen.emit.values import Value, splat_integer
from vermilion.codegen.isa import Isa

# What one byte of a row is at most, and half of a code; a lane of 16 bits has two such products of
# each quad: 2 · 15 · 127 · 8 is 30480.
_MOST_QUADS = 8
# Bytes of a weight in quads: one vector, or its low and its high halves.
Codes = Sequence[Value]
# What the sums of a row begin with: an int32 vector for each vector of columns.
Start = Callable[[int], list[Value]]


class Sums(Protocol):
    """Sums of rows and vectors of columns in one block."""

    def add(self, row: int, vector: int, codes: Codes, four: Value) -> None:
        """Add the products of a quad."""

    def widen(self) -> None:
        """Leave the narrow numbers that some quads were added in, if any."""

    def total(self, row: int, vector: int) -> Value:
        """Return a sum in int32."""


class ByteDot(Protocol):
    """How quads are multiplied in some function, for some weights."""

    @property
    def isa(self) -> Isa:
        """The processor's instructions."""

    @property
    def most_quads(self) -> int | None:
        """Quads after which narrow numbers are left, if there are any."""

    @property
    def sums(self) -> int:
        """Registers that add up a row and a vector of columns in a block."""

    def codes(self, codes: Value, vector: int, quad: int) -> list[Codes]:
        """Load the quads that one vector in memory holds, of the codes of a block."""

    def begin(self, start: Start, rows: int, vectors: int) -> Sums:
        """Return sums of rows and vectors of columns."""


def byte_dot(f: Function, isa: Isa, weights: BlockWeights) -> ByteDot:
    """Return what a processor has for it."""
    return _FourProducts(f, isa, weights) if isa.has_vnni else _PairsOfProducts(f, isa, weights)


@dataclass(frozen=True)
class _Dot:
    f: Function
    isa: Isa
    weights: BlockWeights

    @property
    def _has_halves(self) -> bool:
        """Whether what is multiplied has more than four bits."""
        return self.weights.bits == 8 or self.weights.table is not None

    def _load(self, codes: Value, vector: int, quad: int) -> Value:
        """Load the lanes that hold a quad of a vector of columns."""
        w, lanes = self.weights, self.isa.lanes
        which, column = divmod(vector * lanes, LANES)
        place = which * w.code_bytes + quad * LANES * w.bits // 2 + column * 4
        return self.f.load(f"<{lanes} x i32>", codes, place, align=1)

    def _halves(self, packed: Value) -> list[Value]:
        """Return the low and the high four bits of every byte."""
        f, lanes = self.f, self.isa.lanes
        mask = splat_integer(0x0F0F0F0F, lanes)
        high = f.binary("lshr", packed, splat_integer(4, lanes))
        return [f.binary("and", packed, mask), f.binary("and", high, mask)]

    def _looked_up(self, codes: Value, table: Sequence[int]) -> Value:
        """Return the table's unsigned bytes of the codes in every byte."""
        f, count = self.f, 4 * self.isa.lanes
        bytes_ = f"<{count} x i8>"
        signed = [number - (256 if number >= 128 else 0) for number in table]
        numbers = ", ".join(f"i8 {signed[at % 16]}" for at in range(count))
        places = f.convert("bitcast", codes, bytes_)
        name = "avx512.pshuf.b.512" if self.isa.lanes == LANES else "avx2.pshuf.b"
        found = f.intrinsic(f"llvm.x86.{name}", bytes_, [Value(bytes_, f"<{numbers}>"), places])
        return f.convert("bitcast", found, codes.type)

    @property
    def _table(self) -> list[int]:
        """Numbers of the table, counted from 128."""
        return [number + 128 for number in self.weights.table or ()]


class _FourProducts(_Dot):
    """The instruction of VNNI."""

    most_quads = None
    sums = 1

    def codes(self, codes: Value, vector: int, quad: int) -> list[Codes]:
        packed = self._load(codes, vector, quad)
        if self.weights.bits == 8:
            return [[packed]]
        halves = self._halves(packed)
        if self.weights.table is None:
            return [[half] for half in halves]
        return [[self._looked_up(half, self._table)] for half in halves]

    def begin(self, start: Start, rows: int, vectors: int) -> Sums:
        return _WholeSums(self.f, [start(row) for row in range(rows)])


@dataclass(frozen=True)
class _WholeSums:
    f: Function
    sums: list[list[Value]]

    def add(self, row: int, vector: int, codes: Codes, four: Value) -> None:
        (side,), total = codes, self.sums[row][vector]
        self.sums[row][vector] = self.f.intrinsic(
            "llvm.x86.avx512.vpdpbusd.512", total.type, [total, side, four]
        )

    def widen(self) -> None:
        pass

    def total(self, row: int, vector: int) -> Value:
        return self.sums[row][vector]


class _PairsOfProducts(_Dot):
    """Instructions of AVX2, and the same of AVX-512."""

    most_quads = _MOST_QUADS

    @property
    def sums(self) -> int:
        return 1 + self._has_halves

    def codes(self, codes: Value, vector: int, quad: int) -> list[Codes]:
        halves = self._halves(self._load(codes, vector, quad))
        if self.weights.bits == 8:
            return [halves]
        if self.weights.table is None:
            return [[half] for half in halves]
        low, high = ([number >> at & 15 for number in self._table] for at in (0, 4))
        return [[self._looked_up(half, low), self._looked_up(half, high)] for half in halves]

    def begin(self, start: Start, rows: int, vectors: int) -> Sums:
        counts = rows, vectors, self.sums
        return _PairSums(self.f, self.isa.lanes, start, counts)


class _PairSums:
    """Sums in int32 of what was added in 16 bits: of each row, vector and half of the codes.

    What sums begin with is added last, so that no register holds it meanwhile.
    """

    def __init__(self, f: Function, lanes: int, start: Start, counts: tuple[int, int, int]) -> None:
        rows, vectors, halves = counts
        self.f = f
        self.lanes = lanes
        self.start = start
        self.words = Value(f"<{2 * lanes} x i16>", "zeroinitializer")
        self.slots = [
            [[f.slot(self.words) for _ in range(halves)] for _ in range(vectors)]
            for _ in range(rows)
        ]
        self.wholes: list[list[Value | None]] = [[None] * vectors for _ in range(rows)]

    def add(self, row: int, vector: int, codes: Codes, four: Value) -> None:
        f, bytes_ = self.f, f"<{4 * self.lanes} x i8>"
        name = "avx512.pmaddubs.w.512" if self.lanes == LANES else "avx2.pmadd.ub.sw"
        a, *sides = (f.convert("bitcast", one, bytes_) for one in (four, *codes))
        for slot, side in zip(self.slots[row][vector], sides, strict=True):
            products = f.intrinsic(f"llvm.x86.{name}", self.words.type, [side, a])
            slot.set(f.binary("add", slot.get(), products))

    def widen(self) -> None:
        """Add what is there in 16 bits to the sums."""
        f, type_ = self.f, f"<{self.lanes} x i32>"
        name = "avx512.pmaddw.d.512" if self.lanes == LANES else "avx2.pmadd.wd"
        for slots, wholes in zip(self.slots, self.wholes, strict=True):
            for vector, halves in enumerate(slots):
                for at, slot in enumerate(halves):
                    factor = splat_integer(16**at, 2 * self.lanes, "i16")
                    wide = f.intrinsic(f"llvm.x86.{name}", type_, [slot.get(), factor])
                    before = wholes[vector]
                    wholes[vector] = wide if before is None else f.binary("add", before, wide)
                    slot.set(self.words)

    def total(self, row: int, vector: int) -> Value:
        whole = self.wholes[row][vector]
        assert whole is not None, "a block has quads"
        return self.f.binary("add", whole, self.start(row)[vector])
