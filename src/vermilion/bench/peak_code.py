"""LLVM IR of a register tile: the most multiply-adds a second that a core can be brought to.

The tile of a matrix product: `rows` × `vectors` accumulators stay in registers while a column of
A is broadcast and a row of B loaded from the first-level cache, so that nothing but the
multiply-add units is the limit. What a whole model reaches is held against this.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module, Value

STEPS = 64
"""Steps along the inner dimension: A and B together fill half of a 32 KiB cache."""

MultiplyAdd = Callable[[Function, Value, Value, Value], Value]
"""Writes an accumulator plus the product of two operands."""


@dataclass(frozen=True)
class Tile:
    """One kind of multiply-add and the shape that keeps its unit busy.

    `operations` counts one instruction, a multiply-accumulate as two. `word` is the 32 bits
    that all of A and B hold: ones of the element type, for zeros would draw less power.
    """

    instruction: str
    features: frozenset[str]
    bits: int
    rows: int
    vectors: int
    accumulator: str
    operand: str
    operations: int
    word: int
    multiply_add: MultiplyAdd

    @property
    def operations_a_tile(self) -> int:
        """Operations of one call of the tile."""
        return self.operations * self.rows * self.vectors * STEPS


_ONE_F32 = 0x3F800000
_ONES_BF16 = 0x3F803F80
_ONES_I8 = 0x01010101
_ONES_I16 = 0x00010001


def _fma(bits: int, rows: int, vectors: int, features: Set[str]) -> Tile:
    lanes = bits // 32
    kind = f"<{lanes} x float>"
    return Tile(
        instruction=f"vfmadd231ps, {bits} bits",
        features=frozenset(features),
        bits=bits,
        rows=rows,
        vectors=vectors,
        accumulator=kind,
        operand=kind,
        operations=2 * lanes,
        word=_ONE_F32,
        multiply_add=lambda f, total, a, b: f.intrinsic(
            f"llvm.fma.v{lanes}f32", kind, [a, b, total]
        ),
    )


def _dot(
    instruction: str, intrinsic: str, kinds: tuple[str, str], shape: tuple[int, int], feature: str
) -> Tile:
    """Return a tile of an instruction that adds 2 products of bf16, or 4 of int8, to each lane."""
    accumulator, operand = kinds
    rows, vectors = shape
    bits = 512 if accumulator.startswith("<16") else 256
    elements, word = (2, _ONES_BF16) if "bfloat" in operand else (4, _ONES_I8)
    return Tile(
        instruction=f"{instruction}, {bits} bits",
        features=frozenset({feature}),
        bits=bits,
        rows=rows,
        vectors=vectors,
        accumulator=accumulator,
        operand=operand,
        operations=2 * elements * bits // 32,
        word=word,
        multiply_add=lambda f, total, a, b: f.intrinsic(
            f"llvm.x86.{intrinsic}", accumulator, [total, a, b]
        ),
    )


_PAIRS = Tile(
    instruction="vpmaddwd + vpaddd, 256 bits",
    features=frozenset({"avx2"}),
    bits=256,
    rows=6,
    vectors=2,
    accumulator="<8 x i32>",
    operand="<16 x i16>",
    operations=32,
    word=_ONES_I16,
    multiply_add=lambda f, total, a, b: f.binary(
        "add", total, f.intrinsic("llvm.x86.avx2.pmadd.wd", total.type, [a, b])
    ),
)

# Fastest first; the first whose features the machine has is its peak. Exact integers only: the
# saturating 8-bit multiply-add of AVX2 is no substitute.
# Source: LLVM, llvm/include/llvm/IR/IntrinsicsX86.td.
TILES: dict[str, tuple[Tile, ...]] = {
    "fp32": (_fma(512, 6, 4, {"avx512f"}), _fma(256, 6, 2, {"avx2", "fma"})),
    "bf16": (
        _dot(
            "vdpbf16ps",
            "avx512bf16.dpbf16ps.512",
            ("<16 x float>", "<32 x bfloat>"),
            (6, 4),
            "avx512bf16",
        ),
    ),
    "int8": (
        _dot(
            "vpdpbusd",
            "avx512.vpdpbusd.512",
            ("<16 x i32>", "<64 x i8>"),
            (6, 4),
            "avx512vnni",
        ),
        _dot("vpdpbusd", "avx512.vpdpbusd.256", ("<8 x i32>", "<32 x i8>"), (6, 2), "avxvnni"),
        _PAIRS,
    ),
}


def tile_code(tile: Tile) -> str:
    """Return a module with `peak(A, B, C, calls)`, which computes the tile `calls` times.

    Layouts: A is STEPS × rows words, B is STEPS × vectors registers, C takes the accumulators.
    """
    module = Module()
    _write_tile(module, tile)
    pointers = [(name, "ptr") for name in "abc"]
    f = Function(module, "peak", [*pointers, ("calls", "i64")], internal=False)
    with f.loop(0, f.arguments[3]):
        f.call_void("tile", f.arguments[:3])
    f.finish()
    return module.text()


def _write_tile(module: Module, tile: Tile) -> None:
    # Never inlined: with the outer loop around it, its loads would be moved out of that.
    f = Function(module, "tile", [(name, "ptr") for name in "abc"], is_apart=True)
    a, b, c = f.arguments
    vector_bytes = tile.bits // 8
    splat = Arithmetic(f, tile.bits // 32).splat
    zero = Value(tile.accumulator, "zeroinitializer")
    sums = [[f.slot(zero) for _ in range(tile.vectors)] for _ in range(tile.rows)]
    with f.loop(0, STEPS) as step:
        column = f.at(a, f.multiply(step, 4 * tile.rows))
        row = f.at(b, f.multiply(step, vector_bytes * tile.vectors))
        right = [
            f.load(tile.operand, row, n * vector_bytes, align=vector_bytes)
            for n in range(tile.vectors)
        ]
        for m, slots in enumerate(sums):
            word = splat(f.load("i32", column, 4 * m, align=4))
            left = f.convert("bitcast", word, tile.operand)
            for slot, vector in zip(slots, right, strict=True):
                slot.set(tile.multiply_add(f, slot.get(), left, vector))
    for index, slot in enumerate(slot for slots in sums for slot in slots):
        f.store(slot.get(), c, index * vector_bytes, align=vector_bytes)
    f.finish()
