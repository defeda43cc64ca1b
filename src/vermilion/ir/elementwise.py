"""Operators that compute each element from those at its place, each defined as an expression.

One row is all that is said of one: generated code, what it costs and what it takes follow from it.
Source of every definition: the operator's page at https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from vermilion.ir.attributes import integer, number, text
from vermilion.ir.expression import Apply, Constant, Convert, Expression, Operand, apply
from vermilion.ir.opset import is_operator, is_standard

Definition = Callable[[ir.Node, list[Expression]], Expression]
# Types of the inputs: all floats; a float first (of a Pow); no floats; no booleans; any.
Takes = Literal["floats", "float first", "integers", "numbers", "any"]


@dataclass(frozen=True)
class Elementwise:
    """One operator: what it computes of its inputs, by numpy's broadcasting, and what that costs.

    `define` is None where integers and scales decide how it is written: generators know it.
    `steps` are counted an element of the result; -1: one for each input after the first.
    """

    name: str
    define: Definition | None
    takes: Takes = "any"
    steps: int = 1
    counting: str = ""  # the steps in words, where they are not `steps` × output
    gives_bool: bool = False
    wraps: bool = False  # the result may leave the range of a small integer type
    domain: str = ""


# Source: ONNX Selu-6.
_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def _operation(operation: str) -> Definition:
    return lambda node, a: apply(operation, *a)


def _chain(operation: str) -> Definition:
    def build(node: ir.Node, a: list[Expression]) -> Expression:
        result = a[0]
        for item in a[1:]:
            result = apply(operation, result, item)
        return result

    return build


def _add(node: ir.Node, a: list[Expression]) -> Expression:
    """Add; 1 + erf(x ÷ c), of which exporters make GELU, is one operation."""
    for one, other in (a, a[::-1]):
        if one == Constant(1.0) and isinstance(other, Apply) and other.operation == "erf":
            return apply("one_plus_erf", _times_inverse(other.arguments[0]))
    return apply("add", a[0], a[1])


def _times_inverse(x: Expression) -> Expression:
    """Return x ÷ c as a product."""
    if isinstance(x, Apply) and x.operation == "div" and isinstance(x.arguments[1], Constant):
        return apply("mul", x.arguments[0], Constant(1.0 / x.arguments[1].value))
    return x


def _mean(node: ir.Node, a: list[Expression]) -> Expression:
    return apply("mul", _chain("add")(node, a), Constant(1.0 / len(a)))


def _relu(node: ir.Node, a: list[Expression]) -> Expression:
    return apply("max", a[0], Constant(0.0, a[0].kind))


def _sign(node: ir.Node, a: list[Expression]) -> Expression:
    """Return -1, 0 or 1; whole numbers are bounded by them."""
    if a[0].kind == "float":
        return apply("sign", a[0])
    above = apply("max", a[0], Constant(-1, a[0].kind))
    return apply("min", above, Constant(1, a[0].kind))


def _clip(node: ir.Node, a: list[Expression]) -> Expression:
    """Bound by inputs; by attributes before opset 11. Where they cross, the upper holds."""
    result = a[0]
    for name, operation in (("min", "max"), ("max", "min")):
        if name in node.attributes:
            result = apply(operation, result, Constant(number(node, name, 0.0)))
    if len(a) > 1 and node.inputs[1] is not None:
        result = apply("max", result, a[1])
    if len(a) > 2 and node.inputs[2] is not None:
        result = apply("min", result, a[2])
    return result


def _leaky_relu(node: ir.Node, a: list[Expression]) -> Expression:
    slope = Constant(number(node, "alpha", 0.01))
    return Apply("select", (apply("less", a[0], Constant(0.0)), apply("mul", a[0], slope), a[0]))


def _prelu(node: ir.Node, a: list[Expression]) -> Expression:
    return Apply("select", (apply("less", a[0], Constant(0.0)), apply("mul", a[0], a[1]), a[0]))


def _elu(node: ir.Node, a: list[Expression]) -> Expression:
    grown = apply("exp_minus_one", a[0])
    scaled = apply("mul", grown, Constant(number(node, "alpha", 1.0)))
    return Apply("select", (apply("less", a[0], Constant(0.0)), scaled, a[0]))


def _hard_sigmoid_of(x: Expression, alpha: float, beta: float) -> Expression:
    line = Apply("fma", (x, Constant(alpha), Constant(beta)))
    return apply("min", apply("max", line, Constant(0.0)), Constant(1.0))


def _hard_sigmoid(node: ir.Node, a: list[Expression]) -> Expression:
    return _hard_sigmoid_of(a[0], number(node, "alpha", 0.2), number(node, "beta", 0.5))


def _hard_swish(node: ir.Node, a: list[Expression]) -> Expression:
    return apply("mul", a[0], _hard_sigmoid_of(a[0], 1.0 / 6.0, 0.5))


def _gelu(node: ir.Node, a: list[Expression]) -> Expression:
    x = a[0]
    half = apply("mul", x, Constant(0.5))
    if text(node, "approximate", "none") == "tanh":
        cube = apply("mul", apply("mul", x, x), x)
        inner = apply("mul", Constant(math.sqrt(2.0 / math.pi)),
                      apply("add", x, apply("mul", Constant(0.044715), cube)))  # fmt: skip
        return apply("mul", half, apply("add", Constant(1.0), apply("tanh", inner)))
    inner = apply("mul", x, Constant(math.sqrt(0.5)))
    return apply("mul", half, apply("one_plus_erf", inner))


def _where(node: ir.Node, a: list[Expression]) -> Expression:
    return Apply("select", (a[0], a[1], a[2]), a[1].kind)


def _cast(node: ir.Node, a: list[Expression]) -> Expression:
    """Round where the type is narrower than the kind that it is computed in.

    What is float16 is computed in float32 and rounded when stored, and here: a Cast asks for it.
    """
    source, target = node.inputs[0], node.outputs[0].dtype
    x = a[0]
    if source is not None and source.dtype in _ROUNDINGS and not _is_stored(source, x):
        x = _rounded(_ROUNDINGS[source.dtype], x)
    if target in _ROUNDINGS:
        return _rounded(_ROUNDINGS[target], x if x.kind == "float" else Convert(x, "float"))
    return x  # `expression_of` converts every result to the kind of its type


_ROUNDINGS = {ir.DataType.BFLOAT16: "bf16", ir.DataType.FLOAT16: "f16"}


def _is_stored(value: ir.Value, x: Expression) -> bool:
    """Say whether an expression reads a tensor, not what a product has summed."""
    return isinstance(x, Operand) and not is_operator(
        value.producer(), "Conv", "ConvTranspose", "Gemm", "MatMul"
    )


def _rounded(operation: str, x: Expression) -> Expression:
    is_round = isinstance(x, Apply) and x.operation == operation
    return x if is_round else apply(operation, x)


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


# Whole exponents that are multiplied out: up to four roundings, where the function itself has one
# and takes ten times as long. Below -2 the product may leave float32 where its inverse does not.
_LEAST_EXPONENT, _MOST_EXPONENT = -2.0, 8.0
# Exponents of which roots are made, themselves and negated: two or three roundings.
_ROOTS = (0.25, 0.5, 0.75, 1.5)


def _power(node: ir.Node, a: list[Expression]) -> Expression:
    """Return x^y; what is 0, 1 or NaN by the standard of C's `pow` is so here."""
    x, y = a
    if y.kind != "float":
        y = Constant(float(y.value)) if isinstance(y, Constant) else Convert(y, "float")
    if not isinstance(y, Constant):
        return apply("pow", x, y)
    size = abs(y.value)
    if y.value == 0.0:
        return Constant(1.0)  # of NaN too
    if y.value.is_integer() and _LEAST_EXPONENT <= y.value <= _MOST_EXPONENT:
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


