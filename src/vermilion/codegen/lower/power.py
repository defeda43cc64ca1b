"""Pow: by products and roots where the exponent is a constant that has them."""

from __future__ import annotations

import math

import onnx_ir as ir

from vermilion.codegen.expression import Apply, Constant, Convert, Expression, apply

# Whole exponents that are multiplied out: up to four roundings, where the function itself has one
# and takes ten times as long. Below -2 the product may leave float32 where its inverse does not.
_LEAST, _MOST = -2.0, 8.0
# Exponents of which roots are made, themselves and negated: two or three roundings.
_ROOTS = (0.25, 0.5, 0.75, 1.5)


def power(node: ir.Node, a: list[Expression]) -> Expression:
    """Return x^y; what is 0, 1 or NaN by the standard of C's `pow` is so here."""
    x, y = a
    if y.kind != "float":
        y = Constant(float(y.value)) if isinstance(y, Constant) else Convert(y, "float")
    if not isinstance(y, Constant):
        return apply("pow", x, y)
    size = abs(y.value)
    if y.value == 0.0:
        return Constant(1.0)  # of NaN too
    if y.value.is_integer() and _LEAST <= y.value <= _MOST:
        found = _product(x, int(size))
    elif size in _ROOTS:
        found = _roots(x, size)
    else:
        return apply("pow", x, y)
    return found if y.value > 0.0 else apply("reciprocal", found)


def _product(x: Expression, count: int) -> Expression:
    """Return x · x · … by squares."""
    if count == 1:
        return x
    half = _product(x, count // 2)
    square = apply("mul", half, half)
    return apply("mul", square, x) if count % 2 else square


def _roots(x: Expression, exponent: float) -> Expression:
    """Return x to a power of quarters. Of -0 it is 0, and of -infinity infinity."""
    unsigned = apply("add", x, Constant(0.0))  # -0 becomes 0
    root = apply("sqrt", unsigned)
    found = {
        0.25: apply("sqrt", root),
        0.5: root,
        0.75: apply("mul", root, apply("sqrt", root)),
        1.5: apply("mul", unsigned, root),
    }[exponent]
    is_lowest = apply("equal", x, Constant(-math.inf))
    return Apply("select", (is_lowest, Constant(math.inf), found))
