"""LLVM IR of a register tile: the most multiply-adds a second that a core can be brought to.

The tile of a matrix product: `rows` × `vectors` accumulators stay in registers while a column of
A is broadcast and a row of B loaded from the first-level cache, so that nothing but the
multiply-add units is the limit. What a whole model reaches is held against this.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass

STEPS = 64
"""Steps along the inner dimension: A and B together fill half of a 32 KiB cache."""


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
    declare: str
    multiply_add: str  # the lines that make {d} from accumulator {c} and operands {a}, {b}

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
    name = f"@llvm.fma.v{lanes}f32"
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
        declare=f"declare {kind} {name}({kind}, {kind}, {kind})",
        multiply_add=f"{{d}} = call {kind} {name}({kind} {{a}}, {kind} {{b}}, {kind} {{c}})",
    )


def _dot(
    instruction: str, intrinsic: str, kinds: tuple[str, str], shape: tuple[int, int], feature: str
) -> Tile:
    """Return a tile of an instruction that adds 2 products of bf16, or 4 of int8, to each lane."""
    accumulator, operand = kinds
    rows, vectors = shape
    bits, name = (512 if accumulator.startswith("<16") else 256), f"@llvm.x86.{intrinsic}"
    elements, word = (2, _ONES_BF16) if "bfloat" in operand else (4, _ONES_I8)
    call = f"{accumulator} {{c}}, {operand} {{a}}, {operand} {{b}}"
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
        declare=f"declare {accumulator} {name}({accumulator}, {operand}, {operand})",
        multiply_add=f"{{d}} = call {accumulator} {name}({call})",
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
    declare="declare <8 x i32> @llvm.x86.avx2.pmadd.wd(<16 x i16>, <16 x i16>)",
    multiply_add=(
        "{d}.p = call <8 x i32> @llvm.x86.avx2.pmadd.wd(<16 x i16> {a}, <16 x i16> {b})\n"
        "  {d} = add <8 x i32> {c}, {d}.p"
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
    lines = [tile.declare, *_tile_function(tile), *_repeat_function()]
    return "\n".join(lines) + "\n"


def _tile_function(tile: Tile) -> Iterator[str]:
    cells = [(m, n) for m in range(tile.rows) for n in range(tile.vectors)]
    lanes, step_bytes = tile.bits // 32, tile.bits // 8 * tile.vectors
    words = f"<{lanes} x i32>"
    # Never inlined: with the outer loop around it, its loads would be moved out of that.
    yield "define void @tile(ptr noalias %a, ptr noalias %b, ptr noalias %c) noinline {"
    yield "entry:\n  br label %step"
    yield "step:\n  %k = phi i64 [0, %entry], [%k.next, %step]"
    for m, n in cells:
        yield f"  %c{m}.{n} = phi {tile.accumulator} [zeroinitializer, %entry], [%d{m}.{n}, %step]"
    yield f"  %b.at = mul i64 %k, {step_bytes}\n  %b.row = getelementptr i8, ptr %b, i64 %b.at"
    for n in range(tile.vectors):
        yield f"  %b{n}.p = getelementptr i8, ptr %b.row, i64 {n * tile.bits // 8}"
        yield f"  %b{n} = load {tile.operand}, ptr %b{n}.p, align {tile.bits // 8}"
    yield f"  %a.at = mul i64 %k, {4 * tile.rows}\n  %a.row = getelementptr i8, ptr %a, i64 %a.at"
    for m in range(tile.rows):
        yield f"  %a{m}.p = getelementptr i8, ptr %a.row, i64 {4 * m}"
        yield f"  %a{m}.w = load i32, ptr %a{m}.p, align 4"
        yield f"  %a{m}.i = insertelement {words} poison, i32 %a{m}.w, i32 0"
        yield (
            f"  %a{m}.s = shufflevector {words} %a{m}.i, {words} poison, "
            f"<{lanes} x i32> zeroinitializer"
        )
        yield f"  %a{m} = bitcast {words} %a{m}.s to {tile.operand}"
    for m, n in cells:
        yield "  " + tile.multiply_add.format(
            d=f"%d{m}.{n}", c=f"%c{m}.{n}", a=f"%a{m}", b=f"%b{n}"
        )
    yield f"  %k.next = add i64 %k, 1\n  %more = icmp ult i64 %k.next, {STEPS}"
    yield "  br i1 %more, label %step, label %done\ndone:"
    for index, (m, n) in enumerate(cells):
        yield f"  %o{m}.{n} = getelementptr i8, ptr %c, i64 {index * tile.bits // 8}"
        yield f"  store {tile.accumulator} %d{m}.{n}, ptr %o{m}.{n}, align {tile.bits // 8}"
    yield "  ret void\n}"


def _repeat_function() -> Iterator[str]:
    yield "define void @peak(ptr %a, ptr %b, ptr %c, i64 %calls) {"
    yield "entry:\n  br label %again"
    yield "again:\n  %i = phi i64 [0, %entry], [%i.next, %again]"
    yield "  call void @tile(ptr %a, ptr %b, ptr %c)"
    yield "  %i.next = add i64 %i, 1\n  %more = icmp ult i64 %i.next, %calls"
    yield "  br i1 %more, label %again, label %done\ndone:\n  ret void\n}"
