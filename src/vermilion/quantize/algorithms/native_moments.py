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

from vermilion.quantize.native_code import machine_code

_LANES = 16
_REAL = f"<{_LANES} x float>"
_BITS = f"<{_LANES} x i1>"
_LONGS = f"<{_LANES} x i64>"

# 24 sums, 3 vectors of one row and a number of it in all lanes: 28 of 32 registers.
_VECTORS, _NUMBERS = 3, 8

_DECLARATIONS = f"""
declare {_REAL} @llvm.masked.load.v{_LANES}f32.p0(ptr, i32, {_BITS}, {_REAL})
declare void @llvm.masked.store.v{_LANES}f32.p0({_REAL}, ptr, i32, {_BITS})
declare {_REAL} @llvm.masked.gather.v{_LANES}f32.v{_LANES}p0(
    <{_LANES} x ptr>, i32, {_BITS}, {_REAL})
declare {_BITS} @llvm.get.active.lane.mask.v{_LANES}i1.i64(i64, i64)
declare {_REAL} @llvm.fma.v{_LANES}f32({_REAL}, {_REAL}, {_REAL})
"""


def _load(pointer: str, mask: str) -> str:
    return (
        f"call {_REAL} @llvm.masked.load.v{_LANES}f32.p0("
        f"ptr {pointer}, i32 4, {_BITS} {mask}, {_REAL} zeroinitializer)"
    )


def _store(value: str, pointer: str, mask: str) -> str:
    return (
        f"call void @llvm.masked.store.v{_LANES}f32.p0("
        f"{_REAL} {value}, ptr {pointer}, i32 4, {_BITS} {mask})"
    )


def _mask(start: str, end: str) -> str:
    return f"call {_BITS} @llvm.get.active.lane.mask.v{_LANES}i1.i64(i64 {start}, i64 {end})"


# For each place of each row: what lies there, in runs that go to one block each. Nothing is read
# for a place below 0, which is outside of the picture.
_DRAW = f"""
define void @draw(ptr %source, i64 %step, ptr %places, i64 %count, i64 %blocks, i64 %run,
                  ptr %target, i64 %block_size) {{
entry:
  %is_dense = icmp eq i64 %step, 1
  %step_first = insertelement {_LONGS} poison, i64 %step, i64 0
  %step_all = shufflevector {_LONGS} %step_first, {_LONGS} poison, <{_LANES} x i32> zeroinitializer
  %lanes = mul {_LONGS} %step_all, <{", ".join(f"i64 {lane}" for lane in range(_LANES))}>
  br label %place
place:
  %n = phi i64 [0, %entry], [%n_next, %place_end]
  %place_at = getelementptr i64, ptr %places, i64 %n
  %first = load i64, ptr %place_at
  %is_inside = icmp sge i64 %first, 0
  %end = select i1 %is_inside, i64 %run, i64 0
  %here = getelementptr float, ptr %source, i64 %first
  %row_at = mul i64 %n, %run
  br label %block
block:
  %b = phi i64 [0, %place], [%b_next, %block_end]
  %channel = mul i64 %b, %run
  %block_at = mul i64 %b, %block_size
  %there_at = add i64 %block_at, %row_at
  %there = getelementptr float, ptr %target, i64 %there_at
  br label %vector
vector:
  %v = phi i64 [0, %block], [%v_next, %put]
  %reads = {_mask("%v", "%end")}
  %writes = {_mask("%v", "%run")}
  %number = add i64 %channel, %v
  %from_at = mul i64 %number, %step
  %from = getelementptr float, ptr %here, i64 %from_at
  br i1 %is_dense, label %dense, label %apart
dense:
  %dense_values = {_load("%from", "%reads")}
  br label %put
apart:
  %each = getelementptr float, ptr %from, {_LONGS} %lanes
  %apart_values = call {_REAL} @llvm.masked.gather.v{_LANES}f32.v{_LANES}p0(
      <{_LANES} x ptr> %each, i32 4, {_BITS} %reads, {_REAL} zeroinitializer)
  br label %put
put:
  %values = phi {_REAL} [%dense_values, %dense], [%apart_values, %apart]
  %to = getelementptr float, ptr %there, i64 %v
  {_store("%values", "%to", "%writes")}
  %v_next = add i64 %v, {_LANES}
  %v_more = icmp slt i64 %v_next, %run
  br i1 %v_more, label %vector, label %block_end
block_end:
  %b_next = add i64 %b, 1
  %b_more = icmp slt i64 %b_next, %blocks
  br i1 %b_more, label %block, label %place_end
place_end:
  %n_next = add i64 %n, 1
  %n_more = icmp slt i64 %n_next, %count
  br i1 %n_more, label %place, label %exit
exit:
  ret void
}}
"""


