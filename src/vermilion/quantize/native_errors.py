"""What several scales make of the same numbers, as machine code: they are read once for all."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from vermilion.quantize.llvm_text import (
    DECLARATIONS,
    LANES,
    REALS,
    Code,
    Phi,
    active,
    each,
    each_phi,
    everywhere,
    masked_load,
)
from vermilion.quantize.native_code import machine_code

SCALES = 5
"""Scales that are tried together."""

# Numbers whose errors are summed in float32 before they go into a double.
_BLOCK = 1 << 14

_MORE = f"""
declare {REALS} @llvm.rint.v{LANES}f32({REALS})
declare {REALS} @llvm.minnum.v{LANES}f32({REALS}, {REALS})
declare {REALS} @llvm.maxnum.v{LANES}f32({REALS}, {REALS})
declare float @llvm.vector.reduce.fadd.v{LANES}f32(float, {REALS})
"""

# What stands once for each scale, in the order in which it is done.
_FACTOR = f"""  %factor_place{{n}} = getelementptr float, ptr %factors, i64 {{n}}
  %factor_one{{n}} = load float, ptr %factor_place{{n}}
{everywhere("factor{n}", "float", "%factor_one{n}")}
  %sum_place{{n}} = getelementptr double, ptr %sums, i64 {{n}}"""

_ERROR = f"""  %scaled{{n}} = fmul {REALS} %x, %factor{{n}}
  %whole{{n}} = call {REALS} @llvm.rint.v{LANES}f32({REALS} %scaled{{n}})
  %raised{{n}} = call {REALS} @llvm.maxnum.v{LANES}f32({REALS} %whole{{n}}, {REALS} %low)
  %held{{n}} = call {REALS} @llvm.minnum.v{LANES}f32({REALS} %raised{{n}}, {REALS} %high)
  %off{{n}} = fsub {REALS} %scaled{{n}}, %held{{n}}
  %d{{n}} = call {REALS} @llvm.fma.v{LANES}f32(
      {REALS} %off{{n}}, {REALS} %off{{n}}, {REALS} %c{{n}})"""

_TOTAL = f"""  %one{{n}} = call reassoc float @llvm.vector.reduce.fadd.v{LANES}f32(
      float 0.0, {REALS} %d{{n}})
  %wide{{n}} = fpext float %one{{n}} to double
  %more{{n}} = fadd double %all{{n}}, %wide{{n}}"""


def _errors() -> str:
    code = Code()
    code.put(DECLARATIONS, _MORE)
    signature = "void @errors(ptr %values, i64 %size, ptr %factors, float %limit, ptr %sums)"
    with code.function(signature):
        code.put(everywhere("high", "float", "%limit"))
        code.put(f"  %low = fneg {REALS} %high", each(SCALES, _FACTOR))
        totals = [Phi(f"%all{n}", "double", "0.0", f"%more{n}") for n in range(SCALES)]
        with code.repeat("block", "%left", [Phi("%start", "i64", "0", "%stop"), *totals]):
            code.put(f"""  %ahead = add i64 %start, {_BLOCK}
  %short = icmp slt i64 %size, %ahead
  %stop = select i1 %short, i64 %size, i64 %ahead""")
            sums = each_phi(SCALES, "%c{n}", "%d{n}")
            with code.loop("i", "%stop", start="%start", step=LANES, phis=sums):
                code.put(f"""  %mask = {active("%i", "%stop")}
  %place = getelementptr float, ptr %values, i64 %i
  %x = {masked_load("%place", "%mask")}""")
                code.put(each(SCALES, _ERROR))
            code.put(each(SCALES, _TOTAL), "  %left = icmp slt i64 %stop, %size")
        code.put(each(SCALES, "  store double %more{n}, ptr %sum_place{n}"), "  ret void")
    return code.text()


@cache
def _function() -> Callable[..., None]:
    pointer = ctypes.c_void_p
    kind = ctypes.CFUNCTYPE(None, pointer, ctypes.c_int64, pointer, ctypes.c_float, pointer)
    function: Callable[..., None] = machine_code(_errors(), {"errors": kind})["errors"]
    return function


def native_errors(
    values: NDArray[np.float32], factors: Sequence[float], limit: float
) -> NDArray[np.float64]:
    """Return, for each of `SCALES` factors f, Σ (f·x - y)², y being f·x rounded and held to ±limit.

    Shapes: `values` is flat, contiguous and not empty.
    """
    tried = np.asarray(factors, np.float32)
    sums = np.empty(SCALES, np.float64)
    _function()(values.ctypes.data, values.size, tried.ctypes.data, limit, sums.ctypes.data)
    return sums
