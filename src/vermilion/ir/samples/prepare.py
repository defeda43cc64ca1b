"""A model made ready for drawing: sizes of open dimensions that inference finds no fault with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

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
from vermilion.ir.passes.inline_functions import inline_functions
from vermilion.ir.passes.report import Notes
from vermilion.ir.samples.facts import MAX_FOLLOWED, Facts, gather_facts
from vermilion.ir.samples.open_sizes import Sizes, candidates, fits, open_axes, open_name
from vermilion.ir.samples.roles import ROLES
from vermilion.ir.samples.want import Array, SampleKind

# Inference takes some microseconds a node: so many nodes are gone through for one sample.
_INFERRED_NODES = 10_000
_MOST_CANDIDATES = 40

_RANKS = (0, 1, 2, 3, 4)
# Operators by which the rank of an operand of unknown rank is that of another, or a number.
_RANK_OF_WEIGHT = ("Conv", "ConvTranspose", "ConvInteger")
_RANKS_BY_OPERATOR = {"Gemm": 2, "MatMul": 2, "LSTM": 3, "GRU": 3, "RNN": 3, "Resize": 4}
_RANKS_BY_OPERATOR |= {"MaxPool": 4, "AveragePool": 4, "GlobalAveragePool": 4}
_RANKS_BY_OPERATOR |= {"BatchNormalization": 4, "InstanceNormalization": 4, "Concat": 2}

Sized = tuple[ir.Model, Sizes, Facts | None]


@dataclass
class Prepared:
    """The sizes found so far that fit, and where to look for more."""

    kind: SampleKind
    bound: Mapping[str, int]
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

    @staticmethod
    def shape_of(value: ir.Value, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape of an input."""
        return tuple(
            size if isinstance(size, int) and size >= 0 else sizes.get(open_name(value, axis), 1)
            for axis, size in enumerate(value.shape.dims if value.shape is not None else ())
        )

    def agrees(
        self, model: ir.Model, sizes: Sizes, facts: Facts, inputs: Mapping[str, Array]
    ) -> bool:
        """Say whether inference finds no contradiction with small integer inputs as constants."""
        small = {
            name: array
            for name, array in inputs.items()
            if isinstance(array, np.ndarray)
            and array.size <= MAX_FOLLOWED
            and name in facts.known
            and array.dtype in (np.dtype(np.int64), np.dtype(np.int32))
        }
        if not small or len(model.graph) > _INFERRED_NODES:
            return True
        inferred = _inferred(model, sizes, small, strict=True)
        return inferred is not None and fits(gather_facts(model, inferred), model)


def prepare(model: ir.Model, kind: SampleKind, sizes: Mapping[str, int] | None = None) -> Prepared:
    """Return the model, its functions written out, with what its sizes are looked for by."""
    if model.functions:
        model = model.clone()
        inline_functions(model, Notes())
    bound = dict(sizes or {})
    return Prepared(kind, bound, _ways(model, kind, bound))


def _ways(model: ir.Model, kind: SampleKind, bound: Mapping[str, int]) -> Iterator[Sized]:
    if _is_plain(model):
        yield model, {}, None
        return
    budget = max(2, min(_MOST_CANDIDATES, _INFERRED_NODES // max(len(model.graph), 1)))
    left_over: list[Sized] = []
    yielded = False
    for ranked in _ranked(model):
        symbolic = _inferred(ranked, {}) if next(open_axes(ranked), None) else None
        for at, sizes in enumerate(candidates(ranked, symbolic, kind)):
            if at >= budget:
                break
            sizes.update({name: size for name, size in bound.items() if name in sizes})
            inferred = _inferred(ranked, sizes, strict=True)
            if inferred is not None:
                facts = gather_facts(ranked, inferred)
                if fits(facts, ranked):
                    yielded = True
                    yield ranked, sizes, facts
                    continue
            left_over.append((ranked, sizes, None))
    for ranked, sizes, _ in left_over[: 0 if yielded else _MOST_CANDIDATES]:
        # Inference likes none of them, for reasons of its own perhaps: whoever runs it knows.
        inferred = _inferred(ranked, sizes)
        yield ranked, sizes, None if inferred is None else gather_facts(ranked, inferred)


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


def _inferred(
    model: ir.Model,
    sizes: Mapping[str, int],
    constants: Mapping[str, Array] | None = None,
    *,
    strict: bool = False,
) -> onnx.ModelProto | None:
    """Return the graph with shapes for these sizes, None where inference fails.

    What a file says of its inner values is not believed.
    """
    follow = propagated_elements(model) <= MAX_PROPAGATED_ELEMENTS
    with without_weights(model) as proto:
        del proto.graph.value_info[:]
        for output in proto.graph.output:
            if output.type.HasField("tensor_type"):
                output.type.tensor_type.ClearField("shape")
        _bind(proto.graph, model, sizes)
        for name, array in (constants or {}).items():
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        try:
            return infer(proto, follow=follow, strict=strict)
        except INFERENCE_ERRORS:
            return None


def _bind(graph: onnx.GraphProto, model: ir.Model, sizes: Mapping[str, int]) -> None:
    """Write sizes into the inputs; a dimension without a size gets a name."""
    inputs = {value.name: value for value in graph.input}
    for value, axis, name in open_axes(model):
        kind = inputs[value.name or ""].type
        if not kind.HasField("tensor_type"):
            continue
        dim = kind.tensor_type.shape.dim[axis]
        if name in sizes:
            dim.dim_value = sizes[name]
        else:
            dim.dim_param = name
