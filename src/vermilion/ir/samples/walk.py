"""From where values are used back to the inputs: what is wanted of each, in one walk.

Operators that only move elements hand requests on as they are; arithmetic with constants turns
intervals around. What an operator asks of its own operands stands in `roles`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from vermilion.ir.opset import bodies_of, constant_of, required_inputs
from vermilion.ir.samples.facts import (
    Facts,
    attribute_list,
    attribute_or,
    operand,
    slices,
)
from vermilion.ir.samples.roles import ROLES
from vermilion.ir.samples.shape_roles import SHAPE_ROLES
from vermilion.ir.samples.use import Use
from vermilion.ir.samples.values import (
    Floats,
    SampleKind,
    Want,
    between,
    joined,
)

Pair = tuple[ir.Value, ir.Value | None]
"""A value of which something is wanted, and the one that must then be so."""


def readers_first(
    model: ir.Model, values: Iterable[ir.Value], carries: Callable[[ir.Node], bool]
) -> Iterator[ir.Node]:
    """Yield the nodes that the values' elements reach, each after all that read its results.

    `carries` says through which nodes they go.
    """
    owners: dict[ir.Graph, ir.Node] = {}

    def readers(of: Iterable[ir.Value]) -> Iterator[ir.Node]:
        for value in of:
            for node, _ in value.uses():
                yield node
            if value.is_graph_output() and value.graph is not model.graph:
                if not owners:
                    owners.update(_owners(model))
                owner = owners.get(value.graph) if isinstance(value.graph, ir.Graph) else None
                if owner is not None:
                    yield owner

    seen: set[ir.Node] = set()
    pending: list[tuple[ir.Node | None, Iterator[ir.Node]]] = [(None, readers(values))]
    while pending:
        node, following = pending[-1]
        reader = next((reader for reader in following if reader not in seen), None)
        if reader is not None:
            seen.add(reader)
            bodies = list(bodies_of(reader))
            inner = [value for body in bodies for value in body.inputs]
            onwards = [*reader.outputs, *inner] if bodies or carries(reader) else []
            pending.append((reader, readers(onwards)))
            continue
        pending.pop()
        if node is not None:
            yield node


def body_inputs(node: ir.Node) -> Iterator[Pair]:
    """Pair the inputs of a Loop's or a Scan's body with what the node hands to them.

    The number of the round is not one that is handed over.
    """
    if node.op_type in ("Loop", "Scan"):
        first = 1 if node.op_type == "Loop" else 0
        for body in bodies_of(node):
            yield from zip(body.inputs[first:], node.inputs[first:], strict=False)


def body_outputs(node: ir.Node) -> Iterator[Pair]:
    """Pair the node's results with what its bodies make for them."""
    for body in bodies_of(node):
        made = body.outputs[1:] if node.op_type == "Loop" else body.outputs
        yield from zip(node.outputs, made, strict=False)


def _owners(model: ir.Model) -> Iterator[tuple[ir.Graph, ir.Node]]:
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for body in bodies_of(node):
            yield body, node


# Elements of which each has an interval of its own; above, a value has one for all.
_MAX_ELEMENTS = 1 << 20

Handed = Iterator[tuple[int, Want | None]]


@dataclass(frozen=True)
class Wants:
    """What is wanted of values, by name; `of_shapes` where a shape or a bound is among it."""

    by_name: Mapping[str, Want]
    of_shapes: bool


def find_wants(model: ir.Model, facts: Facts, kind: SampleKind, attempt: int, seed: int) -> Wants:
    """Return what the graph wants of its inputs; linear in the number of nodes on the way."""
    wants: dict[str, Want] = {}
    of_shapes = False

    def ask(value: ir.Value | None, want: Want | None) -> None:
        if value is None or want is None or not value.name:
            return
        found = joined(want, wants.get(value.name))
        if found is not None:
            wants[value.name] = found

    for node in readers_first(model, required_inputs(model), _carries):
        for at, want in _handed_on(node, facts, wants):
            ask(operand(node, at), want)
        for at, role in ROLES.get((node.domain, node.op_type), {}).items():
            if operand(node, at) is None or constant_of(operand(node, at)) is not None:
                continue
            # The same numbers for every node: two that read one input then agree.
            random = np.random.default_rng([seed, attempt])
            asked = _asked(role, Use(node, at, facts, kind, attempt, random))
            of_shapes |= asked is not None and node.op_type in SHAPE_ROLES
            ask(operand(node, at), asked)
        for inner, outer in (*body_inputs(node), *body_outputs(node)):
            ask(outer, wants.get(inner.name or ""))
        rounds = _rounds(node, wants)
        if rounds is not None:
            ask(node.inputs[0], rounds)
    return Wants(wants, of_shapes)


def _carries(node: ir.Node) -> bool:
    """Say whether the results hold elements of the operands, or what is counted in them."""
    return node.domain == "" and (node.op_type in _RULES or node.op_type == "Split")


