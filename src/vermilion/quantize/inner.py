"""What no plan holds: recurrent layers, and in branches and bodies what no sample came through.

Their weights are rounded to 8 bits, a scale for each output, and read through DequantizeLinear;
what they compute stays in float32. Of recurrent layers that go one way, what both weights are
multiplied with is seen, so that errors cancel.

Before → after: Conv(X, W) in a branch → Conv(X, DequantizeLinear(W as int8))
                LSTM(X, W, R)          → LSTM(X, Mul(Cast(Cast(W as int8)), scales), R alike)
Recurrent layers are written out, because they want constants: every runtime makes those of Cast and
Mul, but OpenVINO 2026.4 keeps a DequantizeLinear (or one Cast and a Mul) of int8 for later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.ir.opset import opset_of
from vermilion.quantize.algorithms.compensate import round_into
from vermilion.quantize.algorithms.moments import Moments
from vermilion.quantize.cost import PRODUCTS
from vermilion.quantize.formats import INT8, Parameters
from vermilion.quantize.names import Names
from vermilion.quantize.plan import excluded_nodes
from vermilion.quantize.rewrite import axis_attribute
from vermilion.quantize.scales import channel_axis, weight_parameters
from vermilion.quantize.working_copy import WANTED_OPSET

_Rounded = tuple[Parameters, NDArray[np.generic]]

RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
_HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
# Below this a weight is no matter: its scales would take as much.
_LEAST_ELEMENTS = 64


@dataclass(frozen=True)
class InnerNode:
    """A recurrent layer, or a product in a branch or body, and of which node's.

    `outer` is empty for a recurrent layer of the main graph. `has_weights` says that its weights
    are in fewer bits, `has_activations` that what it reads is.
    """

    name: str
    op_type: str
    outer: str
    has_weights: bool
    has_activations: bool = False


def inner_nodes(graph: ir.Graph) -> Iterator[tuple[ir.Node, str]]:
    """Yield products and recurrent layers that no plan holds, and the node that they are in."""
    yield from ((node, "") for node in graph if node.op_type in RECURRENT)
    for node in graph:
        for attribute in node.attributes.values():
            for body in _bodies(attribute):
                for inner in body.all_nodes():
                    if inner.op_type in PRODUCTS | RECURRENT:
                        yield inner, str(node.name or node.op_type)


def _bodies(attribute: ir.Attr) -> Sequence[ir.Graph]:
    if attribute.type == ir.AttributeType.GRAPH:
        return (attribute.as_graph(),)
    return tuple(attribute.as_graphs()) if attribute.type == ir.AttributeType.GRAPHS else ()


def named_inner(graph: ir.Graph) -> tuple[InnerNode, ...]:
    """Name all such nodes of a graph that has been rewritten."""
    return tuple(_named(node, outer) for node, outer in inner_nodes(graph))


def _named(node: ir.Node, outer: str) -> InnerNode:
    def is_rounded(place: int) -> bool:
        value = node.inputs[place] if place < len(node.inputs) else None
        maker = None if value is None else value.producer()
        if maker is None or maker.op_type != "Cast":
            return maker is not None and maker.op_type == "DequantizeLinear"
        source = maker.inputs[0]
        return source is not None and source.dtype in _HALVES

    weights = any(_is_written_out(node, place) or is_rounded(place) for place, _ in _weights(node))
    name = str(node.name or node.op_type)
    return InnerNode(name, node.op_type, outer, weights, has_activations=is_rounded(0))


def _is_written_out(node: ir.Node, place: int) -> bool:
    """Say whether a recurrent layer's weight is what `_written_out` makes of one."""
    value = node.inputs[place] if place < len(node.inputs) else None
    maker = None if value is None else value.producer()
    source = None if maker is None or maker.op_type != "Mul" else maker.inputs[0]
    return source is not None and (cast := source.producer()) is not None and cast.op_type == "Cast"


def has_inner_weights(graph: ir.Graph) -> bool:
    """Say whether `round_inner_weights` finds anything."""
    return any(
        (value := node.inputs[place]) is not None and _is_rounded(value)
        for node, _ in inner_nodes(graph)
        for place, _ in _weights(node)
        if place < len(node.inputs)
    )


