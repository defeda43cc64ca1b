"""The innermost part of compensated rounding as machine code: number after number of a row.

Each number waits for the errors of those before it, so NumPy does a handful of short operations
for each of them; here 64 rows go through at once, their errors in the first cache.

    for each number j of a row, in the order of decision:
        wanted = weight_j + Σ_{i<j} error_i · R_ij ÷ R_jj
        code_j = wanted rounded; error_j = weight_j - what code_j stands for

Where numbers are rounded to floats of fewer bits, a code is the float itself. Of p bits, the high
ones of w are t - (t - w) with t = (2^(24 - p) + 1) · w. (Source: T. J. Dekker, "A Floating-Point
Technique for Extending the Available Precision", 1971, section 5.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module, Slot
from vermilion.codegen.emit.rows import for_vectors
from vermilion.codegen.emit.values import Value, constant
from vermilion.codegen.tensor import STORAGE_BYTES, Storage
from vermilion.quantize.native_code import LANES, compiled, new_module

Float32 = NDArray[np.float32]

# As many as there are fused multiplications on the way: one of them takes four cycles.
_VECTORS = 4
_ROWS = _VECTORS * LANES

FLOAT_BITS = (8, 11)
"""Of the numbers of bfloat16 and of float16, the leading one among them."""

_FLOAT32_BITS = 24


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


_ARGUMENTS = (
    *("weights", "row_step", "column_step", "order", "factors", "width"),
    *("scales", "inverses", "scale_step", "lowest", "highest", "zeros", "limit_step"),
    *("means", "kept", "codes", "copied"),
    *("out", "out_row_step", "out_column_step", "shifts", "rows"),
)
_NUMBERS = {"row_step", "column_step", "width", "scale_step", "limit_step", "out_row_step",
            "out_column_step", "rows"}  # fmt: skip


class _Canceller:
    """Writes the function for results of one type, or of floats with so many bits.

    Steps count numbers.
    """

    def __init__(self, module: Module, result: Storage, float_bits: int = 0) -> None:
        parameters = [(name, "i64" if name in _NUMBERS else "ptr") for name in _ARGUMENTS]
        name = f"cancel_{float_bits or result}"
        self.f = Function(module, name, parameters, internal=False)
        self.result = result
        self.float_bits = float_bits
        self.of = dict(zip(_ARGUMENTS, self.f.arguments, strict=True))
        self.arithmetic = Arithmetic(self.f, LANES)

    def write(self) -> Function:
        """Write it, `_ROWS` rows at once."""
        f, of, zero = self.f, self.of, self.arithmetic.math.number(0.0)
        is_dense = f.compare("eq", of["column_step"], constant("i64", 1))
        with f.loop(0, of["rows"], _ROWS) as first:
            here = f.minimum(f.subtract(of["rows"], first), _ROWS)
            own = f.at(of["weights"], f.multiply(f.multiply(first, of["row_step"]), 4))
            with f.when(is_dense):
                self._copy_rows(own, here)
            source = f.select(is_dense, of["copied"], own)
            row_step = f.select(is_dense, self._copied_step(), of["row_step"])
            masks = [
                self.arithmetic.tail_mask(f.subtract(here, n * LANES)) for n in range(_VECTORS)
            ]
            shifts = [f.slot(zero) for _ in range(_VECTORS)]
            with f.loop(0, of["width"]) as j:
                totals = self._sum_errors(j)
                column = f.load("i64", of["order"], f.multiply(j, 8), align=8)
                at = f.at(source, f.multiply(f.multiply(column, of["column_step"]), 4))
                decision = _Decision(self, j, column, first)
                for n in range(_VECTORS):
                    place = f.at(at, f.multiply(row_step, 4 * n * LANES))
                    weight = self.arithmetic.load_strided("f32", place, row_step, mask=masks[n])
                    decision.write(n, weight, totals[n].get(), shifts[n], masks[n])
            for n in range(_VECTORS):
                place = f.at(of["shifts"], f.multiply(f.add(first, n * LANES), 4))
                self.arithmetic.store("f32", shifts[n].get(), place, mask=masks[n])
            self._put_out(first, here)
        f.finish()
        return f

    def _copied_step(self) -> Value:
        """An odd number, so that the rows lie in all sets of the cache."""
        return self.f.binary("or", self.of["width"], constant("i64", 1))

    def _copy_rows(self, source: Value, count: Value) -> None:
        """Rows are copied to lie closer together.

        As far apart as they lie in a large weight, often a power of two, few of them fit into the
        cache at once (6.5 ns a number, with copies less than half of it).
        """
        f, of, arithmetic = self.f, self.of, self.arithmetic
        with f.loop(0, count) as row:
            there = f.at(source, f.multiply(f.multiply(row, of["row_step"]), 4))
            target = f.at(of["copied"], f.multiply(f.multiply(row, self._copied_step()), 4))

            def copy(at: Value, mask: Value | None, number: int) -> None:
                offset = f.multiply(at, 4)
                values = arithmetic.load("f32", f.at(there, offset), mask=mask)
                arithmetic.store("f32", values, f.at(target, offset), mask=mask)

            for_vectors(f, arithmetic, of["width"], copy)

    def factor(self, j: Value, back: Value) -> Value:
        """Return where the factor lies of the number `back` places from the first."""
        f, width = self.f, self.of["width"]
        last = f.subtract(width, 1)
        row = f.multiply(f.subtract(last, j), width)
        return f.at(self.of["factors"], f.multiply(f.subtract(f.add(row, last), back), 4))

    def _sum_errors(self, j: Value) -> list[Slot]:
        """What the numbers before this one left over, each by its factor."""
        f, arithmetic = self.f, self.arithmetic
        totals = [f.slot(arithmetic.math.number(0.0)) for _ in range(_VECTORS)]
        with f.loop(0, j) as i:
            factor = arithmetic.load_splat("f32", self.factor(j, i))
            errors = f.at(self.of["kept"], f.multiply(i, 4 * _ROWS))
            for n, total in enumerate(totals):
                error = arithmetic.load("f32", f.at(errors, 4 * LANES * n))
                total.set(arithmetic.math.fma(factor, error, total.get()))
        return totals

    def _put_out(self, first: Value, count: Value) -> None:
        """Integers go to where the weights' own order has them."""
        f, of, size = self.f, self.of, STORAGE_BYTES[self.result]
        raw = "i8" if size == 1 else "float"
        with f.loop(0, count) as row:
            at = f.multiply(f.add(first, row), of["out_row_step"])
            start = f.at(of["out"], f.multiply(at, size))
            codes = f.at(of["codes"], f.multiply(row, size))
            with f.loop(0, of["width"]) as j:
                column = f.load("i64", of["order"], f.multiply(j, 8), align=8)
                code = f.load(raw, codes, f.multiply(j, _ROWS * size))
                at = f.multiply(column, of["out_column_step"])
                f.store(code, start, f.multiply(at, size))


