"""Rounding to block floating point: 8 values share the exponent of the largest of them.

Source: AMD Quark for ONNX 0.13, `BFPQuantizeDequantize` with 16 bits and blocks of 8: with E the
largest 8-bit exponent of a block (those of infinity and NaN left out, which pass through), values
become multiples of 2^(E - 133), half to even, and at most 127 of them.

All is done on the bits of float32, without a division: adding 1.5·2^23 steps and taking them away
again leaves whole steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.rows import each_vector, element, for_vectors, outer_rows
from vermilion.codegen.emit.values import Value, constant, splat_integer
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa
from vermilion.codegen.tensor import STORAGE_BYTES, Storage

BLOCK = 8
# Elements that one unit of work rounds where rows are long.
_UNIT_ELEMENTS = 4096

_EXPONENT, _MAGNITUDE, _QUIET = 0x7F800000, 0x7FFFFFFF, 0x00400000
_FIELD = 1 << 23  # one step of the exponent
# 1.5·2^23 steps of 2^(E - 133) have the exponent E + 17.
_MAGIC = 17 * _FIELD + _QUIET
# 127 steps: 1.984375·2^(E - 127); of a block of subnormal numbers, 127·2^-133.
_MOST, _MOST_SUBNORMAL = 0x007E0000, 0x007F0000
# From this exponent on, E + 17 is none: such blocks are rounded 2^64 times smaller.
_LARGE, _SHIFT = 200 * _FIELD, 64


@dataclass(frozen=True)
class BlockRoundingSpec:
    """Blocks along one dimension of `size` values, or along several rows that follow each other.

    `outer` are the other dimensions: (size, (input stride, output stride)). With `stride` 1 vectors
    run along the blocks; else across them, along the last of `outer`, which is dense.
    """

    storage: Storage
    out_storage: Storage
    outer: tuple[tuple[int, tuple[int, int]], ...]
    size: int
    stride: int
    out_stride: int

    family = "block_rounding"

    @property
    def _is_along(self) -> bool:
        return self.stride == 1 and self.out_stride == 1

    @property
    def _rows(self) -> tuple[tuple[int, tuple[int, int]], ...]:
        return self.outer if self._is_along else self.outer[:-1]

    @property
    def _pieces(self) -> int:
        """Units of one row of blocks."""
        return max(1, -(-self.size // _UNIT_ELEMENTS)) if self._is_along else 1

    @property
    def _rows_in_unit(self) -> int:
        width = self.size if self._is_along else self.size * self.outer[-1][0]
        return max(1, _UNIT_ELEMENTS // max(1, width)) if self._pieces == 1 else 1

    @property
    def units(self) -> int:
        """Units of work: pieces of a long row, or some short ones."""
        rows = math.prod(size for size, _ in self._rows)
        return -(-rows // self._rows_in_unit) * self._pieces

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, pointers, (begin, end) = begin_kernel(module, name, 2)
        writer = _Writer(self, f, Arithmetic(f, isa.lanes))
        sizes = (STORAGE_BYTES[self.storage], STORAGE_BYTES[self.out_storage])
        rows = math.prod(size for size, _ in self._rows)
        if self._pieces > 1:
            with f.loop(begin, end) as unit:
                row, piece = f.divide(unit, self._pieces), f.remainder(unit, self._pieces)
                start = f.multiply(piece, _UNIT_ELEMENTS)
                moved = outer_rows(f, row, self._rows, pointers, sizes)
                count = f.minimum(f.subtract(constant("i64", self.size), start), _UNIT_ELEMENTS)
                writer.piece(moved, start, count)
        else:
            first = f.multiply(begin, self._rows_in_unit)
            last = f.minimum(f.multiply(end, self._rows_in_unit), rows)
            with f.loop(first, last) as row:
                moved = outer_rows(f, row, self._rows, pointers, sizes)
                if self._is_along:
                    writer.along(moved)
                else:
                    writer.across(moved)
        f.finish()


class _Writer:
    """Writes the loops over one row of blocks, and the rounding of a block."""

    def __init__(self, spec: BlockRoundingSpec, f: Function, arithmetic: Arithmetic) -> None:
        self.spec, self.f, self.arithmetic = spec, f, arithmetic
        self.lanes = arithmetic.lanes
        self.integers, self.floats = arithmetic.type("int"), arithmetic.type("float")

    # Loops ------------------------------------------------------------------------------------

    def along(self, pointers: Sequence[Value]) -> None:
        """Round a row whose blocks lie in vectors."""
        for_vectors(
            self.f, self.arithmetic, self.spec.size,
            lambda at, mask, _: self._vector(pointers, at, mask),
        )  # fmt: skip

    def piece(self, pointers: Sequence[Value], start: Value, count: Value) -> None:
        """Round `count` values of a long row; only the last piece has a vector that is not full."""
        for at, mask in each_vector(self.arithmetic, count):
            self._vector(pointers, self.f.add(start, at), mask)

    def across(self, pointers: Sequence[Value]) -> None:
        """Round blocks that lie across vectors, which run along the last outer dimension."""
        for at, mask in each_vector(self.arithmetic, self.spec.outer[-1][0]):
            self._column(pointers, at, mask)

    def _column(self, pointers: Sequence[Value], at: Value, mask: Value | None) -> None:
        s, f = self.spec, self.f
        full = s.size - s.size % BLOCK
        if full:
            with f.loop(0, full, BLOCK) as first:
                self._block(pointers, first, BLOCK, at, mask)
        if s.size % BLOCK:
            self._block(pointers, constant("i64", full), s.size % BLOCK, at, mask)

    def _block(
        self, pointers: Sequence[Value], first: Value, count: int, at: Value, mask: Value | None
    ) -> None:
        s, f, (come, go) = self.spec, self.f, pointers
        steps = [f.add(first, k) for k in range(count)]
        values = [self._load(element(f, s.storage, come, k, s.stride), at, mask) for k in steps]
        largest = self._finite(values[0])
        for value in values[1:]:
            largest = self._greater(largest, self._finite(value))
        scale = self._scale(largest)
        for k, value in zip(steps, values, strict=True):
            row = element(f, s.out_storage, go, k, s.out_stride)
            self._store(self._rounded(value, scale), row, at, mask)

    def _vector(self, pointers: Sequence[Value], at: Value, mask: Value | None) -> None:
        value = self._load(pointers[0], at, mask)
        largest = self._finite(value)
        for distance in (4, 2, 1):
            order = ", ".join(f"i32 {lane ^ distance}" for lane in range(self.lanes))
            other = self.f.emit(
                self.integers,
                f"shufflevector {largest}, {largest}, <{self.lanes} x i32> <{order}>",
            )
            largest = self._greater(largest, other)
        self._store(self._rounded(value, self._scale(largest)), pointers[1], at, mask)

    # Memory -----------------------------------------------------------------------------------

    def _load(self, row: Value, at: Value, mask: Value | None) -> Value:
        """Load a vector as the bits of float32; lanes outside the mask are zero."""
        place = element(self.f, self.spec.storage, row, at)
        value = self.arithmetic.load(self.spec.storage, place, mask=mask)
        return self.f.convert("bitcast", value, self.integers)

    def _store(self, bits: Value, row: Value, at: Value, mask: Value | None) -> None:
        """Store a vector of bits; a bfloat16 is their upper half, since seven are used."""
        storage = self.spec.out_storage
        place = element(self.f, storage, row, at)
        if storage == "bf16":
            half = self.f.binary("lshr", bits, self._number(16))
            self.arithmetic.store("s16", half, place, mask=mask)
        else:
            value = self.f.convert("bitcast", bits, self.floats)
            self.arithmetic.store(storage, value, place, mask=mask)

    # Arithmetic on bits -------------------------------------------------------------------------

    def _number(self, value: int) -> Value:
        return splat_integer(value, self.lanes)

    def _greater(self, a: Value, b: Value) -> Value:
        return self.f.intrinsic(f"llvm.smax.v{self.lanes}i32", self.integers, [a, b])

    def _magnitude(self, bits: Value) -> Value:
        return self.f.binary("and", bits, self._number(_MAGNITUDE))

    def _finite(self, bits: Value) -> Value:
        """Return the magnitude, 0 of what is infinite or NaN."""
        magnitude = self._magnitude(bits)
        is_finite = self.f.compare("slt", magnitude, self._number(_EXPONENT))
        return self.f.select(is_finite, magnitude, self._number(0))

    def _scale(self, largest: Value) -> tuple[Value, Value, Value, Value]:
        """Return what a block is multiplied by before and after, the magic number, the most."""
        f, number = self.f, self._number
        top = f.binary("and", largest, number(_EXPONENT))
        is_large = f.compare("sge", top, number(_LARGE))
        lowered = f.binary("sub", top, number(_SHIFT * _FIELD))
        base = f.select(is_large, lowered, top)
        math_ = self.arithmetic.math
        one = math_.number(1.0)
        before = f.select(is_large, math_.number(2.0**-_SHIFT), one)
        after = f.select(is_large, math_.number(2.0**_SHIFT), one)
        magic = f.convert("bitcast", f.binary("add", base, number(_MAGIC)), self.floats)
        is_normal = f.compare("sgt", top, number(0))
        steps = f.select(is_normal, number(_MOST), number(_MOST_SUBNORMAL))
        most = f.convert("bitcast", f.binary("or", base, steps), self.floats)
        return before, after, magic, most

    def _rounded(self, bits: Value, scale: tuple[Value, Value, Value, Value]) -> Value:
        f, math_ = self.f, self.arithmetic.math
        before, after, magic, most = scale
        magnitude = self._magnitude(bits)
        value = math_.multiply(f.convert("bitcast", magnitude, self.floats), before)
        whole = math_.subtract(math_.add(value, magic), magic)
        bounded = math_.multiply(math_.minimum(whole, most), after)
        sign = f.binary("xor", bits, magnitude)
        result = f.binary("or", f.convert("bitcast", bounded, self.integers), sign)
        # Infinity and NaN as they are, a NaN so that its upper half is one too.
        is_nan = f.compare("sgt", magnitude, self._number(_EXPONENT))
        kept = f.binary("or", bits, f.select(is_nan, self._number(_QUIET), self._number(0)))
        is_finite = f.compare("slt", magnitude, self._number(_EXPONENT))
        return f.select(is_finite, result, kept)
