"""A float32 model as one that computes in float16 where that is safe.

    x → Conv → Relu → Softmax → y      becomes
    x → Cast(f16) → Conv → Relu → Cast(f32) → Softmax → y

Inputs and outputs keep their types. Sums over many elements, exponentials and normalizations stay
in float32, and so does what leaves float16's range: on a trial run, or by a constant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from vermilion.backends.base import LARGEST_FLOAT16, Array, Tensors
from vermilion.errors import Refusal, UnsupportedError
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.literal.run import run_literally
from vermilion.ir.measure import agreement
from vermilion.ir.samples import draw_accepted
from vermilion.quantize.blocks import round_to
from vermilion.quantize.cost import PRODUCTS
from vermilion.quantize.names import Names

# These give values that were there already.
_MOVES = frozenset(
    (
        *("Relu", "MaxPool", "GlobalMaxPool", "Concat", "Max", "Min", "Abs", "Neg", "Identity"),
        *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile", "Slice"),
        *("Split", "DepthToSpace", "SpaceToDepth", "Gather", "ReduceMax", "ReduceMin", "Pad"),
    )
)
# Products accumulate in float32 inside the matrix units; the others round each result once.
_IN_HALF = (
    PRODUCTS
    | _MOVES
    | {
        *("Add", "Sub", "Mul", "Clip", "LeakyRelu", "PRelu", "Where", "AveragePool"),
        *("Sigmoid", "Tanh", "HardSigmoid", "HardSwish"),
    }
)
# A factor of two is left to inputs that are not the trial's.
_LARGEST = LARGEST_FLOAT16
_TRIAL_LARGEST = _LARGEST / 2
MIN_COSINE = 0.99
_NOTHING = 1e-6
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


@dataclass(frozen=True)
class Half:
    """The converted model, and what it costs.

    `kept` says why a node stays in float32, by the name of its first output; `values` are the
    names of the tensors that are float16 now.
    """

    model: ir.Model
    converted: int
    kept: dict[str, str]
    min_cosine: float  # of the outputs against float32, on the trial run
    values: frozenset[str] = frozenset()


def to_half(model: ir.Model) -> Half:
    """Return `model`, which is not changed, in float16 where that is safe.

    Raises: UnsupportedError where nothing can be converted, or an output is not the same.
    """
    work = model.clone()
    inputs = _accepted(model)
    candidates = [node for node in work.graph if _is_candidate(node)]
    kept = {_key(node): "its constant is beyond float16" for node in candidates if _is_far(node)}
    kept |= _beyond_range(model, [n for n in candidates if _key(n) not in kept], inputs)
    taken = [node for node in candidates if _key(node) not in kept]
    detours = _detours(taken)
    kept |= {_key(node): "what it moves was computed in float32" for node in detours}
    taken = [node for node in taken if node not in detours]
    if not taken:
        raise UnsupportedError(
            "no operator of this part can be computed in float16",
            hint="compile with `--precision fp32`",
        )
    values = frozenset(
        str(v.name)
        for node in taken
        for v in (*node.inputs, *node.outputs)
        if v is not None and v.dtype == ir.DataType.FLOAT and v.const_value is None
    )
    _rewrite(work.graph, taken)
    return Half(work, len(taken), kept, _checked(model, work, inputs), values)


def _accepted(model: ir.Model) -> Tensors:
    session = open_session(model, optimize=False, quiet=True)
    found = draw_accepted(model, "ordinary", lambda inputs: run_session(session, inputs))
    if isinstance(found, Refusal):
        raise UnsupportedError(found.reason, hint=found.hint)
    return found[0].inputs


def _key(node: ir.Node) -> str:
    """Return the name of the node's first output: names of nodes need not be there, or differ."""
    return str(node.outputs[0].name)


def _is_candidate(node: ir.Node) -> bool:
    if node.op_type not in _IN_HALF or node.domain not in ("", "ai.onnx"):
        return False
    return all(value.dtype == ir.DataType.FLOAT for value in node.outputs if value.name)


def _detours(taken: list[ir.Node]) -> set[ir.Node]:
    """Return the nodes that only move values which a float32 node has computed.

    In float16 they would round them for nothing, the outputs of a last Softmax among them.
    """
    inside = set(taken)
    for node in taken:  # in the order of the graph, so that a chain of them is followed
        makers = [v.producer() for v in node.inputs if v is not None and v.dtype in _FLOATS]
        made = [maker for maker in makers if maker is not None]
        if node.op_type in _MOVES and made and not any(maker in inside for maker in made):
            inside.discard(node)
    return set(taken) - inside


def _is_far(node: ir.Node) -> bool:
    """Say whether the node reads a constant that float16 cannot hold: a mask of -3e38, say."""
    for value in node.inputs:
        if value is None or value.const_value is None:
            continue
        if value.const_value.dtype == ir.DataType.FLOAT and value.const_value.size:
            array = value.const_value.numpy()
            if not float(np.max(np.abs(array))) <= _LARGEST:
                return True
    return False


