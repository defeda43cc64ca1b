"""Builders of elementwise operators, with broadcasting in every place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import helper

from claimed_operators import functions
from random_graphs.graph_writer import GraphWriter, IllegalError, Value
from random_graphs.reference import is_float

Build = Callable[[GraphWriter], object]

# The opset in which an operator came, if after 7.
_UNARY: Mapping[str, int] = {
    "Abs": 7, "Neg": 7, "Sqrt": 7, "Exp": 7, "Log": 7, "Tanh": 7, "Erf": 9, "Sigmoid": 7,
    "Floor": 7, "Ceil": 7, "Round": 11, "Reciprocal": 7, "Sign": 9, "Softplus": 7, "Relu": 7,
    "LeakyRelu": 7, "Elu": 7, "HardSigmoid": 7, "HardSwish": 14, "Gelu": 20, "Celu": 12, "Selu": 7,
    "ThresholdedRelu": 10, "Softsign": 7, "Shrink": 9, "Mish": 18, "Swish": 24, "Sin": 7, "Cos": 7,
    "Tan": 7, "Asin": 7, "Acos": 7, "Atan": 7, "Sinh": 9, "Cosh": 9, "Asinh": 9, "Acosh": 9,
    "Atanh": 9,
}  # fmt: skip
_ATTRIBUTES: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "LeakyRelu": {"alpha": (0.1, 0.3, -0.5, 1.5)},
    "Elu": {"alpha": (0.5, 2.0)},
    "HardSigmoid": {"alpha": (0.1, 0.25, 1.0), "beta": (0.0, 0.4)},
    "Celu": {"alpha": (0.5, 2.0)},
    "Selu": {"alpha": (1.5,), "gamma": (1.2,)},
    "ThresholdedRelu": {"alpha": (0.0, 0.5)},
    "Shrink": {"bias": (0.0, 0.25), "lambd": (0.1, 1.0)},
    "Swish": {"alpha": (0.7, 1.702)},
}
_WHOLE = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64)


def _unary(op_type: str) -> Build:
    def build(w: GraphWriter) -> object:
        x = w.float_value()
        if op_type in ("Sqrt", "Log", "Reciprocal") and w.maybe(0.8):
            x = w.op("Add", w.op("Abs", x), w.number(0.25))
        if op_type in ("Asin", "Acos", "Atanh") and w.maybe(0.8):
            x = w.op("Mul", w.op("Tanh", x), w.number(0.9))
        if op_type == "Acosh":
            x = w.op("Add", w.op("Abs", x), w.number(1.1))
        attributes: dict[str, Any] = {
            name: w.one_of(values)
            for name, values in _ATTRIBUTES.get(op_type, {}).items()
            if w.maybe(0.6)
        }
        if op_type == "Gelu" and w.maybe(0.6):
            attributes["approximate"] = w.one_of(["none", "tanh"])
        return w.settled(w.op(op_type, x, **attributes))

    return build


def partner_shape(w: GraphWriter, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Draw a shape that broadcasts with this one, mostly smaller, at times the larger one."""
    kind = w.random.random()
    if kind < 0.3:
        return shape
    if kind < 0.42:
        return w.one_of([(), (1,), (1,) * len(shape)])
    kept = tuple(size if w.maybe(0.5) else 1 for size in shape)
    if kind < 0.7:
        return kept
    if kind < 0.85:
        return shape[w.whole(0, len(shape)) :]
    grown = tuple(
        w.size(5) if whole == 1 and w.maybe(0.5) else size
        for size, whole in zip(kept, shape, strict=True)
    )
    return (w.size(3), *grown) if len(shape) < 5 and w.maybe(0.4) else grown


def partner(w: GraphWriter, x: Value) -> Value:
    """Return a value that broadcasts with `x`: of the graph, a constant, or a new input."""
    if w.maybe(0.35):
        fitting = [
            v for v in w.values
            if v.is_tame and v.array.dtype == x.array.dtype and _broadcast(v.shape, x.shape)
        ]  # fmt: skip
        if fitting:
            return w.one_of(fitting)
    shape = partner_shape(w, x.shape)
    if not w.maybe(0.6):
        return w.new(shape, x.array.dtype)
    if is_float(x.array):
        return w.constant(w.floats(shape))
    if x.array.dtype == np.bool_:
        return w.constant(w.random.random(shape) < 0.5)
    return w.constant(w.integers(shape, x.array.dtype))


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    pairs = zip(a[::-1], b[::-1], strict=False)
    return all(p == q or 1 in (p, q) for p, q in pairs)


def ordered(w: GraphWriter, x: Value, y: Value) -> tuple[Value, Value]:
    """Return both, in either order."""
    return (x, y) if w.maybe(0.6) else (y, x)


