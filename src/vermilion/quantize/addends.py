"""Biases as integer kernels take them: a vector, one number for each output, of the node's own.

Before → after: Gemm(A, B, C), C of another form → Add(Gemm(A, B), C · beta)
                a scalar C, or one of shape (1, N)  → a vector (N,); beta goes into it
                a bias that others read too        → a copy of its own
For 4-bit weights: Gemm(A, W, c) → Add(MatMul(A, W), c)
For scales that are powers of two: Add(MatMul(A, W), c) → Reshape(Gemm(Reshape(A), W, c)), so that
nothing is rounded between the product and its bias.
"""

from __future__ import annotations

from collections.abc import Collection

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


def join_biases(graph: ir.Graph, left_out: Collection[ir.Node]) -> int:
    """Write each product of rows and the vector added to it as one Gemm; return how many.

    It has the product's name. Additions that are `left_out` stay as they are, and so do products
    of more than one open length.
    """
    names, rows = Names(graph), dict[ir.Value, ir.Value]()
    count = 0
    for node in list(graph):
        if node.op_type != "MatMul" or node.domain not in ("", "ai.onnx"):
            continue
        uses = tuple(node.outputs[0].uses())
        add = uses[0].node if len(uses) == 1 and not node.outputs[0].is_graph_output() else None
        if add is None or add.op_type != "Add" or add in left_out or add.graph is not graph:
            continue
        bias = _joinable_bias(node, add, add.inputs[1 - uses[0].idx], names)
        if bias is not None:
            _join(graph, node, add, bias, names, rows)
            count += 1
    return count


def _joinable_bias(
    product: ir.Node, add: ir.Node, bias: ir.Value | None, names: Names
) -> ir.Value | None:
    """Return what is added as a vector, None where the two nodes are no Gemm."""
    read, weight = product.inputs
    shape = add.outputs[0].shape
    if read is None or weight is None or bias is None or shape is None or read.shape is None:
        return None
    stored, added = weight.const_value, bias.const_value
    if stored is None or added is None or read.const_value is not None:
        return None
    if stored.dtype != ir.DataType.FLOAT or added.dtype != ir.DataType.FLOAT:
        return None
    lengths = shape.dims
    open_lengths = sum(not isinstance(length, int) for length in lengths)
    if len(stored.shape) != 2 or open_lengths > 1 or 0 in lengths:
        return None
    if len(read.shape) != len(lengths) or len(lengths) < 2:
        return None  # the bias brings axes of its own
    vector = _as_vector(added.numpy(), int(stored.numpy().shape[1]))
    if vector is None or (len(bias.uses()) == 1 and vector.shape == added.numpy().shape):
        return None if vector is None else bias
    return names.constant(f"{bias.name}_of_{product.name}", vector)


def _join(
    graph: ir.Graph,
    product: ir.Node,
    add: ir.Node,
    bias: ir.Value,
    names: Names,
    known: dict[ir.Value, ir.Value],
) -> None:
    """Write the Gemm; `known` are tensors that have been brought to rows, and those rows."""
    read, weight = product.inputs
    result = add.outputs[0]
    assert read is not None, "a product reads something"
    assert weight is not None, "a product has a weight"
    assert weight.const_value is not None, "its weight is constant"
    assert result.shape is not None, "its shape is known"
    lengths = [length if isinstance(length, int) else -1 for length in result.shape.dims]
    is_flat = len(lengths) == 2
    count = None if -1 in lengths[:-1] else int(np.prod(lengths[:-1]))
    rows = read if is_flat else known.get(read)
    if rows is None:
        given, _ = weight.const_value.shape.numpy()
        reshape = _reshape(read, [-1, given], [count, given], f"{read.name}_rows", names)
        rows = known[read] = reshape.outputs[0]
        maker = read.producer()
        if maker is not None and maker.graph is graph:
            graph.insert_after(maker, reshape)
        else:
            graph.insert_before(product, reshape)
    made = [ir.node("Gemm", [rows, weight, bias], name=str(product.name))]
    final = made[0].outputs[0]
    if not is_flat:
        final.name = names.free(f"{result.name}_rows")
        final.type, final.shape = result.type, ir.Shape([count, lengths[-1]])
        made.append(_reshape(final, lengths, list(lengths), str(result.name), names))
        final = made[-1].outputs[0]
    final.type, final.shape = result.type, result.shape
    for use in tuple(result.uses()):
        use.node.replace_input_with(use.idx, final)
    for place, output in enumerate(graph.outputs):
        if output is result:
            graph.outputs[place] = final
    graph.insert_after(add, made)
    for old in (add, product):
        graph.remove(old, safe=False)
        for index in range(len(old.inputs)):
            old.replace_input_with(index, None)
    final.name = result.name


def _reshape(
    value: ir.Value, sizes: list[int], shape: list[int | None], name: str, names: Names
) -> ir.Node:
    given = names.constant(f"{name}_sizes", np.asarray(sizes, np.int64))
    node = ir.node("Reshape", [value, given], name=names.free(f"{name}_Reshape"))
    result = node.outputs[0]
    result.name, result.type = names.free(name), ir.TensorType(ir.DataType.FLOAT)
    result.shape = ir.Shape(shape)
    return node


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
