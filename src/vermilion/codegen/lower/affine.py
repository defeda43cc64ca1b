"""Sums of numbers times factors, as quantized arithmetic has them, kept apart until written.

A dequantized tensor is an integer times a scale, and the next QuantizeLinear divides by another
scale: with the factors known, the two become one multiplication. This is the order of operations
in which every quantized kernel computes, in float32 unless said otherwise:

    1. an accumulator is exact in int32, zero points and bias included where the bias lies on the
       accumulator's grid; it is rounded to float32 once
    2. a dequantized value is t·s, where t = q - zero point is exact
    3. Σ fᵢ·tᵢ + c is one multiplication and then fused multiply-adds, from the last term to the
       first: the factors are products and quotients of scales in float64, each rounded to float32
       once. Where the sum stays a float, each product of several is rounded before it is added:
       x - x is 0, not what rounding one of the two leaves
    4. QuantizeLinear of such a sum divides every fᵢ and c by its scale; of any other float it
       divides the value. Then: clamp to the integer's range less the zero point, round half to
       even, add the zero point. Relu and Clip before it narrow the range
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.ir.expression import Apply, Expression, apply

Factor = NDArray[Any]  # float64: a number, or one for each output channel


@dataclass(frozen=True, eq=False)
class Term:
    """A float expression and what it is multiplied by. `is_integer`: whole, of nine bits."""

    value: Expression
    factor: Factor
    is_integer: bool = False


@dataclass(frozen=True, eq=False)
class Affine:
    """`clamp(Σ term + constant, low, high)`."""

    terms: tuple[Term, ...]
    constant: Factor
    low: float = -math.inf
    high: float = math.inf

    @property
    def is_bounded(self) -> bool:
        """Whether something is cut off."""
        return self.low > -math.inf or self.high < math.inf

    def scaled(self, factor: Factor) -> Affine:
        """Multiply by a positive number, bounds and all."""
        terms = tuple(replace(term, factor=term.factor * factor) for term in self.terms)
        scale = float(factor) if factor.ndim == 0 else math.nan
        bounds = (x * scale if math.isfinite(x) else x for x in (self.low, self.high))
        return Affine(terms, self.constant * factor, *bounds)

    def bounded(self, low: float, high: float) -> Affine:
        """Cut off below `low`, then above `high`."""
        lowest = min(max(self.low, low), high)
        return replace(self, low=lowest, high=min(max(self.high, low), high))


def number(value: float) -> Factor:
    """Return a number as a factor."""
    return np.asarray(value, np.float64)


def of_expression(value: Expression) -> Affine:
    """Return a float expression as a sum of one term."""
    return Affine((Term(value, number(1.0)),), number(0.0))


def added(a: Affine, b: Affine) -> Affine:
    """Add two sums without bounds; what both have of an integer is one term, so that x - x is 0."""
    terms = list(a.terms)
    for term in b.terms:
        at = next((i for i, known in enumerate(terms) if _is_same(known, term)), None)
        if at is None:
            terms.append(term)
        else:
            terms[at] = replace(term, factor=terms[at].factor + term.factor)
    return Affine(tuple(terms), a.constant + b.constant)


def _is_same(one: Term, other: Term) -> bool:
    """Say whether two terms are of one integer, which is finite."""
    return one.is_integer and other.is_integer and one.value == other.value


def multiplied(a: Affine, b: Affine) -> Affine | None:
    """Multiply two dequantized values: the product of two integers of 8 bits is exact."""
    if len(a.terms) != 1 or len(b.terms) != 1 or a.constant.any() or b.constant.any():
        return None
    (one,), (other,) = a.terms, b.terms
    if not (one.is_integer and other.is_integer):
        return None
    term = Term(apply("mul", one.value, other.value), one.factor * other.factor)
    return Affine((term,), number(0.0))


def written(
    form: Affine, constant: Callable[[Factor], Expression], *, fused: bool = True
) -> Expression:
    """Return the expression; `constant` makes an operand of a factor.

    Unless `fused`, products are rounded before they are added to each other.
    """
    is_number = True  # whether `result` is the constant alone, to which adding may be fused
    result = constant(form.constant) if form.constant.any() or not form.terms else None
    for term in reversed(form.terms):
        is_one = term.factor.ndim == 0 and term.factor == 1.0
        if result is None:
            result = term.value if is_one else apply("mul", term.value, constant(term.factor))
        elif is_one:
            result = apply("add", term.value, result)
        elif fused or is_number:
            result = Apply("fma", (term.value, constant(term.factor), result))
        else:
            result = apply("add", apply("mul", term.value, constant(term.factor)), result)
        is_number = False
    assert result is not None
    return clamped(result, form.low, form.high, constant)


def clamped(
    value: Expression, low: float, high: float, constant: Callable[[Factor], Expression]
) -> Expression:
    """Cut a float expression off. The bounds stand on the left: one instruction each."""
    if low > -math.inf:
        value = apply("max", constant(number(low)), value)
    if high < math.inf:
        value = apply("min", constant(number(high)), value)
    return value


def quantized(
    form: Affine, scale: float, limits: tuple[int, int], constant: Callable[[Factor], Expression]
) -> Expression:
    """Return the rounded integer less its zero point, as a float; `limits` are less it too."""
    single = np.float32(scale)
    low, high = (
        float(np.rint(np.float32(x) / single)) if math.isfinite(x) else x
        for x in (form.low, form.high)
    )
    plain = replace(form, low=-math.inf, high=math.inf)
    is_one = len(form.terms) == 1 and form.terms[0].factor.ndim == 0
    if is_one and form.terms[0].factor == 1.0 and not form.constant.any():
        value = _divided(form.terms[0].value, float(single), constant)
    else:
        value = written(plain.scaled(1.0 / number(float(single))), constant)
    lowest = min(max(low, limits[0]), limits[1])
    highest = max(min(high, limits[1]), limits[0])
    # NaN becomes the lowest, as in ONNX Runtime: of the two orders, this one.
    value = apply("top", value, constant(number(lowest)))
    return apply("round", clamped(value, -math.inf, highest, constant))


def _divided(
    value: Expression, scale: float, constant: Callable[[Factor], Expression]
) -> Expression:
    """Return the quotient: by a power of two as a product, which is the same number."""
    mantissa, _ = math.frexp(scale)
    if mantissa == 0.5:
        return value if scale == 1.0 else apply("mul", value, constant(number(1.0 / scale)))
    return apply("div", value, constant(number(scale)))
