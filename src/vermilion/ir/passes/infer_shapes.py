"""Filling in the types and shapes of what lies between inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import onnx
import onnx_ir as ir

from vermilion.errors import first_line
from vermilion.ir.inference import INFERENCE_ERRORS, infer
from vermilion.ir.opset import (
    constant_of,
    is_operator,
    static_shape,
    tensor_bytes,
    tensor_sizes,
    where,
)
from vermilion.ir.passes.rewrite import Notes
from vermilion.ir.protobuf import paired_graphs

# Larger weights cannot be shapes, axes or other things that inference looks into.
SMALL_BYTES = 1024

# Concat chains that feed shapes can double at each node; onnx would carry all of it along.
MAX_PROPAGATED_ELEMENTS = 4096


def infer_shapes(model: ir.Model, notes: Notes) -> None:
    """Infer with onnx's own C++ inference, weights left out; only ever add to what is known.

    Fired counts the values that got a type or a shape. A model that inference refuses stays as
    it is, with onnx's words as the reason; one in which all is known is not inferred.
    """
    forget_negative_sizes(model)
    if not any(_is_open(value) for value in _results(model)):
        return
    propagate = propagated_elements(model) <= MAX_PROPAGATED_ELEMENTS
    if not propagate:
        notes.refuse("model", "the values of shapes are not followed: they would grow too large")
    try:
        with without_weights(model) as proto:
            inferred = infer(proto, follow=propagate)
    except INFERENCE_ERRORS as error:
        notes.refuse("model", f"onnx cannot infer shapes: {first_line(error)}")
        return
    known = {name for value in _values(model) for name in _symbols(value.shape)}
    outputs = {id(value) for value in model.graph.outputs}
    for graph, other in paired_graphs(model.graph, inferred.graph):
        found = {info.name: info for info in (*other.value_info, *other.output)}
        for node in graph:
            for value in node.outputs:
                if value.name in found and _is_open(value):
                    new = ir.serde.deserialize_value_info_proto(found[value.name], None)
                    notes.fired += _refine(value, new, known, id(value) in outputs)


def _is_open(value: ir.Value) -> bool:
    """Say whether there is anything about the value that is not known."""
    return value.type is None or static_shape(value) is None


def forget_negative_sizes(model: ir.Model) -> None:
    """Read a size of -1, which old exporters write, as an open dimension without a name."""
    for value in _values(model):
        if value.shape is not None and any(
            isinstance(size, int) and size < 0 for size in value.shape.dims
        ):
            value.shape = ir.Shape(
                [None if isinstance(size, int) and size < 0 else size for size in value.shape.dims]
            )


@contextmanager
def without_weights(model: ir.Model) -> Iterator[onnx.ModelProto]:
    """Lend the model as a protobuf in which weights above `SMALL_BYTES` are inputs.

    So are those in files, which a message that has no folder would lose.
    """
    graph = model.graph
    kept_inputs = list(graph.inputs)
    taken: list[tuple[ir.Value, ir.TensorProtocol]] = []
    try:
        for name, value in list(graph.initializers.items()):
            tensor = value.const_value
            if tensor is None:
                continue
            if value.shape is None:
                value.shape = ir.Shape(tensor_sizes(tensor))
            if value.dtype is None:
                value.dtype = tensor.dtype
            if tensor_bytes(tensor) > SMALL_BYTES or isinstance(tensor, ir.ExternalTensor):
                taken.append((value, tensor))
                del graph.initializers[name]
                if not value.is_graph_input():
                    graph.inputs.append(value)
        proto = ir.to_proto(model)
    finally:
        graph.inputs.clear()
        graph.inputs.extend(kept_inputs)
        for value, tensor in taken:
            value.const_value = tensor
            graph.register_initializer(value)
    yield proto


def propagated_elements(model: ir.Model) -> int:
    """Return an upper bound of the longest list of sizes that onnx would propagate."""
    longest = 0
    lengths: dict[int, int] = {}
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        counts = [_propagated(value, lengths) for value in node.inputs if value is not None]
        length = sum(counts) if is_operator(node, "Concat") else max(counts, default=0)
        if is_operator(node, "Shape"):
            length = 64
        for value in node.outputs:
            lengths[id(value)] = length
        longest = max(longest, length)
    return longest


def _propagated(value: ir.Value, lengths: dict[int, int]) -> int:
    tensor = constant_of(value)
    if tensor is not None:
        integer = tensor.dtype in (ir.DataType.INT64, ir.DataType.INT32)
        return tensor.size if integer and tensor.nbytes <= SMALL_BYTES else 0
    return lengths.get(id(value), 0)


def _values(model: ir.Model) -> Iterator[ir.Value]:
    yield from model.graph.inputs
    yield from _results(model)


def _results(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        for node in graph:
            yield from node.outputs


def _symbols(shape: ir.Shape | None) -> Iterator[str]:
    for size in shape.dims if shape is not None else ():
        if not isinstance(size, int) and size.value is not None:
            yield str(size.value)


def _refine(value: ir.Value, found: ir.Value, known: set[str], is_output: bool) -> bool:
    changed = False
    if value.type is None and found.type is not None:
        value.type = found.type
        changed = True
    if found.shape is None:
        return changed
    if value.shape is None:
        value.shape = ir.Shape([_nameable(size, known) for size in found.shape.dims])
        return True
    if len(value.shape) != len(found.shape):
        return changed
    dims: list[int | ir.SymbolicDim | str | None] = []
    for old, new in zip(value.shape.dims, found.shape.dims, strict=True):
        better = isinstance(new, int) and new >= 0 and not isinstance(old, int)
        if not is_output and not isinstance(old, int) and old.value is None:
            better = better or _nameable(new, known) is not None
        dims.append(_nameable(new, known) if better else old)
        changed = changed or better
    if changed:
        value.shape = ir.Shape(dims)
    return changed


def _nameable(size: int | ir.SymbolicDim, known: set[str]) -> int | str | None:
    """Keep sizes and the model's own names; drop the `unk__0` that onnx makes up."""
    if isinstance(size, int):
        return size if size >= 0 else None
    return str(size.value) if size.value in known else None


def settle_casts(model: ir.Model, notes: Notes) -> None:
    """Before → after: `y = CastLike(x, t)` → `y = Cast<to = type of t>(x)`.

    The new node does not read `t`: what is cast may be a constant, which can then be folded.
    """
    for node in list(model.graph):
        if not is_operator(node, "CastLike") or len(node.inputs) != 2:
            continue
        dtype = _type_of(node.inputs[1])
        if dtype is None:
            notes.refuse(where(node), "the type that it asks for is not known")
            continue
        kept = [a for name, a in node.attributes.items() if name in ("saturate", "round_mode")]
        cast = ir.Node(
            "", "Cast", [node.inputs[0]], [ir.AttrInt64("to", int(dtype)), *kept],
            name=node.name,
        )  # fmt: skip
        copy, output = cast.outputs[0], node.outputs[0]
        copy.name, copy.type, copy.shape = output.name, ir.TensorType(dtype), output.shape
        model.graph.insert_before(node, cast)
        output.replace_all_uses_with(copy, replace_graph_outputs=True)
        model.graph.remove(node, safe=True)
        notes.fired += 1


def _type_of(value: ir.Value | None) -> ir.DataType | None:
    constant = constant_of(value)
    if constant is not None:
        return constant.dtype
    return None if value is None else value.dtype
