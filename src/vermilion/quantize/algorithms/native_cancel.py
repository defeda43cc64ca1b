"""The innermost part of compensated rounding as machine code: number after number of a row.

Each number waits for the errors of those before it, so NumPy does a handful of short operations
for each of them; here 16 rows go through a block at once, their errors in the first cache.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from vermilion.quantize.native_code import machine_code

BLOCK = 64
"""Numbers of a row that are decided together, at most."""

_LANES = 16
_REAL = f"<{_LANES} x float>"
_BITS = f"<{_LANES} x i1>"


def _load(name: str, base: str, row: str, stride: str) -> str:
    return (
        f"  %{name}_row = mul i64 {row}, {stride}\n"
        f"  %{name}_at = add i64 %{name}_row, %o\n"
        f"  %{name}_place = getelementptr float, ptr {base}, i64 %{name}_at\n"
        f"  %{name} = call {_REAL} @llvm.masked.load.v{_LANES}f32.p0("
        f"ptr %{name}_place, i32 4, {_BITS} %mask, {_REAL} zeroinitializer)"
    )


_CANCEL = f"""
declare {_REAL} @llvm.masked.load.v{_LANES}f32.p0(ptr, i32, {_BITS}, {_REAL})
declare void @llvm.masked.store.v{_LANES}f32.p0({_REAL}, ptr, i32, {_BITS})
declare {_BITS} @llvm.get.active.lane.mask.v{_LANES}i1.i64(i64, i64)
declare {_REAL} @llvm.fmuladd.v{_LANES}f32({_REAL}, {_REAL}, {_REAL})
declare {_REAL} @llvm.rint.v{_LANES}f32({_REAL})

define void @cancel(ptr %weights, ptr %targets, ptr %factors, i64 %width, ptr %scales,
                    ptr %inverses, i64 %scale_stride, ptr %lowest, ptr %highest,
                    i64 %limit_stride, ptr %errors, ptr %integers, i64 %count, i64 %rows) {{
entry:
  %kept = alloca [{BLOCK} x {_REAL}], align 64
  br label %tile
tile:
  %o = phi i64 [0, %entry], [%o_next, %tile_end]
  %mask = call {_BITS} @llvm.get.active.lane.mask.v{_LANES}i1.i64(i64 %o, i64 %rows)
  br label %number
number:
  %j = phi i64 [0, %tile], [%j_next, %decide]
{_load("target", "%targets", "%j", "%rows")}
  %factor_row = mul i64 %j, %width
  %any = icmp sgt i64 %j, 0
  br i1 %any, label %before, label %decide
before:
  %i = phi i64 [0, %number], [%i_next, %before]
  %sum = phi {_REAL} [%target, %number], [%sum_next, %before]
  %factor_at = add i64 %factor_row, %i
  %factor_place = getelementptr float, ptr %factors, i64 %factor_at
  %factor = load float, ptr %factor_place
  %factor_first = insertelement {_REAL} poison, float %factor, i64 0
  %factor_all = shufflevector {_REAL} %factor_first, {_REAL} poison,
      <{_LANES} x i32> zeroinitializer
  %kept_place = getelementptr {_REAL}, ptr %kept, i64 %i
  %error_before = load {_REAL}, ptr %kept_place
  %sum_next = call {_REAL} @llvm.fmuladd.v{_LANES}f32(
      {_REAL} %factor_all, {_REAL} %error_before, {_REAL} %sum)
  %i_next = add i64 %i, 1
  %i_more = icmp slt i64 %i_next, %j
  br i1 %i_more, label %before, label %decide
decide:
  %wanted = phi {_REAL} [%target, %number], [%sum_next, %before]
{_load("weight", "%weights", "%j", "%rows")}
{_load("scale", "%scales", "%j", "%scale_stride")}
{_load("inverse", "%inverses", "%j", "%scale_stride")}
{_load("low", "%lowest", "%j", "%limit_stride")}
{_load("high", "%highest", "%j", "%limit_stride")}
  %scaled = fmul {_REAL} %wanted, %inverse
  %whole = call {_REAL} @llvm.rint.v{_LANES}f32({_REAL} %scaled)
  %is_low = fcmp olt {_REAL} %whole, %low
  %raised = select {_BITS} %is_low, {_REAL} %low, {_REAL} %whole
  %is_high = fcmp ogt {_REAL} %raised, %high
  %rounded = select {_BITS} %is_high, {_REAL} %high, {_REAL} %raised
  %shown = fmul {_REAL} %rounded, %scale
  %error = fsub {_REAL} %weight, %shown
  %own_place = getelementptr {_REAL}, ptr %kept, i64 %j
  store {_REAL} %error, ptr %own_place
  %error_place = getelementptr float, ptr %errors, i64 %weight_at
  call void @llvm.masked.store.v{_LANES}f32.p0(
      {_REAL} %error, ptr %error_place, i32 4, {_BITS} %mask)
  %integer_place = getelementptr float, ptr %integers, i64 %weight_at
  call void @llvm.masked.store.v{_LANES}f32.p0(
      {_REAL} %rounded, ptr %integer_place, i32 4, {_BITS} %mask)
  %j_next = add i64 %j, 1
  %j_more = icmp slt i64 %j_next, %count
  br i1 %j_more, label %number, label %tile_end
tile_end:
  %o_next = add i64 %o, {_LANES}
  %o_more = icmp slt i64 %o_next, %rows
  br i1 %o_more, label %tile, label %exit
exit:
  ret void
}}
"""


@cache
def _function() -> Callable[..., None]:
    # In the order of the definition: pointers and 64-bit numbers.
    kinds = {"p": ctypes.c_void_p, "n": ctypes.c_int64}
    kind = ctypes.CFUNCTYPE(None, *(kinds[letter] for letter in "pppnppnppnppnn"))
    function: Callable[..., None] = machine_code(_CANCEL, {"cancel": kind})["cancel"]
    return function


def native_cancel(
    weights: NDArray[np.float32],
    targets: NDArray[np.float32],
    factors: NDArray[np.float32],
    scales: NDArray[np.float32],
    inverses: NDArray[np.float32],
    limits: tuple[NDArray[np.float32], NDArray[np.float32]],
    errors: NDArray[np.float32],
    integers: NDArray[np.float32],
    start: int,
) -> None:
    """Decide the numbers from `start` on, as many as `targets` has; fill errors and integers.

    Shapes: weights, errors, integers (G, K, O) and factors (G, K, K) contiguous; targets
    (G, at most `BLOCK`, O) contiguous; scales, inverses and limits (G, K or 1, O) contiguous.
    """
    groups, width, rows = weights.shape
    count = targets.shape[1]
    scale_stride = 0 if scales.shape[1] == 1 else rows
    limit_stride = 0 if limits[0].shape[1] == 1 else rows

    def place(array: NDArray[np.float32], group: int, row: int, column: int = 0) -> int:
        steps = array.strides
        own = 0 if array.shape[1] == 1 else row
        return int(array.ctypes.data) + group * steps[0] + own * steps[1] + column * steps[2]

    for group in range(groups):
        _function()(
            place(weights, group, start),
            place(targets, group, 0),
            place(factors, group, start, start),
            width,
            place(scales, group, start),
            place(inverses, group, start),
            scale_stride,
            place(limits[0], group, start),
            place(limits[1], group, start),
            limit_stride,
            place(errors, group, start),
            place(integers, group, start),
            count,
            rows,
        )
