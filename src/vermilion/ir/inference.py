"""onnx's shape inference, kept from filling the memory.

Inference can follow the values of shapes through Gather, Concat and the like. To do so it makes an
object for each element of any vector of integers that it knows the length of: a file of a hundred
bytes can name a vector of 2^40. Those vectors are hidden from it.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

MAX_FOLLOWED = 4096
"""Elements of a followed vector. Shapes have rank elements, lists of indices some hundreds."""

INFERENCE_ERRORS = (
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
    RuntimeError,
    ValueError,
)
"""What inference raises for models that it does not like."""

# Operators of ONNX that have a data propagation function (`OpSchema`, onnx 1.23).
_FOLLOWED = {"Add", "Cast", "Concat", "Gather", "Mul", "Shape", "Size", "Slice"} | {
    "Squeeze",
    "Sub",
    "Unsqueeze",
}
_INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
_UNKNOWN = MAX_FOLLOWED + 1
_MAX_SHAPE = 64  # the longest result of Shape: the most dimensions that a tensor has
_HIDDEN = "\N{NULL}"  # before a name: the door lets no such name in


def infer(model: onnx.ModelProto, *, follow: bool = True) -> onnx.ModelProto:
    """Give the model with the shapes that onnx finds; `follow` also through values of shapes.

    Raises: one of `INFERENCE_ERRORS`.
    """
    plain: onnx.ModelProto = onnx.shape_inference.infer_shapes(model, data_prop=False)
    if not follow or _all_known(plain.graph) or _body_follows(plain.graph):
        return plain
    hidden = onnx.ModelProto()
    hidden.CopyFrom(plain)
    _hide_vectors(hidden.graph)
    inferred: onnx.ModelProto = onnx.shape_inference.infer_shapes(hidden, data_prop=True)
    _unhide(inferred.graph)
    _keep_known(plain.graph, inferred.graph)
    return inferred


def _shapes(graph: onnx.GraphProto) -> Iterator[tuple[str, list[onnx.TensorShapeProto.Dimension]]]:
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.tensor_type.HasField("shape"):
            yield value.name, list(value.type.tensor_type.shape.dim)


def _all_known(graph: onnx.GraphProto) -> bool:
    known = {
        name
        for name, dims in _shapes(graph)
        if all(dim.HasField("dim_value") or dim.dim_param for dim in dims)
    }
    return all(name in known for node in graph.node for name in node.output if name)


def _body_follows(graph: onnx.GraphProto) -> bool:
    """Say whether a body (of If, Loop, Scan) has an operator that inference would follow."""
    pending = [body for node in graph.node for body in _bodies(node)]
    while pending:
        body = pending.pop()
        if any(node.op_type in _FOLLOWED for node in body.node):
            return True
        pending.extend(inner for node in body.node for inner in _bodies(node))
    return False


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _hide_vectors(graph: onnx.GraphProto) -> None:
    """Before → after: a followed node that reads a vector which may be long reads an input instead.

    The input is of the same type and rank and says nothing of its length.
    """
    types = {v.name: v.type for v in (*graph.input, *graph.value_info, *graph.output)}
    # Values whose elements are followed, and how many these are at most.
    followed = {tensor.name: _elements(tensor) for tensor in graph.initializer}
    followed |= {v.name: 0 for v in graph.input if _length(v.type) == _UNKNOWN}
    hidden: set[str] = set()
    for node in graph.node:
        if node.op_type not in _FOLLOWED or node.domain not in ("", "ai.onnx"):
            continue
        lengths: list[int | None] = []
        for at, name in enumerate(node.input):
            if not name or node.op_type == "Shape":
                continue
            length = followed.get(name, _length(types.get(name)))
            if length is not None and length > MAX_FOLLOWED:
                hidden.add(name)
                node.input[at] = _HIDDEN + name
                length = None
            lengths.append(length)
        made = _made_length(node.op_type, lengths)
        if made is not None:
            followed |= dict.fromkeys(node.output, made)
    graph.input.extend(_unknown(name, types[name]) for name in sorted(hidden))


def _made_length(op_type: str, lengths: list[int | None]) -> int | None:
    """Give the most elements that a node's result can have, None where it is not followed."""
    if op_type in ("Shape", "Size"):
        return _MAX_SHAPE
    known = [length for length in lengths if length is not None]
    if len(known) < len(lengths):
        return None
    return sum(known) if op_type == "Concat" else max(known, default=0)


def _length(kind: onnx.TypeProto | None) -> int | None:
    """Give how many elements inference may make of a value, None where it makes none."""
    if kind is None or kind.tensor_type.elem_type not in _INTEGERS:
        return None
    tensor = kind.tensor_type
    if not tensor.HasField("shape"):
        return _UNKNOWN
    if len(tensor.shape.dim) != 1:
        return 1 if not tensor.shape.dim else None
    size = tensor.shape.dim[0]
    # A length that is open now may become known while values are followed.
    return int(size.dim_value) if size.HasField("dim_value") else _UNKNOWN


def _elements(tensor: onnx.TensorProto) -> int:
    count = 1
    for size in tensor.dims:
        count *= size
    return count


def _unknown(name: str, kind: onnx.TypeProto) -> onnx.ValueInfoProto:
    value = onnx.ValueInfoProto(name=_HIDDEN + name)
    value.type.tensor_type.elem_type = kind.tensor_type.elem_type
    if kind.tensor_type.HasField("shape"):
        for _ in kind.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim.add()
    return value


def _unhide(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        for at, name in enumerate(node.input):
            node.input[at] = name.removeprefix(_HIDDEN)
    kept = [value for value in graph.input if not value.name.startswith(_HIDDEN)]
    del graph.input[:]
    graph.input.extend(kept)


def _keep_known(plain: onnx.GraphProto, inferred: onnx.GraphProto) -> None:
    """Give back what was known before something was hidden."""
    found = {value.name: value for value in (*inferred.value_info, *inferred.output)}
    for value in (*plain.value_info, *plain.output):
        other = found.get(value.name)
        if other is None:
            inferred.value_info.append(value)
        elif not other.type.tensor_type.HasField("shape"):
            other.type.CopyFrom(value.type)