def _rounds(node: ir.Node, wants: Mapping[str, Want]) -> Want | None:
    """Return how many rounds a Loop may have so that their numbers are what is wanted of them."""
    if node.op_type != "Loop" or not node.inputs or node.inputs[0] is None:
        return None
    numbers = node.attributes["body"].as_graph().inputs[:1]
    want = wants.get(numbers[0].name or "") if numbers else None
    return None if want is None else between(0, min(3.0, float(want.high.min()) + 1))


def _asked(role: Callable[[Use], Want | None], use: Use) -> Want | None:
    try:
        return role(use)
    except (ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError):
        return None  # a graph that contradicts itself: whoever runs it says so


def _handed_on(node: ir.Node, facts: Facts, wants: Mapping[str, Want]) -> Handed:
    rule = _RULES.get(node.op_type) if node.domain == "" else None
    want = wants.get(node.outputs[0].name or "") if node.outputs else None
    try:
        if node.op_type == "Split" and node.domain == "":
            yield 0, _of_pieces(node, facts, wants)
        elif rule is not None and want is not None:
            yield from rule(node, want, facts)
    except (ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError):
        return  # as in `_asked`


def _to_same(*operands: int) -> Callable[[ir.Node, Want, Facts], Handed]:
    def hand(node: ir.Node, want: Want, facts: Facts) -> Handed:
        for at in operands:
            if want.low.ndim == 0 and want.high.ndim == 0:
                yield at, want
            else:
                out = facts.static(node.outputs[0])
                yield at, want.reshaped(out, facts.static(operand(node, at)))

    return hand


def _cast(node: ir.Node, want: Want, facts: Facts) -> Handed:
    target = ir.DataType(attribute_or(node, "to", 1))
    source = operand(node, 0)
    if target == ir.DataType.BOOL or source is None:
        return
    whole = want.whole or target.is_integer()
    yield 0, Want(want.low, want.high, want.nonzero, whole, want.marked, want.hard)


def _transpose(node: ir.Node, want: Want, facts: Facts) -> Handed:
    out = facts.static(node.outputs[0])
    if want.low.ndim == 0 and want.high.ndim == 0:
        yield 0, want
    elif out is not None:
        order = attribute_list(node, "perm") or list(range(len(out)))[::-1]
        back = np.argsort(order)
        yield 0, want.moved(lambda array: np.transpose(np.broadcast_to(array, out), back))


def _concat(node: ir.Node, want: Want, facts: Facts) -> Handed:
    out = facts.static(node.outputs[0])
    begin = 0
    for at, value in enumerate(node.inputs):
        if want.low.ndim == 0 and want.high.ndim == 0:
            yield at, want
            continue
        sizes = facts.static(value)
        if out is None or sizes is None:
            return
        axis = attribute_or(node, "axis", 0) % len(sizes)
        rows = slice(begin, begin + sizes[axis])
        begin += sizes[axis]
        piece = (*[slice(None)] * axis, rows)
        yield at, want.moved(lambda array, piece=piece: np.broadcast_to(array, out)[piece])


def _placed(want: Want, sizes: tuple[int, ...] | None, place: object) -> Want | None:
    """Return what is wanted of a value of which only some elements are used."""
    if want.low.ndim == 0 and want.high.ndim == 0:
        return want
    if sizes is None or math.prod(sizes) > _MAX_ELEMENTS:
        return None
    low, high = np.full(sizes, -math.inf), np.full(sizes, math.inf)
    low[place], high[place] = want.low, want.high  # type: ignore[call-overload]
    return Want(low, high, want.nonzero, want.whole, want.marked, want.hard)


def _slice(node: ir.Node, want: Want, facts: Facts) -> Handed:
    yield 0, _placed(want, facts.static(node.inputs[0]), slices(node, facts) or ())


def _gather(node: ir.Node, want: Want, facts: Facts) -> Handed:
    sizes, index = facts.static(node.inputs[0]), facts.certain(node.inputs[1])
    if want.low.ndim == 0 and want.high.ndim == 0:
        yield 0, want
    elif sizes is not None and index is not None:
        axis = attribute_or(node, "axis", 0) % len(sizes)
        yield 0, _placed(want, sizes, (*[slice(None)] * axis, index.astype(np.int64)))


def _of_pieces(node: ir.Node, facts: Facts, wants: Mapping[str, Want]) -> Want | None:
    """Return what is wanted of a vector that Split cuts: the requests for its pieces, placed."""
    sizes = facts.static(node.inputs[0])
    if sizes is None or math.prod(sizes) > _MAX_ELEMENTS:
        return None
    axis, begin = attribute_or(node, "axis", 0) % len(sizes), 0
    whole: Want | None = None
    for value in node.outputs:
        piece = facts.static(value)
        if piece is None:
            return whole
        rows = (*[slice(None)] * axis, slice(begin, begin + piece[axis]))
        begin += piece[axis]
        want = wants.get(value.name or "")
        if want is not None:
            spread = want.moved(lambda array, piece=piece: np.broadcast_to(array, piece))
            whole = joined(whole, _placed(spread, sizes, rows))
    return whole


