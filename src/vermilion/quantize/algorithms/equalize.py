"""Cross-layer equalization: evening out the ranges of channels between two layers.

One scale a tensor wastes bits where one channel is far larger than another. Between two linear
layers with nothing but positively homogeneous operators, a channel may be scaled down in the
first and up in the second: the function stays, the ranges become alike.

Before → after, for channel i with largest weights a_i (written) and b_i (read):
    first weight and bias of i times f_i, second weight of i divided by f_i, f_i = √(b_i ÷ a_i)

Repeated over all pairs until nothing moves, chains settle at the geometric mean of all their
ranges, so a convolution, a depthwise one and another are evened out together.
Source: M. Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias
Correction", 2019, equations 10 to 12.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.ir.attributes import integer

Weights = NDArray[np.float32]

# f(s·x) = s·f(x) for s > 0, channel by channel.
_HOMOGENEOUS = frozenset(
    {"Relu", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"}
)

_ROUNDS = 40
_SETTLED = 1e-2  # largest |ln f| of a round: a hundredth is far below what a power of two resolves


@dataclass(frozen=True)
class _Pair:
    """Two layers; `head` writes the channels that `tail` reads."""

    head: ir.Node
    tail: ir.Node


def equalize_layers(model: ir.Model) -> int:
    """Even out `model` in place; give the number of pairs that were found."""
    pairs = [pair for node in model.graph if (pair := _pair_from(node)) is not None]
    weights: dict[ir.Value, Weights] = {}
    for pair in pairs:
        for value in (*pair.head.inputs[1:3], pair.tail.inputs[1]):
            if value is not None and value.const_value is not None:
                weights.setdefault(value, np.array(value.const_value.numpy(), np.float32))
    for _ in range(_ROUNDS):
        if max((_even_out(pair, weights) for pair in pairs), default=0.0) < _SETTLED:
            break
    for value, array in weights.items():
        value.const_value = ir.tensor(array, name=value.name)
    return len(pairs)


def _pair_from(head: ir.Node) -> _Pair | None:
    """Return the pair that starts with `head`, if its channels reach one other layer unmixed."""
    if not _is_layer(head):
        return None
    value = head.outputs[0]
    flat = head.op_type == "Gemm"  # one number a channel, as a Gemm reads them
    pooled = False
    while (user := _only_reader(value)) is not None:
        if _is_layer(user):
            return _Pair(head, user) if flat == (user.op_type == "Gemm") else None
        if user.op_type == "Flatten" and pooled and integer(user, "axis", 1) == 1:
            flat = True
        elif user.op_type not in _HOMOGENEOUS or len(user.outputs) != 1:
            return None
        pooled |= user.op_type in {"GlobalAveragePool", "GlobalMaxPool"}
        value = user.outputs[0]
    return None


def _only_reader(value: ir.Value) -> ir.Node | None:
    uses = tuple(value.uses())
    if len(uses) != 1 or value.is_graph_output() or uses[0].idx != 0:
        return None
    user = uses[0].node
    return user if user.graph is value.graph else None


def _is_layer(node: ir.Node) -> bool:
    """Say whether the node's weight and bias are float32 constants that nobody else reads."""
    if node.domain not in ("", "ai.onnx") or node.op_type not in {"Conv", "Gemm"}:
        return False
    if node.op_type == "Gemm" and integer(node, "transA", 0):
        return False
    own = [value for value in node.inputs[1:3] if value is not None]
    return all(
        value.const_value is not None
        and value.const_value.dtype == ir.DataType.FLOAT
        and len(value.uses()) == 1
        and not value.is_graph_output()
        for value in own
    ) and _bias_is_per_channel(node)


def _bias_is_per_channel(node: ir.Node) -> bool:
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is None or bias.const_value is None:
        return True
    return bias.const_value.size == _written_channels(node)


def _written_channels(node: ir.Node) -> int:
    weight = node.inputs[1]
    assert weight is not None, "a layer has a weight"
    assert weight.const_value is not None, "a layer's weight is constant"
    shape = weight.const_value.shape.numpy()
    return shape[0] if node.op_type == "Conv" or integer(node, "transB", 0) else shape[1]


def _even_out(pair: _Pair, weights: Mapping[ir.Value, Weights]) -> float:
    """Scale one pair; give the largest |ln f|."""
    written = _by_written_channel(pair.head, weights)
    read = _by_read_channel(pair.tail, weights)
    a = np.abs(written).max(axis=1)
    b = np.abs(read).max(axis=(2, 3)).reshape(-1)
    alive = (a > 0) & (b > 0)
    f = np.sqrt(np.divide(b, a, out=np.ones_like(a), where=alive))
    written *= f[:, None]
    bias = pair.head.inputs[2] if len(pair.head.inputs) > 2 else None
    if bias is not None:
        flat = weights[bias].reshape(-1)
        flat *= f
    read /= f.reshape(*read.shape[:2], 1, 1)
    return float(np.max(np.abs(np.log(f)), initial=0.0))


def _by_written_channel(node: ir.Node, weights: Mapping[ir.Value, Weights]) -> Weights:
    """Return the weight as a view (channels written, all else)."""
    weight = _weight(node, weights)
    if node.op_type == "Gemm":
        return weight if integer(node, "transB", 0) else weight.T
    return weight.reshape(weight.shape[0], -1)


def _by_read_channel(node: ir.Node, weights: Mapping[ir.Value, Weights]) -> Weights:
    """Return the weight as a view (groups, channels read in a group, their readers, kernel)."""
    weight = _weight(node, weights)
    if node.op_type == "Gemm":
        return (weight.T if integer(node, "transB", 0) else weight)[None, :, :, None]
    groups = integer(node, "group", 1)
    kernel = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    return kernel.transpose(0, 2, 1, 3)


def _weight(node: ir.Node, weights: Mapping[ir.Value, Weights]) -> Weights:
    value = node.inputs[1]
    assert value is not None, "a layer has a weight"
    return weights[value]
