"""Weights of a panel → numbers in the order that a register tile reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function
from vermilion.codegen.emit.decoder.activation_layout import ActivationKind, share_exponent
from vermilion.codegen.emit.decoder.block_product import block_at, load_added, load_scale
from vermilion.codegen.emit.decoder.lanes import looked_up, narrow_pairs
from vermilion.codegen.emit.decoder.weights import (
    EIGHT,
    LANES,
    PANEL,
    BlockWeights,
    PlainWeights,
    Weights,
)
from vermilion.codegen.emit.register_tile import prefetch_line
from vermilion.codegen.emit.values import Value, splat_constant, splat_integer

_WORDS = 2 * LANES
_TYPE = f"<{_WORDS} x i16>"
_ODD = (1, 3, 5, 7)
# What the codes count from.
_ZERO = 8
# Bits of a bfloat16 below its exponent; the lowest of them say which multiple a code is of.
_MANTISSA_BITS = 7
# The low halves of the bytes of a lane hold its values 0 to 3, the high ones 4 to 7. With the bytes
# in this order, two values that follow each other are at the same place of the lane's two words.
_BYTES = (0, 2, 1, 3)
_SHIFTS = (0, 8, 4, 12)


class OddMultiples:
    """The four multiples of the scales of sixteen columns, each in both words of a column's lane.

    What a code adds to one of them beside sign and exponent is taken off before. Of a scale of 0,
    whose exponent is moved as well, that makes numbers of 2^-123 and less.
    """

    def __init__(self, f: Function, arithmetic: Arithmetic, scale: Value) -> None:
        self.f = f
        m = arithmetic.math
        narrow = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
        lanes = ", ".join(f"i32 {word // 2}" for word in range(_WORDS))
        self.multiples = []
        for number, odd in enumerate(_ODD):
            value = m.multiply(scale, m.number(float(odd))) if odd > 1 else scale
            rounded = f.intrinsic(narrow, f"<{_WORDS} x bfloat>", [value, value])
            words = f.convert("bitcast", rounded, _TYPE)
            both = f.emit(
                _TYPE, f"shufflevector {words}, {_TYPE} poison, <{_WORDS} x i32> <{lanes}>"
            )
            self.multiples.append(f.binary("sub", both, _splat(1 << number)))

    def pairs(self, packed: Value) -> Iterator[Value]:
        """Yield two values after the other of every lane: sixteen pairs of bfloat16, as words."""
        f = self.f
        order = ", ".join(
            f"i32 {4 * lane + byte}" for lane in range(LANES) for byte in _BYTES
        )  # fmt: skip
        type_ = f"<{4 * LANES} x i8>"
        bytes_ = f.convert("bitcast", packed, type_)
        ordered = f.emit(
            type_, f"shufflevector {bytes_}, {type_} poison, <{4 * LANES} x i32> <{order}>"
        )
        words = f.convert("bitcast", ordered, _TYPE)
        for shift in _SHIFTS:
            yield self._chosen(f.binary("lshr", words, _splat(shift)) if shift else words)

    def _chosen(self, codes: Value) -> Value:
        """Return the products of the codes in the low four bits of every word."""
        f = self.f
        # Looked up by the low five bits: the table is there twice.
        moves = ", ".join(f"i16 {_move(word % 16 - _ZERO)}" for word in range(_WORDS))
        table = Value(_TYPE, f"<{moves}>")
        move = f.intrinsic("llvm.x86.avx512.permvar.hi.512", _TYPE, [table, codes])
        chosen = self.multiples[0]
        for number, multiple in enumerate(self.multiples[1:], 1):
            chosen = f.select(self._is_of(move, number), multiple, chosen)
        moved = f.binary("add", chosen, move)
        nothing = Value(_TYPE, "zeroinitializer")
        return f.select(f.compare("eq", move, nothing), nothing, moved)

    def _is_of(self, move: Value, number: int) -> Value:
        own = self.f.binary("and", move, _splat(1 << number))
        return self.f.compare("ne", own, Value(_TYPE, "zeroinitializer"))


def _move(code: int) -> int:
    """Return what is added to a multiple for a code: sign, exponent, and which multiple it is."""
    if code == 0:
        return 0
    size = abs(code)
    twos = (size & -size).bit_length() - 1
    sign = -(1 << 15) if code < 0 else 0
    return sign + (twos << _MANTISSA_BITS) + (1 << _ODD.index(size >> twos))


def _splat(number: int) -> Value:
    return splat_integer(number, _WORDS, "i16")


@dataclass(frozen=True)
class Block:
    """A block of weights: its scales and what is added, or rounded multiples of the scales."""

    pointer: Value
    scale: Value
    shift: Value | None
    multiples: OddMultiples | None = None


@dataclass(frozen=True)
class Whole:
    """A panel is filled with weights as they are.

    Arguments: a run of the weights, and that of those to ask for meanwhile.
    """

    weights: Weights
    kind: ActivationKind

    labels = ("weights", "ahead")

    @property
    def piece(self) -> int:
        """Values of the depth that are unpacked in one tile: a part of whole blocks."""
        is_whole = isinstance(self.weights, BlockWeights) and self.weights.block % 32 == 0
        return 32 if is_whole else 16

    def begin(self, f: Function, arguments: Sequence[Value], *, is_beside: bool) -> Unpack:
        """Return the unpacking."""
        weights, ahead = arguments
        return Unpack(f, self, weights, ahead, is_beside=is_beside)


class Unpack:
    """Unpacking of eight values of the depth of sixteen columns at a time, from some weights on.

    `is_beside` multiply-adds it leaves their units alone; with nothing beside it, multiplying is
    faster than choosing.
    """

    def __init__(
        self, f: Function, filler: Whole, start: Value, ahead: Value, *, is_beside: bool
    ) -> None:
        self.f = f
        self.filler = filler
        self.weights = filler.weights
        self.kind = filler.kind
        self.start = start
        self.ahead = ahead
        self.is_beside = is_beside
        self.item_bytes = 4 if self.kind == "f32" else 2
        self.arithmetic = Arithmetic(f, LANES)

    def block(self, eight: Value, v: int) -> Block | None:
        """Return what the block of an eight has for one vector of columns.

        None of plain numbers.
        """
        f, w = self.f, self.weights
        if isinstance(w, PlainWeights):
            return None
        shared, block = block_at(f, w, self.start, f.divide(eight, w.block // EIGHT))
        scale = load_scale(self.arithmetic, w, shared, block, v)
        has_multiples = w.bits == 4 and w.table is None and not (w.has_zeros or w.has_mins)
        if self.is_beside and has_multiples and self.kind == "bf16":
            return Block(block, scale, None, OddMultiples(f, self.arithmetic, scale))
        if w.has_mins:
            return Block(block, scale, load_added(self.arithmetic, w, shared, block, v))
        return Block(block, scale, self._shift(block, scale, v))

    def ask(self, piece: Value, number: Value, panel: Value) -> None:
        """Ask for what the same eight of the same piece has of the weights ahead."""
        f, w, depth = self.f, self.weights, self.filler.piece
        if isinstance(w, PlainWeights):
            piece_bytes = depth * w.row_bytes
        else:
            piece_bytes = -(-depth * w.step_bytes // w.step)
        lines = -(-piece_bytes // (64 * (depth // EIGHT)))
        first = f.add(f.multiply(piece, piece_bytes), f.multiply(number, lines * 64))
        for line in range(lines):
            prefetch_line(f, f.at(f.at(self.ahead, first), line * 64))

    def steps(self, block: Block | None, eight: Value, v: int, panel: Value) -> Iterator[None]:
        """Write the eight values with a number into the panel, two at a time.

        One vector of columns of plain weights, or of the `block` that they are in.
        """
        f, size = self.f, PANEL * self.item_bytes
        target = f.at(panel, f.multiply(eight, EIGHT * size))
        if block is not None and block.multiples is not None:
            (packed,) = self._packed(block, eight, v)
            for number, pair in enumerate(block.multiples.pairs(packed)):
                f.store(pair, target, number * 2 * size + v * LANES * 4, align=64)
                yield
            return
        together = EIGHT if self.kind == "bfp16" else 2
        values: list[Value] = []
        for number, value in enumerate(self._values(block, eight, v), 1):
            values.append(value)
            if number % together == 0:
                self._store(values, f.at(target, (number - together) * size), v)
                values = []
            if number % 2 == 0:
                yield

    def _values(self, block: Block | None, eight: Value, v: int) -> Iterator[Value]:
        """Yield eight numbers of the depth: lanes are columns, the depth runs inside a lane."""
        f, w, m = self.f, self.weights, self.arithmetic.math
        if block is None or isinstance(w, PlainWeights):
            assert isinstance(w, PlainWeights), "weights in blocks have a block"
            row, item = (
                f.at(self.start, f.multiply(eight, EIGHT * w.row_bytes)),
                w.row_bytes // PANEL,
            )
            for number in range(EIGHT):
                place = f.at(row, number * w.row_bytes + v * LANES * item)
                yield self.arithmetic.load(w.storage, place)
            return
        for packed in self._packed(block, eight, v):
            for part in range(8 // w.bits):
                for byte in range(4):
                    code = self._number(packed, 8 * byte + 4 * part)
                    if block.shift is None:
                        yield m.multiply(code, block.scale)
                    else:
                        yield m.fma(code, block.scale, block.shift)

    def _packed(self, block: Block, eight: Value, v: int) -> list[Value]:
        """Load the codes of eight values."""
        f, w = self.f, self.weights
        assert not isinstance(w, PlainWeights), "plain weights have no codes"
        vectors = w.bits // 4  # in memory, for eight codes of sixteen columns
        place = f.multiply(f.remainder(eight, w.block // EIGHT), vectors * LANES * 4)
        codes = f.at(block.pointer, f.add(place, v * w.code_bytes))
        type_ = self.arithmetic.math.integers
        return [f.load(type_, codes, number * LANES * 4, align=1) for number in range(vectors)]

    def _shift(self, block: Value, scale: Value, v: int) -> Value | None:
        """Return what is added to code · scale: minus the zero point, in the scale."""
        f, w, m = self.f, self.weights, self.arithmetic.math
        assert not isinstance(w, PlainWeights), "plain weights have no zero points"
        if w.has_zeros:
            own = self.arithmetic.load("u8", f.at(block, w.zeros_at + v * LANES))
            zero = m.subtract(m.number(-0.0), f.convert("sitofp", own, m.type))
            return m.multiply(scale, zero)
        # Four bits are looked up with the zero point taken off.
        return None if w.bits == 4 else m.multiply(scale, splat_constant(-float(w.zero), LANES))

    def _store(self, values: list[Value], target: Value, v: int) -> None:
        """Write numbers of the depth of one vector of columns into the panel."""
        if self.kind == "bfp16":
            values = share_exponent(self.f, self.arithmetic, values)
        if self.kind == "f32":
            for number, value in enumerate(values):
                place = (number * PANEL + v * LANES) * 4
                self.arithmetic.store("f32", value, self.f.at(target, place))
            return
        for number in range(0, len(values), 2):
            place = number * PANEL * 2 + v * LANES * 4
            pair = narrow_pairs(self.f, values[number], values[number + 1])
            self.f.store(pair, self.f.at(target, place), align=64)

    def _number(self, packed: Value, shift: int) -> Value:
        """Return the code that begins at bit `shift` of every lane, as a number."""
        f, w, m = self.f, self.weights, self.arithmetic.math
        assert not isinstance(w, PlainWeights), "plain weights have no codes"
        moved = packed
        if shift:
            moved = f.binary("lshr", packed, splat_integer(shift, LANES))
        if w.bits == 4:
            # Looked up among sixteen numbers, by the low four bits of a lane.
            zero = 0 if w.has_zeros or w.has_mins else w.zero
            return looked_up(f, w.table or [code - zero for code in range(LANES)], moved)
        code = moved
        if shift + w.bits < 32:
            code = f.binary("and", moved, splat_integer((1 << w.bits) - 1, LANES))
        return f.convert("sitofp", code, m.type)
