"""Packing the right side of a matrix product that is only known when the model runs.

The result has the order of `MatmulSpec`'s panels. A unit packs one vector of columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.values import Index, Value, constant, splat_integer
from vermilion.codegen.emit.walk import begin_kernel, positions
from vermilion.codegen.isa import Isa
from vermilion.codegen.numeric import NUMERICS, NumericName
from vermilion.codegen.tensor import STORAGE_BYTES, Storage
from vermilion.ir.symbolic import is_known, is_one


@dataclass(frozen=True)
class PackSpec:
    """Matrices (depth × columns) with any strides → panels of `tile_vectors` vectors of columns.

    `outer` are the sizes and strides of the batch's dimensions. 16-bit storage is packed in pairs
    along the depth, 8-bit storage in quads; what has no pair or quad stands beside zeros. Numbers
    without a sign are packed 128 lower. Columns of 8-bit storage lie side by side.
    """

    numeric: NumericName
    storage: Storage
    lanes: int
    outer: tuple[tuple[int, int], ...]
    depth: int
    columns: int
    depth_stride: int
    column_stride: int
    tile_vectors: int

    family = "pack"

    @property
    def vectors(self) -> int:
        """Vectors of columns."""
        return -(-self.columns // self.lanes)

    @property
    def steps(self) -> int:
        """Groups of the depth."""
        return -(-self.depth // NUMERICS[self.numeric].group)

    @property
    def units(self) -> int:
        """One unit a matrix and vector of columns."""
        return math.prod(size for size, _ in self.outer) * self.vectors

    @property
    def matrix_elements(self) -> int:
        """32-bit elements of a packed matrix."""
        return self.steps * self.vectors * self.lanes * NUMERICS[self.numeric].parts

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, (source, target), (begin, end) = begin_kernel(module, name, 2)
        size = STORAGE_BYTES[self.storage]
        with f.loop(begin, end) as unit:
            *where, vector = positions(f, unit, (*(n for n, _ in self.outer), self.vectors))
            come, matrix = source, f.divide(unit, self.vectors)
            for index, (_, stride) in zip(where, self.outer, strict=True):
                come = f.at(come, f.multiply(index, stride * size))
            come = f.at(come, f.multiply(vector, self.lanes * self.column_stride * size))
            go = f.at(target, f.multiply(matrix, self.matrix_elements * 4))
            self._strip(f, isa, come, go, f.index(vector))
        f.finish()

    def _strip(self, f: Function, isa: Isa, come: Value, go: Value, vector: Value) -> None:
        """Pack one vector of columns; it is `step_bytes` from one group to the next."""
        vector_bytes = NUMERICS[self.numeric].parts * isa.vector_bytes
        if self.tile_vectors == 1:
            start = f.at(go, f.multiply(vector, self.steps * vector_bytes))
            left = f.subtract(self.columns, f.multiply(vector, self.lanes))
            _Strip(self, f, isa, vector_bytes, left).write(come, start)
            return
        whole = self.vectors - self.vectors % self.tile_vectors
        block = f.divide(vector, self.tile_vectors)
        within = f.remainder(vector, self.tile_vectors)
        block_bytes = self.steps * self.tile_vectors * vector_bytes
        start = f.at(go, f.multiply(block, block_bytes))
        start = f.at(start, f.multiply(within, vector_bytes))
        left = f.subtract(self.columns, f.multiply(vector, self.lanes))
        for first, is_there, width in (
            ("slt", whole > 0, self.tile_vectors),
            ("sge", whole < self.vectors, self.vectors - whole),
        ):
            if is_there:
                with f.when(f.compare(first, vector, constant("i64", whole))):
                    _Strip(self, f, isa, width * vector_bytes, left).write(come, start)


class _Strip:
    """The loop that packs one vector of columns along the whole depth."""

    def __init__(self, spec: PackSpec, f: Function, isa: Isa, step_bytes: int, left: Value) -> None:
        self.spec = spec
        self.f = f
        self.lanes = isa.lanes
        self.step_bytes = step_bytes
        self.left = left  # columns from this vector on
        self.arithmetic = Arithmetic(f, isa.lanes)
        self.is_pairs = NUMERICS[spec.numeric].group == 2

    def write(self, come: Value, go: Value) -> None:
        """Choose the way that suits the strides."""
        s = self.spec
        mask = self.arithmetic.tail_mask(self.left) if self._has_tail else None
        if NUMERICS[s.numeric].group == 4:
            self._quads(come, go, mask)
        elif is_one(s.column_stride) or is_one(s.columns):
            self._rows(come, go, mask)
        elif is_one(s.depth_stride) and is_known(s.depth):
            self._transposed(come, go)
        else:
            self._strided(come, go, mask)

    @property
    def _has_tail(self) -> bool:
        """Whether the last vector may have fewer columns."""
        return not is_known(self.spec.columns) or bool(self.spec.columns % self.lanes)

    def _store(self, value: Value, go: Value, step: Index) -> None:
        self.f.store(value, self.f.at(go, self.f.multiply(step, self.step_bytes)), align=4)

    def _raw(self, place: Value, mask: Value | None) -> Value:
        """Load a vector of columns as bits: 32 or 16 a lane."""
        f, lanes, s = self.f, self.lanes, self.spec
        element = "i32" if STORAGE_BYTES[s.storage] == 4 else "i16"
        type_ = f"<{lanes} x {element}>"
        if is_one(s.column_stride) or is_one(s.columns):
            if mask is None:
                return f.load(type_, place, align=1)
            name = f"llvm.masked.load.v{lanes}{element}.p0"
            f.module.declare(name, type_, ["ptr", mask.type, type_])
            return f.call(name, type_, [place, mask, Value(type_, "zeroinitializer")])
        stride = s.column_stride if is_known(s.column_stride) else f.index(s.column_stride)
        value = self.arithmetic.load_strided(
            "i32" if element == "i32" else "u16", place, stride, mask=mask
        )
        return value if element == "i32" else f.convert("trunc", value, type_)

    def _rows(self, come: Value, go: Value, mask: Value | None) -> None:
        """Columns lie side by side: whole vectors, two of them interleaved for pairs."""
        f, s = self.f, self.spec
        size = STORAGE_BYTES[s.storage]
        if not self.is_pairs:
            with f.loop(0, s.depth) as k:
                value = self._raw(f.at(come, f.multiply(k, s.depth_stride * size)), mask)
                self._store(self._as_float(value), go, k)
            return
        with f.loop(0, s.depth // 2) as pair:
            first = f.at(come, f.multiply(pair, 2 * s.depth_stride * size))
            second = f.at(first, s.depth_stride * size)
            self._store(self._pair(self._raw(first, mask), self._raw(second, mask)), go, pair)
        if is_known(s.depth):
            if s.depth % 2:
                self._half(come, go, mask)
            return
        with f.when(f.compare("ne", f.index(s.depth % 2), constant("i64", 0))):
            self._half(come, go, mask)

    def _half(self, come: Value, go: Value, mask: Value | None) -> None:
        """Pack a last row that has no pair."""
        f, s = self.f, self.spec
        last = f.at(come, (s.depth - 1) * s.depth_stride * STORAGE_BYTES[s.storage])
        low = self._raw(last, mask)
        self._store(self._pair(low, Value(low.type, "zeroinitializer")), go, s.depth // 2)

    _strided = _rows

    def _quads(self, come: Value, go: Value, mask: Value | None) -> None:
        """Four rows of columns side by side; behind the last row stand zeros."""
        f, s = self.f, self.spec
        with f.loop(0, s.depth // 4) as step:
            first = f.at(come, f.multiply(step, 4 * s.depth_stride))
            rows = [self._byte(f.at(first, k * s.depth_stride), mask) for k in range(4)]
            self._store_quad(rows, go, step)
        if is_known(s.depth):
            if s.depth % 4:
                self._last_quad(come, go, mask)
            return
        with f.when(f.compare("ne", f.index(s.depth % 4), constant("i64", 0))):
            self._last_quad(come, go, mask)

    def _last_quad(self, come: Value, go: Value, mask: Value | None) -> None:
        f, s = self.f, self.spec
        whole = s.depth // 4
        rest, last = f.index(s.depth % 4), f.at(come, f.multiply(whole, 4 * s.depth_stride))
        zero = Value(self.arithmetic.type("int"), "zeroinitializer")
        rows = [self._byte(last, mask)]
        for k in range(1, 4):
            at = f.minimum(k, f.subtract(rest, 1))  # a row that is there
            row = self._byte(f.at(last, f.multiply(at, s.depth_stride)), mask)
            is_there = f.compare("slt", constant("i64", k), rest)
            rows.append(f.select(is_there, row, zero))
        self._store_quad(rows, go, whole)

    def _byte(self, place: Value, mask: Value | None) -> Value:
        """Load a vector of 8-bit columns as int32, 128 lower where they have no sign."""
        storage = self.spec.storage
        value = self.arithmetic.load(storage, place, mask=mask)
        if storage == "s8":
            return value
        return self.f.binary("sub", value, splat_integer(128, self.lanes))

    def _store_quad(self, rows: Sequence[Value], go: Value, step: Index) -> None:
        """Store four rows as the bytes of each lane, or as two pairs of 16 bits: (0, 2), (1, 3)."""
        f = self.f
        place = f.at(go, f.multiply(step, self.step_bytes))
        bits = 32 // 4 * NUMERICS[self.spec.numeric].parts
        kept = splat_integer((1 << bits) - 1, self.lanes)
        parts = [rows[0::2], rows[1::2]] if bits == 16 else [rows]
        for number, members in enumerate(parts):
            word = f.binary("and", members[0], kept)
            for at, member in enumerate(members[1:], 1):
                low = f.binary("and", member, kept)
                word = f.binary(
                    "or", word, f.binary("shl", low, splat_integer(at * bits, self.lanes))
                )
            f.store(word, place, number * self.lanes * 4, align=4)

    def _as_float(self, value: Value) -> Value:
        """Widen 16-bit bits of a bfloat16 where the product is in float32."""
        if self.spec.storage != "bf16":
            return value
        wide = self.f.convert("zext", value, f"<{self.lanes} x i32>")
        return self.f.binary("shl", wide, Value(wide.type, _splat("i32 16", self.lanes)))

    def _pair(self, low: Value, high: Value) -> Value:
        """Return low and high 16 bits side by side in each 32-bit lane."""
        order = ", ".join(f"i32 {i}, i32 {i + self.lanes}" for i in range(self.lanes))
        return self.f.emit(
            f"<{2 * self.lanes} x i16>",
            f"shufflevector {low}, {high}, <{2 * self.lanes} x i32> <{order}>",
        )

    def _transposed(self, come: Value, go: Value) -> None:
        """The depth lies side by side: squares of 32-bit elements, transposed in registers."""
        f, s, lanes = self.f, self.spec, self.lanes
        if s.storage == "bf16" and not self.is_pairs:
            self._rows(come, go, self.arithmetic.tail_mask(self.left))
            return
        whole, rest = divmod(self.spec.steps, lanes)
        odd = s.depth % NUMERICS[s.numeric].group
        if odd and not rest:
            whole, rest = whole - 1, lanes
        with f.loop(0, whole) as square:
            step = f.multiply(square, lanes)
            self._square(
                f.at(come, f.multiply(step, 4)),
                f.at(go, f.multiply(step, self.step_bytes)),
                lanes,
                odd=False,
            )
        if rest:
            step_at = whole * lanes
            self._square(
                f.at(come, step_at * 4), f.at(go, step_at * self.step_bytes), rest, odd=bool(odd)
            )

    def _square(self, come: Value, go: Value, steps: int, *, odd: bool) -> None:
        f, s, lanes = self.f, self.spec, self.lanes
        type_ = f"<{lanes} x i32>"
        rows = []
        size = STORAGE_BYTES[s.storage]
        for lane in range(lanes):
            # A column beyond the last gives the last again; nobody reads what it is packed to.
            inside = f.minimum(lane, f.subtract(self.left, 1)) if self._has_tail else lane
            place = f.at(come, f.multiply(inside, s.column_stride * size))
            if steps == lanes and not odd:
                rows.append(f.load(type_, place, align=1))
            else:
                rows.append(self._partial(place, steps, odd))
        for step, vector in enumerate(_transpose(f, rows)[:steps]):
            self._store(vector, go, step)

    def _partial(self, place: Value, steps: int, odd: bool) -> Value:
        """Load fewer than a vector of groups; the last may be half a pair."""
        f, lanes = self.f, self.lanes
        arithmetic = self.arithmetic
        whole = steps - odd
        value = Value(f"<{lanes} x i32>", "zeroinitializer")
        if whole:
            value = arithmetic.load("i32", place, mask=arithmetic.tail_mask(whole))
        if odd:
            half = f.convert("zext", f.load("i16", place, 4 * whole, align=1), "i32")
            value = f.emit(value.type, f"insertelement {value}, {half}, i32 {whole}")
        return value


def _splat(item: str, lanes: int) -> str:
    return "<" + ", ".join([item] * lanes) + ">"


def _transpose(f: Function, rows: list[Value]) -> list[Value]:
    """Return the columns of a square of vectors, by exchanging halves of pairs of rows."""
    lanes = len(rows)
    distance = 1
    while distance < lanes:
        low = [(i // distance % 2) * lanes + i - (i // distance % 2) * distance
               for i in range(lanes)]  # fmt: skip
        high = [(i // distance % 2) * lanes + i + (1 - i // distance % 2) * distance
                for i in range(lanes)]  # fmt: skip
        result = list(rows)
        for i in range(lanes):
            if i & distance:
                continue
            a, b = rows[i], rows[i + distance]
            result[i] = _shuffle(f, a, b, low)
            result[i + distance] = _shuffle(f, a, b, high)
        rows = result
        distance *= 2
    return rows


def _shuffle(f: Function, a: Value, b: Value, order: list[int]) -> Value:
    places = ", ".join(f"i32 {i}" for i in order)
    return f.emit(a.type, f"shufflevector {a}, {b}, <{len(order)} x i32> <{places}>")
