"""Float16, bfloat16 and float64 models as float32 ones, which is what is quantized.

Every number of 16 bits is one of 32, so that nothing changes but how results are rounded on the
way; and float64 only goes where a whole model computes in it, so that what is small beside a step
of 16 bits is all that is lost. What the model takes and gives keeps its type, through a Cast.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from vermilion.quantize.names import Names

_HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_REAL = _HALVES | {ir.DataType.FLOAT}
_TYPE_ATTRIBUTES = ("to", "dtype", "stash_type", "output_datatype")


def widened(model: ir.Model) -> ir.Model:
    """Return `model` itself, or where it computes in 16 or 64 bits a copy that computes in 32."""
    kinds = _HALVES
    if not any(_has(value.type, _REAL) for value in _all_values(model)):
        kinds |= {ir.DataType.DOUBLE}
    if not any(_has(value.type, kinds) for value in _all_values(model)):
        return model
    work = model.clone()
    common.RemoveInitializersFromInputsPass()(work)
    given = [(v, own) for v in work.graph.inputs if (own := _one_of(v.type, kinds)) is not None]
    taken = [_one_of(value.type, kinds) for value in work.graph.outputs]
    for graph in work.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None and value.const_value.dtype in kinds:
                value.const_value = _wide(value.const_value)
        for node in graph:
            _widen_attributes(node, kinds)
    for value in _all_values(work):
        if _has(value.type, kinds) and value.type is not None:
            value.type = _wide_type(value.type)
    names = Names(work.graph)
    for value, own in given:
        _widen_input(work.graph, value, own, names)
    for place, narrow in enumerate(taken):
        if narrow is not None:
            _narrow_output(work.graph, place, narrow, names)
    _drop_idle_casts(work)
    return work


def _all_values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from graph.inputs
        yield from graph.initializers.values()
        for node in graph:
            yield from node.outputs


def _one_of(kind: ir.TypeProtocol | None, kinds: Collection[ir.DataType]) -> ir.DataType | None:
    if isinstance(kind, ir.TensorType) and kind.dtype in kinds:
        return kind.dtype
    return None


def _has(kind: ir.TypeProtocol | None, kinds: Collection[ir.DataType]) -> bool:
    if isinstance(kind, ir.SequenceType | ir.OptionalType):
        return _has(kind.elem_type, kinds)
    return _one_of(kind, kinds) is not None


def _wide_type(kind: ir.TypeProtocol) -> ir.TypeProtocol:
    if isinstance(kind, ir.SequenceType):
        return ir.SequenceType(_wide_type(kind.elem_type))
    if isinstance(kind, ir.OptionalType):
        return ir.OptionalType(_wide_type(kind.elem_type))
    return ir.TensorType(ir.DataType.FLOAT)


def _wide(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.Tensor(tensor.numpy().astype(np.float32), name=tensor.name)


def _widen_attributes(node: ir.Node, kinds: Collection[ir.DataType]) -> None:
    for name, attribute in list(node.attributes.items()):
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.TENSOR:
            tensor = attribute.as_tensor()
            if tensor.dtype in kinds:
                node.attributes[name] = ir.AttrTensor(name, _wide(tensor))
        elif (
            name in _TYPE_ATTRIBUTES
            and attribute.type == ir.AttributeType.INT
            and attribute.as_int() in {int(kind) for kind in kinds}
        ):
            node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))


def _cast(value: ir.Value, to: ir.DataType, name: str) -> ir.Node:
    node = ir.node("Cast", [value], {"to": int(to)}, name=name)
    node.outputs[0].type, node.outputs[0].shape = ir.TensorType(to), value.shape
    return node


def _widen_input(graph: ir.Graph, value: ir.Value, own: ir.DataType, names: Names) -> None:
    """Let the graph take what it took; all in it read the wide copy."""
    readers = [(use.node, use.idx) for use in value.uses()]
    value.type = ir.TensorType(own)
    cast = _cast(value, ir.DataType.FLOAT, names.free(f"{value.name}_Cast"))
    cast.outputs[0].name = names.free(f"{value.name}_float")
    first = next(iter(graph), None)
    if first is None:
        graph.append(cast)
    else:
        graph.insert_before(first, cast)
    for node, index in readers:
        node.replace_input_with(index, cast.outputs[0])
    for place, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[place] = cast.outputs[0]


def _narrow_output(graph: ir.Graph, place: int, own: ir.DataType, names: Names) -> None:
    inner = graph.outputs[place]
    cast = _cast(inner, own, names.free(f"{inner.name}_Cast"))
    result = cast.outputs[0]
    if inner.producer() is not None:
        result.name, inner.name = inner.name, names.free(f"{inner.name}_float")
    else:
        result.name = names.free(f"{inner.name}_cast")
    graph.append(cast)
    graph.outputs[place] = result


def _drop_idle_casts(model: ir.Model) -> None:
    """Drop what casts float32 to float32."""
    for graph in model.graphs():
        for node in list(graph):
            if node.op_type != "Cast" or node.domain not in ("", "ai.onnx"):
                continue
            source, result = node.inputs[0], node.outputs[0]
            wide = ir.DataType.FLOAT
            is_idle = source is not None and source.dtype == wide
            if is_idle and node.attributes["to"].as_int() == wide and not result.is_graph_output():
                assert source is not None, "it was looked at"
                for use in tuple(result.uses()):
                    use.node.replace_input_with(use.idx, source)
                graph.remove(node, safe=True)
