"""Elementary functions on vectors of float32.

Coefficients are minimax fits made by `tools/fit_math.py`; the relative error of each function is
below 2.5 units in the last place over its range, held by `vector_math_test.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from vermilion.codegen.emit.builder import Function
from vermilion.codegen.emit.values import Value, splat_constant, splat_integer

_EXP = (0.5, 0.166665181517601, 0.04166620597243309, 0.008368954062461853, 0.0013950599823147058)
# 2^x for 0 ≤ x < 1 within 3e-6 of itself, and 1 at 0: least squares, weighted until the errors are
# level.
_EXP2 = (1.0, 0.6930448449, 0.2412802049, 0.052242474, 0.0134266844)
_TANH = (
    -0.3333328068256378,
    0.1333138346672058,
    -0.053734004497528076,
    0.02061813324689865,
    -0.005679315887391567,
)
_ERF = (
    1.1283791065216064,
    -0.3761262595653534,
    0.11283600330352783,
    -0.02685444802045822,
    0.005189542192965746,
    -0.0008020895184017718,
    7.889285188866779e-05,
)
_LOG_ERFC = (
    0.00019370629161130637,
    -1.1296073198318481,
    -0.6331565380096436,
    -0.10849650949239731,
    0.025267019867897034,
    -0.0042323702946305275,
    0.00044939847430214286,
    -2.2995596737018786e-05,
    9.105495024641641e-08,
)
_LOG = (
    0.33333316445350647,
    -0.25000810623168945,
    0.2000228613615036,
    -0.16624553501605988,
    0.14181196689605713,
    -0.13128767907619476,
    0.12881621718406677,
    -0.07859545946121216,
)
# ln(erfc x) = x·P(x); e to its power has an absolute error of 1.6e-8 for x ≥ 0.
_ERFC_EXPONENT = (
    -1.128380298614502,
    -0.636597752571106,
    -0.10291961580514908,
    0.019583959132432938,
    -0.0005369317950680852,
    -0.001032402622513473,
    0.0003088024677708745,
    -3.144019501633011e-05,
)
_LN2_HIGH = 0.693359375  # its product with a whole number below 2^15 is exact
_LN2_LOW = -2.12194440054690583e-4


class VectorMath:
    """The functions, written into one LLVM function."""

    def __init__(self, function: Function, lanes: int) -> None:
        self.f = function
        self.lanes = lanes
        self.type = f"<{lanes} x float>"
        self.integers = f"<{lanes} x i32>"

    def number(self, value: float) -> Value:
        """Return a constant in every lane."""
        return splat_constant(value, self.lanes)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return a·b + c, rounded once."""
        return self.f.intrinsic(f"llvm.fma.v{self.lanes}f32", self.type, [a, b, c])

    def add(self, a: Value, b: Value) -> Value:
        """Return a + b."""
        return self.f.binary("fadd", a, b)

    def subtract(self, a: Value, b: Value) -> Value:
        """Return a - b."""
        return self.f.binary("fsub", a, b)

    def multiply(self, a: Value, b: Value) -> Value:
        """Return a·b."""
        return self.f.binary("fmul", a, b)

    def divide(self, a: Value, b: Value) -> Value:
        """Return a ÷ b."""
        return self.f.binary("fdiv", a, b)

    def unary(self, name: str, a: Value) -> Value:
        """Apply an LLVM intrinsic of one argument: fabs, sqrt, floor, ceil, roundeven, trunc."""
        return self.f.intrinsic(f"llvm.{name}.v{self.lanes}f32", self.type, [a])

    def maximum(self, a: Value, b: Value) -> Value:
        """Return the greater, in one instruction; `b` where either is NaN."""
        return self.f.select(self.f.compare_floats("ogt", a, b), a, b)

    def minimum(self, a: Value, b: Value) -> Value:
        """Return the lesser, in one instruction; `b` where either is NaN."""
        return self.f.select(self.f.compare_floats("olt", a, b), a, b)

    def maximum_or_nan(self, a: Value, b: Value) -> Value:
        """Return the greater.

        NaN where either is. What waits for `a` is longer by an instruction.
        """
        return self.f.select(self.f.compare_floats("uno", a, a), a, self.maximum(a, b))

    def minimum_or_nan(self, a: Value, b: Value) -> Value:
        """Return the lesser; NaN where either is."""
        return self.f.select(self.f.compare_floats("uno", a, a), a, self.minimum(a, b))

    def polynomial(self, x: Value, coefficients: Sequence[float]) -> Value:
        """Return c0 + c1·x + c2·x² + … by Horner's rule."""
        result = self.number(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self.fma(result, x, self.number(coefficient))
        return result

    def exp(self, x: Value) -> Value:
        """Return e^x; 0 and infinity beyond float32's range."""
        f = self.f
        rest, n = self._exp_parts(x)
        y = self.add(rest, self.number(1.0))
        if f.module.has_scale and self.lanes == 16:
            return self._scaled(y, n)
        whole = f.convert("fptosi", n, self.integers)
        # Scaled in two steps: 2^n itself leaves the range of float32 before the product does.
        half = f.binary("ashr", whole, splat_integer(1, self.lanes))
        rest = f.binary("sub", whole, half)
        return self.multiply(self.multiply(y, self._power_of_two(half)), self._power_of_two(rest))

    def _exp_parts(self, x: Value) -> tuple[Value, Value]:
        """Return p and a whole n so that e^x = (1 + p)·2^n."""
        clamped = self._clamp(x, -104.0, 89.0)
        n = self.unary("roundeven", self.multiply(clamped, self.number(1.0 / math.log(2.0))))
        r = self.fma(n, self.number(-_LN2_HIGH), clamped)
        r = self.fma(n, self.number(-_LN2_LOW), r)
        p = self.polynomial(r, _EXP)
        return self.fma(self.multiply(r, r), p, r), n

    def exp_minus_one(self, x: Value) -> Value:
        """Return e^x - 1 for x ≤ 0 or about it, where nothing cancels; as it is at 88 beyond."""
        f = self.f
        bounded = self._clamp(x, -30.0, 88.0)  # at -30 it is -1
        rest, n = self._exp_parts(bounded)
        power = self._power_of_two(f.convert("fptosi", n, self.integers))
        return self.fma(rest, power, self.subtract(power, self.number(1.0)))

    def softplus(self, x: Value) -> Value:
        """Return ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|): no overflow, and nothing lost below."""
        f = self.f
        size = self.unary("fabs", x)
        e = self.exp(f.emit(size.type, f"fneg {size}"))
        total = self.add(e, self.number(1.0))
        # What the sum rounds away, over the sum: 1.5 - total ÷ 2 is near enough to 1 ÷ total, and
        # 1 where the sum is.
        lost = self.subtract(e, self.subtract(total, self.number(1.0)))
        share = self.fma(total, self.number(-0.5), self.number(1.5))
        tail = self.fma(lost, share, self.log(total))
        return self.add(self.maximum(self.number(0.0), x), tail)

    def exp2_coarse(self, x: Value) -> Value:
        """Return 2^x within 3e-6 of itself, in half the work of `exp`; AVX-512 alone.

        For what is stored in bfloat16, which rounds to 4e-3.
        """
        assert self.f.module.has_scale, "the scaling instruction is AVX-512's"
        name = "llvm.x86.avx512.mask.reduce.ps.512"
        every, current = Value("i16", "-1"), Value("i32", "4")
        to_below = Value("i32", "9")  # the part above a whole number; no exceptions
        part = self.f.intrinsic(name, self.type, [x, to_below, x, every, current])
        return self._scaled(self.polynomial(part, _EXP2), x)

    def _scaled(self, y: Value, n: Value) -> Value:
        """Return y·2^n, n rounded down, by the one instruction for it."""
        name = "llvm.x86.avx512.mask.scalef.ps.512"
        every, nearest = Value("i16", "-1"), Value("i32", "4")
        return self.f.intrinsic(name, self.type, [y, n, y, every, nearest])

    def _clamp(self, x: Value, low: float, high: float) -> Value:
        """Bound x; NaN stays, since the bounds stand on the left."""
        return self.minimum(self.number(high), self.maximum(self.number(low), x))

    def _power_of_two(self, n: Value) -> Value:
        biased = self.f.binary("add", n, splat_integer(127, self.lanes))
        bits = self.f.binary("shl", biased, splat_integer(23, self.lanes))
        return self.f.convert("bitcast", bits, self.type)

    def sigmoid(self, x: Value) -> Value:
        """Return 1 ÷ (1 + e^-x)."""
        e = self.exp(self.subtract(self.number(-0.0), x))
        return self.divide(self.number(1.0), self.add(e, self.number(1.0)))

    def sigmoid_coarse(self, x: Value) -> Value:
        """Return 1 ÷ (1 + e^-x) within 1e-5 of itself, without a division; AVX-512 alone.

        Below -80 it is what it is at -80: for what is stored in bfloat16.
        """
        low = self.maximum(self.number(-80.0), x)  # what its reciprocal begins with is finite
        e = self.exp2_coarse(self.multiply(low, self.number(-1.0 / math.log(2.0))))
        total = self.add(e, self.number(1.0))
        name, every = "llvm.x86.avx512.rcp14.ps.512", Value("i16", "-1")
        near = self.f.intrinsic(name, self.type, [total, total, every])
        # A step of Newton's: 2^-14 off becomes 2^-28.
        off = self.fma(self.subtract(self.number(-0.0), total), near, self.number(1.0))
        return self.fma(near, off, near)

    def tanh(self, x: Value) -> Value:
        """Return tanh x: a polynomial near 0, 1 - 2 ÷ (e^2|x| + 1) with the sign of x elsewhere."""
        f = self.f
        square = self.multiply(x, x)
        cube = self.multiply(square, x)
        near = self.fma(cube, self.polynomial(square, _TANH), x)
        # Of |x|, so that nothing cancels: on the negative side 1 - 2 ÷ … would.
        size = self.unary("fabs", x)
        e = self.exp(self.add(size, size))
        below = self.divide(self.number(2.0), self.add(e, self.number(1.0)))
        far = f.intrinsic(
            f"llvm.copysign.v{self.lanes}f32",
            self.type,
            [self.subtract(self.number(1.0), below), x],
        )
        is_near = f.compare_floats("olt", size, self.number(0.625))
        return f.select(is_near, near, far)

    def erf(self, x: Value) -> Value:
        """Return erf x: a polynomial below 1, 1 - e^P(|x|) above."""
        f = self.f
        size = self.unary("fabs", x)
        near = self.multiply(x, self.polynomial(self.multiply(x, x), _ERF))
        bounded = self.minimum(self.number(4.0), size)
        tail = self.exp(self.polynomial(bounded, _LOG_ERFC))
        far = f.intrinsic(
            f"llvm.copysign.v{self.lanes}f32",
            self.type,
            [self.subtract(self.number(1.0), tail), x],
        )
        return f.select(f.compare_floats("olt", size, self.number(1.0)), near, far)

    def one_plus_erf(self, x: Value) -> Value:
        """Return 1 + erf x to an absolute error of 1.4e-7, in half the time of `erf`.

        That is what GELU needs, where the sum is multiplied by x.
        """
        f = self.f
        # At 9 the exponent is low enough for a result of 0.
        size = self.minimum(self.number(9.0), self.unary("fabs", x))
        complement = self.exp(self.multiply(size, self.polynomial(size, _ERFC_EXPONENT)))
        above = self.subtract(self.number(2.0), complement)
        return f.select(f.compare_floats("olt", x, self.number(0.0)), complement, above)

    def log(self, x: Value) -> Value:
        """Return ln x; minus infinity at 0, NaN below."""
        f = self.f
        tiny = f.compare_floats("olt", x, self.number(1.17549435e-38))
        scaled = f.select(tiny, self.multiply(x, self.number(2.0**23)), x)
        correction = f.select(tiny, self.number(-23.0), self.number(0.0))
        bits = f.convert("bitcast", scaled, self.integers)
        # Move the mantissa to [√½, √2): subtract the bits of √½, keep what is above the exponent.
        shifted = f.binary("sub", bits, splat_integer(0x3F3504F3, self.lanes))
        exponent = f.binary("ashr", shifted, splat_integer(23, self.lanes))
        mantissa_bits = f.binary(
            "sub", bits, f.binary("shl", exponent, splat_integer(23, self.lanes))
        )
        m = self.subtract(f.convert("bitcast", mantissa_bits, self.type), self.number(1.0))
        n = self.add(f.convert("sitofp", exponent, self.type), correction)
        square = self.multiply(m, m)
        tail = self.multiply(self.multiply(square, m), self.polynomial(m, _LOG))
        y = self.fma(n, self.number(_LN2_LOW), self.fma(square, self.number(-0.5), tail))
        result = self.fma(n, self.number(_LN2_HIGH), self.add(m, y))
        result = f.select(
            f.compare_floats("oeq", x, self.number(0.0)), self.number(-math.inf), result
        )
        result = f.select(
            f.compare_floats("oeq", x, self.number(math.inf)), self.number(math.inf), result
        )
        invalid = f.compare_floats("ult", x, self.number(0.0))
        return f.select(invalid, self.number(math.nan), result)
