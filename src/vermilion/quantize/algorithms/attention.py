"""Attention whose tensors are easier to round, with the same result.

Before → after, for scores S = q·kᵀ and Y = softmax(S)·v, then a product with W and a bias b:
    s · (q·kᵀ)   becomes   (s·q)·kᵀ, s being part of what makes q: one rounding less
    k            becomes   k - E[k]: all scores of a row lose the same, which no Softmax sees
    v            becomes   v - E[v], and b becomes b + E[v]·W: weights of a row add up to 1
E is the mean of each channel over the samples. What a layer adds to all tokens alike takes range
from what tells them apart; and the sum of rounded weights is not quite 1, which E[v] would meet.

Channels are followed by their numbers through all that only moves them, so that it does not matter
how an exporter splits heads, or whether one product makes q, k and v. Where a channel is read by
anybody else, or a shape is open, nothing is changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.ir.attributes import integer, integers, number
from vermilion.ir.execute import Array, run_session
from vermilion.quantize.calibrate import open_fetching
from vermilion.quantize.masks import MASKED

Numbers = NDArray[np.int64]
Float32 = NDArray[np.float32]

Shapes = Mapping[str, tuple[int, ...] | None]

_RESHAPES = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})


@dataclass(frozen=True)
class _End:
    """Where channels of a layer arrive: at a node that does not only move them, or nowhere else.

    `channels` are their numbers, in the shape of what `node` reads at `index`.
    """

    node: ir.Node | None
    index: int
    channels: Numbers


@dataclass(frozen=True)
class _Attention:
    """The products around a Softmax."""

    scores: ir.Node
    mixing: ir.Node | None  # of what it gives with the values


_Layers = Mapping[ir.Node, Sequence[_End]]


def ease_attention(
    model: ir.Model,
    shapes: Shapes,
    samples: Sequence[Mapping[str, Array]],
    left_out: Collection[ir.Node] = (),
) -> int:
    """Change `model` in place; return how many tensors were made easier.

    No node goes that is `left_out`.
    Shapes: `shapes` are those of all tensors, for the `samples`.
    """
    graph = model.graph
    attentions = [found for node in graph if (found := _attention(node, shapes)) is not None]
    if not attentions:
        return 0
    paths = _Paths(graph, shapes, frozenset(left_out))
    return _fold_scales(paths, attentions) + _center(paths, attentions, model, samples)


def _attention(node: ir.Node, shapes: Shapes) -> _Attention | None:
    source = node.inputs[0] if node.inputs else None
    shape = None if source is None else shapes.get(str(source.name))
    if node.op_type != "Softmax" or source is None or shape is None:
        return None
    if integer(node, "axis", -1) not in (-1, len(shape) - 1):
        return None
    scores = _scores(source)
    return None if scores is None else _Attention(scores, _mixing(node.outputs[0]))


def _scores(value: ir.Value) -> ir.Node | None:
    """Return the product that gives scores, from what a Softmax reads.

    What stands between may add to a score whatever it likes, as long as it does not look at it.
    """
    node = value.producer()
    if node is None or node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "MatMul":
        return node if all(v is not None and v.const_value is None for v in node.inputs) else None
    if _is_scaling(node):
        return _scores(_computed(node))
    if node.op_type not in {"Add", "Where"}:
        return None
    found = {v: product for v in node.inputs if v is not None and (product := _scores(v))}
    if len(found) != 1:
        return None
    if node.op_type == "Where" and not all(
        v in found or _is_mask(v) for v in node.inputs[1:] if v is not None
    ):
        return None  # what stands there instead would not move with the others
    return next(iter(found.values()))


def score_products(graph: ir.Graph) -> dict[str, tuple[str, float]]:
    """Return the products that give a Softmax its scores, by the tensors that they make.

    With each its name, and what scores are still multiplied with on the way.
    """
    found = {}
    for node in graph:
        value = node.inputs[0] if node.op_type == "Softmax" and node.inputs else None
        product = None if value is None else _scores(value)
        if product is None:
            continue
        result, factor = product.outputs[0], 1.0
        uses = tuple(result.uses())
        if len(uses) == 1 and _is_scaling(uses[0].node):
            factor = abs(_factor(uses[0].node))
        found[str(result.name)] = (str(product.name), factor)
    return found


def _is_mask(value: ir.Value) -> bool:
    tensor = value.const_value
    return tensor is not None and bool(tensor.size) and bool(np.max(tensor.numpy()) <= MASKED)


def _mixing(value: ir.Value) -> ir.Node | None:
    uses = tuple(value.uses())
    if len(uses) != 1 or value.is_graph_output():
        return None
    node = uses[0].node
    return node if node.op_type == "MatMul" and uses[0].idx == 0 else None


class _Paths:
    """Follows the channels of layers to where they are read."""

    def __init__(self, graph: ir.Graph, shapes: Shapes, left_out: frozenset[ir.Node]) -> None:
        self.graph, self._shapes, self.left_out = graph, shapes, left_out

    def layers(self) -> _Layers:
        """Return all layers whose channels can be followed."""
        found = {}
        for node in self.graph:
            if not _is_layer(node):
                continue
            shape = self._shapes.get(str(node.outputs[0].name))
            if shape is not None:
                channels = np.broadcast_to(np.arange(shape[-1]), shape)
                found[node] = self.ends(node.outputs[0], channels)
        return found

    def ends(self, value: ir.Value, channels: Numbers) -> list[_End]:
        """Return where the channels of a tensor arrive."""
        ends = [_End(None, 0, channels)] if value.is_graph_output() else []
        for use in value.uses():
            inside = use.node.graph is self.graph and use.idx == 0
            moved = self._moved(use.node, channels) if inside else []
            if not moved:
                ends.append(_End(use.node, use.idx, channels))
            for output, there in moved:
                ends += self.ends(output, there)
        return ends

    def _moved(self, node: ir.Node, channels: Numbers) -> list[tuple[ir.Value, Numbers]]:
        """Return what a node makes of channels that it only moves, nothing if it does more."""
        shape = self.shape(node.outputs[0]) if node.outputs else None
        if shape is None or node.domain not in ("", "ai.onnx"):
            return []
        if node.op_type in _RESHAPES:
            return [(node.outputs[0], channels.reshape(shape))]
        if node.op_type == "Transpose":
            axes = integers(node, "perm", tuple(reversed(range(channels.ndim))))
            return [(node.outputs[0], channels.transpose(axes))]
        if node.op_type == "Gather":
            chosen = node.inputs[1]
            if chosen is None or chosen.const_value is None:
                return []
            axis = integer(node, "axis", 0)
            return [(node.outputs[0], np.take(channels, chosen.const_value.numpy(), axis))]
        if node.op_type == "Split":
            axis = integer(node, "axis", 0)
            shapes = [self.shape(output) for output in node.outputs]
            lengths = [there[axis] for there in shapes if there is not None]
            if len(lengths) != len(shapes):
                return []
            parts = np.split(channels, np.cumsum(lengths)[:-1], axis)
            return list(zip(node.outputs, parts, strict=True))
        return []

    def shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """Return the shape of a tensor."""
        return self._shapes.get(str(value.name))


def _is_layer(node: ir.Node) -> bool:
    """Say whether a node is a product with a weight and a bias of its own."""
    if node.op_type != "Gemm" or len(node.inputs) < 3 or node.domain not in ("", "ai.onnx"):
        return False
    if integer(node, "transA", 0) or number(node, "alpha", 1.0) != 1.0:
        return False
    own = [v for v in node.inputs[1:3] if v is not None and v.const_value is not None]
    if len(own) < 2 or any(len(v.uses()) != 1 or v.is_graph_output() for v in own):
        return False
    return _array(own[1]).shape == (_by_output(node).shape[0],)


def _by_output(layer: ir.Node) -> Float32:
    """Return the weight as (outputs, inputs)."""
    weight = layer.inputs[1]
    assert weight is not None, "a layer has a weight"
    array = _array(weight)
    return array if integer(layer, "transB", 0) else array.T


def _array(value: ir.Value | None) -> Float32:
    assert value is not None, "it is there"
    assert value.const_value is not None, "it is a constant"
    array: Float32 = value.const_value.numpy()
    return array


def _replace(value: ir.Value | None, array: Float32) -> None:
    assert value is not None, "it is there"
    value.const_value = ir.Tensor(np.ascontiguousarray(array, np.float32), name=value.name)


def _leading_to(layers: _Layers, node: ir.Node, index: int) -> tuple[ir.Node, _End] | None:
    """Return the layer whose channels a node reads at `index`, and none of which others read."""
    found = [
        (layer, end)
        for layer, ends in layers.items()
        for end in ends
        if end.node is node and end.index == index
    ]
    if len(found) != 1:
        return None
    layer, wanted = found[0]
    chosen = np.unique(wanted.channels)
    others = [end.channels for end in layers[layer] if end is not wanted]
    return None if any(np.isin(channels, chosen).any() for channels in others) else found[0]


def _fold_scales(paths: _Paths, attentions: Sequence[_Attention]) -> int:
    """Let the projections hold what they, or the scores made of them, are multiplied with."""
    layers, folded = paths.layers(), 0
    scalings = {end.node for ends in layers.values() for end in ends if end.node is not None}
    for node in [n for n in paths.graph if n in scalings and _is_scaling(n)]:
        index = next(i for i, v in enumerate(node.inputs) if v is _computed(node))
        folded += _fold(paths, _leading_to(layers, node, index), node)
    if folded:
        layers = paths.layers()
    for attention in attentions:
        scores = attention.scores.outputs[0]
        uses = tuple(scores.uses())
        if len(uses) != 1 or scores.is_graph_output() or not _is_scaling(uses[0].node):
            continue
        sides = (_leading_to(layers, attention.scores, index) for index in (0, 1))
        folded += _fold(paths, next((s for s in sides if s is not None), None), uses[0].node)
    return folded


def _fold(paths: _Paths, found: tuple[ir.Node, _End] | None, scaling: ir.Node) -> bool:
    """Multiply channels in their layer instead of later; say whether that was done."""
    if found is None or scaling in paths.left_out or scaling.outputs[0].is_graph_output():
        return False
    layer, end = found
    factor = _factor(scaling)
    if not np.isfinite(factor) or factor == 0.0:
        return False
    by = np.ones(len(_array(layer.inputs[2])), np.float32)
    by[np.unique(end.channels)] = factor
    _replace(layer.inputs[2], _array(layer.inputs[2]) * by)
    by_output = _by_output(layer) * by[:, None]
    _replace(layer.inputs[1], by_output if integer(layer, "transB", 0) else by_output.T)
    for use in tuple(scaling.outputs[0].uses()):
        use.node.replace_input_with(use.idx, _computed(scaling))
    paths.graph.remove(scaling, safe=False)
    for index in range(len(scaling.inputs)):
        scaling.replace_input_with(index, None)
    return True


def _is_scaling(node: ir.Node) -> bool:
    """Say whether a node multiplies with, or divides by, one constant number."""
    if node.op_type not in {"Mul", "Div"} or node.domain not in ("", "ai.onnx"):
        return False
    sizes = [0 if v is None or v.const_value is None else v.const_value.size for v in node.inputs]
    return sizes == [0, 1] or (node.op_type == "Mul" and sizes == [1, 0])


def _computed(node: ir.Node) -> ir.Value:
    """Return the input of a scaling that is no constant."""
    return next(v for v in node.inputs if v is not None and v.const_value is None)


def _factor(scaling: ir.Node) -> float:
    constant = next(v for v in scaling.inputs if v is not None and v.const_value is not None)
    factor = float(_array(constant).reshape(()))
    if scaling.op_type == "Mul" or factor == 0.0:
        return factor
    return 1.0 / factor


def _center(
    paths: _Paths,
    attentions: Sequence[_Attention],
    model: ir.Model,
    samples: Sequence[Mapping[str, Array]],
) -> int:
    """Take the mean off keys and values, and give what that of the values was to who reads them."""
    layers = paths.layers()
    keys: list[tuple[ir.Node, _End]] = []
    values: list[tuple[ir.Node, _End, ir.Node, Numbers]] = []
    for attention in attentions:
        key = _leading_to(layers, attention.scores, 1)
        if key is not None and _alike(key[1].channels, -1):
            keys.append(key)
        value = None if attention.mixing is None else _leading_to(layers, attention.mixing, 1)
        read = None if value is None else _reader(paths, attention.mixing, value[1])
        if value is not None and read is not None:
            values.append((*value, *read))
    changed = [*(layer for layer, _ in keys), *(row[0] for row in values)]
    named = {layer: str(layer.outputs[0].name) for layer in changed}
    if not named:
        return 0
    means = _means(model, list(dict.fromkeys(named.values())), samples)
    for layer, end in keys:
        _shift(layer, np.unique(end.channels), -means[named[layer]])
    for layer, end, reader, order in values:
        mean = means[named[layer]]
        _shift(layer, np.unique(end.channels), -mean)
        every = np.arange(len(_array(reader.inputs[2])))
        _shift(reader, every, _by_output(reader) @ mean[order])
    return len(keys) + len(values)


def _alike(channels: Numbers, axis: int) -> bool:
    """Say whether all along an axis are the same channel."""
    return channels.ndim >= 2 and bool((channels == channels.take([0], axis)).all())


def _reader(paths: _Paths, mixing: ir.Node | None, end: _End) -> tuple[ir.Node, Numbers] | None:
    """Return the layer that reads mixed values, and which channel each of its inputs is."""
    shape = None if mixing is None else paths.shape(mixing.outputs[0])
    if mixing is None or shape is None or not _alike(end.channels, -2):
        return None
    ends = paths.ends(mixing.outputs[0], np.broadcast_to(end.channels[..., :1, :], shape))
    if len(ends) != 1 or ends[0].node is None or ends[0].index != 0:
        return None
    reader, arrived = ends[0].node, ends[0].channels
    if not _is_layer(reader) or not _alike(arrived, 0):
        return None
    return reader, arrived[0]


def _means(
    model: ir.Model, names: Sequence[str], samples: Sequence[Mapping[str, Array]]
) -> dict[str, Float32]:
    session = open_fetching(model, names)
    rows = [run_session(session, sample, names) for sample in samples]
    return {
        name: np.mean([row[name].mean(axis=0, dtype=np.float64) for row in rows], axis=0).astype(
            np.float32
        )
        for name in names
    }


def _shift(layer: ir.Node, chosen: Numbers, by: Float32) -> None:
    array = _array(layer.inputs[2]).copy()
    array[chosen] += by[chosen]
    _replace(layer.inputs[2], array)
