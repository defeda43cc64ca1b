"""What definitions of `com.microsoft`'s operators are written with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from vermilion.ir.arrays import Array
from vermilion.ir.opset import constant_of, opset_of


class Left(Exception):
    """Why a node is left as it is."""


class Writer:
    """Nodes that stand for one node, in the words of the model's opset."""

    def __init__(self, model: ir.Model, node: ir.Node) -> None:
        self.node = node
        self.opset = opset_of(model)
        self.made: list[ir.Node] = []
        self._float = _float_type(model, node)

    def __call__(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Add a node; return its first result, of the type of its first input."""
        return self.results(op_type, inputs, 1, **attributes)[0]

    def results(
        self, op_type: str, inputs: Sequence[ir.Value | None], count: int, **attributes: Any
    ) -> list[ir.Value]:
        """Add a node with `count` results."""
        label = f"{self.node.name or self.node.outputs[0].name}/{op_type} {len(self.made)}"
        made = ir.node(op_type, inputs, attributes, num_outputs=count, name=label)
        for at, value in enumerate(made.outputs):
            value.name = f"{label}/{at}"
            first = inputs[0] if inputs else None
            value.type = None if first is None else first.type
        self.made.append(made)
        return list(made.outputs)

    def constant(self, array: Array) -> ir.Value:
        """Return a constant as a node: bodies of an If have no weights of their own."""
        value = self("Constant", value=ir.tensor(array))
        value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        value.shape = ir.Shape(array.shape)
        return value

    def integers(self, *values: int) -> ir.Value:
        """Return a vector of int64."""
        return self.constant(np.array(values, np.int64))

    def number(self, value: float) -> ir.Value:
        """Return a number of the floats that the node computes with."""
        return self.constant(np.array(value, self.float_type.numpy()))

    @property
    def float_type(self) -> ir.DataType:
        """The type of the floats that the node computes with."""
        if self._float is None:
            raise Left(f"{self.node.op_type} whose type is not known")
        return self._float

    def mean(self, x: ir.Value, *axes: int) -> ir.Value:
        """Return means over axes, which are kept with size 1."""
        if self.opset >= 18:
            return self("ReduceMean", x, self.integers(*axes), keepdims=1)
        return self("ReduceMean", x, axes=list(axes), keepdims=1)

    def reshaped(self, x: ir.Value, *sizes: int) -> ir.Value:
        """Reshape by ONNX's rules: 0 keeps a size, -1 takes what is left."""
        return self("Reshape", x, self.integers(*sizes))

    def part(self, x: ir.Value, axis: int, first: int, last: int) -> ir.Value:
        """Return a part of an axis."""
        return self("Slice", x, *(self.integers(at) for at in (first, last, axis)))

    def unsqueezed(self, x: ir.Value, *axes: int) -> ir.Value:
        """Return `x` with axes of size 1 more."""
        if self.opset >= 13:
            return self("Unsqueeze", x, self.integers(*axes))
        return self("Unsqueeze", x, axes=list(axes))

    def cast(self, x: ir.Value, kind: ir.DataType) -> ir.Value:
        """Convert."""
        value = self("Cast", x, to=int(kind))
        value.type = ir.TensorType(kind)
        return value

    def axis_sizes(self, x: ir.Value, axis: int) -> ir.Value:
        """Return the size of an axis, as a number."""
        shape = self("Shape", x)
        shape.type = ir.TensorType(ir.DataType.INT64)
        return self("Gather", shape, self.constant(np.array(axis, np.int64)), axis=0)

    def put(self, results: Sequence[ir.Value]) -> None:
        """Put what was written in the node's place; results have its names, types and shapes."""
        graph = self.node.graph
        assert graph is not None, "the node stands in a graph"
        graph.insert_before(self.node, self.made)
        for old, new in zip(self.node.outputs, results, strict=False):
            name, kind, shape = old.name, old.type, old.shape
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            old.name = None
            new.name = name
            new.type = kind or new.type
            new.shape = shape or new.shape
        graph.remove(self.node, safe=True)


Definition = Callable[[Writer, ir.Node], Sequence[ir.Value]]
"""Writes what a node means; returns its results, fewer where not all are written."""


def given(node: ir.Node, at: int) -> ir.Value | None:
    """Return an optional input, None where it is left out."""
    value = node.inputs[at] if at < len(node.inputs) else None
    return value if value is not None and value.name else None


def required(node: ir.Node, at: int) -> ir.Value:
    """Return an input."""
    value = given(node, at)
    if value is None:
        raise Left(f"{node.op_type} without its input {at}")
    return value


def rank_of(value: ir.Value) -> int:
    """Return how many axes a tensor has."""
    if value.shape is None:
        raise Left(f"the shape of `{value.name}` is not known")
    return len(value.shape)


def array_of(value: ir.Value | None) -> Array | None:
    """Return the array of a constant, None for anything else."""
    constant = constant_of(value)
    return None if constant is None else constant.numpy()


def _float_type(model: ir.Model, node: ir.Node) -> ir.DataType | None:
    """Return the type of the node's floats: its own, else the one that all weights have."""
    floats = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)
    for value in (*node.outputs, *node.inputs):
        if value is not None and value.dtype in floats:
            return value.dtype
    found = {value.dtype for value in model.graph.initializers.values()} & set(floats)
    return found.pop() if len(found) == 1 else None