class _Decision:
    """Rounds number `j` of each row, and keeps what its integer leaves over."""

    def __init__(self, writer: _Canceller, j: Value, column: Value, first: Value) -> None:
        self.writer = writer
        f, of, arithmetic = writer.f, writer.of, writer.arithmetic
        own = arithmetic.load_splat("f32", writer.factor(j, j))
        self._share = arithmetic.math.divide(arithmetic.math.number(1.0), own)
        self._mean = arithmetic.load_splat("f32", f.at(of["means"], f.multiply(column, 4)))
        self._scales = f.add(f.multiply(j, of["scale_step"]), first)
        self._limits = f.add(f.multiply(j, of["limit_step"]), first)
        self._spot = f.multiply(j, _ROWS)

    def write(self, n: int, weight: Value, total: Value, shift: Slot, mask: Value) -> None:
        """Write it for one vector of rows; `shift` takes the error by the number's mean."""
        writer, f, of = self.writer, self.writer.f, self.writer.of
        arithmetic, m = writer.arithmetic, writer.arithmetic.math

        def load(name: str, start: Value) -> Value:
            place = f.at(of[name], f.multiply(f.add(start, n * LANES), 4))
            return arithmetic.load("f32", place, mask=mask)

        wanted = m.fma(total, self._share, weight)
        if writer.float_bits:
            grown = m.multiply(wanted, m.number(2.0 ** (_FLOAT32_BITS - writer.float_bits) + 1.0))
            code = m.subtract(grown, m.subtract(grown, wanted))
            error = m.subtract(weight, code)
        else:
            rounded = m.unary("roundeven", m.multiply(wanted, load("inverses", self._scales)))
            for predicate, name in (("olt", "lowest"), ("ogt", "highest")):
                limit = load(name, self._limits)
                rounded = f.select(f.compare_floats(predicate, rounded, limit), limit, rounded)
            error = m.subtract(weight, m.multiply(rounded, load("scales", self._scales)))
            code = m.add(rounded, load("zeros", self._limits))
        spot = f.add(self._spot, n * LANES)
        arithmetic.store("f32", error, f.at(of["kept"], f.multiply(spot, 4)))
        shift.set(m.fma(error, self._mean, shift.get()))
        if writer.result != "f32":
            code = f.convert("fptosi", code, arithmetic.type("int"))
        place = f.at(of["codes"], f.multiply(spot, STORAGE_BYTES[writer.result]))
        arithmetic.store(writer.result, code, place)


@cache
def _functions() -> dict[str, Callable[..., None]]:
    module = new_module()
    results: tuple[Storage, ...] = ("f32", "s8")
    functions = [_Canceller(module, result).write() for result in results]
    functions += [_Canceller(module, "f32", bits).write() for bits in FLOAT_BITS]
    return compiled(*functions)


def native_cancel(
    weights: Float32,
    order: NDArray[np.int64],
    factors: Float32,
    levels: Levels | int,
    means: Float32,
    out: NDArray[np.generic],
) -> Float32:
    """Fill `out` with the integers of all weights; give Σ error · mean of each row, (G, O).

    With a number of bits for `levels`, it is filled with floats of so many.

    Row K - 1 - j of `factors` holds, from its end, what number j in the order of decision takes
    over of each before it, all as parts of what stands behind them.

    Shapes: weights and out (G, O, K) as they lie, `out` of float32 or of 8 bits; order (G, K),
    factors (G, K, K) and means (G, K), in the weights' own order, contiguous.
    """
    groups, rows, width = weights.shape
    if isinstance(levels, int):
        kind = str(levels)
        levels = Levels(*(np.zeros((groups, 1, 1), np.float32) for _ in range(4)))  # are not read
        inverses = levels.scales
    else:
        kind = "s8" if out.itemsize == 1 else "f32"
        inverses = np.float32(1.0) / levels.scales
    function = _functions()[f"cancel_{kind}"]
    row_step, column_step = (step // 4 for step in weights.strides[1:])
    out_row_step, out_column_step = (step // out.itemsize for step in out.strides[1:])
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
