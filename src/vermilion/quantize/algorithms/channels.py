"""Products with weights, and where each channel that they give is read.

Channels are followed by their numbers through all that only moves them, so that it does not matter
how an exporter splits heads, or whether one product makes several tensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.ir.attributes import integer, integers, number

Numbers = NDArray[np.int64]
Float32 = NDArray[np.float32]

Shapes = Mapping[str, tuple[int, ...] | None]

_RESHAPES = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
_MOVES = _RESHAPES | {"Transpose", "Gather", "Split"}

_NOTE = "vermilion.evened"


@dataclass(frozen=True)
class End:
    """Where channels of a layer arrive: at a node that does not only move them, or nowhere else.

    `channels` are their numbers, in the shape of what `node` reads at `index`.
    """

    node: ir.Node | None
    index: int
    channels: Numbers


@dataclass(frozen=True, eq=False)
class Linear:
    """A product with a weight of its own: a Gemm, or a MatMul and the Add of a bias behind it."""

    node: ir.Node
    weight: ir.Value
    bias: ir.Value | None
    result: ir.Value
    transposed: bool  # the weight is stored as (inputs, outputs)

    @property
    def by_output(self) -> Float32:
        """The weight as (outputs, inputs)."""
        array = array_of(self.weight)
        return array.T if self.transposed else array

    def scale_outputs(self, by: Float32) -> None:
        """Multiply the channels that are given."""
        if self.bias is not None:
            replace_array(self.bias, array_of(self.bias) * by)
        self._store(self.by_output * by[:, None])

    def scale_inputs(self, by: Float32) -> None:
        """Multiply what the channels that are read are multiplied with."""
        self._store(self.by_output * by[None, :])

    def shift(self, by: Float32) -> None:
        """Add to the bias."""
        replace_array(self.bias, array_of(self.bias) + by)

    def _store(self, by_output: Float32) -> None:
        replace_array(self.weight, by_output.T if self.transposed else by_output)


Ends = Mapping[Linear, Sequence[End]]


class Paths:
    """Follows the channels of layers to where they are read."""

    def __init__(self, graph: ir.Graph, shapes: Shapes) -> None:
        """Find the layers of a graph; `shapes` are those of all its tensors."""
        self.graph, self._shapes = graph, shapes
        found = [linear for node in graph if (linear := _linear(node)) is not None]
        self.linears = {linear.node: linear for linear in found}

    def layers(self) -> dict[Linear, list[End]]:
        """Return all layers whose channels can be followed."""
        found = {}
        for linear in self.linears.values():
            shape = self.shape(linear.result)
            if shape is not None:
                channels = np.broadcast_to(np.arange(shape[-1]), shape)
                found[linear] = self.ends(linear.result, channels)
        return found

    def ends(self, value: ir.Value, channels: Numbers) -> list[End]:
        """Return where the channels of a tensor arrive."""
        ends = [End(None, 0, channels)] if value.is_graph_output() else []
        for use in value.uses():
            inside = use.node.graph is self.graph and use.idx == 0
            moved = self._moved(use.node, channels) if inside else []
            if not moved:
                ends.append(End(use.node, use.idx, channels))
            for output, there in moved:
                ends += self.ends(output, there)
        return ends

    def along(self, value: ir.Value) -> set[str]:
        """Return the names of a tensor and of all that only its numbers are moved into."""
        found = {str(value.name)}
        for use in value.uses():
            if use.idx == 0 and use.node.op_type in _MOVES and use.node.graph is self.graph:
                for output in use.node.outputs:
                    found |= self.along(output)
        return found

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

    def reader_after(self, mixing: ir.Node | None, end: End) -> tuple[Linear, Numbers] | None:
        """Return the layer that reads mixed values, and which channel each of its inputs is."""
        shape = None if mixing is None else self.shape(mixing.outputs[0])
        if mixing is None or shape is None or not alike(end.channels, -2):
            return None
        ends = self.ends(mixing.outputs[0], np.broadcast_to(end.channels[..., :1, :], shape))
        if len(ends) != 1 or ends[0].node not in self.linears or ends[0].index != 0:
            return None
        arrived = ends[0].channels.reshape(-1, ends[0].channels.shape[-1])
        if not alike(arrived, 0):
            return None
        return self.linears[ends[0].node], arrived[0]


def _linear(node: ir.Node) -> Linear | None:
    if node.domain not in ("", "ai.onnx") or node.op_type not in {"Gemm", "MatMul"}:
        return None
    weight, bias, result = node.inputs[1], None, node.outputs[0]
    if not _is_own(weight) or len(array_of(weight).shape) != 2:
        return None
    assert weight is not None, "it is looked at above"
    transposed = node.op_type == "MatMul" or not integer(node, "transB", 0)
    outputs = array_of(weight).shape[1 if transposed else 0]
    if node.op_type == "Gemm":
        if integer(node, "transA", 0) or number(node, "alpha", 1.0) != 1.0:
            return None
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if bias is not None and not _is_vector(bias, outputs):
            return None
    else:
        uses = tuple(result.uses())
        add = uses[0].node if len(uses) == 1 and not result.is_graph_output() else None
        if add is not None and add.op_type == "Add":
            added = add.inputs[1 - uses[0].idx]
            if _is_vector(added, outputs):
                bias, result = added, add.outputs[0]
    return Linear(node, weight, bias, result, transposed)


def _is_vector(value: ir.Value | None, length: int) -> bool:
    return _is_own(value) and array_of(value).shape == (length,)


def _is_own(value: ir.Value | None) -> bool:
    """Say whether a constant of float32 has one reader."""
    if value is None or value.const_value is None or value.is_graph_output():
        return False
    return value.const_value.dtype == ir.DataType.FLOAT and len(value.uses()) == 1


def array_of(value: ir.Value | None) -> Float32:
    """Return the numbers of a constant."""
    assert value is not None, "it is there"
    assert value.const_value is not None, "it is a constant"
    array: Float32 = value.const_value.numpy()
    return array


def replace_array(value: ir.Value | None, array: Float32) -> None:
    """Let a constant hold other numbers."""
    assert value is not None, "it is there"
    value.const_value = ir.Tensor(np.ascontiguousarray(array, np.float32), name=value.name)


def note_changed(model: ir.Model, names: Iterable[str]) -> None:
    """Write into the model which of its tensors hold other numbers than the float model's."""
    listed = sorted({*changed_tensors(model), *names})
    if listed:
        model.metadata_props[_NOTE] = json.dumps(listed)


def changed_tensors(model: ir.Model) -> frozenset[str]:
    """Return the tensors that a model's file tells so; what makes no sense there is none."""
    try:
        found = json.loads(model.metadata_props.get(_NOTE, "[]"))
    except ValueError:
        return frozenset()
    named = found if isinstance(found, list) else []
    return frozenset(name for name in named if isinstance(name, str))


def leading_to(layers: Ends, node: ir.Node, index: int) -> tuple[Linear, End] | None:
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


def alike(channels: Numbers, axis: int) -> bool:
    """Say whether all along an axis are the same channel."""
    return channels.ndim >= 2 and bool((channels == channels.take([0], axis)).all())
