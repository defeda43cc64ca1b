"""Writing a plan into the graph: QuantizeLinear, DequantizeLinear and int8 constants.

Before → after, for a tensor X between two quantized nodes:

    A → X → B        A → X → QuantizeLinear → X_quantized → DequantizeLinear → X_dequantized → B

The operator's own result keeps the name X, so that reports match tensors of both graphs by name.
A graph output keeps its name as well: there X is what DequantizeLinear gives and the operator's
result becomes X_float. A constant W becomes W_quantized, read through W_dequantized.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from vermilion.quantize.formats import IntegerFormat, Scheme, scale_of, to_integers
from vermilion.quantize.operators import OPERATORS, rounded_indices
from vermilion.quantize.plan import Plan


class _Writer:
    """The graph being rewritten, and the names that are taken in it."""

    def __init__(self, graph: ir.Graph, plan: Plan) -> None:
        self.graph = graph
        self.plan = plan
        self.order = {node: index for index, node in enumerate(graph)}
        self.first = next(iter(graph))
        self.taken = {str(value.name) for value in (*graph.inputs, *graph.initializers.values())}
        for node in graph.all_nodes():
            self.taken |= {str(value.name) for value in node.outputs}

    def name(self, wanted: str) -> str:
        """Give `wanted`, or with a number where a tensor has that name already."""
        name, number = wanted, 1
        while name in self.taken:
            number += 1
            name = f"{wanted}_{number}"
        self.taken.add(name)
        return name

    def constant(self, name: str, array: np.ndarray) -> ir.Value:
        """Add an initializer."""
        tensor = ir.tensor(array, name=name)
        value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype))
        value.const_value = tensor
        self.graph.register_initializer(value)
        return value

    def parameters(self, value: ir.Value, position: int, number: IntegerFormat) -> list[ir.Value]:
        """Add the scale and the zero point of a tensor."""
        scale = np.asarray(scale_of(position), np.float32)
        zero = np.zeros((), number.numpy_type)
        return [
            self.constant(self.name(f"{value.name}_scale"), scale),
            self.constant(self.name(f"{value.name}_zero_point"), zero),
        ]

    def users(self, value: ir.Value, *, quantized_only: bool) -> list[tuple[ir.Node, int]]:
        """Give who reads `value` in this graph. What a nested graph reads stays as it is."""
        return [
            (use.node, use.idx)
            for use in value.uses()
            if use.node.graph is self.graph
            and (not quantized_only or self._rounds(use.node, use.idx))
        ]

    def _rounds(self, node: ir.Node, index: int) -> bool:
        if node not in self.plan.nodes:
            return False
        return index in rounded_indices(node, OPERATORS[node.op_type])


def write_plan(model: ir.Model, plan: Plan, positions: Mapping[str, int], scheme: Scheme) -> None:
    """Rewrite `model` in place."""
    writer = _Writer(model.graph, plan)
    for value in plan.activations:
        position = positions[plan.scales[str(value.name)]]
        _round_activation(writer, value, position, scheme.activation)
    for values, number in ((plan.weights, scheme.weight), (plan.biases, scheme.bias)):
        for value in values:
            position = positions[plan.scales[str(value.name)]]
            _round_constant(writer, value, position, number)


def _round_activation(
    writer: _Writer, value: ir.Value, position: int, number: IntegerFormat
) -> None:
    name = str(value.name)
    producer = value.producer()
    by_quantized = producer in writer.plan.nodes
    readers = writer.users(value, quantized_only=not by_quantized)
    parameters = writer.parameters(value, position, number)
    quantize = ir.node(
        "QuantizeLinear", [value, *parameters], name=writer.name(f"{name}_QuantizeLinear")
    )
    quantized = quantize.outputs[0]
    quantized.name = writer.name(f"{name}_quantized")
    quantized.type, quantized.shape = ir.TensorType(number.data_type), value.shape
    dequantize = ir.node(
        "DequantizeLinear",
        [quantized, *parameters],
        name=writer.name(f"{name}_DequantizeLinear"),
    )
    result = dequantize.outputs[0]
    result.type, result.shape = value.type, value.shape
    if by_quantized and value.is_graph_output():
        index = next(i for i, output in enumerate(writer.graph.outputs) if output is value)
        writer.graph.outputs[index] = result
        value.name = writer.name(f"{name}_float")
        result.name = name
        # Graphs nested in this one refer to tensors by object: they go on reading the operator's
        # own result, under its new name.
    else:
        result.name = writer.name(f"{name}_dequantized")
    if producer is None:
        writer.graph.insert_before(writer.first, [quantize, dequantize])
    else:
        writer.graph.insert_after(producer, [quantize, dequantize])
    for node, index in readers:
        node.replace_input_with(index, result)


def _round_constant(writer: _Writer, value: ir.Value, position: int, number: IntegerFormat) -> None:
    name = str(value.name)
    readers = writer.users(value, quantized_only=True)
    tensor = value.const_value
    assert tensor is not None, "the plan lists a constant without a value"
    integers = writer.constant(
        writer.name(f"{name}_quantized"), to_integers(tensor.numpy(), position, number)
    )
    parameters = writer.parameters(value, position, number)
    dequantize = ir.node(
        "DequantizeLinear",
        [integers, *parameters],
        name=writer.name(f"{name}_DequantizeLinear"),
    )
    result = dequantize.outputs[0]
    result.name = writer.name(f"{name}_dequantized")
    result.type, result.shape = ir.TensorType(ir.DataType.FLOAT), value.shape
    for node, index in readers:
        node.replace_input_with(index, result)
    # In front of the node that reads it first, where a reader of the file looks for it.
    writer.graph.insert_before(
        min((n for n, _ in readers), key=writer.order.__getitem__), dequantize
    )
    if not value.uses() and not value.is_graph_output():
        del writer.graph.initializers[name]
