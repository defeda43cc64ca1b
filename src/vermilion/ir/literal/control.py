"""Operators that run graphs, and those that hold sequences of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.ir.literal.call import Call, Held, Table, Typed, moves

Array = NDArray[Any]

# More steps than any network takes; a loop without an end stops here.
MOST_ITERATIONS = 100_000


def _typed(call: Call, index: int) -> Held:
    """Return an input with its declared type, which float64 does not show."""
    held, dtype = call.inputs[index], call.types[index]
    return held if dtype is None else Typed(held, dtype)


def _array(held: Held) -> Any:
    return held.array if isinstance(held, Typed) else held


def _graph(call: Call, name: str) -> ir.Graph:
    attribute = call.node.attributes.get(name)
    if attribute is None or attribute.type != ir.AttributeType.GRAPH:
        raise call.error(f"its attribute `{name}` is missing")
    return attribute.as_graph()


def _if(call: Call) -> tuple[Held, ...]:
    branch = "then_branch" if bool(call.scalar(0)) else "else_branch"
    return tuple(call.run_graph(_graph(call, branch), []))


def _stacked(call: Call, body: ir.Graph, at: int, parts: list[Held], axis: int = 0) -> Held:
    """Return what every iteration gave as one tensor; of none, an empty one of the right type."""
    if parts:
        arrays = [np.asarray(_array(part)) for part in parts]
        if any(array.shape != arrays[0].shape for array in arrays):
            raise call.error("an output differs in shape from one iteration to the next")
        stacked = np.stack(arrays, axis)
        return Typed(stacked, parts[0].dtype) if isinstance(parts[0], Typed) else stacked
    value = body.outputs[at]
    dtype = value.dtype or ir.DataType.FLOAT
    sizes = [] if value.shape is None else [d if isinstance(d, int) else 0 for d in value.shape]
    return Typed(np.zeros((0, *sizes), dtype.numpy()), dtype)


def _loop(call: Call) -> tuple[Held, ...]:
    body = _graph(call, "body")
    most = int(call.scalar(0)) if call.has(0) else None
    goes_on = bool(call.scalar(1)) if call.has(1) else True
    state = [_typed(call, at) for at in range(2, len(call.inputs))]
    parts: list[list[Held]] = [[] for _ in range(len(body.outputs) - 1 - len(state))]
    step = 0
    while goes_on and (most is None or step < most):
        if step >= MOST_ITERATIONS:
            raise call.unsupported(f"it runs for more than {MOST_ITERATIONS:,} iterations")
        found = call.run_graph(body, [np.array(step), np.array(goes_on), *state])
        goes_on = bool(np.asarray(_array(found[0])).reshape(-1)[0])
        state = found[1 : 1 + len(state)]
        for part, item in zip(parts, found[1 + len(state) :], strict=True):
            part.append(item)
        step += 1
    first = 1 + len(state)
    return (*state, *(_stacked(call, body, first + at, part) for at, part in enumerate(parts)))


def _scan(call: Call) -> tuple[Held, ...]:
    if call.version < 9:
        raise call.unsupported("Scan of version 8, which runs over a batch, is not interpreted")
    body, count = _graph(call, "body"), call.integer("num_scan_inputs")
    held = len(call.inputs) - count
    state = [_typed(call, at) for at in range(held)]
    axes = call.integers("scan_input_axes") or [0] * count
    ways = call.integers("scan_input_directions") or [0] * count
    rows = []
    for at in range(count):
        x = call[held + at]
        x = np.moveaxis(x, call.axis(axes[at], x.ndim), 0)
        rows.append(x[::-1] if ways[at] else x)
    lengths = {x.shape[0] for x in rows}
    if len(lengths) != 1:
        raise call.error(f"its inputs are scanned over different lengths {sorted(lengths)}")
    (length,) = lengths
    if length > MOST_ITERATIONS:
        raise call.unsupported(f"it runs for more than {MOST_ITERATIONS:,} iterations")
    parts: list[list[Held]] = [[] for _ in range(len(body.outputs) - held)]
    for step in range(length):
        given = [Typed(x[step], call.type(held + at)) for at, x in enumerate(rows)]
        found = call.run_graph(body, [*state, *given])
        state = found[:held]
        for part, item in zip(parts, found[held:], strict=True):
            part.append(item)
    return (*state, *_scanned(call, body, held, parts))


def _scanned(call: Call, body: ir.Graph, held: int, parts: list[list[Held]]) -> list[Held]:
    axes = call.integers("scan_output_axes") or [0] * len(parts)
    ways = call.integers("scan_output_directions") or [0] * len(parts)
    results = []
    for at, part in enumerate(parts):
        ordered = part[::-1] if ways[at] else part
        axis = axes[at]
        if ordered:
            axis = call.axis(axis, np.asarray(_array(ordered[0])).ndim + 1)
        results.append(_stacked(call, body, held + at, ordered, axis))
    return results


def _sequence_map(call: Call) -> tuple[Held, ...]:
    body = _graph(call, "body")
    results: list[list[Any]] = [[] for _ in body.outputs]
    for step in range(len(call.inputs[0])):
        given = [
            held[step] if isinstance(held, list) else _typed(call, at)
            for at, held in enumerate(call.inputs)
        ]
        for result, item in zip(results, call.run_graph(body, given), strict=True):
            result.append(_array(item))
    return tuple(results)


def _items(call: Call) -> list[Any]:
    held = call.inputs[0]
    if not isinstance(held, list):
        raise call.error("its first input is no sequence")
    return list(held)


def _place(call: Call, index: int, length: int) -> int:
    place = int(call.scalar(index))
    if not -length <= place < length:
        raise call.error(f"the position {place} is not in a sequence of {length}")
    return place % length


def _sequence_at(call: Call) -> Any:
    items = _items(call)
    return items[_place(call, 1, len(items))]


def _sequence_insert(call: Call) -> Any:
    items = _items(call)
    place = len(items)
    if call.has(2):
        place = int(call.scalar(2))
        if not -len(items) <= place <= len(items):
            raise call.error(f"the position {place} is not in a sequence of {len(items)}")
        place = place + len(items) if place < 0 else place
    items.insert(place, call[1])
    return items


def _sequence_erase(call: Call) -> Any:
    items = _items(call)
    del items[_place(call, 1, len(items)) if call.has(1) else -1]
    return items


def _concat_from_sequence(call: Call) -> Any:
    items, axis = _items(call), call.integer("axis")
    joins = np.stack if call.integer("new_axis", 0) else np.concatenate
    return joins(items, axis)


def _split_to_sequence(call: Call) -> Any:
    x = call[0]
    axis = call.axis(call.integer("axis", 0), x.ndim)
    length = x.shape[axis]
    if not call.has(1):
        parts = np.split(x, length, axis) if length else []
        keeps = bool(call.integer("keepdims", 1))
        return list(parts) if keeps else [np.squeeze(part, axis) for part in parts]
    sizes = call.ints(1)
    if call[1].ndim == 0:
        ends = list(range(sizes[0], length, sizes[0]))
    else:
        if sum(sizes) != length:
            raise call.error(f"the parts {sizes} do not sum up to {length}")
        ends = np.cumsum(sizes)[:-1].tolist()
    return list(np.split(x, ends, axis))


def _sequence_length(call: Call) -> Any:
    return np.array(len(_items(call)), np.int64)


def _sequence_construct(call: Call) -> Any:
    return [call[at] for at in range(len(call.inputs))]


def _sequence_empty(call: Call) -> Any:
    return []


def _optional(call: Call) -> Any:
    return call.inputs[0] if call.inputs else None


def _optional_element(call: Call) -> Any:
    if call.inputs[0] is None:
        raise call.error("the optional holds nothing")
    return call.inputs[0]


def _optional_has_element(call: Call) -> Any:
    return np.array(bool(call.inputs) and call.inputs[0] is not None)


OPERATORS: Table = {
    "If": moves(_if),
    "Loop": moves(_loop),
    "Scan": moves(_scan),
    "SequenceMap": moves(_sequence_map),
    "SequenceAt": moves(_sequence_at),
    "SequenceInsert": moves(_sequence_insert),
    "SequenceErase": moves(_sequence_erase),
    "SequenceLength": moves(_sequence_length),
    "SequenceConstruct": moves(_sequence_construct),
    "SequenceEmpty": moves(_sequence_empty),
    "ConcatFromSequence": moves(_concat_from_sequence),
    "SplitToSequence": moves(_split_to_sequence),
    "Optional": moves(_optional),
    "OptionalGetElement": moves(_optional_element),
    "OptionalHasElement": moves(_optional_has_element),
}
