"""What is legal in a graph, whoever made it: an exporter, a pass, or somebody with bad intent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from vermilion.errors import ModelError
from vermilion.ir.opset import bodies_of, constant_of, sources_of, tensor_sizes, where

MAX_DEPTH = 16
"""Bodies in bodies (If, Loop, Scan). Real models stay below four."""

_QUANTIZERS = {"QuantizeLinear", "DequantizeLinear"}  # also those of other domains


_UNSIZED = (ir.DataType.STRING, ir.DataType.COMPLEX64, ir.DataType.COMPLEX128)


@dataclass(frozen=True)
class _Scope:
    """A graph and the graphs around it, itself last: their values are visible in it."""

    graph: ir.Graph
    around: tuple[int, ...]


def check_graph(model: ir.Model) -> None:
    """Go through the whole model once and raise for the first thing that is not legal.

    Checked: nesting, names (missing, twice), every input has a source, no cycles, an imported
    opset for each domain, weights that are what they are declared to be, scales that are
    positive numbers. Nodes need not be sorted. Weights are not read, scales apart.

    Raises: ModelError naming the node and its operator.
    """
    functions = {key[:2] for key in model.functions}
    _check_tree(model.graph, model.graph.opset_imports, functions)
    for function in model.functions.values():
        _check_tree(function.graph, function.opset_imports, functions)


def _check_tree(
    root: ir.Graph, imports: Mapping[str, int], functions: set[tuple[str, str]]
) -> None:
    scopes = list(_scopes(root))  # depth is checked before anything looks into bodies
    owners: dict[int, int] = {}
    scales: set[int] = set()
    for scope in scopes:
        _register(scope.graph, owners)
        _check_acyclic(scope.graph)
        for node in scope.graph:
            _check_domain(node, imports, functions)
            _check_inputs(node, scope, owners)
            _check_constants(node)
            _check_scale(node, scales)
        _check_outputs(scope, owners)


def _scopes(root: ir.Graph) -> Iterator[_Scope]:
    """Yield `root` and the bodies below it, outer ones first."""
    pending = [_Scope(root, (id(root),))]
    while pending:
        scope = pending.pop()
        yield scope
        for node in scope.graph:
            for body in bodies_of(node):
                if len(scope.around) >= MAX_DEPTH:
                    raise ModelError(
                        f"bodies of If, Loop or Scan are nested more than {MAX_DEPTH} deep",
                        where=where(node),
                        hint="no exporter writes this: do not trust the file",
                    )
                pending.append(_Scope(body, (*scope.around, id(body))))


def _register(graph: ir.Graph, owners: dict[int, int]) -> None:
    """Note which graph each value belongs to; refuse a name that is given twice."""
    names: set[str] = set()

    def claim(value: ir.Value, place: str) -> None:
        if not value.name:
            raise ModelError("a value has no name", where=place)
        if value.name in names:
            raise ModelError(
                f"the name `{value.name}` is given twice",
                where=place,
                hint="each value of a graph needs a name of its own: export the model again",
            )
        names.add(value.name)
        owners[id(value)] = id(graph)

    for value in graph.inputs:
        claim(value, "graph inputs")
    for value in graph.initializers.values():
        if not value.is_graph_input():
            claim(value, "weights")
        _check_weight(value)
    for node in graph:
        for value in node.outputs:
            if value.name:
                claim(value, where(node))


def _check_inputs(node: ir.Node, scope: _Scope, owners: Mapping[int, int]) -> None:
    for value in node.inputs:
        if value is not None and owners.get(id(value)) not in scope.around:
            raise ModelError(
                f"nothing gives the value `{value.name}`",
                where=where(node),
                hint="the file is damaged or was cut from a larger model: export it again",
            )


def _check_outputs(scope: _Scope, owners: Mapping[int, int]) -> None:
    names: set[str] = set()
    for value in scope.graph.outputs:
        if owners.get(id(value)) not in scope.around:
            raise ModelError(f"nothing gives the output `{value.name}`", where="graph outputs")
        if (value.name or "") in names:
            raise ModelError(f"the output `{value.name}` is listed twice", where="graph outputs")
        names.add(value.name or "")


def _check_domain(
    node: ir.Node, imports: Mapping[str, int], functions: set[tuple[str, str]]
) -> None:
    if not node.op_type:
        raise ModelError("a node has no operator", where=where(node))
    if node.domain in imports or (node.domain == "" and "ai.onnx" in imports):
        return
    if (node.domain, node.op_type) in functions:
        return
    raise ModelError(
        f"the model imports no version of the domain `{node.domain or 'ai.onnx'}`",
        where=where(node),
        hint="the file's `opset_import` is incomplete: export the model again",
    )


def _check_acyclic(graph: ir.Graph) -> None:
    """Raise where a node waits for its own result, through bodies, too."""
    needs = {id(node): sources_of(node, graph) for node in graph}
    seen: set[int] = set()
    for key, sources in needs.items():
        if not sources <= seen:
            break
        seen.add(key)
    else:
        return  # sorted, as nearly every file is
    readers: dict[int, list[int]] = {}
    for key, sources in needs.items():
        for source in sources:
            readers.setdefault(source, []).append(key)
    waiting = {key: len(sources) for key, sources in needs.items()}
    ready = [key for key, count in waiting.items() if count == 0]
    while ready:
        key = ready.pop()
        del waiting[key]
        for reader in readers.get(key, ()):
            waiting[reader] -= 1
            if waiting[reader] == 0:
                ready.append(reader)
    if waiting:
        stuck = next(node for node in graph if id(node) in waiting)
        raise ModelError(
            "the graph has a cycle: a node waits for its own result", where=where(stuck)
        )


def _check_constants(node: ir.Node) -> None:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.UNDEFINED:
            raise ModelError(
                f"its attribute `{attribute.name}` has no type",
                where=where(node),
                hint="the file is damaged; export or download it again",
            )
        if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
            # `as_tensor` asks it for its size, which such a tensor does not have.
            if attribute.value.dtype == ir.DataType.UNDEFINED:
                raise ModelError(
                    f"its attribute `{attribute.name}` holds a tensor without a data type",
                    where=where(node),
                    hint="the file is damaged; export or download it again",
                )
            _check_stored(attribute.as_tensor(), where(node))


def _check_weight(value: ir.Value) -> None:
    tensor = value.const_value
    place = f"weight `{value.name}`"
    if tensor is None:
        return
    _check_stored(tensor, place)
    shape = tensor_sizes(tensor)
    if value.dtype is not None and value.dtype != tensor.dtype:
        raise ModelError(
            f"declared as {value.dtype.name}, stored as {tensor.dtype.name}", where=place
        )
    declared = value.shape.dims if value.shape is not None else shape
    if len(declared) != len(shape) or any(
        isinstance(a, int) and a >= 0 and a != b for a, b in zip(declared, shape, strict=True)
    ):
        raise ModelError(f"declared as {value.shape}, stored as {list(shape)}", where=place)


def _check_stored(tensor: ir.TensorProtocol, place: str) -> None:
    shape = tensor_sizes(tensor)
    if any(size < 0 for size in shape):
        raise ModelError(f"the shape {list(shape)} has a negative size", where=place)
    stored = _stored_bytes(tensor)
    needed = 0 if stored is None else (math.prod(shape) * tensor.dtype.bitwidth + 7) // 8
    if stored is not None and stored != needed:
        raise ModelError(
            f"shape {list(shape)} of {tensor.dtype.name} needs {needed} bytes, {stored} are there",
            where=place,
            hint="the file is damaged: download or export it again",
        )
    if stored is not None and math.prod(shape) * tensor.dtype.bitwidth % 8:
        _check_padding(tensor, place)


def _check_padding(tensor: ir.TensorProtocol, place: str) -> None:
    """Unpack numbers that end inside a byte: what is behind them may be said to be wrong."""
    try:
        tensor.numpy()
    except ValueError as error:
        raise ModelError(
            f"its {tensor.dtype.name} cannot be unpacked: {error}",
            where=place,
            hint="the file is damaged: download or export it again",
        ) from error


def _stored_bytes(tensor: ir.TensorProtocol) -> int | None:
    """Return what lies in the file for the tensor, None where that cannot be told."""
    if tensor.dtype in _UNSIZED:
        return None
    if isinstance(tensor, ir.ExternalTensor):
        return tensor.length
    if not isinstance(tensor, ir.TensorProtoTensor):
        return None
    proto = tensor.raw
    if proto.HasField("raw_data"):
        return len(proto.raw_data)
    width = tensor.dtype.bitwidth
    counts = (
        len(proto.float_data),
        len(proto.int64_data),
        len(proto.double_data) if width == 64 else 0,
        len(proto.uint64_data),
    )
    if any(counts):
        return (max(counts) * width + 7) // 8
    if width < 8:  # packed, two or more in each int32
        return len(proto.int32_data) or None
    return len(proto.int32_data) * width // 8


def _check_scale(node: ir.Node, sound: set[int]) -> None:
    """Check the scale of a quantizer; `sound` are the ids of those that were looked at."""
    if node.op_type not in _QUANTIZERS or len(node.inputs) < 2:
        return
    tensor = constant_of(node.inputs[1])
    if tensor is None or id(tensor) in sound or not tensor.dtype.is_floating_point():
        return
    sound.add(id(tensor))
    if tensor.dtype.bitwidth < 16:  # block formats keep exponents there, all of them legal
        return
    scale = tensor.numpy().astype(np.float64)
    if not np.isfinite(scale).all():
        raise ModelError("its scale is not a number or is infinite", where=where(node))
    # Four bits reach further on one side: where that is the wrong one, the scale is negative, in
    # our files as in ONNX Runtime's. Only products read them, so that no order is turned.
    turned = node.op_type == "DequantizeLinear" and "block_size" in node.attributes
    wrong = scale[scale == 0 if turned else scale <= 0]
    if wrong.size:
        raise ModelError(
            f"its scale is {float(wrong.min()):g}, and has to be above 0",
            where=where(node),
            hint="quantize the model again",
        )
