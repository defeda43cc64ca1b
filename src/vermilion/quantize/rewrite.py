"""Writing a plan into the graph: QuantizeLinear, DequantizeLinear and integer constants.

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

from vermilion.quantize.formats import Parameters
from vermilion.quantize.names import Names
from vermilion.quantize.plan import Plan

# The operators of the default domain take 16 bits from opset 21 on; below, ONNX Runtime's own do.
# Source: ONNX, QuantizeLinear-21; ONNX Runtime, docs/ContribOperators.md.
_WIDE_OPSET = 21
_WIDE_DOMAIN = "com.microsoft"
_NARROW = frozenset({ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT32})


class _Writer:
    """The graph being rewritten."""

    def __init__(self, graph: ir.Graph, plan: Plan, root: ir.Graph) -> None:
        self.graph, self.root = graph, root
        self.plan = plan
        self.opset = root.opset_imports.get("", 0)
        self.order = {node: index for index, node in enumerate(graph)}
        self.first = next(iter(graph))
        self.names = Names(root).within(graph)

    def parameters(self, value: ir.Value, given: Parameters) -> list[ir.Value]:
        """Add the scale and the zero point of a tensor."""
        zero = np.full(given.scale.shape, given.zero_point, given.number.numpy_type)
        return [
            self.names.constant(f"{value.name}_scale", given.scale),
            self.names.constant(f"{value.name}_zero_point", zero),
        ]

    def node(
        self, op_type: str, inputs: list[ir.Value], name: str, given: Parameters, rank: int = 0
    ) -> ir.Node:
        """Make a node that rounds or the one that undoes it, for a tensor of so many axes."""
        attributes = axis_attribute(given, rank)
        domain = ""
        if given.number.data_type not in _NARROW and self.opset < _WIDE_OPSET:
            domain = _WIDE_DOMAIN
            self.root.opset_imports[_WIDE_DOMAIN] = 1
        return ir.node(op_type, inputs, attributes, domain=domain, name=self.names.free(name))

    def users(self, value: ir.Value, *, quantized_only: bool) -> list[tuple[ir.Node, int]]:
        """Return who reads `value` in this graph. What a nested graph reads stays as it is."""
        return [
            (use.node, use.idx)
            for use in value.uses()
            if use.node.graph is self.graph
            and (not quantized_only or self.plan.rounds(use.node, use.idx))
        ]


def axis_attribute(given: Parameters, rank: int) -> dict[str, int]:
    """Return along which axis scales lie, counted from the end for the last of several.

    ONNX Runtime (1.26 and later) makes MatMulNBits of a product whose weight has an `axis` of 1 and
    whose other input is not of 8 bits, and that rounds this input to int8 in blocks of 32: of
    activations of 16 bits, or in float, little is left. It does not where the axis is -1.
    """
    if given.axis is None:
        return {}
    return {"axis": -1 if rank > 1 and given.axis == rank - 1 else given.axis}


def write_plan(
    model: ir.Model,
    plan: Plan,
    parameters: Mapping[str, Parameters],
    integers: Mapping[str, np.ndarray],
    graph: ir.Graph | None = None,
) -> None:
    """Rewrite `model` in place, or one branch or body of it, `graph`.

    `parameters` holds every tensor of the plan, `integers` every constant of it.
    """
    writer = _Writer(model.graph if graph is None else graph, plan, model.graph)
    for value in plan.activations:
        _round_activation(writer, value, parameters[str(value.name)])
    for value in (*plan.weights, *plan.biases):
        name = str(value.name)
        _round_constant(writer, value, integers[name], parameters[name])


def _round_activation(writer: _Writer, value: ir.Value, given: Parameters) -> None:
    name = str(value.name)
    producer = value.producer()
    by_quantized = producer in writer.plan.nodes
    readers = writer.users(value, quantized_only=not by_quantized)
    if not readers and not value.is_graph_output():
        return  # branches and bodies alone read it, and round it as they need it
    parameters = writer.parameters(value, given)
    quantize = writer.node("QuantizeLinear", [value, *parameters], f"{name}_QuantizeLinear", given)
    quantized = quantize.outputs[0]
    quantized.name = writer.names.free(f"{name}_quantized")
    quantized.type, quantized.shape = ir.TensorType(given.number.data_type), value.shape
    dequantize = writer.node(
        "DequantizeLinear", [quantized, *parameters], f"{name}_DequantizeLinear", given
    )
    result = dequantize.outputs[0]
    result.type, result.shape = value.type, value.shape
    if by_quantized and value.is_graph_output():
        index = next(i for i, output in enumerate(writer.graph.outputs) if output is value)
        writer.graph.outputs[index] = result
        value.name = writer.names.free(f"{name}_float")
        result.name = name
        # Graphs nested in this one refer to tensors by object: they go on reading the operator's
        # own result, under its new name.
    else:
        result.name = writer.names.free(f"{name}_dequantized")
    if producer is None or producer.graph is not writer.graph:
        writer.graph.insert_before(writer.first, [quantize, dequantize])
    else:
        writer.graph.insert_after(producer, [quantize, dequantize])
    for node, index in readers:
        node.replace_input_with(index, result)


def _round_constant(
    writer: _Writer, value: ir.Value, integers: np.ndarray, given: Parameters
) -> None:
    name = str(value.name)
    readers = writer.users(value, quantized_only=True)
    stored = writer.names.constant(f"{name}_quantized", integers)
    parameters = writer.parameters(value, given)
    dequantize = writer.node(
        "DequantizeLinear", [stored, *parameters], f"{name}_DequantizeLinear", given, integers.ndim
    )
    result = dequantize.outputs[0]
    result.name = writer.names.free(f"{name}_dequantized")
    result.type, result.shape = ir.TensorType(ir.DataType.FLOAT), value.shape
    for node, index in readers:
        node.replace_input_with(index, result)
    # In front of the node that reads it first, where a reader of the file looks for it.
    writer.graph.insert_before(
        min((n for n, _ in readers), key=writer.order.__getitem__), dequantize
    )
    owner = value.graph
    if isinstance(owner, ir.Graph) and not value.uses() and not value.is_graph_output():
        owner.initializers.pop(name, None)
