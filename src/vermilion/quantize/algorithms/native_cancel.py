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

from vermilion.quantize.llvm_text import (
    DECLARATIONS,
    LANES,
    LONGS,
    MASK,
    REALS,
    WORDS,
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

Float32 = NDArray[np.float32]

# As many as there are fused multiplications on the way: one of them takes four cycles.
_VECTORS = 4
_ROWS = _VECTORS * LANES

_PLACES = f"<{LANES} x ptr>"


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


_MORE = f"""
declare {REALS} @llvm.masked.gather.v{LANES}f32.v{LANES}p0({_PLACES}, i32, {MASK}, {REALS})
declare {REALS} @llvm.fmuladd.v{LANES}f32({REALS}, {REALS}, {REALS})
declare {REALS} @llvm.rint.v{LANES}f32({REALS})
"""

_ARGUMENTS = """
    ptr %weights, i64 %row_step, i64 %column_step, ptr %order, ptr %factors, i64 %width,
    ptr %scales, ptr %inverses, i64 %scale_step, ptr %lowest, ptr %highest, ptr %zeros,
    i64 %limit_step, ptr %means, ptr %kept, ptr %codes, ptr %copied,
    ptr %out, i64 %out_row_step, i64 %out_column_step, ptr %shifts, i64 %rows"""


def _cancel(kind: str) -> str:
    """Return the function for results of this type."""
    code = Code()
    with code.function(f"void @cancel_{kind}({_ARGUMENTS})"):
        code.put("""  %last = sub i64 %width, 1
  %is_dense = icmp eq i64 %column_step, 1
  %copied_step = or i64 %width, 1""")
        with code.loop("o", "%rows", step=_ROWS):
            code.put(f"""  %left = sub i64 %rows, %o
  %is_last = icmp slt i64 %left, {_ROWS}
  %here = select i1 %is_last, i64 %left, i64 {_ROWS}
  %tile_at = mul i64 %o, %row_step
  %tile_weights = getelementptr float, ptr %weights, i64 %tile_at""")
            copied = (
                Phi("%source", "ptr", "%tile_weights", "%copied"),
                Phi("%source_step", "i64", "%row_step", "%copied_step"),
            )
            with code.when("%is_dense", "copies", copied):
                _copy_rows(code)
            code.put(everywhere("step_all", "i64", "%source_step"))
            code.put(f"  %lanes = mul {LONGS} %step_all, {lanes_of('i64')}", _each(_PLACE))
            with code.loop("j", "%width", phis=each_phi(_VECTORS, "%shift{n}", "%shift_next{n}")):
                code.put("""  %order_place = getelementptr i64, ptr %order, i64 %j
  %column = load i64, ptr %order_place
  %weight_at = mul i64 %column, %column_step""")
                code.put(_each(_WEIGHT))
                _sum_errors(code)
                _decide(code, kind)
            code.put(_each(_SHIFT))
            _put_out(code, kind)
        code.put("  ret void")
    return code.text()


def _copy_rows(code: Code) -> None:
    """Rows are copied to lie closer together.

    As far apart as they lie in a large weight, often a power of two, few of them fit into the cache
    at once (6.5 ns a number, with copies less than half of it).
    """
    with code.loop("p", "%here"):
        code.put("""  %p_at = mul i64 %p, %row_step
  %p_from = getelementptr float, ptr %tile_weights, i64 %p_at
  %p_to_at = mul i64 %p, %copied_step
  %p_to = getelementptr float, ptr %copied, i64 %p_to_at""")
        with code.loop("q", "%width", step=LANES):
            code.put(f"""  %q_mask = {active("%q", "%width")}
  %q_from = getelementptr float, ptr %p_from, i64 %q
  %q_values = {masked_load("%q_from", "%q_mask")}
  %q_to = getelementptr float, ptr %p_to, i64 %q
  {masked_store("%q_values", "%q_to", "%q_mask")}""")


def _sum_errors(code: Code) -> None:
    """What the numbers before this one left over, each by its factor."""
    code.put("""  %from_end = sub i64 %last, %j
  %factor_row = mul i64 %from_end, %width
  %factor_last = add i64 %factor_row, %last
  %factor_end = getelementptr float, ptr %factors, i64 %factor_last
  %any = icmp sgt i64 %j, 0""")
    with (
        code.when("%any", "before", each_phi(_VECTORS, "%total{n}", "%sum_next{n}")),
        code.loop("i", "%j", phis=each_phi(_VECTORS, "%sum{n}", "%sum_next{n}")),
    ):
        code.put(f"""  %factor_back = sub i64 0, %i
  %factor_place = getelementptr float, ptr %factor_end, i64 %factor_back
  %factor_one = load float, ptr %factor_place
{everywhere("factor", "float", "%factor_one")}
  %kept_at = mul i64 %i, {_ROWS}""")
        code.put(_each(_SUM))


def _decide(code: Code, kind: str) -> None:
    """Round each number, and keep what its integer leaves over."""
    code.put(f"""  %own_back = sub i64 0, %j
  %own_place = getelementptr float, ptr %factor_end, i64 %own_back
  %own_factor = load float, ptr %own_place
  %share_one = fdiv float 1.0, %own_factor
{everywhere("share", "float", "%share_one")}
  %mean_place = getelementptr float, ptr %means, i64 %column
  %mean_one = load float, ptr %mean_place
{everywhere("mean", "float", "%mean_one")}
  %scale_start = mul i64 %j, %scale_step
  %limit_start = mul i64 %j, %limit_step
  %spots = mul i64 %j, {_ROWS}""")
    code.put(_each(f"{_DECISION}\n{_PUT[kind]}"))


def _put_out(code: Code, kind: str) -> None:
    """Integers go to where the weights' own order has them."""
    with code.loop("r", "%here"):
        code.put(f"""  %r_all = add i64 %o, %r
  %r_at = mul i64 %r_all, %out_row_step
  %r_start = getelementptr {kind}, ptr %out, i64 %r_at
  %r_codes = getelementptr {kind}, ptr %codes, i64 %r""")
        with code.loop("c", "%width"):
            code.put(f"""  %c_order = getelementptr i64, ptr %order, i64 %c
  %c_column = load i64, ptr %c_order
  %c_at = mul i64 %c_column, %out_column_step
  %c_to = getelementptr {kind}, ptr %r_start, i64 %c_at
  %c_spot = mul i64 %c, {_ROWS}
  %c_from = getelementptr {kind}, ptr %r_codes, i64 %c_spot
  %c_code = load {kind}, ptr %c_from
  store {kind} %c_code, ptr %c_to""")


def _each(text: str) -> str:
    """Repeat lines for each vector of rows; in them `{n}` is its place."""
    return each(_VECTORS, text)


def _load(name: str, base: str, start: str) -> str:
    return f"""  %{name}_at{{n}} = add i64 {start}, %o{{n}}
  %{name}_place{{n}} = getelementptr float, ptr {base}, i64 %{name}_at{{n}}
  %{name}{{n}} = {masked_load(f"%{name}_place{{n}}", "%mask{n}")}"""


# What is done with each vector of rows, in order.
_PLACE = f"""  %ahead{{n}} = mul i64 {{n}}, {LANES}
  %o{{n}} = add i64 %o, %ahead{{n}}
  %mask{{n}} = {active("%o{n}", "%rows")}
  %row{{n}} = mul i64 %ahead{{n}}, %source_step
  %base{{n}} = getelementptr float, ptr %source, i64 %row{{n}}
  %each{{n}} = getelementptr float, ptr %base{{n}}, {LONGS} %lanes"""

_WEIGHT = f"""  %place{{n}} = getelementptr float, {_PLACES} %each{{n}}, i64 %weight_at
  %weight{{n}} = call {REALS} @llvm.masked.gather.v{LANES}f32.v{LANES}p0(
      {_PLACES} %place{{n}}, i32 4, {MASK} %mask{{n}}, {REALS} zeroinitializer)"""

_SUM = f"""  %kept_spot{{n}} = add i64 %kept_at, %ahead{{n}}
  %kept_place{{n}} = getelementptr float, ptr %kept, i64 %kept_spot{{n}}
  %error_before{{n}} = load {REALS}, ptr %kept_place{{n}}, align 4
  %sum_next{{n}} = call {REALS} @llvm.fmuladd.v{LANES}f32(
      {REALS} %factor, {REALS} %error_before{{n}}, {REALS} %sum{{n}})"""

_DECISION = f"""  %wanted{{n}} = call {REALS} @llvm.fmuladd.v{LANES}f32(
      {REALS} %total{{n}}, {REALS} %share, {REALS} %weight{{n}})
{_load("scale", "%scales", "%scale_start")}
{_load("inverse", "%inverses", "%scale_start")}
{_load("low", "%lowest", "%limit_start")}
{_load("high", "%highest", "%limit_start")}
{_load("zero", "%zeros", "%limit_start")}
  %scaled{{n}} = fmul {REALS} %wanted{{n}}, %inverse{{n}}
  %whole{{n}} = call {REALS} @llvm.rint.v{LANES}f32({REALS} %scaled{{n}})
  %is_low{{n}} = fcmp olt {REALS} %whole{{n}}, %low{{n}}
  %raised{{n}} = select {MASK} %is_low{{n}}, {REALS} %low{{n}}, {REALS} %whole{{n}}
  %is_high{{n}} = fcmp ogt {REALS} %raised{{n}}, %high{{n}}
  %rounded{{n}} = select {MASK} %is_high{{n}}, {REALS} %high{{n}}, {REALS} %raised{{n}}
  %shown{{n}} = fmul {REALS} %rounded{{n}}, %scale{{n}}
  %error{{n}} = fsub {REALS} %weight{{n}}, %shown{{n}}
  %spot{{n}} = add i64 %spots, %ahead{{n}}
  %error_place{{n}} = getelementptr float, ptr %kept, i64 %spot{{n}}
  store {REALS} %error{{n}}, ptr %error_place{{n}}, align 4
  %shift_next{{n}} = call {REALS} @llvm.fmuladd.v{LANES}f32(
      {REALS} %error{{n}}, {REALS} %mean, {REALS} %shift{{n}})
  %code{{n}} = fadd {REALS} %rounded{{n}}, %zero{{n}}"""

_SHIFT = f"""  %shift_place{{n}} = getelementptr float, ptr %shifts, i64 %o{{n}}
  {masked_store("%shift_next{n}", "%shift_place{n}", "%mask{n}")}"""

# How a vector of results goes into `codes`, which holds 64 rows of every number.
_PUT = {
    "float": f"""  %code_place{{n}} = getelementptr float, ptr %codes, i64 %spot{{n}}
  store {REALS} %code{{n}}, ptr %code_place{{n}}, align 4""",
    "i8": f"""  %code_word{{n}} = fptosi {REALS} %code{{n}} to {WORDS}
  %code_byte{{n}} = trunc {WORDS} %code_word{{n}} to <{LANES} x i8>
  %code_place{{n}} = getelementptr i8, ptr %codes, i64 %spot{{n}}
  store <{LANES} x i8> %code_byte{{n}}, ptr %code_place{{n}}, align 1""",
}


@cache
def _functions() -> dict[str, Callable[..., None]]:
    # In the order of the definition: pointers and 64-bit numbers.
    kinds = {"p": ctypes.c_void_p, "n": ctypes.c_int64}
    kind = ctypes.CFUNCTYPE(None, *(kinds[letter] for letter in "pnnppnppnpppnpppppnnpn"))
    text = "\n".join([DECLARATIONS, _MORE, *(_cancel(name) for name in _PUT)])
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
