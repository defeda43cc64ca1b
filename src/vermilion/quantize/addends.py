"""Biases as integer kernels take them: a vector, one number for each output, of the node's own.

Before → after: Gemm(A, B, C), C of another form → Add(Gemm(A, B), C · beta)
                a scalar C, or one of shape (1, N)  → a vector (N,); beta goes into it
                a bias that others read too        → a copy of its own
For 4-bit weights: Gemm(A, W, c) → Add(MatMul(A, W), c)
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.ir.attributes import flag, number
from vermilion.ir.passes.rewrite import read_instead, take_place
from vermilion.quantize.names import Names
from vermilion.quantize.operators import OPERATORS, bias_input

_BIASED = frozenset(name for name, row in OPERATORS.items() if row.bias is not None)


def settle_addends(work: ir.Model) -> None:
    """Bring all biases into the one form; change `work` in place."""
    names = Names(work.graph)
    for graph in work.graphs():
        _settle(graph, names.within(graph))


def _settle(graph: ir.Graph, names: Names) -> None:
    for node in list(graph):
        if node.op_type not in _BIASED or node.domain not in ("", "ai.onnx"):
            continue
        if node.op_type == "Gemm":
            _settle_gemm(graph, node, names)
        bias = bias_input(node, OPERATORS[node.op_type])
        if bias is not None and bias.const_value is not None and len(bias.uses()) > 1:
            place = OPERATORS[node.op_type].bias
            assert place is not None, "it has a bias"
            copy = names.constant(f"{bias.name}_of_{node.name}", bias.const_value.numpy())
            node.replace_input_with(place, copy)


def _settle_gemm(graph: ir.Graph, node: ir.Node, names: Names) -> None:
    addend = node.inputs[2] if len(node.inputs) > 2 else None
    if addend is None or addend.dtype not in (None, ir.DataType.FLOAT):
        return
    beta = number(node, "beta", 1.0)
    width = _outputs(node)
    constant = addend.const_value
    if constant is not None and width is not None:
        vector = _as_vector(constant.numpy(), width)
        if vector is not None:
            if vector.shape != constant.numpy().shape or beta != 1.0:
                scaled = (vector * np.float32(beta)).astype(np.float32)
                node.replace_input_with(2, names.constant(f"{addend.name}_of_{node.name}", scaled))
                node.attributes.pop("beta", None)
                _drop_unread(addend)
            return
    _split(graph, node, addend, beta, names)


def plain_products(work: ir.Model) -> None:
    """Write each Gemm with a weight of its own as a product, for those who round only these."""
    graph = work.graph
    names = Names(graph)
    for node in list(graph):
        weight = node.inputs[1] if node.op_type == "Gemm" else None
        stored = None if weight is None else weight.const_value
        if stored is None or stored.dtype != ir.DataType.FLOAT or flag(node, "transA"):
            continue
        if number(node, "alpha", 1.0) != 1.0:
            continue
        addend = node.inputs[2] if len(node.inputs) > 2 else None
        if addend is not None:
            _split(graph, node, addend, number(node, "beta", 1.0), names)
        assert weight is not None, "it has a value"
        if flag(node, "transB"):
            turned = np.ascontiguousarray(stored.numpy().T)
            node.replace_input_with(1, names.constant(f"{weight.name}_turned", turned))
            _drop_unread(weight)
        product = ir.node("MatMul", list(node.inputs[:2]), name=str(node.name))
        graph.insert_after(node, product)
        take_place(graph, node, product.outputs[0])


def _outputs(node: ir.Node) -> int | None:
    """Return N, None where it is not known."""
    weight = node.inputs[1]
    shape = None if weight is None else weight.shape
    if weight is not None and weight.const_value is not None:
        shape = ir.Shape(weight.const_value.shape.numpy())
    length = None if shape is None else shape[0 if flag(node, "transB") else 1]
    return length if isinstance(length, int) else None


def _as_vector(addend: NDArray[np.float32], width: int) -> NDArray[np.float32] | None:
    if addend.size == width and addend.shape[-1:] == (width,):
        return addend.reshape(width)
    return np.full(width, addend.reshape(()), np.float32) if addend.size == 1 else None


def _split(graph: ir.Graph, node: ir.Node, addend: ir.Value, beta: float, names: Names) -> None:
    result = node.outputs[0]
    node.replace_input_with(2, None)
    node.resize_inputs(2)
    node.attributes.pop("beta", None)
    made: list[ir.Node] = []
    if beta != 1.0:
        if addend.const_value is not None:
            scaled = (addend.const_value.numpy() * np.float32(beta)).astype(np.float32)
            whole = addend
            addend = names.constant(f"{addend.name}_of_{node.name}", scaled)
            _drop_unread(whole)
        else:
            factor = names.constant(f"{node.name}_beta", np.asarray(beta, np.float32))
            times = ir.node("Mul", [addend, factor], name=names.free(f"{node.name}_Mul"))
            times.outputs[0].name = names.free(f"{addend.name}_times_beta")
            times.outputs[0].type, times.outputs[0].shape = addend.type, addend.shape
            made.append(times)
            addend = times.outputs[0]
    add = ir.node("Add", [result, addend], name=names.free(f"{node.name}_Add"))
    total = add.outputs[0]
    total.type, total.shape = result.type, result.shape
    read_instead(graph, result, total, add)
    total.name, result.name = result.name, names.free(f"{result.name}_product")
    graph.insert_after(node, [*made, add])


def _drop_unread(value: ir.Value) -> None:
    owner = value.graph
    if isinstance(owner, ir.Graph) and not value.uses() and not value.is_graph_output():
        owner.initializers.pop(str(value.name), None)
