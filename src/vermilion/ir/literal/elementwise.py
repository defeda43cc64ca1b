"""Elementwise operators. Floats come in float64, whole numbers in their own type, which wraps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.ir.literal.call import Call, Function, Table, Typed, computes, moves, versions

Array = NDArray[Any]

# Source: ONNX Selu-6.
_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875

# Elements whose error functions are computed at once: Python's floats take five times the room.
_ERF_BLOCK = 1 << 20


def erf(x: Array) -> Array:
    """Return the error function, which numpy does not have."""
    flat = np.ascontiguousarray(x, np.float64).reshape(-1)
    found = np.empty_like(flat)
    for start in range(0, flat.size, _ERF_BLOCK):
        block = flat[start : start + _ERF_BLOCK]
        found[start : start + _ERF_BLOCK] = list(map(math.erf, block.tolist()))
    return found.reshape(x.shape)


def sigmoid(x: Array) -> Array:
    """Return 1 ÷ (1 + e^-x), without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def gelu(x: Array, *, is_tanh: bool = False) -> Array:
    """Return x times the normal distribution's integral, or the formula with tanh."""
    if is_tanh:
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)
        return 0.5 * x * (1.0 + np.tanh(inner))
    return 0.5 * x * (1.0 + erf(x * math.sqrt(0.5)))


def _unary(function: Callable[[Array], Array]) -> Function:
    return lambda call: function(call[0])


def operands(call: Call) -> tuple[Array, Array]:
    """Return both inputs; before version 7 an attribute lays the second along the first's axes."""
    a, b = call[0], call[1]
    if call.version < 7 and call.integer("broadcast", 0) and 0 < b.ndim < a.ndim:
        axis = call.axis(call.integer("axis", a.ndim - b.ndim), a.ndim)
        b = b.reshape(b.shape + (1,) * (a.ndim - axis - b.ndim))
    return a, b


def _binary(function: Callable[[Array, Array], Array]) -> Function:
    return lambda call: function(*operands(call))


def _variadic(function: Callable[[Array, Array], Array]) -> Function:
    def computed(call: Call) -> Array:
        result = call[0]
        for index in range(1, len(call.inputs)):
            result = function(result, call[index])
        return result

    return computed


def _mean(call: Call) -> Array:
    total: Array = _variadic(np.add)(call)
    return total / len(call.inputs)


def _check_divisor(call: Call, divisor: Array) -> None:
    if divisor.dtype.kind in "iu" and not divisor.all():
        raise call.error("integer division by zero")


def _div(call: Call) -> Array:
    a, b = operands(call)
    if a.dtype.kind not in "iu":
        return a / b
    _check_divisor(call, b)
    quotient = np.floor_divide(a, b)
    rest = a - quotient * b
    # C rounds toward zero, numpy down.
    return np.where((rest != 0) & ((a < 0) != (b < 0)), quotient + 1, quotient).astype(a.dtype)


def _mod(call: Call) -> Array:
    a, b = operands(call)
    _check_divisor(call, b)
    return np.fmod(a, b) if call.integer("fmod", 0) else np.mod(a, b)


def _pow(call: Call) -> Array | Typed:
    base, exponent = operands(call)
    if base.dtype.kind == "f":
        # numpy takes the root where one exponent is ½, which has no root of -∞ and -0: as large as
        # the result, it is not one.
        shape = np.broadcast_shapes(base.shape, exponent.shape)
        each = np.array(np.broadcast_to(exponent, shape), np.float64)
        return Typed(np.power(base, each), call.type(0))
    if exponent.dtype.kind == "f":
        return np.trunc(np.power(base.astype(np.float64), exponent)).astype(base.dtype)
    return _integer_power(base, exponent)


def _integer_power(base: Array, exponent: Array) -> Array:
    """Return whole powers that wrap; below zero the reciprocal, whose fraction is dropped."""
    positive = np.power(base, np.maximum(exponent, 0).astype(base.dtype))
    odd = exponent % 2 != 0
    below = np.where(base == 1, 1, np.where(base == -1, np.where(odd, -1, 1), 0))
    return np.where(exponent < 0, below, positive).astype(base.dtype)


def _clip_by_attributes(call: Call) -> Array:
    limits = np.finfo(np.float32)
    low = call.number("min", float(limits.min))
    high = call.number("max", float(limits.max))
    return np.minimum(np.maximum(call[0], low), high)


def _clip(call: Call) -> Array:
    result = call[0]
    if call.has(1):
        result = np.maximum(result, call.scalar(1))
    if call.has(2):
        result = np.minimum(result, call.scalar(2))
    return result


def _leaky_relu(call: Call) -> Array:
    x = call[0]
    return np.where(x < 0, x * call.number("alpha", 0.01), x)


def _prelu(call: Call) -> Array:
    x, slope = call[0], call[1]
    if call.version < 7 and slope.ndim == 1 and x.ndim > 1 and slope.size > 1:
        slope = slope.reshape((slope.size,) + (1,) * (x.ndim - 2))
    return np.where(x < 0, x * slope, x)


def _elu(call: Call) -> Array:
    x = call[0]
    return np.where(x < 0, call.number("alpha", 1.0) * np.expm1(np.minimum(x, 0)), x)


def _celu(call: Call) -> Array:
    x, alpha = call[0], call.number("alpha", 1.0)
    return np.maximum(x, 0) + np.minimum(0, alpha * np.expm1(x / alpha))


def _selu(call: Call) -> Array:
    x = call[0]
    alpha, gamma = call.number("alpha", _SELU_ALPHA), call.number("gamma", _SELU_GAMMA)
    return gamma * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _hard_sigmoid(call: Call) -> Array:
    line = call.number("alpha", 0.2) * call[0] + call.number("beta", 0.5)
    return np.clip(line, 0.0, 1.0)


