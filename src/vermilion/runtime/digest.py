"""Digests that say whether two models, or two requests, are the same."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.errors import ModelError, UnsupportedError
from vermilion.store.digest import Hash, put


def model_digest(model: ir.Model) -> str:
    """Return a digest of everything in a model that can change what it computes or is called.

    In it: names, operators, attributes, types, shapes, opsets, subgraphs, functions, and the
    bytes of every weight (read through the mapping, never copied whole). Not in it: where the
    file lies, how weights are stored, who wrote it, descriptions, metadata.
    """
    state = hashlib.sha256()
    put(state, "model", model.ir_version)
    _put_opsets(state, model.opset_imports)
    _put_graph(state, model.graph)
    for identifier in sorted(model.functions):
        function = model.functions[identifier]
        put(state, "function", *identifier)
        _put_opsets(state, function.opset_imports)
        _put_values(state, "function inputs", function.inputs)
        _put_attributes(state, function.attributes.values())
        _put_nodes(state, function)
        _put_values(state, "function outputs", function.outputs)
    return state.hexdigest()


def array_bytes(array: NDArray[Any]) -> memoryview:
    """Return an array's bytes in C order, without a copy where they lie so already."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data if flat.size else memoryview(b"")


def _put_opsets(state: Hash, imports: Mapping[str, int]) -> None:
    for domain in sorted(imports):
        put(state, "opset", domain, imports[domain])


def _put_values(state: Hash, role: str, values: Iterable[ir.Value | None]) -> None:
    listed = list(values)
    put(state, role, len(listed))
    for value in listed:
        if value is None:
            put(state, "absent")
        else:
            put(state, "value", value.name, value.type)
            _put_shape(state, value.shape)


def _put_shape(state: Hash, shape: ir.Shape | None) -> None:
    if shape is None:
        put(state, "no shape")
        return
    put(state, len(shape))
    for dimension in shape:
        # A size and a name of the same spelling are two things.
        size = dimension if isinstance(dimension, int) else None
        put(state, "size" if size is not None else "name", size if size is not None else dimension)


def _put_graph(state: Hash, graph: ir.Graph) -> None:
    put(state, "graph", graph.name)
    _put_values(state, "inputs", graph.inputs)
    put(state, "initializers", len(graph.initializers))
    for name in sorted(graph.initializers):
        tensor = graph.initializers[name].const_value
        if tensor is None:
            raise ModelError(f"the initializer `{name}` has no value")
        put(state, name)
        _put_tensor(state, tensor)
    _put_nodes(state, graph)
    _put_values(state, "outputs", graph.outputs)


def _put_nodes(state: Hash, nodes: Iterable[ir.Node]) -> None:
    for node in nodes:
        put(state, "node", node.name, node.domain, node.op_type, node.overload)
        names = [None if value is None else value.name for value in node.inputs]
        put(state, "inputs", len(names), *("absent" if n is None else f"={n}" for n in names))
        _put_attributes(state, node.attributes.values())
        _put_values(state, "outputs", node.outputs)
    put(state, "end of nodes")


def _put_attributes(state: Hash, attributes: Iterable[ir.Attr]) -> None:
    listed = sorted(attributes, key=lambda attribute: attribute.name)
    put(state, "attributes", len(listed))
    for attribute in listed:
        put(state, attribute.name, attribute.type.name, attribute.ref_attr_name or "")
        if not attribute.is_ref() and attribute.value is not None:
            _put_attribute_value(state, attribute.type, attribute.value)


def _put_attribute_value(state: Hash, kind: ir.AttributeType, value: Any) -> None:
    match kind:
        case ir.AttributeType.GRAPH:
            _put_graph(state, value)
        case ir.AttributeType.TENSOR:
            _put_tensor(state, value)
        case ir.AttributeType.FLOAT:
            put(state, struct.pack("<d", value))
        case ir.AttributeType.FLOATS:
            put(state, struct.pack(f"<{len(value)}d", *value))
        case ir.AttributeType.GRAPHS | ir.AttributeType.TENSORS:
            put(state, len(value))
            put_one = _put_graph if kind == ir.AttributeType.GRAPHS else _put_tensor
            for item in value:
                put_one(state, item)
        case ir.AttributeType.INTS | ir.AttributeType.STRINGS:
            put(state, len(value), *value)
        case ir.AttributeType.INT | ir.AttributeType.STRING | ir.AttributeType.TYPE_PROTO:
            put(state, value)
        case _:
            raise UnsupportedError(
                f"an attribute of the kind {kind.name} cannot be compared",
                hint="rewrite the node without it (sparse tensors as dense ones)",
            )


def _put_tensor(state: Hash, tensor: ir.TensorProtocol) -> None:
    put(state, "tensor", tensor.dtype.name, tuple(tensor.shape))
    if tensor.dtype == ir.DataType.STRING:
        strings = tensor.numpy().reshape(-1).tolist()
        put(state, len(strings), *strings)
        return
    data = array_bytes(tensor.numpy())
    state.update(struct.pack("<Q", len(data)))
    state.update(data)