def number_value(w: GraphWriter, kinds: tuple[Any, ...]) -> Value:
    """Return integers of one of these types."""
    kind = np.dtype(w.one_of(kinds))
    rank = w.one_of([0, 1, 2, 3, 4])
    return w.take(lambda v: v.array.dtype in kinds, lambda: w.new(w.shape(rank, 17), kind))


# Integer types of Add, Sub, Mul and the like, by what ONNX Runtime has: 32 and 64 bits.
_SUMS = (np.int32, np.int64)


def _binary(op_type: str) -> Build:
    def build(w: GraphWriter) -> object:
        if w.maybe(0.2) and w.number_format in ("fp32", "bf16"):
            x = number_value(w, _SUMS)
            y = partner(w, x)
            if op_type == "Div":
                divisors = w.integers(y.shape, x.array.dtype, 1, 9)
                signs = w.one_of([1, 1, -1])
                return w.op("Div", x, w.constant(np.asarray(divisors * signs, x.array.dtype)))
            return w.op(op_type, *ordered(w, x, y))
        x = w.float_value()
        y = partner(w, x)
        if op_type == "Div":
            y = w.op("Add", w.op("Abs", y), w.number(0.5)) if w.maybe(0.9) else y
        return w.settled(w.op(op_type, *ordered(w, x, y)))

    return build


def _variadic(op_type: str) -> Build:
    def build(w: GraphWriter) -> object:
        narrow = op_type in ("Max", "Min") and w.opset >= 12
        if narrow and w.maybe(0.2) and w.number_format in ("fp32", "bf16"):
            x = number_value(w, _SUMS)
        else:
            x = w.float_value()
        others = [partner(w, x) for _ in range(w.one_of([0, 1, 1, 1, 2, 3]))]
        return w.settled(w.op(op_type, *([x, *others] if w.maybe(0.6) else [*others, x])))

    return build


def clip(w: GraphWriter) -> object:
    x = w.float_value()
    low, high = w.one_of([(0.0, 6.0), (-1.0, 1.0), (-0.5, 3.0), (0.5, 0.5), (1.0, -1.0)])
    has_low, has_high = w.maybe(0.8), w.maybe(0.8)
    if w.opset < 11:
        bounds = {k: v for k, v, has in (("min", low, has_low), ("max", high, has_high)) if has}
        return w.settled(w.op("Clip", x, **bounds))
    ends = [w.number(v) if has else None for v, has in ((low, has_low), (high, has_high))]
    if w.maybe(0.1) and has_high:
        ends[1] = w.input(np.array(high, w.float_type))
    while ends and ends[-1] is None:
        ends.pop()
    return w.settled(w.op("Clip", x, *ends))


def prelu(w: GraphWriter) -> object:
    x = w.float_value(2, 3, 4)
    if x.rank < 2:
        raise IllegalError("a slope for each channel needs channels")
    channel = (x.shape[1], *[1] * (x.rank - 2))
    shape = w.one_of([(1,), channel, x.shape])
    slope = w.floats(shape, 0.3)
    return w.settled(w.op("PRelu", x, w.constant(slope) if w.maybe(0.7) else w.input(slope)))


_EXPONENTS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 0.5, -0.5, 1.5, -1.0, -2.0, -3.0, 0.33)


def power(w: GraphWriter) -> object:
    x = w.float_value()
    y = float(w.one_of(_EXPONENTS))
    if y != int(y) or (y < 0 and w.maybe(0.8)):
        x = w.op("Add", w.op("Abs", x), w.number(0.25))
    kind = w.random.random()
    if kind < 0.7:
        return w.settled(w.op("Pow", x, w.number(y)))
    if kind < 0.85:
        whole = w.integers(partner_shape(w, x.shape), np.int64, 0, 4)
        return w.settled(w.op("Pow", x, w.constant(whole.astype(w.float_type))))
    if w.opset >= 12 and w.number_format == "fp32":
        base = w.new(w.shape(2, 9), w.one_of([np.int32, np.int64]))
        kind_of = w.one_of([np.int32, np.int64, np.float32])
        return w.op("Pow", base, w.constant(np.array(w.whole(0, 4), kind_of)))
    base = w.op("Add", w.op("Abs", x), w.number(0.25))
    return w.settled(w.op("Pow", base, partner(w, x)))


def where(w: GraphWriter) -> object:
    x = w.float_value() if w.maybe(0.8) else number_value(w, (np.int32, np.int64, np.bool_))
    y = partner(w, x)
    shape = np.broadcast_shapes(x.shape, y.shape)
    fits = lambda v: v.array.dtype == np.bool_ and _broadcast(v.shape, shape)  # noqa: E731
    condition = w.take(fits, lambda: w.new(partner_shape(w, shape), np.bool_))
    return w.settled(w.op("Where", condition, *ordered(w, x, y)))


