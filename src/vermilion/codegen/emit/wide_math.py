"""Elementary functions that are computed in float64 inside, and rounded to float32 once.

They are right to a unit in the last place over all of float32, far arguments and the ends of a
domain included. Networks call them seldom: twice the registers cost less than the care that
float32 would take. The series are Taylor's, cut where what is left out is below 2^-33 of the
result.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.values import Value, splat_integer
from vermilion.codegen.emit.vector_math import VectorMath

# 1.5 · 2^52: what is added to it is rounded to a whole number, which its lowest bits then hold.
_WHOLE = 6755399441055744.0
_ROOT_HALF_BITS = struct.unpack("<q", struct.pack("<d", math.sqrt(0.5)))[0]
_HALF_PI_HIGH, _HALF_PI_LOW = math.pi / 2, 6.123233995736766e-17
# Beyond it, a multiple of π/2 in two parts is not exact enough any more.
_FAR = 2.0**40
# The first bits of 2/π, 40 hexadecimal digits for each row: more than 2^128 and 2^-80 ask for.
_TWO_OVER_PI = Fraction(
    int(
        "a2f9836e4e441529fc2757d1f534ddc0db629599"
        "3c439041fe5163abdebbc561b7246e3a424dd2e0",
        16,
    ),
    16**80,
)  # fmt: skip
_FIRST_FAR_EXPONENT, _LAST_FAR_EXPONENT = 17, 104  # of 24-bit whole numbers from 2^40 to 2^128
_TABLE = "two_over_pi_times_powers_of_two"

_SINE = [(-1) ** k / math.factorial(2 * k + 1) for k in range(6)]
_COSINE = [(-1) ** k / math.factorial(2 * k) for k in range(7)]
_ARC_TANGENT = [(-1) ** k / (2 * k + 1) for k in range(13)]
_EXP2 = [math.log(2) ** k / math.factorial(k) for k in range(10)]
_LOG2 = [2 / math.log(2) / (2 * k + 1) for k in range(8)]
_SINH = [1.0, 1 / 6, 1 / 120, 1 / 5040]
_ASINH = [1.0, -1 / 6, 3 / 40, -15 / 336]
_ATANH = [1.0, 1 / 3, 1 / 5, 1 / 7]
_SMALL = 2.0**-4  # below it, the three above


@dataclass
class WideMath:
    """The functions, written into the LLVM function of `single`."""

    single: VectorMath

    @property
    def f(self) -> Function:
        """The function that is written."""
        return self.single.f

    @property
    def lanes(self) -> int:
        """Numbers of a vector."""
        return self.single.lanes

    @property
    def type(self) -> str:
        """The LLVM type of a vector of float64."""
        return f"<{self.lanes} x double>"

    @property
    def integers(self) -> str:
        """The LLVM type of its bits."""
        return f"<{self.lanes} x i64>"

    # Functions of float32 ---------------------------------------------------------------------

    def sin(self, x: Value) -> Value:
        """Return sin x."""
        r, quadrant = self._quadrant(x)
        return self._turned(r, quadrant)

    def cos(self, x: Value) -> Value:
        """Return cos x, the sine of a quadrant further."""
        r, quadrant = self._quadrant(x)
        return self._turned(r, self.f.binary("add", quadrant, self._integer(1)))

    def tan(self, x: Value) -> Value:
        """Return tan x."""
        r, quadrant = self._quadrant(x)
        sine, cosine = self._sine(r), self._cosine(r)
        is_odd = self._has_bit(quadrant, 1)
        above = self.f.select(is_odd, self._negative(cosine), sine)
        below = self.f.select(is_odd, sine, cosine)
        return self._single(self._binary("fdiv", above, below))

    def atan(self, x: Value) -> Value:
        """Return arctan x."""
        return self._single(self._arc_tangent(self._double(x)))

    def asin(self, x: Value) -> Value:
        """Return arcsin x = arctan(x ÷ √(1 - x²)); NaN beyond 1."""
        wide = self._double(x)
        rest = self._fma(self._negative(wide), wide, self._number(1.0))
        return self._single(self._arc_tangent(self._binary("fdiv", wide, self._root(rest))))

    def acos(self, x: Value) -> Value:
        """Return arccos x = 2·arctan √((1 - x) ÷ (1 + x)); NaN beyond 1."""
        wide, one = self._double(x), self._number(1.0)
        ratio = self._binary("fdiv", self._binary("fsub", one, wide), self._add(one, wide))
        half = self._arc_tangent(self._root(ratio))
        return self._single(self._add(half, half))

    def sinh(self, x: Value) -> Value:
        """Return (e^x - e^-x) ÷ 2."""
        wide = self._double(x)
        size = self._unary("fabs", wide)
        power = self._natural_power(size)
        inverse = self._binary("fdiv", self._number(1.0), power)
        far = self._multiply(self._binary("fsub", power, inverse), self._number(0.5))
        return self._single(self._joined(wide, size, _SINH, far))

    def cosh(self, x: Value) -> Value:
        """Return (e^x + e^-x) ÷ 2."""
        power = self._natural_power(self._unary("fabs", self._double(x)))
        inverse = self._binary("fdiv", self._number(1.0), power)
        return self._single(self._multiply(self._add(power, inverse), self._number(0.5)))

    def asinh(self, x: Value) -> Value:
        """Return ln(x + √(x² + 1))."""
        wide = self._double(x)
        size = self._unary("fabs", wide)
        root = self._root(self._fma(size, size, self._number(1.0)))
        far = self._logarithm(self._add(size, root))
        return self._single(self._joined(wide, size, _ASINH, far))

    def acosh(self, x: Value) -> Value:
        """Return ln(x + √(x² - 1)); NaN below 1."""
        wide = self._double(x)
        root = self._root(self._fma(wide, wide, self._number(-1.0)))
        found = self._logarithm(self._add(wide, root))
        is_below = self.f.compare_floats("ult", wide, self._number(1.0))
        return self._single(self.f.select(is_below, self._number(math.nan), found))

    def atanh(self, x: Value) -> Value:
        """Return ln((1 + x) ÷ (1 - x)) ÷ 2; infinity at 1, NaN beyond."""
        wide, one = self._double(x), self._number(1.0)
        size = self._unary("fabs", wide)
        ratio = self._binary("fdiv", self._add(one, size), self._binary("fsub", one, size))
        far = self._multiply(self._logarithm(ratio), self._number(0.5))
        is_beyond = self.f.compare_floats("ugt", size, one)
        far = self.f.select(is_beyond, self._number(math.nan), far)
        return self._single(self._joined(wide, size, _ATANH, far))

    def power(self, x: Value, y: Value) -> Value:
        """Return x^y with all special cases of C's `pow` (ISO C, F.10.4.4)."""
        f, m = self.f, self.single
        zero, one = m.number(0.0), m.number(1.0)
        size, exponent = m.unary("fabs", x), self._double(y)
        product = self._multiply(exponent, self._log2(self._double(size)))
        result = self._single(self._exp2(product))
        result = f.select(f.compare_floats("oeq", size, one), one, result)  # to ±∞ too
        is_whole = f.compare_floats("oeq", m.unary("floor", y), y)
        half = m.multiply(y, m.number(0.5))
        is_odd = f.binary("and", is_whole, f.compare_floats("une", m.unary("floor", half), half))
        signed = f.intrinsic(f"llvm.copysign.v{self.lanes}f32", m.type, [result, x])
        result = f.select(is_odd, signed, result)
        is_finite_negative = f.binary(
            "and", f.compare_floats("olt", x, zero),
            f.compare_floats("one", size, m.number(math.inf)),
        )  # fmt: skip
        is_part = f.compare_floats("one", m.unary("floor", y), y)
        is_undefined = f.binary("and", is_finite_negative, is_part)
        is_nan = f.binary("or", is_undefined, f.compare_floats("uno", x, y))
        result = f.select(is_nan, m.number(math.nan), result)
        is_one = f.binary(
            "or", f.compare_floats("oeq", y, zero), f.compare_floats("oeq", x, one)
        )  # fmt: skip
        return f.select(is_one, one, result)

    # Parts of them, of float64 ----------------------------------------------------------------

    def _quadrant(self, x: Value) -> tuple[Value, Value]:
        """Return x less a multiple of π/2, at most about π/4 in size, and which multiple it is."""
        f, wide = self.f, self._double(x)
        turns = self._add(self._multiply(wide, self._number(2 / math.pi)), self._number(_WHOLE))
        whole = self._binary("fsub", turns, self._number(_WHOLE))
        rest = self._fma(whole, self._number(-_HALF_PI_HIGH), wide)
        near = f.slot(self._fma(whole, self._number(-_HALF_PI_LOW), rest))
        quadrant = f.slot(f.convert("bitcast", turns, self.integers))
        is_far = f.compare_floats("ogt", self._unary("fabs", wide), self._number(_FAR))
        any_far = f.compare(
            "ne", f.convert("bitcast", is_far, f"i{self.lanes}"), Value(f"i{self.lanes}", "0")
        )
        with f.when(any_far):
            far_rest, far_quadrant = self._far_quadrant(x)
            near.set(f.select(is_far, far_rest, near.get()))
            quadrant.set(f.select(is_far, far_quadrant, quadrant.get()))
        return near.get(), quadrant.get()

    def _far_quadrant(self, x: Value) -> tuple[Value, Value]:
        """Do the same for |x| = n · 2^e from 2^40 on, by a table of 2^e · 2/π without its fours."""
        f, m = self.f, self.single
        _write_table(f.module)
        bits = f.convert("bitcast", m.unary("fabs", x), m.integers)
        exponent = f.binary("lshr", bits, splat_integer(23, self.lanes))
        row = f.binary("sub", exponent, splat_integer(150 + _FIRST_FAR_EXPONENT, self.lanes))
        most = splat_integer(_LAST_FAR_EXPONENT - _FIRST_FAR_EXPONENT, self.lanes)
        row = f.intrinsic(f"llvm.smin.v{self.lanes}i32", m.integers, [row, most])
        row = f.intrinsic(
            f"llvm.smax.v{self.lanes}i32", m.integers, [row, splat_integer(0, self.lanes)]
        )
        high, low = self._looked_up(row, 0), self._looked_up(row, 8)
        mantissa = f.binary("and", bits, splat_integer(0x7FFFFF, self.lanes))
        mantissa = f.binary("or", mantissa, splat_integer(0x800000, self.lanes))
        count = f.convert("sitofp", mantissa, self.type)
        product = self._multiply(count, high)
        error = self._fma(count, high, self._negative(product))
        turns = self._add(product, self._number(_WHOLE))
        part = self._binary("fsub", product, self._binary("fsub", turns, self._number(_WHOLE)))
        part = self._add(part, self._fma(count, low, error))
        rest = self._multiply(part, self._number(_HALF_PI_HIGH))
        quadrant = f.convert("bitcast", turns, self.integers)
        is_negative = f.compare_floats("olt", x, m.number(0.0))
        minus = f.binary("sub", self._integer(0), quadrant)
        rest = f.select(is_negative, self._negative(rest), rest)
        invalid = f.compare_floats("ueq", m.unary("fabs", x), m.number(math.inf))
        rest = f.select(invalid, self._number(math.nan), rest)
        return rest, f.select(is_negative, minus, quadrant)

    def _looked_up(self, row: Value, offset_bytes: int) -> Value:
        f = self.f
        wide = f.convert("sext", row, self.integers)
        places = f.binary("shl", wide, self._integer(4))
        base = f.at(Value("ptr", f"@{_TABLE}"), offset_bytes)
        pointers = f.emit(f"<{self.lanes} x ptr>", f"getelementptr i8, {base}, {places}")
        name, mask = f"llvm.masked.gather.v{self.lanes}f64.v{self.lanes}p0", f"<{self.lanes} x i1>"
        every = Value(mask, "<" + ", ".join(["i1 1"] * self.lanes) + ">")
        return f.intrinsic(name, self.type, [pointers, every, self._number(0.0)])

    def _turned(self, r: Value, quadrant: Value) -> Value:
        """Return the sine of r and that many quadrants."""
        f = self.f
        found = f.select(self._has_bit(quadrant, 1), self._cosine(r), self._sine(r))
        return self._single(f.select(self._has_bit(quadrant, 2), self._negative(found), found))

    def _sine(self, r: Value) -> Value:
        return self._multiply(r, self._series(self._multiply(r, r), _SINE))

    def _cosine(self, r: Value) -> Value:
        return self._series(self._multiply(r, r), _COSINE)

    def _arc_tangent(self, x: Value) -> Value:
        """Return arctan x: of x, of (x - 1) ÷ (x + 1) and π/4, or of -1 ÷ x and π/2."""
        f, one = self.f, self._number(1.0)
        size = self._unary("fabs", x)
        is_far = f.compare_floats("ogt", size, self._number(1 + math.sqrt(2)))
        is_near = f.compare_floats("olt", size, self._number(math.sqrt(2) - 1))

        def chosen(near: Value, middle: Value, far: Value) -> Value:
            return f.select(is_near, near, f.select(is_far, far, middle))

        above = chosen(size, self._binary("fsub", size, one), self._number(-1.0))
        below = chosen(one, self._add(size, one), size)
        start = chosen(
            self._number(0.0), self._number(math.pi / 4), self._number(math.pi / 2)
        )  # fmt: skip
        t = self._binary("fdiv", above, below)
        series = self._series(self._multiply(t, t), _ARC_TANGENT)
        return self._copysign(self._fma(t, series, start), x)

    def _natural_power(self, x: Value) -> Value:
        """Return e^x for x ≥ 0, as it is at 100 beyond: more than float32 holds."""
        is_beyond = self.f.compare_floats("ogt", x, self._number(100.0))
        bounded = self.f.select(is_beyond, self._number(100.0), x)
        return self._exp2(self._multiply(bounded, self._number(1 / math.log(2))))

    def _exp2(self, x: Value) -> Value:
        """Return 2^x, as it is at ±200 beyond."""
        f, low, high = self.f, self._number(-200.0), self._number(200.0)
        bounded = f.select(f.compare_floats("olt", x, low), low, x)
        bounded = f.select(f.compare_floats("ogt", x, high), high, bounded)
        turns = self._add(bounded, self._number(_WHOLE))
        rest = self._binary("fsub", bounded, self._binary("fsub", turns, self._number(_WHOLE)))
        bits = f.convert("bitcast", self._series(rest, _EXP2), self.integers)
        shift = f.binary("shl", f.convert("bitcast", turns, self.integers), self._integer(52))
        scaled = f.convert("bitcast", f.binary("add", bits, shift), self.type)
        return f.select(f.compare_floats("uno", x, x), x, scaled)

    def _logarithm(self, x: Value) -> Value:
        return self._multiply(self._log2(x), self._number(math.log(2)))

    def _log2(self, x: Value) -> Value:
        """Return log2 x for x ≥ 0.

        The exponent, and 2·artanh((m - 1) ÷ (m + 1)) of the mantissa.
        """
        f, one = self.f, self._number(1.0)
        bits = f.convert("bitcast", x, self.integers)
        # Moved so that the mantissa lies from √½ to √2 and the exponent is not negative.
        moved = f.binary("add", bits, self._integer((1023 << 52) - _ROOT_HALF_BITS))
        biased = f.binary("lshr", moved, self._integer(52))
        whole = f.convert(
            "bitcast", f.binary("or", biased, self._integer(0x433 << 52)), self.type
        )  # fmt: skip
        exponent = self._binary("fsub", whole, self._number(2.0**52 + 1023))
        shift = f.binary("shl", f.binary("sub", biased, self._integer(1023)), self._integer(52))
        mantissa = f.convert("bitcast", f.binary("sub", bits, shift), self.type)
        t = self._binary("fdiv", self._binary("fsub", mantissa, one), self._add(mantissa, one))
        found = self._fma(t, self._series(self._multiply(t, t), _LOG2), exponent)
        for end, result in ((0.0, -math.inf), (math.inf, math.inf)):
            is_end = f.compare_floats("oeq", x, self._number(end))
            found = f.select(is_end, self._number(result), found)
        return f.select(f.compare_floats("uno", x, x), x, found)

    # Instructions -----------------------------------------------------------------------------

    def _joined(self, x: Value, size: Value, odd: Sequence[float], far: Value) -> Value:
        """Return an odd function: a series near 0, `far` of |x| with the sign of x elsewhere."""
        near = self._multiply(x, self._series(self._multiply(x, x), odd))
        is_near = self.f.compare_floats("olt", size, self._number(_SMALL))
        return self.f.select(is_near, near, self._copysign(far, x))

    def _series(self, x: Value, coefficients: Sequence[float]) -> Value:
        result = self._number(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self._fma(result, x, self._number(coefficient))
        return result

    def _number(self, value: float) -> Value:
        bits = struct.unpack("<Q", struct.pack("<d", value))[0]
        return Value(self.type, "<" + ", ".join([f"double 0x{bits:016X}"] * self.lanes) + ">")

    def _integer(self, value: int) -> Value:
        return splat_integer(value, self.lanes, "i64")

    def _has_bit(self, bits: Value, bit: int) -> Value:
        f = self.f
        return f.compare("ne", f.binary("and", bits, self._integer(bit)), self._integer(0))

    def _double(self, x: Value) -> Value:
        return self.f.convert("fpext", x, self.type)

    def _single(self, x: Value) -> Value:
        return self.f.convert("fptrunc", x, self.single.type)

    def _binary(self, operation: str, a: Value, b: Value) -> Value:
        return self.f.binary(operation, a, b)

    def _add(self, a: Value, b: Value) -> Value:
        return self.f.binary("fadd", a, b)

    def _multiply(self, a: Value, b: Value) -> Value:
        return self.f.binary("fmul", a, b)

    def _negative(self, a: Value) -> Value:
        return self.f.emit(a.type, f"fneg {a}")

    def _unary(self, name: str, a: Value) -> Value:
        return self.f.intrinsic(f"llvm.{name}.v{self.lanes}f64", self.type, [a])

    def _root(self, a: Value) -> Value:
        return self._unary("sqrt", a)

    def _copysign(self, size: Value, sign: Value) -> Value:
        return self.f.intrinsic(f"llvm.copysign.v{self.lanes}f64", self.type, [size, sign])

    def _fma(self, a: Value, b: Value, c: Value) -> Value:
        return self.f.intrinsic(f"llvm.fma.v{self.lanes}f64", self.type, [a, b, c])


def _write_table(module: Module) -> None:
    """Write 2^e · 2/π mod 4 for every exponent of a far number, as sums of two float64."""
    numbers = []
    for exponent in range(_FIRST_FAR_EXPONENT, _LAST_FAR_EXPONENT + 1):
        turns = _TWO_OVER_PI * 2**exponent % 4
        high = float(turns)
        numbers += [high, float(turns - Fraction(high))]
    bits = (struct.unpack("<Q", struct.pack("<d", number))[0] for number in numbers)
    module.add_constants(_TABLE, [Value("double", f"0x{b:016X}") for b in bits])
