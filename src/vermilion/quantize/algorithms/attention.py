"""Attention whose tensors are easier to round, with the same result.

Before → after, for scores S = q·kᵀ and Y = softmax(S)·v, then a product with W and a bias b:
    s · (q·kᵀ)   becomes   (s·q)·kᵀ, s being part of what makes q: one rounding less
    k            becomes   k - E[k]: all scores of a row lose the same, which no Softmax sees
    v            becomes   v - E[v], and b becomes b + E[v]·W: weights of a row add up to 1
E is the mean of each channel over the samples. What a layer adds to all tokens alike takes range
from what tells them apart; and the sum of rounded weights is not quite 1, which E[v] would meet.

Where a channel is read by anybody else, or a shape is open, nothing is changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from vermilion.ir.attributes import integer
from vermilion.ir.execute import Array, run_session
from vermilion.quantize.algorithms.channels import (
    End,
    Float32,
    Linear,
    Numbers,
    Paths,
    Shapes,
    alike,
    array_of,
    leading_to,
)
from vermilion.quantize.calibrate import open_fetching
from vermilion.quantize.masks import MASKED


@dataclass(frozen=True)
class Attention:
    """The products around a Softmax."""

    scores: ir.Node
    mixing: ir.Node | None  # of what it gives with the values


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
    attentions = [found for node in graph if (found := attention_of(node, shapes)) is not None]
    if not attentions:
        return 0
    paths = Paths(graph, shapes)
    folded = _fold_scales(paths, attentions, frozenset(left_out))
    return folded + _center(paths, attentions, model, samples)


def attention_of(node: ir.Node, shapes: Shapes) -> Attention | None:
    """Return the products around a node, None where it is no Softmax of scores."""
    source = node.inputs[0] if node.inputs else None
    shape = None if source is None else shapes.get(str(source.name))
    if node.op_type != "Softmax" or source is None or shape is None:
        return None
    if integer(node, "axis", -1) not in (-1, len(shape) - 1):
        return None
    scores = _scores(source)
    return None if scores is None else Attention(scores, _mixing(node.outputs[0]))


def _scores(value: ir.Value) -> ir.Node | None:
    """Return the product that gives scores, from what a Softmax reads.

    What stands between may add to a score whatever it likes, as long as it does not look at it.
    """
    node = value.producer()
    if node is None or node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "MatMul":
        keys = node.inputs[1]  # queries may be the same for all samples
        return node if keys is not None and keys.const_value is None else None
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


def _fold_scales(
    paths: Paths, attentions: Sequence[Attention], left_out: frozenset[ir.Node]
) -> int:
    """Let the projections hold what they, or the scores made of them, are multiplied with."""
    layers, folded = paths.layers(), 0
    scalings = {end.node for ends in layers.values() for end in ends if end.node is not None}
    for node in [n for n in paths.graph if n in scalings and _is_scaling(n)]:
        index = next(i for i, v in enumerate(node.inputs) if v is _computed(node))
        folded += _fold(paths, leading_to(layers, node, index), node, left_out)
    if folded:
        layers = paths.layers()
    for attention in attentions:
        scores = attention.scores.outputs[0]
        uses = tuple(scores.uses())
        if len(uses) != 1 or scores.is_graph_output() or not _is_scaling(uses[0].node):
            continue
        sides = (leading_to(layers, attention.scores, index) for index in (0, 1))
        found = next((s for s in sides if s is not None), None)
        folded += _fold(paths, found, uses[0].node, left_out)
    return folded


def _fold(
    paths: Paths, found: tuple[Linear, End] | None, scaling: ir.Node, left_out: frozenset[ir.Node]
) -> bool:
    """Multiply channels in their layer instead of later; say whether that was done."""
    if found is None or scaling in left_out or scaling.outputs[0].is_graph_output():
        return False
    layer, end = found
    factor = _factor(scaling)
    if not np.isfinite(factor) or factor == 0.0:
        return False
    by = np.ones(len(layer.by_output), np.float32)
    by[np.unique(end.channels)] = factor
    layer.scale_outputs(by)
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
    factor = float(array_of(constant).reshape(()))
    if scaling.op_type == "Mul" or factor == 0.0:
        return factor
    return 1.0 / factor


def _center(
    paths: Paths,
    attentions: Sequence[Attention],
    model: ir.Model,
    samples: Sequence[Mapping[str, Array]],
) -> int:
    """Take the mean off keys and values, and give what that of the values was to who reads them."""
    layers = paths.layers()
    keys: list[tuple[Linear, End]] = []
    values: list[tuple[Linear, End, Linear, Numbers]] = []
    for attention in attentions:
        key = leading_to(layers, attention.scores, 1)
        if key is not None and key[0].bias is not None and alike(key[1].channels, -1):
            keys.append(key)
        value = None if attention.mixing is None else leading_to(layers, attention.mixing, 1)
        read = None if value is None else paths.reader_after(attention.mixing, value[1])
        if value is not None and read is not None and value[0].bias and read[0].bias:
            values.append((*value, *read))
    changed = [*(layer for layer, _ in keys), *(row[0] for row in values)]
    named = {layer: str(layer.result.name) for layer in changed}
    if not named:
        return 0
    means = _means(model, list(dict.fromkeys(named.values())), samples)
    for layer, end in keys:
        layer.shift(_only(end.channels, -means[named[layer]]))
    for layer, end, reader, order in values:
        mean = means[named[layer]]
        layer.shift(_only(end.channels, -mean))
        reader.shift(reader.by_output @ mean[order])
    return len(keys) + len(values)


def _only(channels: Numbers, numbers: Float32) -> Float32:
    """Return the numbers of those channels, and zeros for all others."""
    found = np.zeros_like(numbers)
    chosen = np.unique(channels)
    found[chosen] = numbers[chosen]
    return found


def _means(
    model: ir.Model, names: Sequence[str], samples: Sequence[Mapping[str, Array]]
) -> dict[str, Float32]:
    session = open_fetching(model, names)
    rows = [run_session(session, sample, names) for sample in samples]
    axes = {name: tuple(range(rows[0][name].ndim - 1)) for name in names}
    return {
        name: np.mean(
            [row[name].mean(axis=axes[name], dtype=np.float64) for row in rows], axis=0
        ).astype(np.float32)
        for name in names
    }
