"""The innermost part of compensated rounding as machine code: number after number of a row.

Each number waits for the errors of those before it, so NumPy does a handful of short operations
for each of them; here 64 rows go through at once, their errors in the first cache.

    for each number j of a row, in the order of decision:
        wanted = weight_j + Σ_{i<j} error_i · R_ij ÷ R_jj
        code_j = wanted rounded; error_j = weight_j - what code_j stands for
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from vermilion.quantize.native_code import machine_code

Float32 = NDArray[np.float32]

_LANES = 16
# As many as there are fused multiplications on the way: one of them takes four cycles.
_VECTORS = 4
_ROWS = _VECTORS * _LANES

_REAL = f"<{_LANES} x float>"
_BITS = f"<{_LANES} x i1>"
_LONGS = f"<{_LANES} x i64>"
_PLACES = f"<{_LANES} x ptr>"


@dataclass(frozen=True)
class Levels:
    """What the integers of each number stand for, and their ends.

    Shapes: (G, K or 1, O) in the order of decision, contiguous; `zeros` is added to what was
    rounded, and `lowest` and `highest` are without it.
    """

    scales: Float32
    lowest: Float32
    highest: Float32
    zeros: Float32


def _each(text: str) -> str:
    """Repeat lines for each vector of rows; in them `{n}` is its place."""
    return "\n".join(text.replace("{n}", str(n)) for n in range(_VECTORS))


def _everywhere(name: str, one: str, kind: str = "float", all_kind: str = _REAL) -> str:
    return f"""  %{name}_first = insertelement {all_kind} poison, {kind} {one}, i64 0
  %{name} = shufflevector {all_kind} %{name}_first, {all_kind} poison,
      <{_LANES} x i32> zeroinitializer"""


def _load(name: str, base: str, start: str) -> str:
    return f"""  %{name}_at{{n}} = add i64 {start}, %o{{n}}
  %{name}_place{{n}} = getelementptr float, ptr {base}, i64 %{name}_at{{n}}
  %{name}{{n}} = call {_REAL} @llvm.masked.load.v{_LANES}f32.p0(
      ptr %{name}_place{{n}}, i32 4, {_BITS} %mask{{n}}, {_REAL} zeroinitializer)"""


# Rows are copied first: as far apart as they lie in a large weight, often a power of two, few of
# them fit into the cache together (6.5 ns a number, with copies less than half of it).

# How a vector of results goes into `codes`, which holds 64 rows of every number.
_PUT = {
    "float": f"""  %code_place{{n}} = getelementptr float, ptr %codes, i64 %spot{{n}}
  store {_REAL} %code{{n}}, ptr %code_place{{n}}, align 4""",
    "i8": f"""  %code_word{{n}} = fptosi {_REAL} %code{{n}} to <{_LANES} x i32>
  %code_byte{{n}} = trunc <{_LANES} x i32> %code_word{{n}} to <{_LANES} x i8>
  %code_place{{n}} = getelementptr i8, ptr %codes, i64 %spot{{n}}
  store <{_LANES} x i8> %code_byte{{n}}, ptr %code_place{{n}}, align 1""",
}

_DECLARATIONS = f"""
declare {_REAL} @llvm.masked.load.v{_LANES}f32.p0(ptr, i32, {_BITS}, {_REAL})
declare void @llvm.masked.store.v{_LANES}f32.p0({_REAL}, ptr, i32, {_BITS})
declare {_REAL} @llvm.masked.gather.v{_LANES}f32.v{_LANES}p0({_PLACES}, i32, {_BITS}, {_REAL})
declare {_BITS} @llvm.get.active.lane.mask.v{_LANES}i1.i64(i64, i64)
declare {_REAL} @llvm.fmuladd.v{_LANES}f32({_REAL}, {_REAL}, {_REAL})
declare {_REAL} @llvm.rint.v{_LANES}f32({_REAL})
"""


def _cancel(kind: str) -> str:
    """Give the function for results of this type."""
    return f"""
