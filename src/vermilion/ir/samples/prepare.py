"""A model made ready for drawing: sizes of open dimensions that inference finds no fault with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import onnx
import onnx_ir as ir

from vermilion.ir.inference import INFERENCE_ERRORS, infer
from vermilion.ir.opset import required_inputs
from vermilion.ir.passes.infer_shapes import (
    MAX_PROPAGATED_ELEMENTS,
    propagated_elements,
    without_weights,
)
from vermilion.ir.passes.inline import inline_functions
from vermilion.ir.passes.rewrite import Notes
from vermilion.ir.passes.sort_nodes import sort_nodes
from vermilion.ir.samples.facts import Facts, shapes_of
from vermilion.ir.samples.open_sizes import Sizes, candidates, fits, open_axes, open_name
from vermilion.ir.samples.roles import ROLES
from vermilion.ir.samples.values import Array, SampleKind

# Inference takes some microseconds a node: so many nodes are gone through for one sample.
_INFERRED_NODES = 10_000
_MOST_CANDIDATES = 40

_RANKS = (0, 1, 2, 3, 4)
# Operators by which the rank of an operand of unknown rank is that of another, or a number.
_RANK_OF_WEIGHT = ("Conv", "ConvTranspose", "ConvInteger")
_RANKS_BY_OPERATOR = {"Gemm": 2, "MatMul": 2, "LSTM": 3, "GRU": 3, "RNN": 3, "Resize": 4}
_RANKS_BY_OPERATOR |= {"MaxPool": 4, "AveragePool": 4, "GlobalAveragePool": 4}
_RANKS_BY_OPERATOR |= {"BatchNormalization": 4, "InstanceNormalization": 4, "Concat": 2}


@dataclass(frozen=True)
class Sized:
    """A model with a rank for each input, sizes for what is open, and its shapes with these."""

    model: ir.Model
    sizes: Sizes
    facts: Facts | None
    proto: _Proto | None = None
    graph: onnx.GraphProto | None = None  # inferred with these sizes, where that was done

    def shape(self, value: ir.Value) -> tuple[int, ...]:
        """Return the shape of an input."""
        return _shape(value, self.sizes)

    def agrees(self, inputs: Mapping[str, Array]) -> bool:
        """Say whether inference finds no contradiction with small integer inputs as constants."""
        if self.facts is None or self.proto is None:
            return True
        small = {
            name: array
            for name, array in inputs.items()
            if self.facts.is_small_input(name)
            and isinstance(array, np.ndarray)
            and array.dtype in (np.dtype(np.int64), np.dtype(np.int32))
        }
        if not small or len(self.model.graph) > _INFERRED_NODES:
            return True
        graph = self.proto.inferred(self.sizes, small, strict=True)
        return graph is not None and fits(self.model, graph)

    def inferred(self) -> onnx.GraphProto | None:
        """Return the graph with its shapes for these sizes, None where inference fails."""
        if self.graph is not None:
            return self.graph
        return (self.proto or _Proto(self.model)).inferred(self.sizes)


@dataclass
class Prepared:
    """The sizes found so far that fit, and where to look for more."""

    ways: Iterator[Sized]
    found: list[Sized] = field(default_factory=list)

    def sized(self, attempt: int) -> Sized:
        """Return sizes for the attempt: others each time, as long as there are any."""
        while len(self.found) <= attempt:
            more = next(self.ways, None)
            if more is None:
                break
            self.found.append(more)
        return self.found[attempt % len(self.found)]


def prepare(model: ir.Model, kind: SampleKind, sizes: Mapping[str, int] | None = None) -> Prepared:
    """Return the model, its functions written out, with what its sizes are looked for by."""
    if model.functions:
        model = model.clone()
        inline_functions(model, Notes())
    return Prepared(_ways(model, kind, dict(sizes or {})))


def _shape(value: ir.Value, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(
        size if isinstance(size, int) and size >= 0 else sizes.get(open_name(value, axis), 1)
        for axis, size in enumerate(value.shape.dims if value.shape is not None else ())
    )


def _ways(model: ir.Model, kind: SampleKind, bound: Mapping[str, int]) -> Iterator[Sized]:
    if _is_plain(model):
        yield Sized(model, {}, None)
        return
    budget = max(2, min(_MOST_CANDIDATES, _INFERRED_NODES // max(len(model.graph), 1)))
    left_over: list[Sized] = []
    yielded = False
    for ranked in _ranked(model):
        proto = _Proto(ranked)
        is_open = next(open_axes(ranked), None) is not None
        for at, sizes in enumerate(candidates(ranked, kind, partial(proto.inferred, {}))):
            if at >= budget:
                break
            sizes.update({name: size for name, size in bound.items() if name in sizes})
            ways = _as_declared(ranked, proto, sizes, bound) if is_open else [(sizes, None)]
            for named, graph in ways:
                sized = _with_facts(ranked, named, proto, graph)
                if is_open and (graph is None or not fits(ranked, graph)):
                    left_over.append(sized)
                    continue
                yielded = True
                yield sized
    if not yielded:
        # Inference likes none of them, for reasons of its own perhaps: whoever runs it knows.
        yield from left_over


def _as_declared(
    model: ir.Model, proto: _Proto, sizes: Sizes, bound: Mapping[str, int]
) -> list[tuple[Sizes, onnx.GraphProto | None]]:
    """Return sizes at which the outputs have those that the file names, and the graph with them.

    A cache that grows by the step has a length that an input, its mask, has too: what it is shows
    at the output. Where the names of outputs say nothing that holds, the sizes stay as they are,
    and they come second where those names may be wrong.
    """
    graph = proto.inferred(sizes, strict=True)
    seen = graph or proto.inferred(sizes)
    named = {**sizes, **(_of_outputs(model, seen, sizes) if seen is not None else {}), **bound}
    if named == sizes:
        return [(sizes, graph)]
    again = proto.inferred(named, strict=True)
    if again is None or any(
        named[name] != size for name, size in _of_outputs(model, again, named).items()
    ):
        return [(sizes, graph)]
    return [(named, again), (sizes, graph)]


def _of_outputs(model: ir.Model, graph: onnx.GraphProto, names: Mapping[str, int]) -> Sizes:
    """Return the inferred sizes of the outputs' dimensions that the file names as some input's."""
    shapes, found = dict(shapes_of(graph)), Sizes()
    for value in model.graph.outputs:
        declared, shape = value.shape, shapes.get(value.name or "")
        if declared is None or shape is None or len(declared) != len(shape):
            continue
        for axis, size in enumerate(shape):
            if size is not None and open_name(value, axis) in names:
                found[open_name(value, axis)] = size
    return found


def _with_facts(
    model: ir.Model, sizes: Sizes, proto: _Proto, graph: onnx.GraphProto | None
) -> Sized:
    shapes = {value.name or "": _shape(value, sizes) for value in required_inputs(model)}
    infer = partial(proto.inferred, sizes) if graph is None else lambda: graph
    return Sized(model, sizes, Facts(model, shapes, infer), proto, graph)


def _is_plain(model: ir.Model) -> bool:
    """Say whether all inputs are floats of known sizes, of which nothing is asked directly."""
    return all(
        isinstance(value.type, ir.TensorType)
        and value.dtype is not None
        and value.dtype.is_floating_point()
        and value.shape is not None
        and value.shape.is_static()
        and not any(size < 0 for size in value.shape.numpy())
        and not any(at in ROLES.get((node.domain, node.op_type), {}) for node, at in value.uses())
        for value in required_inputs(model)
    )


def _ranked(model: ir.Model) -> Iterator[ir.Model]:
    """Yield the model with a rank for each input that has none."""
    unknown = [
        at
        for at, value in enumerate(model.graph.inputs)
        if value.shape is None and not value.is_initializer()
    ]
    if not unknown:
        yield model
        return
    sort_nodes(model, Notes())  # what is not in order cannot be cloned
    for rank in (None, *_RANKS):
        ranked = model.clone()
        for at in unknown:
            value = ranked.graph.inputs[at]
            guess = _rank_of(value) if rank is None else rank
            value.shape = ir.Shape([None] * guess)
        yield ranked


def _rank_of(value: ir.Value) -> int:
    for node, at in value.uses():
        if node.op_type in _RANK_OF_WEIGHT and at == 0:
            weight = node.inputs[1]
            if weight is not None and weight.shape is not None:
                return len(weight.shape)
        if node.op_type in _RANKS_BY_OPERATOR and at == 0:
            return _RANKS_BY_OPERATOR[node.op_type]
    return 0


class _Proto:
    """The model as a message, made once; what a file says of its inner values is not believed."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model

    @cached_property
    def _message(self) -> onnx.ModelProto:
        with without_weights(self._model) as proto:
            del proto.graph.value_info[:]
            for output in proto.graph.output:
                if output.type.HasField("tensor_type"):
                    output.type.tensor_type.ClearField("shape")
            return proto

    @cached_property
    def _follow(self) -> bool:
        return propagated_elements(self._model) <= MAX_PROPAGATED_ELEMENTS

    def inferred(
        self,
        sizes: Mapping[str, int],
        constants: Mapping[str, Array] | None = None,
        *,
        strict: bool = False,
    ) -> onnx.GraphProto | None:
        """Return the graph with shapes for these sizes, None where inference fails."""
        graph = self._message.graph
        weights = len(graph.initializer)
        self._bind(graph, sizes)
        for name, array in (constants or {}).items():
            graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        try:
            return infer(self._message, follow=self._follow, strict=strict).graph
        except INFERENCE_ERRORS:
            return None
        finally:
            del graph.initializer[weights:]

    def _bind(self, graph: onnx.GraphProto, sizes: Mapping[str, int]) -> None:
        """Write sizes into the inputs; a dimension without a size gets a name."""
        inputs = {value.name: value for value in graph.input}
        for value, axis, name in open_axes(self._model):
            kind = inputs[value.name or ""].type
            if not kind.HasField("tensor_type"):
                continue
            dim = kind.tensor_type.shape.dim[axis]
            if name in sizes:
                dim.dim_value = sizes[name]
            else:
                dim.dim_param = name