def round_inner_weights(
    work: ir.Model, exclude: Sequence[str], moments: Mapping[str, Moments]
) -> tuple[InnerNode, ...]:
    """Round the weights of such nodes in place, those with moments so that errors cancel.

    All of them are named.
    """
    graph = work.graph
    skipped = excluded_nodes(graph, exclude)
    names = Names(graph)
    by_channel = opset_of(work) >= WANTED_OPSET
    done: dict[tuple[ir.Value, int | None], ir.Value] = {}
    for node, _ in list(inner_nodes(graph)):
        for place, axis in () if node in skipped else _weights(node):
            weight = node.inputs[place]
            if weight is None or not _is_rounded(weight):
                continue
            axis = axis if by_channel else None
            key = (weight, axis)
            if key not in done:
                plain = node.op_type in RECURRENT
                rounded = _rounded(weight, axis, moments.get(str(weight.name)))
                done[key] = (_written_out if plain else _dequantized)(weight, rounded, names)
            node.replace_input_with(place, done[key])
    for weight, _ in done:
        owner = weight.graph
        if owner is not None and not weight.uses() and not weight.is_graph_output():
            owner.initializers.pop(str(weight.name), None)
    return named_inner(graph)


def _weights(node: ir.Node) -> Sequence[tuple[int, int | None]]:
    """Return the places of a node's weights, and the axis along which its outputs lie."""
    if node.op_type in RECURRENT:
        return ((1, 1), (2, 1))
    return ((1, channel_axis(node)),) if len(node.inputs) > 1 else ()


def _is_rounded(value: ir.Value) -> bool:
    tensor = value.const_value
    return (
        tensor is not None
        and value.graph is not None
        and tensor.dtype == ir.DataType.FLOAT
        and tensor.size >= _LEAST_ELEMENTS
        and bool(np.isfinite(tensor.numpy()).all())
    )


def _dequantized(weight: ir.Value, rounded: _Rounded, names: Names) -> ir.Value:
    """Add the integers to the graph that holds the weight, and the node that reads them."""
    given, integers = rounded
    stored = [
        _stored(weight, "quantized", integers, names),
        _stored(weight, "scale", given.scale, names),
        _stored(weight, "zero_point", np.zeros(given.scale.shape, np.int8), names),
    ]
    attributes = axis_attribute(given, integers.ndim)
    return _added(weight, [("DequantizeLinear", stored, attributes)], names)


def _written_out(weight: ir.Value, rounded: _Rounded, names: Names) -> ir.Value:
    """Do the same with operators that make a constant of constants."""
    given, integers = rounded
    stored = _stored(weight, "quantized", integers, names)
    scale = _stored(weight, "scale", given.aligned(integers.ndim), names)
    whole, real = int(ir.DataType.INT32), int(ir.DataType.FLOAT)
    steps = [("Cast", [stored], {"to": whole}), ("Cast", [], {"to": real}), ("Mul", [scale], {})]
    return _added(weight, steps, names)


def _rounded(weight: ir.Value, axis: int | None, seen: Moments | None) -> _Rounded:
    assert weight.const_value is not None, "a weight has a value"
    given: Parameters = weight_parameters(weight, INT8, axis)
    array = weight.const_value.numpy()
    if seen is None or not seen.count:
        return given, given.to_integers(array)
    layer, integers = seen.layer, np.empty(array.shape, np.int8)
    matrices = np.asarray(layer.matrices(array), np.float32)
    # One direction: what lies along the axis are all the outputs.
    each = np.broadcast_to(given.scale, matrices.shape[1])
    scale = np.broadcast_to(each[:, None], (*matrices.shape[:2], 1))
    limits = (INT8.low, INT8.high)
    round_into(layer.matrices(integers), matrices, seen.shown_gram(centred=False), scale, limits)
    return given, integers


def _stored(weight: ir.Value, word: str, array: NDArray[np.generic], names: Names) -> ir.Value:
    graph = weight.graph
    assert isinstance(graph, ir.Graph), "a weight is in a graph"
    name = names.free(f"{weight.name}_{word}")
    tensor = ir.tensor(array, name=name)
    kind = ir.TensorType(tensor.dtype)
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=kind, const_value=tensor)
    graph.register_initializer(value)
    return value


def _added(
    weight: ir.Value,
    steps: Sequence[tuple[str, list[ir.Value], dict[str, int]]],
    names: Names,
) -> ir.Value:
    """Put nodes at the front, each reading the one before and what is given for it."""
    graph = weight.graph
    assert isinstance(graph, ir.Graph), "a weight is in a graph"
    first = next(iter(graph), None)
    assert first is not None, "somebody reads the weight"
    result: ir.Value | None = None
    for op_type, given, attributes in steps:
        inputs = given if result is None else [result, *given]
        node = ir.node(op_type, inputs, attributes, name=names.free(f"{weight.name}_{op_type}"))
        result = node.outputs[0]
        result.name = names.free(f"{weight.name}_{op_type}_result")
        kind = attributes.get("to", int(ir.DataType.FLOAT))
        result.type, result.shape = ir.TensorType(ir.DataType(kind)), weight.shape
        graph.insert_before(first, node)
    assert result is not None, "there is a step"
    return result