def _beyond_range(model: ir.Model, nodes: list[ir.Node], inputs: Tensors) -> dict[str, str]:
    """Run the float32 model once; give the nodes whose results or inputs come near the end."""
    watched = model.clone()
    made = {str(v.name): v for node in watched.graph for v in node.outputs if v.name}
    there = {str(v.name) for v in watched.graph.outputs}
    wanted = {str(v.name) for node in nodes for v in (*node.inputs, *node.outputs) if v is not None}
    wanted = {name for name in wanted if name in made and made[name].dtype == ir.DataType.FLOAT}
    watched.graph.outputs.extend(made[name] for name in sorted(wanted - there))
    found: dict[str, Array] = {**run_session(open_session(watched, quiet=True), inputs), **inputs}
    far = {
        name
        for name, array in found.items()
        if array.dtype == np.float32 and array.size and not _is_near(array)
    }
    return {
        _key(node): "on a trial run it leaves the range of float16"
        for node in nodes
        if any(v is not None and v.name in far for v in (*node.inputs, *node.outputs))
    }


def _is_near(array: Array) -> bool:
    return bool(np.max(np.abs(array)) <= _TRIAL_LARGEST)


def _rewrite(graph: ir.Graph, taken: list[ir.Node]) -> None:
    names = Names(graph)
    inside = frozenset(taken)
    order = {node: at for at, node in enumerate(graph)}
    for value in list(_read_from_outside(taken, inside)):
        readers = [(use.node, use.idx) for use in value.uses() if use.node in inside]
        if value.const_value is not None:
            half = _stored_half(value, names)
        else:
            half = _cast(value, ir.DataType.FLOAT16, names)
            cast = half.producer()
            assert cast is not None, "a cast makes it"
            graph.insert_before(min((n for n, _ in readers), key=order.__getitem__), cast)
        for node, index in readers:
            node.replace_input_with(index, half)
        if value.const_value is not None and not value.uses() and not value.is_graph_output():
            del graph.initializers[str(value.name)]
    for node in taken:
        for value in node.outputs:
            if value.name:
                _widen_for_others(graph, node, value, inside, names)


def _read_from_outside(taken: list[ir.Node], inside: frozenset[ir.Node]) -> Iterator[ir.Value]:
    found = {
        value: None
        for node in taken
        for value in node.inputs
        if value is not None and value.dtype == ir.DataType.FLOAT and value.producer() not in inside
    }
    yield from found


def _stored_half(value: ir.Value, names: Names) -> ir.Value:
    assert value.const_value is not None, "a constant has a value"
    narrow = round_to(value.const_value.numpy(), "fp16", 0).astype(np.float16)
    return names.constant(f"{value.name}_fp16", narrow)


def _cast(value: ir.Value, to: ir.DataType, names: Names) -> ir.Value:
    suffix = "fp16" if to == ir.DataType.FLOAT16 else "float"
    cast = ir.node("Cast", [value], {"to": int(to)}, name=names.free(f"{value.name}_to_{suffix}"))
    result = cast.outputs[0]
    result.name = names.free(f"{value.name}_{suffix}")
    result.type, result.shape = ir.TensorType(to), value.shape
    return result


def _widen_for_others(
    graph: ir.Graph, node: ir.Node, value: ir.Value, inside: frozenset[ir.Node], names: Names
) -> None:
    """Make the result float16; who reads it and does not compute in that gets it cast back."""
    readers = [(use.node, use.idx) for use in value.uses() if use.node not in inside]
    value.type = ir.TensorType(ir.DataType.FLOAT16)
    if not readers and not value.is_graph_output():
        return
    wide = _cast(value, ir.DataType.FLOAT, names)
    cast = wide.producer()
    assert cast is not None, "a cast makes it"
    if value.is_graph_output():
        wide.name, value.name = value.name, wide.name
        for index, output in enumerate(graph.outputs):
            if output is value:
                graph.outputs[index] = wide
    graph.insert_after(node, cast)
    for reader, index in readers:
        reader.replace_input_with(index, wide)


def _checked(model: ir.Model, work: ir.Model, inputs: Tensors) -> float:
    expected = run_literally(model, inputs).outputs
    found = run_literally(work, inputs).outputs
    least = 1.0
    for name, array in expected.items():
        row = agreement(name, array, found[name])
        if row.has_nan or (row.cosine < MIN_COSINE and row.max_abs_error > _NOTHING):
            raise UnsupportedError(
                f"in float16 the output `{name}` is another: cosine {row.cosine:.4f}",
                hint="compile with `--precision fp32`",
            )
        least = min(least, row.cosine)
    return least
