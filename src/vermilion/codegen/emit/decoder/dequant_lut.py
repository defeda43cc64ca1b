"""Codes of four bits → products with their scale in bfloat16, without a multiplication for each.

Such a product is ± the scale times 1, 3, 5 or 7 times a power of two, and rounds as that multiple
does: four multiples are rounded for a whole block, and each code chooses one and moves its sign and
exponent. Multiplications would run on the very units that rows are multiplied with; all that is
done here runs beside them.
"""

from __future__ import annotations

from collections.abc import Iterator

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Value, splat_integer
from vermilion.codegen.emit.decoder.weights import LANES

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
