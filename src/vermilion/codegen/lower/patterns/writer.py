"""What definitions are written with: nodes before the one that they define."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from vermilion.ir.opset import constant_of, static_shape
from vermilion.ir.passes.rewrite import new_weight
from vermilion.ir.symbolic import note_value, shape_of_sizes

Shape = Sequence[int]


class DefinitionWriter:
    """Writes nodes before `node`, all shapes given."""

    def __init__(self, graph: ir.Graph, node: ir.Node) -> None:
        self.graph = graph
        self.node = node
        self.name = str(node.outputs[0].name)
        self._count = 0

    def __call__(
        self, op_type: str, shape: Shape, *inputs: ir.Value, **attributes: int | Sequence[int]
    ) -> ir.Value:
        """Write a node; return its result, of the type of its first input."""
        self._count += 1
        label = f"{self.name}/{op_type} {self._count}"
        made = ir.node(op_type, inputs, attributes, name=label)
        value = made.outputs[0]
        value.name, value.type, value.shape = label, inputs[0].type, shape_of_sizes(shape)
        self.graph.insert_before(self.node, made)
        return value

    def constant(self, array: np.ndarray) -> ir.Value:
        """Return a weight."""
        return new_weight(self.graph, f"{self.name}/constant", ir.tensor(array))

    def sizes(self, numbers: Sequence[int]) -> ir.Value:
        """Return whole numbers, of which those that are sizes may be known by formula alone."""
        value = self.constant(np.array([int(number) for number in numbers], np.int64))
        note_value(value.name, numbers)
        return value

    def size(self, number: int) -> ir.Value:
        """Return one of them, as a number that is no vector."""
        value = self.constant(np.array(int(number), np.int64))
        note_value(value.name, number)
        return value

    def reshaped(self, x: ir.Value, shape: Shape) -> ir.Value:
        """Return the same elements in another shape."""
        return self("Reshape", shape, x, self.sizes(shape))

    def number(self, value: float, like: ir.Value) -> ir.Value:
        """Return a number of the type of `like`."""
        assert like.dtype is not None
        return self.constant(np.array(value, like.dtype.numpy()))

    def reduced(self, op_type: str, x: ir.Value, axes: Shape) -> ir.Value:
        """Reduce over axes, which are kept with size 1."""
        shape = [1 if at in axes else size for at, size in enumerate(sizes_of(x))]
        if op_type == "ReduceSum":
            return self(op_type, shape, x, self.constant(np.array(axes)), keepdims=1)
        value = self(op_type, shape, x, keepdims=1)
        made = value.producer()
        assert made is not None
        made.attributes["axes"] = ir.AttrInt64s("axes", list(axes))
        return value


def sizes_of(value: ir.Value | None) -> tuple[int, ...]:
    """Return the shape of a value of a claimed node."""
    sizes = static_shape(value)
    assert sizes is not None, "a claimed node has fixed shapes"
    return sizes


def input_of(node: ir.Node, index: int) -> ir.Value:
    """Return an input that a claimed node has."""
    value = node.inputs[index]
    assert value is not None
    return value


def constant_array(node: ir.Node, index: int) -> np.ndarray:
    """Return what a constant input of a claimed node holds."""
    constant = constant_of(node.inputs[index])
    assert constant is not None, "a claimed node has constant parameters"
    return constant.numpy()