def _each(count: int, line: str) -> str:
    """Repeat lines for each vector or number; in them `{n}` is its place."""
    return "\n".join(line.replace("{n}", str(n)) for n in range(count))


def _pairs(line: str) -> str:
    """Repeat lines for each number and each vector: `{n}` and `{v}`."""
    return "\n".join(
        line.replace("{n}", str(n)).replace("{v}", str(v))
        for n in range(_NUMBERS)
        for v in range(_VECTORS)
    )


# Adds to a tile what was summed; numbers behind the last one are none.
_ADD_TILE = "\n".join(
    f"""put{n}:
  br i1 %i_there{n}, label %here{n}, label %tile_end
here{n}:
  %gram_row{n} = mul i64 %i{n}, %width"""
    + "".join(
        f"""
  %g_at{n}_{v} = add i64 %gram_row{n}, %j{v}
  %g_place{n}_{v} = getelementptr float, ptr %block_gram, i64 %g_at{n}_{v}
  %g{n}_{v} = {_load(f"%g_place{n}_{v}", f"%mask{v}")}
  %h{n}_{v} = fadd {_REAL} %g{n}_{v}, %d{n}_{v}
  {_store(f"%h{n}_{v}", f"%g_place{n}_{v}", f"%mask{v}")}"""
        for v in range(_VECTORS)
    )
    + f"\n  br label %{f'put{n + 1}' if n + 1 < _NUMBERS else 'tile_end'}"
    for n in range(_NUMBERS)
)

