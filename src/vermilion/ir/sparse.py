"""Sparse weights and constants, written as dense ones at the door: nothing after it knows them."""

from __future__ import annotations

import math

import numpy as np
import onnx
from numpy.typing import NDArray

from vermilion.errors import ModelError, UnsupportedError
from vermilion.ir.protobuf import all_nodes, inner_graphs
from vermilion.ir.stored import MAX_RANK, check_tensor

# All of a model together: a file of a few bytes can declare any shape.
MAX_DENSE_BYTES = 2**29

_DAMAGED = "the file is damaged; export it again, with ordinary tensors"


def make_dense(model: onnx.ModelProto, where: str) -> None:
    """Before → after: sparse initializers and `sparse_value` of Constant → ordinary tensors.

    Raises: ModelError where values and places do not fit each other or the shape;
    UnsupportedError where the dense tensors would be larger than `MAX_DENSE_BYTES`.
    """
    bodies = (model.graph.node, *(function.node for function in model.functions))
    nodes = [node for body in bodies for node in all_nodes(body)]
    left = MAX_DENSE_BYTES
    for graph in (model.graph, *(inner for node in nodes for inner in inner_graphs(node))):
        for sparse in graph.sparse_initializer:
            graph.initializer.append(_dense(sparse, where, left))
            left -= graph.initializer[-1].ByteSize()
        graph.ClearField("sparse_initializer")
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name == "sparse_value" and attribute.HasField("sparse_tensor"):
                attribute.t.CopyFrom(_dense(attribute.sparse_tensor, where, left))
                left -= attribute.t.ByteSize()
                attribute.ClearField("sparse_tensor")
                attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
            elif attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
                raise UnsupportedError(
                    f"the attribute `{attribute.name}` is sparse, which no operator of ONNX reads",
                    where=f"{where}, node `{node.name}`, {node.op_type}",
                    hint="store it as an ordinary tensor",
                )


def _dense(sparse: onnx.SparseTensorProto, where: str, most_bytes: int) -> onnx.TensorProto:
    values, dims = sparse.values, tuple(sparse.dims)
    place = f"{where}, sparse tensor `{values.name}`"
    check_tensor(values, None, where)
    check_tensor(sparse.indices, None, where)
    if not 0 < len(dims) <= MAX_RANK or min(dims) < 0 or len(values.dims) != 1:
        raise ModelError(
            f"its shape is {list(dims)[:MAX_RANK]}, of values {list(values.dims)[:MAX_RANK]}",
            where=place,
            hint=_DAMAGED,
        )
    given = onnx.numpy_helper.to_array(values)
    size = math.prod(dims)
    if size * given.itemsize > most_bytes:
        raise UnsupportedError(
            f"sparse weights of {size:.3g} elements would be too large as ordinary ones",
            where=place,
            hint="store less of it, or split it",
        )
    dense = np.full(size, "" if given.dtype.kind == "O" else 0, given.dtype)
    dense[_places(sparse.indices, len(given), dims, place)] = given
    return onnx.numpy_helper.from_array(dense.reshape(dims), values.name)


def _places(
    tensor: onnx.TensorProto, count: int, dims: tuple[int, ...], place: str
) -> NDArray[np.int64]:
    """Return where the values go in the flat tensor: stored as that, or as one row a value."""
    indices = onnx.numpy_helper.to_array(tensor)
    is_flat = indices.shape == (count,)
    bounds = np.array([math.prod(dims)] if is_flat else dims)
    rows = indices[:, np.newaxis] if is_flat else indices
    if indices.dtype.kind not in "iu" or rows.shape != (count, len(bounds)):
        raise ModelError(
            f"{count} values at places {indices.dtype}{list(indices.shape)}",
            where=place,
            hint=_DAMAGED,
        )
    if np.any(rows < 0) or np.any(rows >= bounds):
        raise ModelError(f"a value lies outside of {list(dims)}", where=place, hint=_DAMAGED)
    found: NDArray[np.int64] = rows.astype(np.int64)
    if not is_flat:
        found = np.ravel_multi_index(tuple(found.T), dims).astype(np.int64)
    found = found.reshape(count)
    if len(np.unique(found)) < count:
        raise ModelError("two values lie at one place", where=place, hint=_DAMAGED)
    return found
