"""Drawing rows out of tensors and multiplying them with each other, as machine code.

NumPy copies a patch number by number where its channels are neighbours, and its matrix library
knows 256-bit registers only; both took longer than the network itself on its fast kernels.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from vermilion.quantize.llvm_text import (
    DECLARATIONS,
    LANES,
    LONGS,
    MASK,
    REALS,
    Code,
    Phi,
    active,
    each,
    each_phi,
    everywhere,
    lanes_of,
    masked_load,
    masked_store,
)
from vermilion.quantize.native_code import machine_code

# 24 sums, 3 vectors of one row and a number of it in all lanes: 28 of 32 registers.
_VECTORS, _NUMBERS = 3, 8
_PAIRS = [(n, v) for n in range(_NUMBERS) for v in range(_VECTORS)]

_GATHER = f"""
declare {REALS} @llvm.masked.gather.v{LANES}f32.v{LANES}p0(<{LANES} x ptr>, i32, {MASK}, {REALS})
"""


def _draw() -> str:
    """For each place of each row: what lies there, in runs that go to one block each.

    Nothing is read for a place below 0, which is outside of the picture.
    """
    code = Code()
    with code.function(
        "void @draw(ptr %source, i64 %step, ptr %places, i64 %count, i64 %blocks, i64 %run, "
        "ptr %target, i64 %block_size)"
    ):
        code.put("  %is_dense = icmp eq i64 %step, 1", everywhere("step_all", "i64", "%step"))
        code.put(f"  %lanes = mul {LONGS} %step_all, {lanes_of('i64')}")
        with code.loop("n", "%count"):
            code.put("""  %place_at = getelementptr i64, ptr %places, i64 %n
  %first = load i64, ptr %place_at
  %is_inside = icmp sge i64 %first, 0
  %end = select i1 %is_inside, i64 %run, i64 0
  %here = getelementptr float, ptr %source, i64 %first
  %row_at = mul i64 %n, %run""")
            with code.loop("b", "%blocks"):
                code.put("""  %channel = mul i64 %b, %run
  %block_at = mul i64 %b, %block_size
  %there_at = add i64 %block_at, %row_at
  %there = getelementptr float, ptr %target, i64 %there_at""")
                with code.loop("v", "%run", step=LANES):
                    code.put(_DRAW_VECTOR)
        code.put("  ret void")
    return code.text()


_DRAW_VECTOR = f"""  %reads = {active("%v", "%end")}
  %writes = {active("%v", "%run")}
  %number = add i64 %channel, %v
  %from_at = mul i64 %number, %step
  %from = getelementptr float, ptr %here, i64 %from_at
  br i1 %is_dense, label %dense, label %apart
dense:
  %dense_values = {masked_load("%from", "%reads")}
  br label %put
apart:
  %each = getelementptr float, ptr %from, {LONGS} %lanes
  %apart_values = call {REALS} @llvm.masked.gather.v{LANES}f32.v{LANES}p0(
      <{LANES} x ptr> %each, i32 4, {MASK} %reads, {REALS} zeroinitializer)
  br label %put
