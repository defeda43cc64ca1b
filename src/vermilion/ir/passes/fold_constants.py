"""Computing now what depends on no input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.errors import VermilionError
from vermilion.ir.literal.run import run_literally
from vermilion.ir.opset import (
    constant_of,
    is_random,
    static_shape,
    tensor_bytes,
    where,
)
from vermilion.ir.passes.constant_nodes import inferred, model_of, replace_by_weights
from vermilion.ir.passes.follow_sizes import follow_sizes, size_of
from vermilion.ir.passes.infer_shapes import infer_shapes
from vermilion.ir.passes.rewrite import Notes

Array = NDArray[Any]

MAX_BYTES = 64 << 20
"""No folded result is larger."""

FREE_BYTES = 4 << 20
"""Results up to this size are always worth it; larger ones must not outgrow their inputs."""

MAX_GROWTH = 2

MAX_ROUNDS = 32
"""Of folding and inference in turns; PP-OCR recognition needs four."""

_TYPES = {
    ir.DataType.FLOAT,
    ir.DataType.DOUBLE,
    ir.DataType.FLOAT16,
    ir.DataType.BOOL,
    ir.DataType.INT8,
    ir.DataType.INT16,
    ir.DataType.INT32,
    ir.DataType.INT64,
    ir.DataType.UINT8,
    ir.DataType.UINT16,
    ir.DataType.UINT32,
    ir.DataType.UINT64,
}

# Computing these would undo the number format that the file was written in.
_KEPT = {"Constant", "DequantizeLinear"}


@dataclass
class _Wave:
    """Nodes computed in one run: each reads constants or results of the same wave."""

    nodes: list[ir.Node] = field(default_factory=list)
    results: dict[int, ir.Value] = field(default_factory=dict)
    total_bytes: int = 0


def fold_constants(model: ir.Model, notes: Notes) -> None:
    """Before → after: `c2 = F(c1)`, or Shape and Size of a value of known sizes → a weight `c2`.

    Whole numbers that follow from shapes come first, in one walk (`follow_sizes`). ONNX Runtime
    computes the others, several nodes at a time; shapes are inferred in between, since the target
    of a Reshape, once a constant, makes more sizes known. Left alone: random
    nodes, nodes with bodies, DequantizeLinear (its integers are the point), results that are
    outputs of the model, that are too large (`MAX_BYTES`) or outgrow what they are made from.
    """
    for _ in range(MAX_ROUNDS):
        before = notes.fired
        refusals = _fold_known(model, notes)
        if notes.fired == before:
            break
        infer_shapes(model, Notes())
    for node in model.graph:
        if id(node) in refusals:
            notes.refuse(where(node), refusals[id(node)])


def _fold_known(model: ir.Model, notes: Notes) -> dict[int, str]:
    """Fold all that can be folded with the shapes as they are; give what could not and why."""
    refused: dict[int, str] = {}
    follow_sizes(model, notes)
    _fold_sizes(model, refused, notes)
    while True:
        wave = _next_wave(model, refused)
        if not wave.nodes:
            return refused
        _compute(model, wave, refused, notes)


def _fold_sizes(model: ir.Model, refused: dict[int, str], notes: Notes) -> None:
    """Replace Shape and Size of values whose sizes are known, though their contents are not."""
    for node in model.graph:
        if size_of(node) is None:
            continue
        if node.outputs[0].is_graph_output():
            refused[id(node)] = "its result is an output of the model"
            continue
        result = size_of(node)
        assert result is not None
        replace_by_weights(model.graph, node, {node.outputs[0].name or "": result})
        notes.fired += 1


def _next_wave(model: ir.Model, refused: dict[int, str]) -> _Wave:
    wave = _Wave()
    for node in model.graph:
        if id(node) in refused or not _is_constant(node, wave):
            continue
        if any(value.is_graph_output() for value in node.outputs):
            refused[id(node)] = "its result is an output of the model"
            continue
        sizes = _result_bytes(model, node)
        if sizes is None:
            # Its size depends on values of this wave: the next one knows them.
            if any(id(value) in wave.results for value in node.inputs):
                continue
            refused[id(node)] = "the size or type of its result is not known beforehand"
            continue
        reason = _too_large(node, sizes)
        if reason:
            refused[id(node)] = reason
            continue
        if wave.total_bytes + sizes > 4 * MAX_BYTES:
            break
        wave.nodes.append(node)
        wave.results.update({id(value): value for value in node.outputs if value.name})
        wave.total_bytes += sizes
    return wave


def _is_constant(node: ir.Node, wave: _Wave) -> bool:
    if node.op_type in _KEPT or node.domain != "" or is_random(node):
        return False
    if any(
        a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) or a.is_ref()
        for a in node.attributes.values()
    ):
        return False
    return all(
        value is None or id(value) in wave.results or constant_of(value) is not None
        for value in node.inputs
    )


def _result_bytes(model: ir.Model, node: ir.Node) -> int | None:
    """Return the size of all results, None where it cannot be told before running."""
    results = [value for value in node.outputs if value.name]
    if any(value.dtype is None or static_shape(value) is None for value in results):
        for value, (dtype, shape) in zip(results, inferred(model, node), strict=False):
            if dtype is not None and shape is not None:
                value.type, value.shape = ir.TensorType(dtype), ir.Shape(shape)
    total = 0
    for value in results:
        dtype, shape = value.dtype, static_shape(value)
        if dtype is None or shape is None or dtype not in _TYPES:
            return None
        total += math.prod(shape) * max(1, dtype.bitwidth // 8)
    return total if results else None


def _too_large(node: ir.Node, sizes: int) -> str:
    if sizes > MAX_BYTES:
        return f"its result has {sizes} bytes, more than {MAX_BYTES}"
    given = sum(
        tensor_bytes(tensor) for tensor in map(constant_of, node.inputs) if tensor is not None
    )
    if sizes > FREE_BYTES and sizes > MAX_GROWTH * given:
        return f"it would turn {given} bytes into {sizes}"
    return ""


def _compute(model: ir.Model, wave: _Wave, refused: dict[int, str], notes: Notes) -> None:
    try:
        results = _run(model, wave.nodes)
    except VermilionError as error:
        if len(wave.nodes) == 1:
            refused[id(wave.nodes[0])] = error.message
            return
        # Halve until the node that cannot be run stands alone; the rest goes through.
        middle = len(wave.nodes) // 2
        for nodes in (wave.nodes[:middle], wave.nodes[middle:]):
            ready = _ready(nodes)
            if ready:
                _compute(model, _Wave(ready), refused, notes)
        return
    for node in wave.nodes:
        replace_by_weights(model.graph, node, results)
        notes.fired += 1


def _ready(nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Keep what does not wait for a node outside of `nodes`."""
    wave = _Wave()
    for node in nodes:
        if _is_constant(node, wave):
            wave.nodes.append(node)
            wave.results.update({id(value): value for value in node.outputs if value.name})
    return wave.nodes


def _run(model: ir.Model, nodes: Sequence[ir.Node]) -> dict[str, Array]:
    """Run copies of `nodes` as a model of their own."""
    return dict(run_literally(model_of(model, nodes), {}).outputs)
