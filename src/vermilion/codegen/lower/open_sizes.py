"""A model with open dimensions, made ready to be lowered once for all sizes.

Every open dimension of an input is a symbol. What nodes give follows from their inputs by the same
rules as fixed shapes do, and whole numbers that follow from sizes alone (Shape, Gather, Concat in
front of a Reshape) are computed here, as formulas, and never when the model runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.codegen.lower.result_shapes import result_shapes
from vermilion.codegen.lower.rules import has_rule
from vermilion.codegen.lower.window_shapes import UnknownShape
from vermilion.ir.attributes import integer, integers
from vermilion.ir.formula import at_least, guard_holds
from vermilion.ir.opset import constant_of, required_inputs, static_shape
from vermilion.ir.samples.open_sizes import open_name
from vermilion.ir.symbolic import (
    Examples,
    Guard,
    Size,
    examples,
    is_known,
    known_value,
    larger,
    lesser,
    same,
    shape_of_sizes,
    symbol,
)

Numbers = NDArray[Any]

# Example sizes: of a first dimension, which mostly counts a batch, of a second, mostly the length
# of a text, which tables of positions must reach, and of the others, mostly the sides of pictures,
# which are halved again and again; last, of sides that are counted in tiles. The first set is of
# primes, so that what divides them by accident does not look as if it always did; the second set
# must give the same program.
_EXAMPLES = ((7, 29, 131, 7), (12, 34, 210, 10))
# Tiles that pictures may have to be made of: networks that halve a side five times and join what
# they had before are right for such sides alone.
_TILE = 32
# Numbers of a tensor that is followed through the graph.
_MOST_NUMBERS = 64
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class OpenModel:
    """A copy of a model, its open sizes by example, and where a run reads each symbol.

    `from_sizes` are the nodes of the copy that need not run, `unknown` those of unknown results.
    `symbols` says of each symbol the number of the input, the axis, and what its size is divided
    by.
    """

    model: ir.Model
    sizes: Examples
    from_sizes: frozenset[ir.Node]
    symbols: Mapping[str, tuple[int, int, int]]
    examples: Mapping[str, int]
    unknown: frozenset[ir.Node]

    def contradicts(self, guards: Iterable[Guard]) -> bool:
        """Say whether something that another lowering took for granted does not hold here."""
        return not all(
            guard_holds(guard.sign, guard.difference.at(self.examples)) for guard in guards
        )


def open_models(model: ir.Model) -> Iterator[OpenModel]:
    """Yield the model by each set of examples.

    The sides of pictures are multiples of a tile where more nodes can be generated so.
    """
    first, second = _EXAMPLES
    opened = _opened(model.clone(), first, 1)
    if opened.unknown and any(axis > 1 for _, axis, _ in opened.symbols.values()):
        tiled = _opened(model.clone(), first, _TILE)
        if len(tiled.unknown) < len(opened.unknown):
            yield tiled
            yield _opened(model.clone(), second, _TILE)
            return
    yield opened
    yield _opened(model.clone(), second, 1)


def at_batch(model: ir.Model, batch: int) -> OpenModel:
    """Return a model whose one open dimension is a batch, for that batch: all sizes are known."""
    return _opened(model.clone(), (batch,) * 4, 1, is_example=False)


def is_open(model: ir.Model) -> bool:
    """Say whether an input has a dimension that is open."""
    return any(static_shape(value) is None for value in required_inputs(model))


def _opened(
    model: ir.Model, sizes_by_axis: Sequence[int], multiple: int, *, is_example: bool = True
) -> OpenModel:
    current, symbols = Examples({}, {}), dict[str, tuple[int, int, int]]()
    # By the model's own name, which may be what a formula is written like.
    named: dict[str, int] = {}
    chosen: dict[str, int] = {}
    counters = [0, 0, 0]
    with examples(current):
        for number, value in enumerate(required_inputs(model)):
            if value.shape is None:
                continue
            sizes: list[int] = []
            for axis, dimension in enumerate(value.shape.dims):
                if isinstance(dimension, int):
                    sizes.append(dimension)
                    continue
                text = open_name(value, axis)
                if text not in named:
                    kind = min(axis, 2)
                    times = multiple if kind == 2 else 1
                    name = text if _NAME.fullmatch(text) else f"size.{len(symbols)}"
                    # Every symbol has an example of its own.
                    example = sizes_by_axis[3 if times > 1 else kind]
                    example += 2 * counters[kind] * (3 + kind) if is_example else 0
                    counters[kind] += 1
                    name = f"{name}/{times}" if times > 1 else name
                    size = symbol(name, example) if is_example else example
                    named[text] = times * size
                    symbols[name], chosen[name] = (number, axis, times), example
                sizes.append(named[text])
            value.shape = shape_of_sizes(sizes)
        done = frozenset(node for node in model.graph if _follow(node, current))
        unknown = frozenset(
            node
            for node in model.graph
            if node not in done and any(static_shape(v) is None for v in node.outputs if v.name)
        )
    return OpenModel(model, current, done, symbols, chosen, unknown)


def _follow(node: ir.Node, current: Examples) -> bool:
    """Compute shapes, and numbers if they follow from sizes; say whether that is all of it."""
    known = _numbers_of(node)
    if known is not None and known.size <= _MOST_NUMBERS:
        value = node.outputs[0]
        current.values[str(value.name)] = known
        value.shape = ir.Shape(known.shape)
        return True
    if not has_rule(node):
        return False
    try:
        shapes = result_shapes(node)
    except (UnknownShape, IndexError, ValueError, TypeError, KeyError):
        return False  # damaged, or of a form that no rule reads: the claim says why
    for value, shape in zip(node.outputs, shapes, strict=False):
        if value.name:
            value.shape = shape_of_sizes(shape)
    return False


def _numbers_of(node: ir.Node) -> Numbers | None:
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
    if constant is None or constant.size > _MOST_NUMBERS or not _is_whole(constant.dtype):
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
    if _product(shape) > _MOST_NUMBERS:
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
