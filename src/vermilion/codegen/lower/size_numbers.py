"""Whole numbers that follow from sizes alone, as formulas: what exporters compute from shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.ir.attributes import integer, integers
from vermilion.ir.formula import at_least
from vermilion.ir.opset import constant_of, static_shape
from vermilion.ir.symbolic import (
    Size,
    is_known,
    known_value,
    larger,
    lesser,
    same,
)

Numbers = NDArray[Any]

# Numbers of a tensor that is followed through the graph.
MOST_NUMBERS = 64


def numbers_of(node: ir.Node) -> Numbers | None:
    """Return what a node gives where that follows from sizes alone, else None."""
    if node.domain not in ("", "ai.onnx") or len(node.outputs) != 1:
        return None
    if node.op_type == "Shape":
        shape = static_shape(node.inputs[0])
        if shape is None:
            return None
        end = integer(node, "end", len(shape))
        return _array(list(shape)[slice(integer(node, "start", 0), end)])
    if node.op_type == "Size":
        shape = static_shape(node.inputs[0])
        return None if shape is None else _array(_product(shape))
    rule = _RULES.get(node.op_type)
    if rule is None:
        return None
    inputs = [None if value is None or not value.name else _input(value) for value in node.inputs]
    given = [value is not None and bool(value.name) for value in node.inputs]
    if any(is_given and found is None for is_given, found in zip(given, inputs, strict=True)):
        return None
    if all(constant_of(v) is not None for v in node.inputs if v is not None and v.name):
        return None  # nothing of sizes in it: left as it is
    try:
        return rule(node, inputs)
    except (IndexError, ValueError, TypeError, ZeroDivisionError, _Undecided):
        return None


class _Undecided(Exception):
    """A comparison that comes out one way at some sizes, and the other at others."""


def _input(value: ir.Value) -> Numbers | None:
    known = known_value(value.name)
    if known is not None:
        return known
    constant = constant_of(value)
    if constant is None or constant.size > MOST_NUMBERS or not _is_whole(constant.dtype):
        return None
    return _array(constant.numpy().tolist())


def _is_whole(dtype: ir.DataType) -> bool:
    return dtype.is_integer() or dtype == ir.DataType.BOOL


def _array(numbers: Any) -> Numbers:
    if isinstance(numbers, Size) or not isinstance(numbers, list | tuple):
        single = np.empty((), object)
        single[()] = numbers
        return single
    flat = np.empty(len(numbers), object)
    for at, number in enumerate(numbers):
        flat[at] = number
    return flat if not any(isinstance(n, list) for n in numbers) else np.array(numbers, object)


def _product(numbers: Any) -> int:
    total: int = 1
    for number in numbers:
        total = total * number
    return total


Inputs = list[Numbers | None]


def _elementwise(operation: Callable[..., Any]) -> Callable[[ir.Node, Inputs], Numbers]:
    def rule(node: ir.Node, inputs: Inputs) -> Numbers:
        arrays = np.broadcast_arrays(*[a for a in inputs if a is not None])
        result = np.empty(arrays[0].shape, object)
        for at in np.ndindex(result.shape):
            result[at] = operation(*[a[at] for a in arrays])
        return result

    return rule


def _quotient(a: Any, b: Any) -> Any:
    """Divide; ONNX rounds towards 0, which is down where nothing is negative."""
    _require_positive(a, b)
    return a // b


def _remainder(a: Any, b: Any) -> Any:
    """Return what division leaves; with `fmod` negative numbers leave something else."""
    _require_positive(a, b)
    return a % b


def _require_positive(a: Any, b: Any) -> None:
    if not (at_least(a, 0) and at_least(b, 1)):
        raise _Undecided


def _plain(numbers: Numbers) -> list[int]:
    """Return numbers that are known before the program runs: places, bounds, sizes of tensors."""
    if not all(map(is_known, numbers.reshape(-1))):
        raise _Undecided
    return [int(number) for number in numbers.reshape(-1)]


def _equal(a: Any, b: Any) -> bool:
    if is_known(a) and is_known(b):
        return bool(a == b)
    if same(a, b):
        return True
    if at_least(a - b, 1) or at_least(b - a, 1):
        return False
    raise _Undecided


def _less(a: Any, b: Any) -> bool:
    if is_known(a) and is_known(b):
        return bool(a < b)
    if at_least(b - a, 1):
        return True
    if at_least(a - b, 0):
        return False
    raise _Undecided


def _concat(node: ir.Node, inputs: Inputs) -> Numbers:
    return np.concatenate([a for a in inputs if a is not None], axis=integer(node, "axis", 0))


def _gather(node: ir.Node, inputs: Inputs) -> Numbers:
    data, places = inputs[0], inputs[1]
    assert data is not None and places is not None  # noqa: PT018
    index = np.array(_plain(places), np.int64).reshape(places.shape)
    return _as_array(np.take(data, index, axis=integer(node, "axis", 0)))


def _as_array(value: Any) -> Numbers:
    return value if isinstance(value, np.ndarray) else _array(value)


def _slice(node: ir.Node, inputs: Inputs) -> Numbers:
    data, starts, ends, *others = inputs
    assert data is not None and starts is not None and ends is not None  # noqa: PT018
    axes, steps = (*others, None, None)[:2]
    index: list[slice] = [slice(None)] * data.ndim
    bounds = list(zip(_plain(starts), _plain(ends), strict=True))
    along = list(range(len(bounds))) if axes is None else _plain(axes)
    strides = [1] * len(bounds) if steps is None else _plain(steps)
    for axis, (start, end), step in zip(along, bounds, strides, strict=True):
        index[axis] = slice(start, end, step)
    return _as_array(data[tuple(index)])


def _axes(node: ir.Node, inputs: Inputs) -> tuple[int, ...] | None:
    if len(inputs) > 1 and inputs[1] is not None:
        return tuple(_plain(inputs[1]))
    return integers(node, "axes", None)


def _unsqueeze(node: ir.Node, inputs: Inputs) -> Numbers:
    assert inputs[0] is not None
    return np.expand_dims(inputs[0], _axes(node, inputs) or ())


def _squeeze(node: ir.Node, inputs: Inputs) -> Numbers:
    assert inputs[0] is not None
    return _as_array(np.squeeze(inputs[0], _axes(node, inputs)))


def _reshape(node: ir.Node, inputs: Inputs) -> Numbers:
    assert inputs[0] is not None and inputs[1] is not None  # noqa: PT018
    return inputs[0].reshape(_plain(inputs[1]))


def _reduce_product(node: ir.Node, inputs: Inputs) -> Numbers:
    assert inputs[0] is not None
    if inputs[0].ndim != 1:
        raise _Undecided
    total = _product(inputs[0])
    return _array([total]) if integer(node, "keepdims", 1) else _array(total)


def _filled(node: ir.Node, inputs: Inputs) -> Numbers:
    assert inputs[0] is not None
    value = node.attributes.get("value")
    number = 0 if value is None else value.as_tensor().numpy().reshape(-1)[0].item()
    if isinstance(number, float):
        raise _Undecided
    shape = _plain(inputs[0])
    if _product(shape) > MOST_NUMBERS:
        raise _Undecided
    return np.full(shape, number, object)


def _cast(node: ir.Node, inputs: Inputs) -> Numbers:
    assert inputs[0] is not None
    to = ir.DataType(integer(node, "to"))
    if to not in (ir.DataType.INT64, ir.DataType.INT32):
        raise _Undecided
    return inputs[0]


def _expand(node: ir.Node, inputs: Inputs) -> Numbers:
    assert inputs[0] is not None and inputs[1] is not None  # noqa: PT018
    shape = np.broadcast_shapes(inputs[0].shape, tuple(_plain(inputs[1])))
    return np.broadcast_to(inputs[0], shape)


_RULES: Mapping[str, Callable[[ir.Node, Inputs], Numbers]] = {
    "Add": _elementwise(lambda a, b: a + b),
    "Sub": _elementwise(lambda a, b: a - b),
    "Mul": _elementwise(lambda a, b: a * b),
    "Div": _elementwise(_quotient),
    "Mod": _elementwise(_remainder),
    "Neg": _elementwise(lambda a: -a),
    "Max": _elementwise(lambda *all_: _folded(larger, all_)),
    "Min": _elementwise(lambda *all_: _folded(lesser, all_)),
    "Equal": _elementwise(_equal),
    "Less": _elementwise(_less),
    "Greater": _elementwise(lambda a, b: _less(b, a)),
    "Not": _elementwise(lambda a: not a),
    "And": _elementwise(lambda a, b: bool(a and b)),
    "Or": _elementwise(lambda a, b: bool(a or b)),
    "Where": _elementwise(lambda condition, a, b: a if condition else b),
    "Concat": _concat, "Gather": _gather, "Slice": _slice, "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze, "Reshape": _reshape, "ReduceProd": _reduce_product,
    "ConstantOfShape": _filled, "Cast": _cast, "Expand": _expand,
    "Identity": lambda node, inputs: _given(inputs[0]),
}  # fmt: skip


def _given(numbers: Numbers | None) -> Numbers:
    assert numbers is not None
    return numbers


def _folded(operation: Callable[[Any, Any], Any], numbers: tuple[Any, ...]) -> Any:
    first, *others = numbers
    for other in others:
        first = operation(first, other)
    return first
