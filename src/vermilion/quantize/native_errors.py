"""What several scales make of the same numbers, as machine code: they are read once for all."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from vermilion.quantize.native_code import machine_code

SCALES = 5
"""Scales that are tried together."""

_LANES = 16
_REAL = f"<{_LANES} x float>"
_BITS = f"<{_LANES} x i1>"

# Numbers whose errors are summed in float32 before they go into a double.
_BLOCK = 1 << 14


def _all_lanes(name: str, value: str) -> str:
    return f"""  %{name}_first = insertelement {_REAL} poison, float {value}, i64 0
  %{name} = shufflevector {_REAL} %{name}_first, {_REAL} poison, <{_LANES} x i32> zeroinitializer"""


def _each(text: str) -> str:
    """Repeat lines for each scale; in them `{n}` is its place."""
    return "\n".join(text.replace("{n}", str(n)) for n in range(SCALES))


_ERRORS = f"""
declare {_REAL} @llvm.masked.load.v{_LANES}f32.p0(ptr, i32, {_BITS}, {_REAL})
declare {_BITS} @llvm.get.active.lane.mask.v{_LANES}i1.i64(i64, i64)
declare {_REAL} @llvm.fma.v{_LANES}f32({_REAL}, {_REAL}, {_REAL})
declare {_REAL} @llvm.rint.v{_LANES}f32({_REAL})
declare {_REAL} @llvm.minnum.v{_LANES}f32({_REAL}, {_REAL})
declare {_REAL} @llvm.maxnum.v{_LANES}f32({_REAL}, {_REAL})
declare float @llvm.vector.reduce.fadd.v{_LANES}f32(float, {_REAL})

define void @errors(ptr %values, i64 %size, ptr %factors, float %limit, ptr %sums) {{
entry:
{_all_lanes("high", "%limit")}
  %low = fneg {_REAL} %high
{
    _each(
        f'''  %factor_place{{n}} = getelementptr float, ptr %factors, i64 {{n}}
  %factor_one{{n}} = load float, ptr %factor_place{{n}}
{_all_lanes("factor{n}", "%factor_one{n}")}
  %sum_place{{n}} = getelementptr double, ptr %sums, i64 {{n}}'''
    )
}
  br label %block
block:
  %start = phi i64 [0, %entry], [%stop, %summed]
{_each("  %all{n} = phi double [0.0, %entry], [%more{n}, %summed]")}
  %ahead = add i64 %start, {_BLOCK}
  %short = icmp slt i64 %size, %ahead
  %stop = select i1 %short, i64 %size, i64 %ahead
  br label %vector
vector:
  %i = phi i64 [%start, %block], [%i_next, %vector]
{_each(f"  %c{{n}} = phi {_REAL} [zeroinitializer, %block], [%d{{n}}, %vector]")}
  %mask = call {_BITS} @llvm.get.active.lane.mask.v{_LANES}i1.i64(i64 %i, i64 %stop)
  %place = getelementptr float, ptr %values, i64 %i
  %x = call {_REAL} @llvm.masked.load.v{_LANES}f32.p0(
      ptr %place, i32 4, {_BITS} %mask, {_REAL} zeroinitializer)
{
    _each(
        f'''  %scaled{{n}} = fmul {_REAL} %x, %factor{{n}}
  %whole{{n}} = call {_REAL} @llvm.rint.v{_LANES}f32({_REAL} %scaled{{n}})
  %raised{{n}} = call {_REAL} @llvm.maxnum.v{_LANES}f32({_REAL} %whole{{n}}, {_REAL} %low)
  %held{{n}} = call {_REAL} @llvm.minnum.v{_LANES}f32({_REAL} %raised{{n}}, {_REAL} %high)
  %off{{n}} = fsub {_REAL} %scaled{{n}}, %held{{n}}
  %d{{n}} = call {_REAL} @llvm.fma.v{_LANES}f32(
      {_REAL} %off{{n}}, {_REAL} %off{{n}}, {_REAL} %c{{n}})'''
    )
}
  %i_next = add i64 %i, {_LANES}
  %i_more = icmp slt i64 %i_next, %stop
  br i1 %i_more, label %vector, label %summed
summed:
{
    _each(
        f'''  %one{{n}} = call reassoc float @llvm.vector.reduce.fadd.v{_LANES}f32(
      float 0.0, {_REAL} %d{{n}})
  %wide{{n}} = fpext float %one{{n}} to double
  %more{{n}} = fadd double %all{{n}}, %wide{{n}}'''
    )
}
  %left = icmp slt i64 %stop, %size
  br i1 %left, label %block, label %exit
exit:
{_each("  store double %more{n}, ptr %sum_place{n}")}
  ret void
}}
"""


@cache
def _function() -> Callable[..., None]:
    pointer = ctypes.c_void_p
    kind = ctypes.CFUNCTYPE(None, pointer, ctypes.c_int64, pointer, ctypes.c_float, pointer)
    function: Callable[..., None] = machine_code(_ERRORS, {"errors": kind})["errors"]
    return function


def native_errors(
    values: NDArray[np.float32], factors: Sequence[float], limit: float
) -> NDArray[np.float64]:
    """Give, for each of `SCALES` factors f, Σ (f·x - y)², y being f·x rounded and held to ±limit.

    Shapes: `values` is flat, contiguous and not empty.
    """
    tried = np.asarray(factors, np.float32)
    sums = np.empty(SCALES, np.float64)
    _function()(values.ctypes.data, values.size, tried.ctypes.data, limit, sums.ctypes.data)
    return sums