def _spread(node: ir.Node, want: Want, facts: Facts) -> Handed:
    """Expand and Tile: one interval for all; of intervals for each, those that fit as they are."""
    yield from _to_same(0)(node, want, facts)


def _constant(node: ir.Node, at: int, facts: Facts) -> Floats | None:
    found = facts.certain(operand(node, at))
    if found is None or found.size != 1:
        return found
    return found.reshape(())


def _turned(want: Want, first: Floats, second: Floats) -> Want:
    """Return a request with new ends; without zero among what they leave, if that was asked."""
    low, high = np.minimum(first, second), np.maximum(first, second)
    return Want(low, high, False, want.whole, False, want.hard)


def _without_zero(want: Want) -> Want:
    """Return an interval that does not hold zero: arithmetic cannot carry the hole along."""
    if not want.nonzero:
        return want
    low = np.where(want.high >= 1, np.maximum(want.low, 1), want.low)
    high = np.where(want.high >= 1, want.high, np.minimum(want.high, -1))
    return Want(low, high, False, want.whole, False, want.hard)


def _add(node: ir.Node, want: Want, facts: Facts) -> Handed:
    want = _without_zero(want)
    for at in (0, 1):
        other = _constant(node, 1 - at, facts)
        if other is not None:
            yield at, _turned(want, want.low - other, want.high - other)
        elif _constant(node, at, facts) is None:
            yield at, _turned(want, np.ceil(want.low / 2), np.floor(want.high / 2))


def _sub(node: ir.Node, want: Want, facts: Facts) -> Handed:
    want = _without_zero(want)
    first, second = (_constant(node, at, facts) for at in (0, 1))
    if second is not None:
        yield 0, _turned(want, want.low + second, want.high + second)
    elif first is not None:
        yield 1, _turned(want, first - want.high, first - want.low)
    elif want.is_bounded:
        half = np.floor((want.high - want.low) / 2)
        yield 0, _turned(want, want.low + half, want.high)
        yield 1, _turned(want, np.zeros_like(half), half)


def _mul(node: ir.Node, want: Want, facts: Facts) -> Handed:
    for at in (0, 1):
        factor = _constant(node, 1 - at, facts)
        if factor is None:
            if _constant(node, at, facts) is None:
                # Two inputs: the first as the product, the second one.
                yield at, want if at == 0 else between(1, 1, hard=want.hard)
        elif (factor != 0).all():
            ends = want.low / factor, want.high / factor
            low, high = np.minimum(*ends), np.maximum(*ends)
            whole = operand(node, at)
            if whole is not None and whole.dtype is not None and whole.dtype.is_integer():
                low, high = np.ceil(low), np.floor(high)
            yield at, Want(low, np.maximum(low, high), want.nonzero, want.whole, False, want.hard)


def _div(node: ir.Node, want: Want, facts: Facts) -> Handed:
    divisor = _constant(node, 1, facts)
    if divisor is None or (divisor <= 0).any():
        return
    value = operand(node, 0)
    integer = value is not None and value.dtype is not None and value.dtype.is_integer()
    want = _without_zero(want)
    room = np.where(want.high >= 0, divisor - 1, 0) if integer else np.float64(0)
    yield 0, _turned(want, want.low * divisor, want.high * divisor + room)


def _neg(node: ir.Node, want: Want, facts: Facts) -> Handed:
    yield 0, Want(-want.high, -want.low, want.nonzero, want.whole, False, want.hard)


def _counted(node: ir.Node, want: Want, facts: Facts) -> Handed:
    """Sums of what is counted, as positions are counted in a mask: 0 or 1, and some 1."""
    yield 0, between(0, 1, whole=True, marked=True, hard=want.hard)


_RULES: Mapping[str, Callable[[ir.Node, Want, Facts], Handed]] = {
    "Abs": _to_same(0),
    "Add": _add,
    "Cast": _cast,
    "Ceil": _to_same(0),
    "Clip": _to_same(0),
    "Concat": _concat,
    "CumSum": _counted,
    "Div": _div,
    "Dropout": _to_same(0),
    "Expand": _spread,
    "Flatten": _to_same(0),
    "Floor": _to_same(0),
    "Gather": _gather,
    "Identity": _to_same(0),
    "Max": _to_same(0, 1),
    "Min": _to_same(0, 1),
    "Mul": _mul,
    "Neg": _neg,
    "ReduceMax": _to_same(0),
    "ReduceMin": _to_same(0),
    "ReduceSum": _counted,
    "Reshape": _to_same(0),
    "Round": _to_same(0),
    "Slice": _slice,
    "Squeeze": _to_same(0),
    "Sub": _sub,
    "Tile": _spread,
    "Transpose": _transpose,
    "Unsqueeze": _to_same(0),
    "Where": _to_same(1, 2),
}