_CASTS = (np.float32, np.float32, np.int32, np.int64, np.bool_, np.int8, np.uint8, np.float16)


def cast(w: GraphWriter) -> object:
    kind = np.dtype(w.one_of(_CASTS))
    if w.number_format in ("fp16", "bf16-model") and w.maybe(0.5):
        kind = np.dtype(np.float32)
    x = w.float_value() if w.maybe(0.6) else number_value(w, (np.int32, np.int64, np.bool_))
    if is_float(x.array) and kind.kind in "iu":
        most = min(100.0, float(np.iinfo(kind).max))
        x = w.op("Min", w.op("Abs", x), w.number(most)) if w.opset >= 8 else w.op("Abs", x)
        if float(x.array.astype(np.float32).max()) > most:
            raise IllegalError("a float that no such integer holds")
    if not is_float(x.array) and kind.kind in "iu":
        kind = np.dtype(w.one_of([np.int32, np.int64]))
    y = w.op("Cast", x, to=helper.np_dtype_to_tensor_dtype(kind))
    if is_float(y.array) and y.array.dtype != w.float_type and w.maybe(0.8):
        return w.op("Cast", y, to=helper.np_dtype_to_tensor_dtype(w.float_type))
    return y


def _comparison(op_type: str) -> Build:
    def build(w: GraphWriter) -> object:
        kinds = (np.int32, np.int64)
        takes_floats = w.opset >= 11 if op_type == "Equal" else True
        # Whether rounded numbers are equal is a matter of chance.
        takes_floats &= op_type != "Equal" or w.number_format == "fp32"
        is_narrow = w.opset < 9 and op_type in ("Less", "Greater")
        is_float_now = is_narrow or (takes_floats and w.maybe(0.7))
        x = w.float_value() if is_float_now else number_value(w, kinds)
        y = partner(w, x)
        found = w.op(op_type, *ordered(w, x, y))
        if w.maybe(0.4):
            return w.op("Cast", found, to=helper.np_dtype_to_tensor_dtype(w.float_type))
        return found

    return build


def _logical(op_type: str) -> Build:
    def build(w: GraphWriter) -> object:
        x = number_value(w, (np.bool_,))
        if op_type == "Not":
            return w.op("Not", x)
        return w.op(op_type, *ordered(w, x, partner(w, x)))

    return build


def _bitwise(op_type: str) -> Build:
    def build(w: GraphWriter) -> object:
        x = number_value(w, _WHOLE)
        if op_type == "BitwiseNot":
            return w.op(op_type, x)
        return w.op(op_type, *ordered(w, x, partner(w, x)))

    return build


def modulo(w: GraphWriter) -> object:
    x = number_value(w, _WHOLE)
    divisor = w.integers(partner_shape(w, x.shape), x.array.dtype, 1, 7)
    if x.array.dtype.kind == "i" and w.maybe(0.5):
        divisor = np.asarray(-divisor, x.array.dtype)
    return w.op("Mod", x, w.constant(divisor), **({"fmod": 1} if w.maybe(0.3) else {}))


def is_nan(w: GraphWriter) -> object:
    return w.op("IsNaN", w.input(w.special(w.floats(w.shape(w.whole(0, 3), 17)))))


def is_infinite(w: GraphWriter) -> object:
    x = w.input(w.special(w.floats(w.shape(w.whole(0, 3), 17))))
    wanted = {
        name: int(w.maybe(0.5)) for name in ("detect_positive", "detect_negative") if w.maybe(0.5)
    }
    return w.op("IsInf", x, **wanted)


BUILDERS: Mapping[str, tuple[int, Build]] = {
    **{name: (since, _unary(name)) for name, since in _UNARY.items()},
    **{name: (7, _binary(name)) for name in ("Add", "Sub", "Mul", "Div")},
    **{name: (8, _variadic(name)) for name in ("Max", "Min", "Sum", "Mean")},
    "Clip": (7, clip), "PRelu": (7, prelu), "Pow": (7, power), "Where": (9, where),
    "Cast": (9, cast), "Mod": (10, modulo), "IsNaN": (9, is_nan), "IsInf": (10, is_infinite),
    **{name: (7, _comparison(name)) for name in ("Equal", "Less", "Greater")},
    **{name: (12, _comparison(name)) for name in ("LessOrEqual", "GreaterOrEqual")},
    **{name: (7, _logical(name)) for name in ("Not", "And", "Or", "Xor")},
    **{name: (since, _unary(name)) for name, since in functions().items() if name not in _UNARY},
    **{
        name: (18, _bitwise(name))
        for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot")
    },
}  # fmt: skip
