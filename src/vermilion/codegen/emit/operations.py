"""Operations of expressions on vectors: those of floats, and those of integers."""

from __future__ import annotations

from vermilion.codegen.emit.builder import Function
from vermilion.codegen.emit.values import Value, splat_integer
from vermilion.codegen.emit.vector_math import VectorMath
from vermilion.codegen.emit.wide_math import WideMath

_INTRINSICS = {
    "abs": "fabs",
    "sqrt": "sqrt",
    "floor": "floor",
    "ceil": "ceil",
    "round": "roundeven",
}


def float_operation(m: VectorMath, operation: str, a: list[Value]) -> Value:
    """Write one operation on float32 vectors; those not named here are functions of their name."""
    binary = {
        "add": m.add,
        "sub": m.subtract,
        "mul": m.multiply,
        "div": m.divide,
        "top": m.maximum,
    }
    if operation in binary:
        return binary[operation](a[0], a[1])
    if operation in _INTRINSICS:
        return m.unary(_INTRINSICS[operation], a[0])
    match operation:
        case "fma":
            return m.fma(a[0], a[1], a[2])
        case "neg":
            return m.f.emit(a[0].type, f"fneg {a[0]}")
        case "reciprocal":
            return m.divide(m.number(1.0), a[0])
        case "sign":
            return _sign(m, a[0])
        case "pow":
            return WideMath(m).power(a[0], a[1])
    function = getattr(m, operation, None) or getattr(WideMath(m), operation, None)
    assert function is not None, f"no float operation {operation}"
    result: Value = function(*a)
    return result


def _sign(m: VectorMath, x: Value) -> Value:
    """Return 1 or -1 with the sign of x, 0 for 0 and NaN for NaN."""
    one = m.f.intrinsic(f"llvm.copysign.v{m.lanes}f32", x.type, [m.number(1.0), x])
    is_neither = m.f.compare_floats("ueq", x, m.number(0.0))
    return m.f.select(is_neither, m.add(x, m.number(0.0)), one)


def integer_operation(
    f: Function, lanes: int, operation: str, element: str, a: list[Value]
) -> Value:
    """Write one operation on vectors of integers of the LLVM type `element`."""
    if operation in ("add", "sub", "mul", "and", "or", "xor"):
        return f.binary(operation, a[0], a[1])
    suffix = f"v{lanes}{element}"
    match operation:
        case "div" | "mod":
            return _divided(f, lanes, operation, element, a)
        case "max" | "min":
            return f.intrinsic(f"llvm.s{operation}.{suffix}", a[0].type, a)
        case "neg":
            return f.binary("sub", splat_integer(0, lanes, element), a[0])
        case "abs":
            name = f"llvm.abs.{suffix}"
            f.module.declare(name, a[0].type, [a[0].type, "i1"])
            return f.call(name, a[0].type, [a[0], Value("i1", "false")])
        case "not":
            return f.binary("xor", a[0], splat_integer(-1, lanes, element))
    raise AssertionError(f"no integer operation {operation}")


def _divided(f: Function, lanes: int, operation: str, element: str, a: list[Value]) -> Value:
    """Divide towards 0; by 0 gives 0, and the lowest number by -1 itself, with no rest.

    Processors trap on both, and lanes behind a row's end are 0. ONNX leaves them open. So do
    numpy and onnx's reference, and ONNX Runtime where it gives anything: it refuses 0, and the
    lowest int64 by -1 ends its process.
    """
    one, minus_one, zero = (splat_integer(n, lanes, element) for n in (1, -1, 0))
    is_minus = f.compare("eq", a[1], minus_one)
    is_zero = f.compare("eq", a[1], zero)
    divisor = f.select(f.binary("or", is_minus, is_zero), one, a[1])
    if operation == "mod":
        return f.select(is_zero, zero, f.binary("srem", a[0], divisor))
    quotient = f.select(is_minus, f.binary("sub", zero, a[0]), f.binary("sdiv", a[0], divisor))
    return f.select(is_zero, zero, quotient)