put:
  %values = phi {REALS} [%dense_values, %dense], [%apart_values, %apart]
  %to = getelementptr float, ptr %there, i64 %v
  {masked_store("%values", "%to", "%writes")}"""


def _fold() -> str:
    """Right of the diagonal, and some more than that.

    for each block, for each 48 columns j, for each 8 columns i that are not all behind them:
        gram[i][j] += Σ rows[r][i] · rows[r][j]
    """
    code = Code()
    with code.function(
        "void @fold(ptr %rows, i64 %count, i64 %width, i64 %blocks, i64 %block_size, "
        "ptr %gram, ptr %totals)"
    ):
        code.put("  %last = sub i64 %width, 1\n  %square = mul i64 %width, %width")
        with code.loop("b", "%blocks"):
            code.put("""  %block_at = mul i64 %b, %block_size
  %block_rows = getelementptr float, ptr %rows, i64 %block_at
  %gram_at = mul i64 %b, %square
  %block_gram = getelementptr float, ptr %gram, i64 %gram_at
  %totals_at = mul i64 %b, %width
  %block_totals = getelementptr float, ptr %totals, i64 %totals_at""")
            with code.loop("j", "%width", step=_VECTORS * LANES):
                code.put(*(f"  %j{v} = add i64 %j, {v * LANES}" for v in range(_VECTORS)))
                code.put(each(_VECTORS, f"  %mask{{n}} = {active('%j{n}', '%width')}"))
                _add_rows(code)
                code.put(f"""  %j_end = add i64 %j, {_VECTORS * LANES}
  %is_over = icmp slt i64 %width, %j_end
  %i_end = select i1 %is_over, i64 %width, i64 %j_end""")
                with code.loop("i", "%i_end", step=_NUMBERS):
                    code.put(each(_NUMBERS, _COLUMN))
                    _multiply_rows(code)
                    _add_tile(code)
        code.put("  ret void")
    return code.text()


# A column behind the last one stands for the last: what it gives is thrown away.
_COLUMN = """  %i_wanted{n} = add i64 %i, {n}
  %i_there{n} = icmp slt i64 %i_wanted{n}, %width
  %i{n} = select i1 %i_there{n}, i64 %i_wanted{n}, i64 %last"""


def _add_rows(code: Code) -> None:
    with code.loop("a", "%count", phis=each_phi(_VECTORS, "%t{n}", "%u{n}")):
        code.put("  %a_row = mul i64 %a, %width")
        code.put(
            each(
                _VECTORS,
                f"""  %a_at{{n}} = add i64 %a_row, %j{{n}}
  %a_place{{n}} = getelementptr float, ptr %block_rows, i64 %a_at{{n}}
  %a_here{{n}} = {masked_load("%a_place{n}", "%mask{n}")}
  %u{{n}} = fadd {REALS} %t{{n}}, %a_here{{n}}""",
            )
        )
    code.put(
        each(
            _VECTORS,
            f"""  %total_place{{n}} = getelementptr float, ptr %block_totals, i64 %j{{n}}
  {masked_store("%u{n}", "%total_place{n}", "%mask{n}")}""",
        )
    )


def _multiply_rows(code: Code) -> None:
    sums = [Phi(f"%c{n}_{v}", REALS, "zeroinitializer", f"%d{n}_{v}") for n, v in _PAIRS]
    with code.loop("r", "%count", phis=sums):
        code.put("""  %row_at = mul i64 %r, %width
  %row_start = getelementptr float, ptr %block_rows, i64 %row_at""")
        code.put(
            each(
                _VECTORS,
                f"""  %x_place{{n}} = getelementptr float, ptr %row_start, i64 %j{{n}}
  %x{{n}} = {masked_load("%x_place{n}", "%mask{n}")}""",
            )
        )
        code.put(
            each(
                _NUMBERS,
                f"""  %y_place{{n}} = getelementptr float, ptr %row_start, i64 %i{{n}}
  %y_one{{n}} = load float, ptr %y_place{{n}}, align 4
{everywhere("y{n}", "float", "%y_one{n}")}""",
            )
        )
        for n, v in _PAIRS:
            code.put(
                f"  %d{n}_{v} = call {REALS} @llvm.fma.v{LANES}f32("
                f"{REALS} %x{v}, {REALS} %y{n}, {REALS} %c{n}_{v})"
            )


def _add_tile(code: Code) -> None:
    """Add what was summed for each number; those behind the last one are none."""
    for n in range(_NUMBERS):
        code.put(
            f"  br label %put{n}",
            f"put{n}:",
            f"  br i1 %i_there{n}, label %here{n}, label %tile_end",
            f"here{n}:",
            f"  %gram_row{n} = mul i64 %i{n}, %width",
        )
        for v in range(_VECTORS):
            code.put(f"""  %g_at{n}_{v} = add i64 %gram_row{n}, %j{v}
  %g_place{n}_{v} = getelementptr float, ptr %block_gram, i64 %g_at{n}_{v}
  %g{n}_{v} = {masked_load(f"%g_place{n}_{v}", f"%mask{v}")}
  %h{n}_{v} = fadd {REALS} %g{n}_{v}, %d{n}_{v}
  {masked_store(f"%h{n}_{v}", f"%g_place{n}_{v}", f"%mask{v}")}""")
    code.put("  br label %tile_end", "tile_end:")


@cache
def _functions() -> dict[str, Callable[..., None]]:
    kinds = {"p": ctypes.c_void_p, "n": ctypes.c_int64}

    def kind(letters: str) -> object:
        return ctypes.CFUNCTYPE(None, *(kinds[letter] for letter in letters))

    text = "\n".join([DECLARATIONS, _GATHER, _draw(), _fold()])
    return machine_code(text, {"draw": kind("pnpnnnpn"), "fold": kind("pnnnnpp")})


def native_draw(
    source: NDArray[np.float32],
    step: int,
    places: NDArray[np.int64],
    target: NDArray[np.float32],
    first_row: int,
) -> None:
    """Fill rows of `target` from `first_row` on with the numbers of `source` at `places`.

    At a place begins a pixel, whose channels lie `step` numbers apart; below 0 it is all zeros.

    Shapes: places (rows, taps) contiguous, in numbers from the beginning of `source`; target
    (blocks, rows, taps × channels of a block) contiguous.
    """
    blocks, rows, width = target.shape
    taps = places.shape[1]
    _functions()["draw"](
        source.ctypes.data,
        step,
        places.ctypes.data,
        places.size,
        blocks,
        width // taps,
        target.ctypes.data + 4 * first_row * width,
        rows * width,
    )


def native_fold(
    rows: NDArray[np.float32],
    count: int,
    gram: NDArray[np.float32],
    totals: NDArray[np.float32],
) -> None:
    """Add Σ x·xᵀ of the first `count` rows to `gram`; fill `totals` with Σ x.

    Left of the diagonal `gram` holds nothing that could be used.

    Shapes: rows (G, R, K), gram (G, K, K), totals (G, K), all contiguous.
    """
    groups, most, width = rows.shape
    _functions()["fold"](
        rows.ctypes.data,
        count,
        width,
        groups,
        most * width,
        gram.ctypes.data,
        totals.ctypes.data,
    )