def _hard_swish(call: Call) -> Array:
    x = call[0]
    return x * np.clip(x / 6.0 + 0.5, 0.0, 1.0)


def _thresholded_relu(call: Call) -> Array:
    x = call[0]
    return np.where(x > call.number("alpha", 1.0), x, np.zeros((), x.dtype))


def _shrink(call: Call) -> Array:
    x, bias, limit = call[0], call.number("bias", 0.0), call.number("lambd", 0.5)
    found = np.where(x < -limit, x + bias, np.where(x > limit, x - bias, 0))
    return found if x.dtype.kind == "f" else found.astype(x.dtype)


def _softsign(call: Call) -> Array:
    return call[0] / (1.0 + np.abs(call[0]))


def _mish(call: Call) -> Array:
    return call[0] * np.tanh(np.logaddexp(0.0, call[0]))


def _swish(call: Call) -> Array:
    return call[0] * sigmoid(call.number("alpha", 1.0) * call[0])


def _gelu(call: Call) -> Array:
    return gelu(call[0], is_tanh=call.text("approximate", "none") == "tanh")


def _is_inf(call: Call) -> Array:
    x = call[0]
    positive, negative = call.integer("detect_positive", 1), call.integer("detect_negative", 1)
    return np.asarray(((x == np.inf) & bool(positive)) | ((x == -np.inf) & bool(negative)))


def _bit_shift(call: Call) -> Array:
    a, b = call[0], call[1]
    bits = a.dtype.itemsize * 8
    amount = np.minimum(b, bits - 1)
    is_left = call.text("direction", "") == "LEFT"
    shifted = np.left_shift(a, amount) if is_left else np.right_shift(a, amount)
    # Shifted out to the right, a number below zero leaves -1.
    is_out = (b >= bits) if is_left else np.zeros(b.shape, np.bool_)
    return np.where(is_out | ((b >= bits) & (a.dtype.kind == "u")), 0, shifted).astype(a.dtype)


def _where(call: Call) -> Array:
    return np.where(call[0], call[1], call[2])


def _relu(x: Array) -> Array:
    return np.maximum(x, np.zeros((), x.dtype))


def _equal(a: Array, b: Array) -> Array:
    return np.asarray(a == b, np.bool_)


OPERATORS: Table = {
    "Add": computes(_binary(np.add)),
    "Sub": computes(_binary(np.subtract)),
    "Mul": computes(_binary(np.multiply)),
    "Div": computes(_div),
    "Mod": computes(_mod),
    "Pow": computes(_pow),
    "Max": computes(_variadic(np.maximum)),
    "Min": computes(_variadic(np.minimum)),
    "Sum": computes(_variadic(np.add)),
    "Mean": computes(_mean),
    "Abs": computes(_unary(np.abs)),
    "Neg": computes(_unary(np.negative)),
    "Sign": computes(_unary(np.sign)),
    "Sqrt": computes(_unary(np.sqrt)),
    "Reciprocal": computes(_unary(lambda x: 1.0 / x)),
    "Exp": computes(_unary(np.exp)),
    "Log": computes(_unary(np.log)),
    "Erf": computes(_unary(erf)),
    "Floor": computes(_unary(np.floor)),
    "Ceil": computes(_unary(np.ceil)),
    "Round": computes(_unary(np.rint)),
    "Sin": computes(_unary(np.sin)),
    "Cos": computes(_unary(np.cos)),
    "Tan": computes(_unary(np.tan)),
    "Asin": computes(_unary(np.arcsin)),
    "Acos": computes(_unary(np.arccos)),
    "Atan": computes(_unary(np.arctan)),
    "Sinh": computes(_unary(np.sinh)),
    "Cosh": computes(_unary(np.cosh)),
    "Tanh": computes(_unary(np.tanh)),
    "Asinh": computes(_unary(np.arcsinh)),
    "Acosh": computes(_unary(np.arccosh)),
    "Atanh": computes(_unary(np.arctanh)),
    "Relu": computes(_unary(_relu)),
    "LeakyRelu": computes(_leaky_relu),
    "PRelu": computes(_prelu),
    "ThresholdedRelu": computes(_thresholded_relu),
    "Elu": computes(_elu),
    "Celu": computes(_celu),
    "Selu": computes(_selu),
    "Sigmoid": computes(_unary(sigmoid)),
    "HardSigmoid": computes(_hard_sigmoid),
    "HardSwish": computes(_hard_swish),
    "Softplus": computes(_unary(lambda x: np.logaddexp(0.0, x))),
    "Softsign": computes(_softsign),
    "Shrink": computes(_shrink),
    "Mish": computes(_mish),
    "Swish": computes(_swish),
    "Gelu": computes(_gelu),
    "Clip": versions((1, _clip_by_attributes), (11, _clip)),
    "IsNaN": computes(_unary(np.isnan)),
    "IsInf": computes(_is_inf),
    "Not": computes(_unary(np.logical_not)),
    "And": computes(_binary(np.logical_and)),
    "Or": computes(_binary(np.logical_or)),
    "Xor": computes(_binary(np.logical_xor)),
    "Equal": computes(_binary(_equal)),
    "Less": computes(_binary(np.less)),
    "LessOrEqual": computes(_binary(np.less_equal)),
    "Greater": computes(_binary(np.greater)),
    "GreaterOrEqual": computes(_binary(np.greater_equal)),
    "BitwiseAnd": computes(_binary(np.bitwise_and)),
    "BitwiseOr": computes(_binary(np.bitwise_or)),
    "BitwiseXor": computes(_binary(np.bitwise_xor)),
    "BitwiseNot": computes(_unary(np.bitwise_not)),
    "BitShift": computes(_bit_shift),
    "Where": moves(_where),
}
