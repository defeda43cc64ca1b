"""Elementwise operators that ONNX defines through others, and the arithmetic of small integers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import onnx_ir as ir

from vermilion.codegen.expression import Apply, Constant, Expression, apply
from vermilion.codegen.tensor import Storage
from vermilion.ir.attributes import integer, number

Build = Callable[[ir.Node, list[Expression]], Expression]

# Source: ONNX Selu-6.
_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def _select(condition: Expression, yes: Expression, no: Expression) -> Expression:
    return Apply("select", (condition, yes, no), yes.kind)


def _grown(x: Expression) -> Expression:
    """Return e^x - 1."""
    return apply("exp_minus_one", x)


def _is_positive(x: Expression) -> Expression:
    return apply("greater", x, Constant(0.0))


def _celu(node: ir.Node, a: list[Expression]) -> Expression:
    alpha = number(node, "alpha", 1.0)
    inner = _grown(apply("mul", a[0], Constant(1.0 / alpha)))
    return _select(_is_positive(a[0]), a[0], apply("mul", inner, Constant(alpha)))


def _selu(node: ir.Node, a: list[Expression]) -> Expression:
    alpha, gamma = number(node, "alpha", _SELU_ALPHA), number(node, "gamma", _SELU_GAMMA)
    below = apply("mul", _grown(a[0]), Constant(alpha))
    return apply("mul", _select(_is_positive(a[0]), a[0], below), Constant(gamma))


def _thresholded_relu(node: ir.Node, a: list[Expression]) -> Expression:
    is_above = apply("greater", a[0], Constant(number(node, "alpha", 1.0)))
    return _select(is_above, a[0], Constant(0.0))


def _softsign(node: ir.Node, a: list[Expression]) -> Expression:
    return apply("div", a[0], apply("add", apply("abs", a[0]), Constant(1.0)))


def _shrink(node: ir.Node, a: list[Expression]) -> Expression:
    bias, limit = Constant(number(node, "bias", 0.0)), number(node, "lambd", 0.5)
    above = _select(
        apply("greater", a[0], Constant(limit)), apply("sub", a[0], bias), Constant(0.0)
    )
    return _select(apply("less", a[0], Constant(-limit)), apply("add", a[0], bias), above)


def _mish(node: ir.Node, a: list[Expression]) -> Expression:
    """Return x · tanh ln(1 + e^x), which is x · w ÷ (w + 2) with w = e^x · (e^x + 2)."""
    e = apply("exp", apply("min", Constant(20.0), a[0]))  # from there on it is x
    w = apply("mul", e, apply("add", e, Constant(2.0)))
    return apply("mul", a[0], apply("div", w, apply("add", w, Constant(2.0))))


def _swish(node: ir.Node, a: list[Expression]) -> Expression:
    alpha = number(node, "alpha", 1.0)
    inner = a[0] if alpha == 1.0 else apply("mul", a[0], Constant(alpha))
    return apply("mul", a[0], apply("sigmoid", inner))


def _is_nan(node: ir.Node, a: list[Expression]) -> Expression:
    return apply("not", apply("equal", a[0], a[0]))


def _is_inf(node: ir.Node, a: list[Expression]) -> Expression:
    positive = integer(node, "detect_positive", 1)
    negative = integer(node, "detect_negative", 1)
    x = a[0] if positive != negative else apply("abs", a[0])
    wanted = math.inf if positive else -math.inf
    found = apply("equal", x, Constant(wanted))
    return found if positive or negative else apply("and", found, apply("not", found))


def _modulo(node: ir.Node, a: list[Expression]) -> Expression:
    """Return the remainder with the divisor's sign; with the dividend's where `fmod` is set."""
    rest = apply("mod", a[0], a[1])
    if integer(node, "fmod", 0):
        return rest
    zero = Constant(0, rest.kind)
    other_sign = apply("less", apply("xor", rest, a[1]), zero)
    is_off = apply("and", apply("not", apply("equal", rest, zero)), other_sign)
    return _select(is_off, apply("add", rest, a[1]), rest)


def _bitwise(operation: str) -> Build:
    return lambda node, a: apply(operation, *a)


FUNCTIONS = (
    "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh",
)  # fmt: skip
"""Operators that are one function of a float: `WideMath` has it under the same name."""

COMPOSED: Mapping[str, Build] = {
    "Celu": _celu, "Selu": _selu, "ThresholdedRelu": _thresholded_relu, "Softsign": _softsign,
    "Shrink": _shrink, "Mish": _mish, "Swish": _swish, "IsNaN": _is_nan, "IsInf": _is_inf,
    "Mod": _modulo, "BitwiseAnd": _bitwise("and"), "BitwiseOr": _bitwise("or"),
    "BitwiseXor": _bitwise("xor"), "BitwiseNot": _bitwise("not"),
}  # fmt: skip

COMPOSED_OF_FLOATS = frozenset(
    {"Celu", "Selu", "ThresholdedRelu", "Softsign", "Shrink", "Mish", "Swish", "IsNaN", "IsInf"}
).union(FUNCTIONS)


def wrapped(value: Expression, storage: Storage) -> Expression:
    """Bring the result of integer arithmetic into the range of a small type, as storing it does."""
    if storage in ("u8", "u16"):
        return apply("and", value, Constant({"u8": 0xFF, "u16": 0xFFFF}[storage], "int"))
    if storage in ("s8", "s16"):
        half = {"s8": 0x80, "s16": 0x8000}[storage]
        low = apply("and", value, Constant(2 * half - 1, "int"))
        half_constant = Constant(half, "int")
        return apply("sub", apply("xor", low, half_constant), half_constant)
    return value


WRAPPING = frozenset({"Add", "Sub", "Mul", "Neg", "Abs", "Sum", "Cast", "BitwiseNot"})
"""Operators whose result may leave the range of a small integer type."""
