"""Layer norms and root mean square norms that exporters wrote as a dozen nodes.

Before: c = x - mean(x); c ÷ √(mean(c²) + ε) · scale + shift → after: LayerNormalization.
Before: x ÷ √(mean(x²) + ε) · scale → after: RMSNormalization.

Source: ONNX LayerNormalization-17 and RMSNormalization-23, whose definitions these are.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from vermilion.ir.attributes import integer, integers
from vermilion.ir.opset import constant_of, is_operator, only_reader, static_shape


@dataclass(frozen=True)
class _Match:
    """A normalization that ends in `last`, of the dimensions from `axis` on."""

    last: ir.Node
    source: ir.Value
    axis: int
    epsilon: float
    op_type: str
    scale: ir.Value | None = None
    shift: ir.Value | None = None


def join_normalizations(model: ir.Model) -> ir.Model:
    """Return the model with each decomposed normalization as one node; the given one stays."""
    if not any(_match(node) for node in model.graph):
        return model
    work = model.clone()
    for node in list(work.graph):
        match = _match(node)
        if match is not None:
            _replace(work.graph, _with_scale(match))
    _drop_unread(work.graph)
    return work


def _match(node: ir.Node) -> _Match | None:
    """Say what is normalized where `node` divides by a root mean square."""
    for centred, variance in _quotients(node):
        mean = _by(variance, "Add")
        if mean is None:
            continue
        for value, constant in _orders(mean):
            epsilon = _number(constant)
            axis = _mean_of_square(value, centred)
            if epsilon is None or axis is None:
                continue
            source = _source_of_difference(centred, axis)
            if source is not None:
                return _Match(node, source, axis, epsilon, "LayerNormalization")
            return _Match(node, centred, axis, epsilon, "RMSNormalization")
    return None


def _quotients(node: ir.Node) -> list[tuple[ir.Value, ir.Value]]:
    """Return (what is divided, what it is divided by the root of): x ÷ √v, x · 1÷√v, x · v^-½."""
    found = []
    if is_operator(node, "Div"):
        a, b = node.inputs[0], node.inputs[1]
        root = _by(b, "Sqrt")
        if a is not None and root is not None and root.inputs[0] is not None:
            found.append((a, root.inputs[0]))
    if is_operator(node, "Mul"):
        for a, b in _orders(node):
            under = _under_inverse_root(b)
            if under is not None:
                found.append((a, under))
    return found


def _under_inverse_root(value: ir.Value) -> ir.Value | None:
    power = _by(value, "Pow")
    if power is not None and _number(power.inputs[1]) == -0.5:
        return power.inputs[0]
    quotient = _by(value, "Div")
    if quotient is not None and _number(quotient.inputs[0]) == 1.0:
        root = _by(quotient.inputs[1], "Sqrt")
    else:
        inverse = _by(value, "Reciprocal")
        root = _by(inverse.inputs[0], "Sqrt") if inverse is not None else None
    return root.inputs[0] if root is not None else None


def _mean_of_square(value: ir.Value, of: ir.Value) -> int | None:
    """Return the first axis if `value` is the mean of the square of `of` over its last axes."""
    mean = _by(value, "ReduceMean")
    axis = _first_axis(mean) if mean is not None else None
    square = mean.inputs[0].producer() if mean is not None and mean.inputs[0] is not None else None
    if axis is None or square is None or square.inputs[0] is not of:
        return None
    if is_operator(square, "Mul") and square.inputs[1] is of:
        return axis
    if is_operator(square, "Pow") and _number(square.inputs[1]) == 2.0:
        return axis
    return None


def _source_of_difference(value: ir.Value, axis: int) -> ir.Value | None:
    """Return x where `value` is x - mean(x) over the dimensions from `axis` on."""
    difference = _by(value, "Sub")
    if difference is None:
        return None
    source, subtracted = difference.inputs[0], difference.inputs[1]
    mean = _by(subtracted, "ReduceMean")
    if mean is None or mean.inputs[0] is not source or _first_axis(mean) != axis:
        return None
    return source


def _first_axis(mean: ir.Node) -> int | None:
    """Return the first axis of a mean over the last dimensions that keeps them, else None."""
    shape = static_shape(mean.inputs[0])
    if shape is None or not integer(mean, "keepdims", 1):
        return None
    if len(mean.inputs) > 1 and mean.inputs[1] is not None:
        constant = constant_of(mean.inputs[1])
        axes = None if constant is None else tuple(map(int, constant.numpy().reshape(-1)))
    else:
        axes = integers(mean, "axes", None)
    if not axes:
        return None
    rank = len(shape)
    places = sorted(axis % rank for axis in axes)
    return places[0] if places == list(range(places[0], rank)) else None


def _with_scale(match: _Match) -> _Match:
    """Take a scale and a shift of the normalized shape into the match."""
    inner = (static_shape(match.source) or ())[match.axis :]
    last, scale, shift = match.last, None, None
    reader = only_reader(last.outputs[0])
    if is_operator(reader, "Mul") and reader is not None:
        scale = _row(reader, last.outputs[0], inner)
        if scale is not None:
            last, reader = reader, only_reader(reader.outputs[0])
    if match.op_type == "LayerNormalization" and is_operator(reader, "Add") and reader is not None:
        shift = _row(reader, last.outputs[0], inner)
        last = reader if shift is not None else last
    return _Match(last, match.source, match.axis, match.epsilon, match.op_type, scale, shift)


def _row(node: ir.Node, value: ir.Value, inner: tuple[int, ...]) -> ir.Value | None:
    """Return the other input if it is a constant of the normalized shape."""
    a, b = node.inputs[0], node.inputs[1]
    other = b if a is value else a
    return other if constant_of(other) is not None and static_shape(other) == inner else None


def _replace(graph: ir.Graph, match: _Match) -> None:
    old = match.last.outputs[0]
    inputs = [match.source, match.scale, match.shift]
    while inputs[-1] is None:
        inputs.pop()
    node = ir.node(
        match.op_type, inputs, {"axis": match.axis, "epsilon": match.epsilon}, name=match.last.name
    )
    new = node.outputs[0]
    new.type, new.shape = old.type, old.shape
    graph.insert_before(match.last, node)
    name = old.name
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(match.last, safe=True)
    new.name = name


def _drop_unread(graph: ir.Graph) -> None:
    for node in reversed(list(graph)):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            graph.remove(node, safe=True)


def _by(value: ir.Value | None, operator: str) -> ir.Node | None:
    """Return the node that makes `value` if it is this operator."""
    node = value.producer() if value is not None else None
    return node if is_operator(node, operator) else None


def _orders(node: ir.Node) -> list[tuple[ir.Value, ir.Value]]:
    """Return the two inputs of a node that takes them in either order, both ways."""
    a, b = node.inputs[0], node.inputs[1]
    if a is None or b is None:
        return []
    return [(a, b), (b, a)]


def _number(value: ir.Value | None) -> float | None:
    constant = constant_of(value)
    if constant is None or constant.size != 1:
        return None
    return float(constant.numpy().reshape(-1)[0])