# Right of the diagonal, and some more than that:
#     for each block, for each 48 columns j, for each 8 columns i that are not all behind them:
#         gram[i][j] += Σ rows[r][i] · rows[r][j]
_FOLD = f"""
define void @fold(ptr %rows, i64 %count, i64 %width, i64 %blocks, i64 %block_size,
                  ptr %gram, ptr %totals) {{
entry:
  %last = sub i64 %width, 1
  %square = mul i64 %width, %width
  br label %block
block:
  %b = phi i64 [0, %entry], [%b_next, %block_end]
  %block_at = mul i64 %b, %block_size
  %block_rows = getelementptr float, ptr %rows, i64 %block_at
  %gram_at = mul i64 %b, %square
  %block_gram = getelementptr float, ptr %gram, i64 %gram_at
  %totals_at = mul i64 %b, %width
  %block_totals = getelementptr float, ptr %totals, i64 %totals_at
  br label %column
column:
  %j = phi i64 [0, %block], [%j_next, %column_end]
  %j0 = add i64 %j, 0
  %j1 = add i64 %j, {_LANES}
  %j2 = add i64 %j, {2 * _LANES}
{_each(_VECTORS, f"  %mask{{n}} = {_mask('%j{n}', '%width')}")}
  br label %add
add:
  %a = phi i64 [0, %column], [%a_next, %add]
{_each(_VECTORS, f"  %t{{n}} = phi {_REAL} [zeroinitializer, %column], [%u{{n}}, %add]")}
  %a_row = mul i64 %a, %width
{
    _each(
        _VECTORS,
        f'''  %a_at{{n}} = add i64 %a_row, %j{{n}}
  %a_place{{n}} = getelementptr float, ptr %block_rows, i64 %a_at{{n}}
  %a_here{{n}} = {_load("%a_place{n}", "%mask{n}")}
  %u{{n}} = fadd {_REAL} %t{{n}}, %a_here{{n}}''',
    )
}
  %a_next = add i64 %a, 1
  %a_more = icmp slt i64 %a_next, %count
  br i1 %a_more, label %add, label %added
added:
{
    _each(
        _VECTORS,
        f'''  %total_place{{n}} = getelementptr float, ptr %block_totals, i64 %j{{n}}
  {_store("%u{n}", "%total_place{n}", "%mask{n}")}''',
    )
}
  %j_end = add i64 %j, {_VECTORS * _LANES}
  %is_over = icmp slt i64 %width, %j_end
  %i_end = select i1 %is_over, i64 %width, i64 %j_end
  br label %tile
tile:
  %i = phi i64 [0, %added], [%i_next, %tile_end]
{
    _each(
        _NUMBERS,
        '''  %i_wanted{n} = add i64 %i, {n}
  %i_there{n} = icmp slt i64 %i_wanted{n}, %width
  %i{n} = select i1 %i_there{n}, i64 %i_wanted{n}, i64 %last''',
    )
}
  br label %row
row:
  %r = phi i64 [0, %tile], [%r_next, %row]
{_pairs(f"  %c{{n}}_{{v}} = phi {_REAL} [zeroinitializer, %tile], [%d{{n}}_{{v}}, %row]")}
  %row_at = mul i64 %r, %width
  %row_start = getelementptr float, ptr %block_rows, i64 %row_at
{
    _each(
        _VECTORS,
        f'''  %x_place{{n}} = getelementptr float, ptr %row_start, i64 %j{{n}}
  %x{{n}} = {_load("%x_place{n}", "%mask{n}")}''',
    )
}
{
    _each(
        _NUMBERS,
        f'''  %y_place{{n}} = getelementptr float, ptr %row_start, i64 %i{{n}}
  %y_one{{n}} = load float, ptr %y_place{{n}}, align 4
  %y_first{{n}} = insertelement {_REAL} poison, float %y_one{{n}}, i64 0
  %y{{n}} = shufflevector {_REAL} %y_first{{n}}, {_REAL} poison,
      <{_LANES} x i32> zeroinitializer''',
    )
}
{
    _pairs(
        f"  %d{{n}}_{{v}} = call {_REAL} @llvm.fma.v{_LANES}f32("
        f"{_REAL} %x{{v}}, {_REAL} %y{{n}}, {_REAL} %c{{n}}_{{v}})"
    )
}
  %r_next = add i64 %r, 1
  %r_more = icmp slt i64 %r_next, %count
  br i1 %r_more, label %row, label %put0
{_ADD_TILE}
tile_end:
  %i_next = add i64 %i, {_NUMBERS}
  %i_more = icmp slt i64 %i_next, %i_end
  br i1 %i_more, label %tile, label %column_end
column_end:
  %j_next = add i64 %j, {_VECTORS * _LANES}
  %j_more = icmp slt i64 %j_next, %width
  br i1 %j_more, label %column, label %block_end
block_end:
  %b_next = add i64 %b, 1
  %b_more = icmp slt i64 %b_next, %blocks
  br i1 %b_more, label %block, label %exit
exit:
  ret void
}}
"""


@cache
def _functions() -> dict[str, Callable[..., None]]:
    kinds = {"p": ctypes.c_void_p, "n": ctypes.c_int64}

    def kind(letters: str) -> object:
        return ctypes.CFUNCTYPE(None, *(kinds[letter] for letter in letters))

    text = _DECLARATIONS + _DRAW + _FOLD
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
