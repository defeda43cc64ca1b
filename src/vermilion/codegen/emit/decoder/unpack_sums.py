"""Codes of four bits → sums of two parts of the weights, in bfloat16: right sums of quarters.

A code takes the place of the first bits of a mantissa: 1 + code/16, times 16 scales, less 16 and
the zero point in the scale, is the weight, so nothing is looked up. Lanes are pairs of values of
eight columns, as the products read them: rounding packs two such vectors as they lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function
from vermilion.codegen.emit.decoder.block_product import load_scale
from vermilion.codegen.emit.decoder.lanes import shuffled
from vermilion.codegen.emit.decoder.weights import EIGHT, LANES, PANEL, BlockWeights
from vermilion.codegen.emit.register_tile import prefetch_line
from vermilion.codegen.emit.values import Value, splat_integer

# Where the codes of the even values of an eight begin in a lane; those of the odd ones, a byte on.
_PAIRS_AT = (0, 16, 4, 20)
_BYTE = 8
_CODE, _CODE_AT = 0xF, 19  # the first four bits of a float32 mantissa
_ONE = 0x3F800000
# Eight columns of a vector, each in two lanes.
_HALVES = tuple([first + lane // 2 for lane in range(LANES)] for first in (0, LANES // 2))


@dataclass(frozen=True)
class Sum:
    """A panel is filled with the sum of two parts of weights, the second with a sign.

    Arguments: a run of the one, of the other, and of those of the next sum, to ask for meanwhile.
    """

    weights: BlockWeights
    sign: int  # of the second part; 0: there is none

    labels = ("weights", "others", "ahead", "ahead_others")

    @property
    def piece(self) -> int:
        """Values of the depth that are unpacked in one tile: a part of whole blocks."""
        return 32 if self.weights.block % 32 == 0 else 16

    def begin(self, f: Function, arguments: Sequence[Value], *, is_beside: bool) -> UnpackSum:
        """Return the unpacking."""
        return UnpackSum(f, self, arguments)


@dataclass(frozen=True)
class _Block:
    """Blocks of the parts; of each half of the columns their 16 scales, and what is added."""

    pointers: list[Value]
    scales: list[list[Value]]
    shifts: list[Value]


class UnpackSum:
    """Unpacking of the sums of eight values of the depth of sixteen columns at a time."""

    def __init__(self, f: Function, filler: Sum, arguments: Sequence[Value]) -> None:
        self.f = f
        self.weights = filler.weights
        self.signs = [1, filler.sign] if filler.sign else [1]
        self.starts, self.ahead = arguments[: len(self.signs)], arguments[2:]
        self.piece = filler.piece
        self.arithmetic = Arithmetic(f, LANES)

    def block(self, eight: Value, v: int) -> _Block:
        """Return what the blocks of an eight have."""
        f, w, m = self.f, self.weights, self.arithmetic.math
        place = f.multiply(f.divide(eight, w.block // EIGHT), w.block_bytes)
        pointers, scales, total = [], [], None
        for start, sign in zip(self.starts, self.signs, strict=True):
            pointer = f.at(start, place)
            own_scale = load_scale(self.arithmetic, w, pointer, pointer, v)
            scale = m.multiply(own_scale, m.number(16.0 * sign))
            if w.has_zeros:
                own = self.arithmetic.load("u8", f.at(pointer, w.zeros_at + v * LANES))
                zero = f.convert("sitofp", own, m.type)
                taken = m.fma(zero, m.number(-1.0 / 16.0), m.number(-1.0))
            else:
                taken = m.number(-1.0 - w.zero / 16.0)
            total = m.multiply(scale, taken) if total is None else m.fma(scale, taken, total)
            pointers.append(pointer)
            scales.append([shuffled(f, scale, half) for half in _HALVES])
        assert total is not None, "a sum has a first part"
        return _Block(pointers, scales, [shuffled(f, total, half) for half in _HALVES])

    def ask(self, piece: Value, number: Value, panel: Value) -> None:
        """Ask for what an eight of a piece has of the next sum's parts."""
        f, w = self.f, self.weights
        piece_bytes = -(-self.piece * w.block_bytes // w.block)
        lines = -(-piece_bytes // (64 * (self.piece // EIGHT)))
        first = f.add(f.multiply(piece, piece_bytes), f.multiply(number, lines * 64))
        for start in self.ahead:
            for line in range(lines):
                prefetch_line(f, f.at(f.at(start, first), line * 64))

    def steps(self, block: _Block, eight: Value, v: int, panel: Value) -> Iterator[None]:
        """Write the sums of an eight into the panel, two values at a time."""
        f, w, m = self.f, self.weights, self.arithmetic.math
        integers = m.integers
        place = f.add(f.multiply(f.remainder(eight, w.block // EIGHT), LANES * 4), v * w.code_bytes)
        turns = ", ".join(f"i32 {_BYTE * (lane % 2)}" for lane in range(LANES))
        packed = [f.load(integers, pointer, place, align=1) for pointer in block.pointers]
        codes = [
            [
                f.binary("lshr", shuffled(f, one, half), Value(integers, f"<{turns}>"))
                for half in _HALVES
            ]
            for one in packed
        ]
        target = f.at(panel, f.multiply(eight, EIGHT * PANEL * 2))
        narrow = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
        for pair, at in enumerate(_PAIRS_AT):
            sums = []
            for half, total in enumerate(block.shifts):
                for code, scales in zip(codes, block.scales, strict=True):
                    total = m.fma(self._number(code[half], at), scales[half], total)
                sums.append(total)
            low, high = sums
            both = f.intrinsic(narrow, f"<{2 * LANES} x bfloat>", [high, low])
            f.store(both, target, pair * 2 * PANEL * 2 + v * LANES * 4, align=64)
            yield

    def _number(self, codes: Value, at: int) -> Value:
        """Return 1 + code/16 of the codes that begin at some bit."""
        f = self.f
        name = "shl" if at < _CODE_AT else "lshr"
        moved = f.binary(name, codes, splat_integer(abs(_CODE_AT - at), LANES))
        code = f.binary("and", moved, splat_integer(_CODE << _CODE_AT, LANES))
        bits = f.binary("or", code, splat_integer(_ONE, LANES))
        return f.convert("bitcast", bits, f"<{LANES} x float>")
