"""QLinearConv and QLinearMatMul in the operators that they stand for.

Their integers are decided by a product of floats that the graph does not name:

    y = QLinearConv (x, …)    becomes    p = Conv (DequantizeLinear (x), …)  y' = QuantizeLinear (p)
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from vermilion.ir.arrays import Array
from vermilion.ir.opset import constant_of, is_operator


def in_parts(graph: ir.Graph, node: ir.Node | None) -> ir.Node | None:
    """Return the QuantizeLinear that `node` ends with, its parts added to `graph`, else `node`."""
    if node is None or not is_operator(node, "QLinearConv", "QLinearMatMul"):
        return node
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *rest = node.inputs
    scales = [constant_of(value) for value in (x_scale, w_scale)]
    if scales[0] is None or scales[1] is None or x is None or w is None:
        return node
    axis = 0 if node.op_type == "QLinearConv" else 1
    parts: list[ir.Value | None] = [
        _added(graph, node, "DequantizeLinear", [x, x_scale, x_zero], x, axis=1),
        _added(graph, node, "DequantizeLinear", [w, w_scale, w_zero], w, axis=axis),
    ]
    if rest and rest[0] is not None:
        factor = (scales[0].numpy() * scales[1].numpy()).astype(np.float32).reshape(-1)
        scale = _constant(graph, node, factor if factor.size > 1 else factor.reshape(()))
        parts.append(_added(graph, node, "DequantizeLinear", [rest[0], scale], rest[0], axis=0))
    kind = node.op_type.removeprefix("QLinear")
    result = _added(graph, node, kind, parts, node.outputs[0])
    for attribute in node.attributes.values():
        made = result.producer()
        assert made is not None, "it was added just now"
        made.attributes.add(attribute)
    whole = _added(graph, node, "QuantizeLinear", [result, y_scale, y_zero], node.outputs[0])
    return whole.producer()


def _added(
    graph: ir.Graph,
    before: ir.Node,
    op_type: str,
    inputs: list[ir.Value | None],
    like: ir.Value,
    **attributes: int,
) -> ir.Value:
    made = ir.node(op_type, inputs, attributes)
    output = made.outputs[0]
    output.name = f"{before.outputs[0].name}/{op_type}/{like.name}"
    output.shape = like.shape
    whole = like.dtype if op_type == "QuantizeLinear" else ir.DataType.FLOAT
    output.type = None if whole is None else ir.TensorType(whole)
    graph.insert_before(before, made)
    return output


def _constant(graph: ir.Graph, node: ir.Node, array: Array) -> ir.Value:
    name = f"{node.outputs[0].name}/bias scale"
    value = ir.val(name, const_value=ir.tensor(array, name=name))
    graph.register_initializer(value)
    return value