define void @cancel_{kind}(
    ptr %weights, i64 %row_step, i64 %column_step, ptr %order, ptr %factors, i64 %width,
    ptr %scales, ptr %inverses, i64 %scale_step, ptr %lowest, ptr %highest, ptr %zeros,
    i64 %limit_step, ptr %means, ptr %kept, ptr %codes, ptr %copied,
    ptr %out, i64 %out_row_step, i64 %out_column_step, ptr %shifts, i64 %rows) {{
entry:
  %last = sub i64 %width, 1
  %is_dense = icmp eq i64 %column_step, 1
  %copied_step = or i64 %width, 1
  br label %tile
tile:
  %o = phi i64 [0, %entry], [%o_next, %tile_end]
  %left = sub i64 %rows, %o
  %is_last = icmp slt i64 %left, {_ROWS}
  %here = select i1 %is_last, i64 %left, i64 {_ROWS}
  %tile_at = mul i64 %o, %row_step
  %tile_weights = getelementptr float, ptr %weights, i64 %tile_at
  br i1 %is_dense, label %copy_row, label %ready
copy_row:
  %p = phi i64 [0, %tile], [%p_next, %copy_row_end]
  %p_at = mul i64 %p, %row_step
  %p_from = getelementptr float, ptr %tile_weights, i64 %p_at
  %p_to_at = mul i64 %p, %copied_step
  %p_to = getelementptr float, ptr %copied, i64 %p_to_at
  br label %copy
copy:
  %q = phi i64 [0, %copy_row], [%q_next, %copy]
  %q_mask = call {_BITS} @llvm.get.active.lane.mask.v{_LANES}i1.i64(i64 %q, i64 %width)
  %q_from = getelementptr float, ptr %p_from, i64 %q
  %q_values = call {_REAL} @llvm.masked.load.v{_LANES}f32.p0(
      ptr %q_from, i32 4, {_BITS} %q_mask, {_REAL} zeroinitializer)
  %q_to = getelementptr float, ptr %p_to, i64 %q
  call void @llvm.masked.store.v{_LANES}f32.p0(
      {_REAL} %q_values, ptr %q_to, i32 4, {_BITS} %q_mask)
  %q_next = add i64 %q, {_LANES}
  %q_more = icmp slt i64 %q_next, %width
  br i1 %q_more, label %copy, label %copy_row_end
copy_row_end:
  %p_next = add i64 %p, 1
  %p_more = icmp slt i64 %p_next, %here
  br i1 %p_more, label %copy_row, label %ready
ready:
  %source = phi ptr [%tile_weights, %tile], [%copied, %copy_row_end]
  %source_step = phi i64 [%row_step, %tile], [%copied_step, %copy_row_end]
{_everywhere("step_all", "%source_step", "i64", _LONGS)}
  %lanes = mul {_LONGS} %step_all, <{", ".join(f"i64 {lane}" for lane in range(_LANES))}>
{
        _each(
            f'''  %ahead{{n}} = mul i64 {{n}}, {_LANES}
  %o{{n}} = add i64 %o, %ahead{{n}}
  %mask{{n}} = call {_BITS} @llvm.get.active.lane.mask.v{_LANES}i1.i64(i64 %o{{n}}, i64 %rows)
  %row{{n}} = mul i64 %ahead{{n}}, %source_step
  %base{{n}} = getelementptr float, ptr %source, i64 %row{{n}}
  %each{{n}} = getelementptr float, ptr %base{{n}}, {_LONGS} %lanes'''
        )
    }
  br label %number
number:
  %j = phi i64 [0, %ready], [%j_next, %decide]
{_each(f"  %shift{{n}} = phi {_REAL} [zeroinitializer, %ready], [%shift_next{{n}}, %decide]")}
  %order_place = getelementptr i64, ptr %order, i64 %j
  %column = load i64, ptr %order_place
  %weight_at = mul i64 %column, %column_step
{
        _each(
            f'''  %place{{n}} = getelementptr float, {_PLACES} %each{{n}}, i64 %weight_at
  %weight{{n}} = call {_REAL} @llvm.masked.gather.v{_LANES}f32.v{_LANES}p0(
      {_PLACES} %place{{n}}, i32 4, {_BITS} %mask{{n}}, {_REAL} zeroinitializer)'''
        )
    }
  %from_end = sub i64 %last, %j
  %factor_row = mul i64 %from_end, %width
  %factor_last = add i64 %factor_row, %last
  %factor_end = getelementptr float, ptr %factors, i64 %factor_last
  %any = icmp sgt i64 %j, 0
  br i1 %any, label %before, label %decide
before:
  %i = phi i64 [0, %number], [%i_next, %before]
{_each(f"  %sum{{n}} = phi {_REAL} [zeroinitializer, %number], [%sum_next{{n}}, %before]")}
  %factor_back = sub i64 0, %i
  %factor_place = getelementptr float, ptr %factor_end, i64 %factor_back
  %factor_one = load float, ptr %factor_place
{_everywhere("factor", "%factor_one")}
  %kept_at = mul i64 %i, {_ROWS}
{
        _each(
            f'''  %kept_spot{{n}} = add i64 %kept_at, %ahead{{n}}
  %kept_place{{n}} = getelementptr float, ptr %kept, i64 %kept_spot{{n}}
  %error_before{{n}} = load {_REAL}, ptr %kept_place{{n}}, align 4
  %sum_next{{n}} = call {_REAL} @llvm.fmuladd.v{_LANES}f32(
      {_REAL} %factor, {_REAL} %error_before{{n}}, {_REAL} %sum{{n}})'''
        )
    }
  %i_next = add i64 %i, 1
  %i_more = icmp slt i64 %i_next, %j
  br i1 %i_more, label %before, label %decide
decide:
{_each(f"  %total{{n}} = phi {_REAL} [zeroinitializer, %number], [%sum_next{{n}}, %before]")}
  %own_back = sub i64 0, %j
  %own_place = getelementptr float, ptr %factor_end, i64 %own_back
  %own_factor = load float, ptr %own_place
  %share_one = fdiv float 1.0, %own_factor
{_everywhere("share", "%share_one")}
  %mean_place = getelementptr float, ptr %means, i64 %column
  %mean_one = load float, ptr %mean_place
{_everywhere("mean", "%mean_one")}
  %scale_start = mul i64 %j, %scale_step
  %limit_start = mul i64 %j, %limit_step
  %spots = mul i64 %j, {_ROWS}
{
        _each(
            f'''  %wanted{{n}} = call {_REAL} @llvm.fmuladd.v{_LANES}f32(
      {_REAL} %total{{n}}, {_REAL} %share, {_REAL} %weight{{n}})
{_load("scale", "%scales", "%scale_start")}
{_load("inverse", "%inverses", "%scale_start")}
{_load("low", "%lowest", "%limit_start")}
{_load("high", "%highest", "%limit_start")}
{_load("zero", "%zeros", "%limit_start")}
  %scaled{{n}} = fmul {_REAL} %wanted{{n}}, %inverse{{n}}
  %whole{{n}} = call {_REAL} @llvm.rint.v{_LANES}f32({_REAL} %scaled{{n}})
  %is_low{{n}} = fcmp olt {_REAL} %whole{{n}}, %low{{n}}
  %raised{{n}} = select {_BITS} %is_low{{n}}, {_REAL} %low{{n}}, {_REAL} %whole{{n}}
  %is_high{{n}} = fcmp ogt {_REAL} %raised{{n}}, %high{{n}}
  %rounded{{n}} = select {_BITS} %is_high{{n}}, {_REAL} %high{{n}}, {_REAL} %raised{{n}}
  %shown{{n}} = fmul {_REAL} %rounded{{n}}, %scale{{n}}
  %error{{n}} = fsub {_REAL} %weight{{n}}, %shown{{n}}
  %spot{{n}} = add i64 %spots, %ahead{{n}}
  %error_place{{n}} = getelementptr float, ptr %kept, i64 %spot{{n}}
  store {_REAL} %error{{n}}, ptr %error_place{{n}}, align 4
  %shift_next{{n}} = call {_REAL} @llvm.fmuladd.v{_LANES}f32(
      {_REAL} %error{{n}}, {_REAL} %mean, {_REAL} %shift{{n}})
  %code{{n}} = fadd {_REAL} %rounded{{n}}, %zero{{n}}
{_PUT[kind]}'''
        )
    }
  %j_next = add i64 %j, 1
  %j_more = icmp slt i64 %j_next, %width
  br i1 %j_more, label %number, label %decided
decided:
{
        _each(
            f'''  %shift_place{{n}} = getelementptr float, ptr %shifts, i64 %o{{n}}
  call void @llvm.masked.store.v{_LANES}f32.p0(
      {_REAL} %shift_next{{n}}, ptr %shift_place{{n}}, i32 4, {_BITS} %mask{{n}})'''
        )
    }
  br label %out_row
out_row:
  %r = phi i64 [0, %decided], [%r_next, %out_row_end]
  %r_all = add i64 %o, %r
  %r_at = mul i64 %r_all, %out_row_step
  %r_start = getelementptr {kind}, ptr %out, i64 %r_at
  %r_codes = getelementptr {kind}, ptr %codes, i64 %r
  br label %out_column
out_column:
  %c = phi i64 [0, %out_row], [%c_next, %out_column]
  %c_order = getelementptr i64, ptr %order, i64 %c
  %c_column = load i64, ptr %c_order
  %c_at = mul i64 %c_column, %out_column_step
  %c_to = getelementptr {kind}, ptr %r_start, i64 %c_at
  %c_spot = mul i64 %c, {_ROWS}
  %c_from = getelementptr {kind}, ptr %r_codes, i64 %c_spot
  %c_code = load {kind}, ptr %c_from
  store {kind} %c_code, ptr %c_to
  %c_next = add i64 %c, 1
  %c_more = icmp slt i64 %c_next, %width
  br i1 %c_more, label %out_column, label %out_row_end
out_row_end:
  %r_next = add i64 %r, 1
  %r_more = icmp slt i64 %r_next, %here
  br i1 %r_more, label %out_row, label %tile_end
tile_end:
  %o_next = add i64 %o, {_ROWS}
  %o_more = icmp slt i64 %o_next, %rows
  br i1 %o_more, label %tile, label %exit
exit:
  ret void
}}
"""


@cache
def _functions() -> dict[str, Callable[..., None]]:
    # In the order of the definition: pointers and 64-bit numbers.
    kinds = {"p": ctypes.c_void_p, "n": ctypes.c_int64}
    kind = ctypes.CFUNCTYPE(None, *(kinds[letter] for letter in "pnnppnppnpppnpppppnnpn"))
    text = _DECLARATIONS + "".join(_cancel(name) for name in _PUT)
    return machine_code(text, {f"cancel_{name}": kind for name in _PUT})


def native_cancel(
    weights: Float32,
    order: NDArray[np.int64],
    factors: Float32,
    levels: Levels,
    means: Float32,
    out: NDArray[np.generic],
) -> Float32:
    """Fill `out` with the integers of all weights; give Σ error · mean of each row, (G, O).

    Row K - 1 - j of `factors` holds, from its end, what number j in the order of decision takes
    over of each before it, all as parts of what stands behind them.

    Shapes: weights and out (G, O, K) as they lie, `out` of float32 or of 8 bits; order (G, K),
    factors (G, K, K) and means (G, K), in the weights' own order, contiguous.
    """
    groups, rows, width = weights.shape
    function = _functions()["cancel_i8" if out.itemsize == 1 else "cancel_float"]
    row_step, column_step = (step // 4 for step in weights.strides[1:])
    out_row_step, out_column_step = (step // out.itemsize for step in out.strides[1:])
    inverses = np.float32(1.0) / levels.scales
    scale_step = 0 if levels.scales.shape[1] == 1 else rows
    limit_step = 0 if levels.lowest.shape[1] == 1 else rows
    shifts = np.empty((groups, rows), np.float32)
    kept, codes = np.empty((2, width * _ROWS), np.float32)
    copied = np.empty((width + 1) * _ROWS, np.float32)
    for group in range(groups):
        scales, inverse, lowest, highest, zeros, own_order, own_factors, mean, shift = (
            array.ctypes.data + group * array.strides[0]
            for array in (
                *(levels.scales, inverses, levels.lowest, levels.highest, levels.zeros),
                *(order, factors, means, shifts),
            )
        )
        function(
            weights.ctypes.data + group * weights.strides[0],
            row_step,
            column_step,
            own_order,
            own_factors,
            width,
            scales,
            inverse,
            scale_step,
            lowest,
            highest,
            zeros,
            limit_step,
            mean,
            kept.ctypes.data,
            codes.ctypes.data,
            copied.ctypes.data,
            out.ctypes.data + group * out.strides[0],
            out_row_step,
            out_column_step,
            shift,
            rows,
        )
    return shifts
