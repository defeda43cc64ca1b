"""Nodes that read constants: as a model of their own, their results inferred, and as weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.ir.opset import constant_of, opset_of, static_shape
from vermilion.ir.passes.rewrite import make_weight

Array = NDArray[Any]

_INFERENCE_ERRORS = (
    onnx.checker.ValidationError,
    onnx.defs.SchemaError,
    onnx.shape_inference.InferenceError,
    RuntimeError,
    ValueError,
)


def inferred(
    model: ir.Model, node: ir.Node
) -> list[tuple[ir.DataType | None, tuple[int, ...] | None]]:
    """Ask onnx for the node's results, given the values of its inputs where they are small."""
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    for value in node.inputs:
        if value is None or not value.name:
            continue
        tensor = constant_of(value)
        shape = tuple(tensor.shape.numpy()) if tensor is not None else static_shape(value)
        dtype = tensor.dtype if tensor is not None else value.dtype
        if shape is None or dtype is None:
            return [(None, None)]
        types[value.name] = onnx.helper.make_tensor_type_proto(int(dtype), shape)
        if tensor is not None and dtype != ir.DataType.STRING and tensor.nbytes <= 1024:
            data[value.name] = ir.to_proto(tensor)
    try:
        schema = onnx.defs.get_schema(node.op_type, opset_of(model), "")
        found = onnx.shape_inference.infer_node_outputs(
            schema,
            ir.to_proto(node),
            types,
            data,
            opset_imports=[onnx.helper.make_opsetid("", opset_of(model))],
        )
    except _INFERENCE_ERRORS:
        return [(None, None)]
    return [_from_proto(found.get(value.name or "")) for value in node.outputs if value.name]


def _from_proto(
    proto: onnx.TypeProto | None,
) -> tuple[ir.DataType | None, tuple[int, ...] | None]:
    if proto is None or not proto.HasField("tensor_type"):
        return (None, None)
    tensor = proto.tensor_type
    dtype = ir.DataType(tensor.elem_type)
    if not tensor.HasField("shape"):
        return (dtype, None)
    sizes = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
    return (dtype, None if any(size < 0 for size in sizes) else tuple(sizes))


def replace_by_weights(graph: ir.Graph, node: ir.Node, results: Mapping[str, Array]) -> None:
    """Put weights in the place of a node's results."""
    for value in node.outputs:
        if not value.name or not value.uses():
            continue
        tensor = ir.tensor(results[value.name], name=value.name)
        weight = make_weight(value.name, tensor)
        value.replace_all_uses_with(weight)
        graph.register_initializer(weight)
    graph.remove(node, safe=True)


def model_of(model: ir.Model, nodes: Sequence[ir.Node]) -> ir.Model:
    """Return copies of `nodes`, which read constants, as a model of their own without inputs."""
    values: dict[int, ir.Value] = {}
    copies: list[ir.Node] = []
    weights: list[ir.Value] = []
    for node in nodes:
        inputs: list[ir.Value | None] = []
        for value in node.inputs:
            if value is not None and id(value) not in values:
                values[id(value)] = _copy_weight(value)
                weights.append(values[id(value)])
            inputs.append(None if value is None else values[id(value)])
        outputs = [ir.Value(name=value.name, type=value.type) for value in node.outputs]
        values.update({id(a): b for a, b in zip(node.outputs, outputs, strict=True)})
        copies.append(
            ir.Node(
                node.domain,
                node.op_type,
                inputs,
                list(node.attributes.values()),
                outputs=outputs,
                name=node.name,
            )
        )
    results = [value for node in copies for value in node.outputs if value.name]
    graph = ir.Graph(
        [],
        results,
        nodes=copies,
        initializers=weights,
        opset_imports={"": opset_of(model)},
        name="constants",
    )
    return ir.Model(graph, ir_version=max(model.ir_version or 0, 8))


def _copy_weight(value: ir.Value) -> ir.Value:
    tensor = constant_of(value)
    assert tensor is not None, "a wave reads constants and its own results only"
    return make_weight(value.name, tensor)
