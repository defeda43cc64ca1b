"""The most multiply-adds a second that this machine's cores can be brought to, measured.

The tile of a matrix product: `rows` × `vectors` accumulators stay in registers while a column of
A is broadcast and a row of B loaded from the first-level cache, so that nothing but the
multiply-add units is the limit. A model is held against this.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.values import Value
from vermilion.codegen.isa import isa_of
from vermilion.codegen.load import load_functions
from vermilion.codegen.object import compile_object
from vermilion.errors import Refusal
from vermilion.hardware.cpu import detect_cpu
from vermilion.hardware.targets.find import find_target

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


# One measurement of each thread; the best of several counts, since others only ever slow it.
BURST_S = 0.03
BURSTS = 5

_ALIGN_BYTES = 64
_TRIAL_CALLS = 200


@dataclass(frozen=True)
class Peak:
    """The measured limit. Units: 10^9 operations a second, a multiply-accumulate counted as two."""

    precision: str
    threads: int
    gops_per_s: float
    instruction: str

    def as_json(self) -> dict[str, object]:
        """Return the keys of the report."""
        return {
            "precision": self.precision,
            "threads": self.threads,
            "gops_per_s": self.gops_per_s,
            "instruction": self.instruction,
        }


def tile_for(precision: str, features: frozenset[str]) -> Tile | Refusal:
    """Choose the fastest tile that a machine with these features can run."""
    for tile in TILES[precision]:
        if tile.features <= features:
            return tile
    return Refusal(f"this processor has no instruction that multiplies {precision}")


def measure_peak(precision: str, threads: int) -> Peak | Refusal:
    """Run the register tile on `threads` threads at once, for a fraction of a second."""
    tile = tile_for(precision, detect_cpu().features)
    if isinstance(tile, Refusal):
        return tile
    return measure_tile(tile, precision, threads)


def measure_tile(tile: Tile, precision: str, threads: int) -> Peak:
    """Run one tile on `threads` threads at once."""
    function = _compiled(tile)
    operands = [_operands(tile) for _ in range(threads)]
    seconds_a_call = _seconds(function, operands[:1], _TRIAL_CALLS) / _TRIAL_CALLS
    calls = max(_TRIAL_CALLS, int(BURST_S / seconds_a_call))
    best_s = min(_seconds(function, operands, calls) for _ in range(BURSTS))
    gops = tile.operations_a_tile * calls * threads / best_s / 1e9
    return Peak(precision, threads, gops, tile.instruction)


def _compiled(tile: Tile) -> Callable[..., None]:
    """Return `peak` of the tile, for this machine."""
    isa = isa_of(find_target("cpu"))
    features = ",".join([isa.llvm_features, *(f"+{name}" for name in sorted(tile.features))])
    pointer = ctypes.c_void_p
    kind = ctypes.CFUNCTYPE(None, pointer, pointer, pointer, ctypes.c_int64)
    isa = replace(isa, llvm_features=features.strip(","))
    return load_functions(compile_object(tile_code(tile), isa), {"peak": kind}, isa)["peak"]


def _operands(tile: Tile) -> tuple[np.ndarray, ...]:
    vector_words = tile.bits // 32
    a = _aligned_words(STEPS * tile.rows, tile.word)
    b = _aligned_words(STEPS * tile.vectors * vector_words, tile.word)
    return a, b, _aligned_words(tile.rows * tile.vectors * vector_words, 0)


def _aligned_words(count: int, word: int) -> np.ndarray:
    room = np.full(count + _ALIGN_BYTES // 4, word, np.uint32)
    skipped = -room.ctypes.data % _ALIGN_BYTES // 4
    return room[skipped : skipped + count]


def _seconds(function: Any, operands: list[tuple[np.ndarray, ...]], calls: int) -> float:
    """Return the time from the common start until the last thread is done."""
    start = threading.Barrier(len(operands) + 1)

    def work(arrays: tuple[np.ndarray, ...]) -> None:
        pointers = [array.ctypes.data for array in arrays]
        start.wait()
        function(*pointers, calls)  # ctypes lets go of the interpreter's lock

    workers = [threading.Thread(target=work, args=(arrays,)) for arrays in operands]
    for worker in workers:
        worker.start()
    start.wait()
    begin = time.perf_counter()
    for worker in workers:
        worker.join()
    return time.perf_counter() - begin
