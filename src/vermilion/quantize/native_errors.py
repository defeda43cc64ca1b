"""What several scales make of the same numbers, as machine code: they are read once for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module, Value
from vermilion.codegen.emit.rows import across, for_vectors
from vermilion.quantize.native_code import LANES, compiled, new_module

SCALES = 5
"""Scales that are tried together."""

# Numbers whose errors are summed in float32 before they go into a double.
_BLOCK = 1 << 14


def _errors(module: Module) -> Function:
    parameters = [("values", "ptr"), ("size", "i64"), ("factors", "ptr"), ("limit", "float")]
    f = Function(module, "errors", [*parameters, ("sums", "ptr")], internal=False)
    values, size, factors, limit, sums = f.arguments
    arithmetic = Arithmetic(f, LANES)
    m = arithmetic.math
    high, zero = arithmetic.splat(limit), m.number(0.0)
    low = m.subtract(zero, high)
    scales = [arithmetic.load_splat("f32", f.at(factors, 4 * n)) for n in range(SCALES)]
    totals = [f.slot(Value("double", "0.0")) for _ in scales]
    with f.loop(0, size, _BLOCK) as start:
        block = f.at(values, f.multiply(start, 4))
        parts = [f.slot(zero) for _ in scales]

        def add(at: Value, mask: Value | None, number: int) -> None:
            x = arithmetic.load("f32", f.at(block, f.multiply(at, 4)), mask=mask)
            for scale, part in zip(scales, parts, strict=True):
                scaled = m.multiply(x, scale)
                rounded = m.minimum(m.maximum(m.unary("roundeven", scaled), low), high)
                off = m.subtract(scaled, rounded)
                part.set(m.fma(off, off, part.get()))

        for_vectors(f, arithmetic, f.minimum(f.subtract(size, start), _BLOCK), add)
        for part, total in zip(parts, totals, strict=True):
            lanes = across(arithmetic, "add", part.get())
            one = f.emit("float", f"extractelement {lanes}, i32 0")
            wide = f.convert("fpext", one, "double")
            total.set(f.binary("fadd", total.get(), wide))
    for n, total in enumerate(totals):
        f.store(total.get(), sums, 8 * n)
    f.finish()
    return f


@cache
def _function() -> Callable[..., None]:
    return compiled(_errors(new_module()))["errors"]


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