def _rows(
    names: str, takes: Takes, steps: int = 1, gives_bool: bool = False
) -> Iterable[Elementwise]:
    """Yield operators that are one operation of the same name, in lower case."""
    for name in names.split():
        yield Elementwise(name, _operation(name.lower()), takes, steps, gives_bool=gives_bool)


_ROWS = (
    Elementwise("Add", _add, wraps=True),
    Elementwise("Sub", _operation("sub"), wraps=True),
    Elementwise("Mul", _operation("mul"), wraps=True),
    Elementwise("Neg", _operation("neg"), wraps=True),
    Elementwise("Abs", _operation("abs"), wraps=True),
    Elementwise("Div", _operation("div")),
    Elementwise("Mod", _modulo, "integers"),
    Elementwise("Pow", _power, "float first"),
    Elementwise("Max", _chain("max"), "numbers", -1),
    Elementwise("Min", _chain("min"), "numbers", -1),
    Elementwise("Sum", _chain("add"), steps=-1, wraps=True),
    Elementwise("Mean", _mean, "floats", -1),
    *_rows("Sqrt Exp Log Tanh Erf Floor Ceil Round Reciprocal", "floats"),
    Elementwise("Sign", _sign, "numbers"),
    *_rows("Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh", "floats"),
    *_rows("Sigmoid Softplus", "floats", 3),
    Elementwise("Relu", _relu),
    Elementwise("Clip", _clip, steps=2),
    Elementwise("LeakyRelu", _leaky_relu, "floats", 2),
    Elementwise("PRelu", _prelu, "floats", 2),
    Elementwise("ThresholdedRelu", _thresholded_relu, "floats", 2),
    Elementwise("Shrink", _shrink, "floats", 2),
    Elementwise("Elu", _elu, "floats", 3),
    Elementwise("Celu", _celu, "floats", 3),
    Elementwise("Selu", _selu, "floats", 3),
    Elementwise("Softsign", _softsign, "floats", 3),
    Elementwise("HardSigmoid", _hard_sigmoid, "floats", 3),
    Elementwise("HardSwish", _hard_swish, "floats", 4),
    Elementwise("Swish", _swish, "floats", 4),
    Elementwise("Gelu", _gelu, "floats", 5),
    Elementwise("Mish", _mish, "floats", 5),
    Elementwise("IsNaN", _is_nan, "floats", gives_bool=True),
    Elementwise("IsInf", _is_inf, "floats", gives_bool=True),
    *_rows("Not And Or Xor Equal Less Greater", "any", gives_bool=True),
    Elementwise("LessOrEqual", _operation("less_equal"), gives_bool=True),
    Elementwise("GreaterOrEqual", _operation("greater_equal"), gives_bool=True),
    Elementwise("Where", _where),
    Elementwise("Cast", _cast, steps=0, wraps=True),
    Elementwise("BitwiseAnd", _operation("and")),
    Elementwise("BitwiseOr", _operation("or")),
    Elementwise("BitwiseXor", _operation("xor")),
    Elementwise("BitwiseNot", _operation("not"), wraps=True),
    Elementwise("QuantizeLinear", None, steps=3, counting="3 × output: scale, round, saturate"),
    Elementwise("DequantizeLinear", None, steps=2, counting="2 × output: zero point, scale"),
)

ELEMENTWISE: Mapping[tuple[str, str], Elementwise] = {(row.domain, row.name): row for row in _ROWS}


def elementwise(node: ir.Node | None) -> Elementwise | None:
    """Return the row of a node, None of what is not computed element by element."""
    if node is None:
        return None
    return ELEMENTWISE.get(("" if is_standard(node) else node.domain, node.op_type))
