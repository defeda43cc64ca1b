"""Schemes without integers: bfloat16, float16, and blocks that share exponents.

No range is calibrated; samples say what it costs in accuracy, and for 16 bits what weights are
multiplied with (`float_weights`).

Before → after, bf16 and fp16, for a tensor X and a weight W:
    X → Cast to 16 bits → Cast to float → its readers; W is stored in 16 bits and read through Cast
Blocks: X → a function of the model that rounds → matrix products; W is stored rounded, as float32.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common

from vermilion.errors import UnsupportedError
from vermilion.hardware.targets.npu import OPERATORS as TAKEN
from vermilion.ir.attributes import flag
from vermilion.quantize.blocks import FORMATS, round_to
from vermilion.quantize.bodies import bodies_of, types_within
from vermilion.quantize.cost import PRODUCTS
from vermilion.quantize.emulate import add_emulation
from vermilion.quantize.formats import FloatScheme
from vermilion.quantize.names import Names
from vermilion.quantize.plan import excluded_nodes

_CAST_TO = {"bf16": ir.DataType.BFLOAT16, "fp16": ir.DataType.FLOAT16}
_STORED = {"bf16": np.dtype(ml_dtypes.bfloat16), "fp16": np.dtype(np.float16)}
_LARGEST = {"bf16": np.float32((2.0 - 2.0**-7) * 2.0**127), "fp16": np.float32(65504.0)}

# Give values that were there already, or pick among them: rounding again changes nothing.
_EXACT = frozenset(
    {
        *("Relu", "MaxPool", "GlobalMaxPool", "Concat", "Max", "Min", "Abs", "Neg", "Identity"),
        *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile", "Slice"),
        *("Split", "DepthToSpace", "SpaceToDepth", "Gather", "ReduceMax", "ReduceMin", "Pad"),
    }
)

# Their constants are numbers to compute with, not bounds, axes or sizes.
_COMPUTES = PRODUCTS | {
    *("Add", "Sub", "Mul", "Div", "PRelu", "Pow"),
    *("BatchNormalization", "InstanceNormalization", "LayerNormalization"),
    *("GroupNormalization",),
}


def float_nodes(
    graph: ir.Graph,
    scheme: FloatScheme,
    types: Mapping[str, ir.DataType],
    exclude: Sequence[str],
) -> list[ir.Node]:
    """Return the nodes of the main graph that the scheme rounds."""
    return _taken(graph, scheme, types, excluded_nodes(graph, exclude))


def _taken(
    graph: ir.Graph,
    scheme: FloatScheme,
    types: Mapping[str, ir.DataType],
    skipped: Collection[ir.Node],
) -> list[ir.Node]:
    column = TAKEN["bf16"] if scheme.all_tensors else PRODUCTS
    return [
        node
        for node in graph
        if node.op_type in column
        and node.domain in ("", "ai.onnx")
        and node not in skipped
        and types.get(str(node.outputs[0].name)) == ir.DataType.FLOAT
    ]


def write_floats(
    work: ir.Model,
    scheme: FloatScheme,
    types: Mapping[str, ir.DataType],
    exclude: Sequence[str],
) -> int:
    """Rewrite `work` in place; give how many tensors are rounded.

    Raises: UnsupportedError where there is nothing to round, or a block has no known length.
    """
    graph = work.graph
    skipped = excluded_nodes(graph, exclude)
    nodes = _taken(graph, scheme, types, skipped)
    if not scheme.all_tensors:
        count = _write_blocks(work, nodes, scheme.number)
    else:
        names = Names(graph)
        count = write_casts(graph, nodes, scheme.number, types, names)
        for body in bodies_of(graph):
            own = types_within(body.graph)
            inner = _taken(body.graph, scheme, own, skipped)
            count += write_casts(body.graph, inner, scheme.number, own, names.within(body.graph))
    if not count:
        raise UnsupportedError(
            f"no operator of this model can be computed in {scheme.name}",
            where=f"{sum(1 for _ in graph)} nodes",
            hint="float32 operators such as Conv, MatMul and Add are",
        )
    return count


def write_casts(
    graph: ir.Graph,
    nodes: Sequence[ir.Node],
    number: str,
    types: Mapping[str, ir.DataType],
    names: Names,
) -> int:
    """Let nodes of one graph compute in 16 bits; give how many tensors are rounded."""
    taken = frozenset(nodes)
    count = 0
    for value in _constants_of(nodes):
        _store_narrow(graph, value, number, taken, names)
        count += 1
    made = [
        value
        for node in nodes
        if node.op_type not in _EXACT
        for value in node.outputs
        if types.get(str(value.name)) == ir.DataType.FLOAT
    ]
    for value in (*_given(graph, taken, types), *made):
        _round_through(graph, value, number, names)
        count += 1
    return count


def write_narrow_nodes(work: ir.Model, nodes: Collection[ir.Node], number: str) -> None:
    """Let some nodes of the main graph compute in 16 bits: what they read is rounded for them."""
    graph, names = work.graph, Names(work.graph)
    column = TAKEN["bf16"] - {"Cast"}
    taken = [n for n in graph if n in nodes and n.op_type in column and n.domain in ("", "ai.onnx")]
    makers = frozenset(taken)
    for value in _constants_of(taken):
        _store_narrow(graph, value, number, makers, names)
    read = {
        value: None
        for node in taken
        for value in node.inputs
        if value is not None and value.dtype == ir.DataType.FLOAT and value.const_value is None
    }
    for value in read:
        maker = value.producer()
        if maker not in makers and (maker is None or maker.op_type != "Cast"):
            _round_through(graph, value, number, names, makers)
    for node in taken:
        for value in node.outputs if node.op_type not in _EXACT else ():
            if value.dtype == ir.DataType.FLOAT:
                _round_through(graph, value, number, names)


def _given(
    graph: ir.Graph, taken: Collection[ir.Node], types: Mapping[str, ir.DataType]
) -> list[ir.Value]:
    """Return what the nodes read that no node of this graph makes."""
    found: dict[ir.Value, None] = {}
    for node in graph:
        for value in node.inputs if node in taken else ():
            if value is None or value.const_value is not None:
                continue
            maker = value.producer()
            is_given = maker is None or maker.graph is not graph
            if is_given and types.get(str(value.name)) == ir.DataType.FLOAT:
                found[value] = None
    return list(found)


def _constants_of(nodes: Sequence[ir.Node]) -> Iterator[ir.Value]:
    found = {
        value: None
        for node in nodes
        if node.op_type in _COMPUTES
        for value in node.inputs
        if value is not None
        and value.const_value is not None
        and value.const_value.dtype == ir.DataType.FLOAT
    }
    yield from found


def _narrowed(array: NDArray[np.float32], number: str) -> NDArray[np.generic]:
    """Return a constant in 16 bits; what is finite stays so.

    Masks multiply the lowest float32 with 0 and 1: were it minus infinity, 0 would give NaN.
    """
    rounded = round_to(array, number, 0)
    grown = np.isinf(rounded) & np.isfinite(array)
    kept = np.where(grown, np.copysign(_LARGEST[number], array), rounded)
    narrow: NDArray[np.generic] = kept.astype(_STORED[number])
    return narrow


def _store_narrow(
    graph: ir.Graph, value: ir.Value, number: str, taken: frozenset[ir.Node], names: Names
) -> None:
    assert value.const_value is not None, "a constant has a value"
    narrow = _narrowed(value.const_value.numpy(), number)
    stored = names.constant(f"{value.name}_{number}", narrow)
    readers = [(use.node, use.idx) for use in value.uses() if use.node in taken]
    cast = ir.node(
        "Cast", [stored], {"to": int(ir.DataType.FLOAT)}, name=names.free(f"{value.name}_Cast")
    )
    result = cast.outputs[0]
    result.name = names.free(f"{value.name}_float")
    result.type, result.shape = ir.TensorType(ir.DataType.FLOAT), value.shape
    for node, index in readers:
        node.replace_input_with(index, result)
    order = {node: index for index, node in enumerate(graph)}
    graph.insert_before(min((node for node, _ in readers), key=order.__getitem__), cast)
    owner = value.graph
    if isinstance(owner, ir.Graph) and not value.uses() and not value.is_graph_output():
        owner.initializers.pop(str(value.name), None)


def _round_through(
    graph: ir.Graph,
    value: ir.Value,
    number: str,
    names: Names,
    only: Collection[ir.Node] | None = None,
) -> None:
    """Round what all of a graph, or `only` these nodes, read."""
    readers = [
        (use.node, use.idx)
        for use in value.uses()
        if use.node.graph is graph and (only is None or use.node in only)
    ]
    producer = value.producer()
    if producer is not None and producer.graph is not graph:
        producer = None  # of a graph around this one
    narrow = ir.node(
        "Cast", [value], {"to": int(_CAST_TO[number])}, name=names.free(f"{value.name}_to_{number}")
    )
    narrow.outputs[0].name = names.free(f"{value.name}_{number}")
    narrow.outputs[0].type = ir.TensorType(_CAST_TO[number])
    narrow.outputs[0].shape = value.shape
    wide = ir.node(
        "Cast",
        [narrow.outputs[0]],
        {"to": int(ir.DataType.FLOAT)},
        name=names.free(f"{value.name}_from_{number}"),
    )
    _put_behind(graph, value, producer, [narrow, wide], readers, names, replaces=only is None)


def _put_behind(
    graph: ir.Graph,
    value: ir.Value,
    producer: ir.Node | None,
    nodes: Sequence[ir.Node],
    readers: Sequence[tuple[ir.Node, int]],
    names: Names,
    *,
    replaces: bool = True,
) -> None:
    """Put nodes behind `value`; readers, and the caller of the graph, read their result."""
    result = nodes[-1].outputs[0]
    result.type, result.shape = value.type, value.shape
    if replaces and producer is not None and value.is_graph_output():
        index = next(i for i, output in enumerate(graph.outputs) if output is value)
        graph.outputs[index] = result
        result.name, value.name = value.name, names.free(f"{value.name}_exact")
    else:
        result.name = names.free(f"{value.name}_rounded")
    if producer is None:
        graph.insert_before(next(iter(graph)), nodes)
    else:
        graph.insert_after(producer, nodes)
    for node, index in readers:
        node.replace_input_with(index, result)


def _write_blocks(work: ir.Model, nodes: Sequence[ir.Node], number: str) -> int:
    graph = work.graph
    names = Names(graph)
    done: dict[tuple[ir.Value, int], ir.Value] = {}
    for node in nodes:
        for index, value in enumerate(node.inputs[:2]):
            if value is None or value.dtype not in (None, ir.DataType.FLOAT):
                continue
            rank, axis = _summed_axis(node, index, value)
            key = (value, axis)
            if key not in done:
                done[key] = (
                    _emulated(work, node, value, number, (rank, axis), names)
                    if value.const_value is None
                    else _stored_rounded(graph, value, number, axis, names)
                )
            node.replace_input_with(index, done[key])
    for value, _ in done:
        if value.const_value is not None and not value.uses() and not value.is_graph_output():
            del graph.initializers[str(value.name)]
    # Not every runtime follows functions of a model (OpenVINO 2026.4 does not follow these).
    common.InlinePass()(work)
    return len(done)


def _stored_rounded(
    graph: ir.Graph, value: ir.Value, number: str, axis: int, names: Names
) -> ir.Value:
    assert value.const_value is not None, "a constant has a value"
    return names.constant(
        f"{value.name}_{number}", round_to(value.const_value.numpy(), number, axis)
    )


def _emulated(
    work: ir.Model,
    node: ir.Node,
    value: ir.Value,
    number: str,
    place: tuple[int, int],
    names: Names,
) -> ir.Value:
    rank, axis = place
    length = None if value.shape is None else value.shape[axis]
    if not isinstance(length, int):
        raise UnsupportedError(
            f"blocks along axis {axis} of `{value.name}` need a known length",
            where=f"node `{node.name}`, {node.op_type}",
            hint="fix the shapes with `--dim`",
        )
    domain, name = add_emulation(work, FORMATS[number], rank, axis, length)
    emulation = ir.node(name, [value], domain=domain, name=names.free(f"{value.name}_{number}"))
    result = emulation.outputs[0]
    result.name = names.free(f"{value.name}_rounded")
    result.type, result.shape = value.type, value.shape
    producer = value.producer()
    if producer is None:
        work.graph.insert_before(next(iter(work.graph)), emulation)
    else:
        work.graph.insert_after(producer, emulation)
    return result


def _summed_axis(node: ir.Node, index: int, value: ir.Value) -> tuple[int, int]:
    """Return rank and axis of what a product sums over; blocks lie along it."""
    shape = value.shape if value.const_value is None else value.const_value.shape
    if shape is None:
        raise UnsupportedError(
            f"the shape of `{value.name}` is not known",
            where=f"node `{node.name}`, {node.op_type}",
            hint="fix the shapes with `--dim`",
        )
    rank = len(shape)
    if node.op_type == "Conv":
        return rank, 1
    if node.op_type == "ConvTranspose":
        return rank, 1 - index
    if node.op_type == "Gemm":
        turned = flag(node, "transA" if index == 0 else "transB")
        return rank, int((index == 0) != turned)
    return rank, rank - 1 if index == 0 or rank == 1 else rank - 2
