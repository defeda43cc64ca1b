"""Which power of two is the scale of a tensor: the one with the least squared error.

A scale 2^-p is known by its position p. The position that just covers the range is found first,
then that one, one coarser and three finer ones are tried: a finer one clips the few largest
values and rounds all others better.
Source: AMD Quark for ONNX, power-of-two MinMSE calibration (mode `All`); of equal errors the
coarsest scale wins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.rows import across, for_vectors
from vermilion.codegen.emit.values import Value
from vermilion.quantize.formats import IntegerFormat, Parameters, at_position
from vermilion.quantize.native_code import LANES, compiled, new_module
from vermilion.quantize.observe import Histogram
from vermilion.quantize.plan import Plan

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


# One coarser, three finer. Source: as above.
_TRIED = (-1, 0, 1, 2, 3)

# 2^-126 is the smallest normal float32; scales below it are lost where denormals are.
LARGEST_POSITION = 126


def covering_position(largest: float, number: IntegerFormat) -> int:
    """Return the position whose range is nearest to ±`largest`, which is above 0."""
    position = round(-math.log2(largest / number.high))
    return _limited(position)


def position_for_histogram(histogram: Histogram, number: IntegerFormat) -> int | None:
    """Return the best position for what was counted, None where all of it was zero."""
    if histogram.exponent is None:
        if histogram.floor == 0.0:
            return None
        return _limited(math.floor(math.log2(number.high / -histogram.floor)))
    all_counts = histogram.counts
    filled = np.flatnonzero(all_counts)
    centres, counts = (filled + 0.5) * histogram.width, all_counts[filled].astype(np.float64)

    def error(position: int) -> float:
        scaled = centres * math.ldexp(1.0, position)
        off = scaled - np.minimum(np.rint(scaled), number.high)
        return math.ldexp(float(np.dot(counts, off * off)), -2 * position)

    tried = _tried(covering_position(histogram.largest, number))
    best = _best(tried, [error(position) for position in tried])
    if histogram.floor < 0.0:
        # Rounded down: what lies below the floor must come out below it.
        best = min(best, math.floor(math.log2(number.high / -histogram.floor)))
    return _limited(best)


def position_for_values(values: NDArray[np.float32], number: IntegerFormat) -> int | None:
    """Return the best position for these values themselves, None where all are zero."""
    flat = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
    largest = max(float(flat.max(initial=0.0)), -float(flat.min(initial=0.0)))
    if largest == 0.0:
        return None
    tried = _tried(covering_position(largest, number))
    sums = native_errors(flat, [math.ldexp(1.0, position) for position in tried], number.high)
    return _best(tried, [math.ldexp(s, -2 * p) for s, p in zip(sums, tried, strict=True)])


def choose_positions(plan: Plan, histograms: Mapping[str, Histogram]) -> dict[str, int]:
    """Return a position to every scale of the plan that has seen a value other than zero.

    Tensors that share a scale take the coarsest of their positions, so that none is clipped.
    """
    scheme = plan.scheme
    own: dict[str, int | None] = {}
    for name, histogram in histograms.items():
        own[name] = position_for_histogram(histogram, scheme.activation)
    for values, number in ((plan.weights, scheme.weight), (plan.biases, scheme.bias)):
        for value in values:
            if value.const_value is not None:
                own[str(value.name)] = position_for_values(value.const_value.numpy(), number)
    positions: dict[str, int] = {}
    for name, position in own.items():
        scale = plan.scales[name]
        if position is not None:
            positions[scale] = min(position, positions.get(scale, position))
    return positions


def parameters_of_positions(plan: Plan, positions: Mapping[str, int]) -> dict[str, Parameters]:
    """Return the parameters of every tensor of the plan."""
    scheme = plan.scheme
    rows = (
        (plan.activations, scheme.activation),
        (plan.weights, scheme.weight),
        (plan.biases, scheme.bias),
    )
    return {
        str(value.name): at_position(positions[plan.scales[str(value.name)]], number)
        for values, number in rows
        for value in values
    }


def _limited(position: int) -> int:
    return max(-LARGEST_POSITION, min(LARGEST_POSITION, position))


def _tried(first: int) -> list[int]:
    return [_limited(first + step) for step in _TRIED]


def _best(tried: Sequence[int], errors: Sequence[float]) -> int:
    return tried[min(range(len(tried)), key=errors.__getitem__)]  # the coarsest of equals
