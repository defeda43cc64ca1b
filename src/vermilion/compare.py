"""Two models, or one model on two targets, side by side: accuracy, first divergence, latency.

Outputs are compared as each side really runs; what is expected of a model file is its literal run.
Layers are compared by tensor name in literal runs of the graphs behind both sides, a few tensors at
a time so that memory stays bounded.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from vermilion.errors import ModelError, OptionError, Refusal, UnsupportedError
from vermilion.ir.cost import value_bytes
from vermilion.ir.literal.run import run_literally
from vermilion.ir.measure import Agreement, agreement
from vermilion.ir.samples import draw_accepted
from vermilion.progress import Progress, no_progress
from vermilion.quantize.algorithms.channels import changed_tensors
from vermilion.quantize.algorithms.fill import noted_factors
from vermilion.rounds import in_rounds
from vermilion.sides import Array, Side, Tensors, fixed_sizes

# Tensors fetched in one run of both graphs; more of them means another run.
TAP_BYTES = 256 * 1024 * 1024

# Below this a layer says something else than its reference (10 dB: noise a third of the signal).
DIVERGED_DB = 10.0


@dataclass(frozen=True)
class LayerAgreement:
    """How well one tensor inside agrees, and the operator that makes it."""

    agreement: Agreement
    op_type: str


@dataclass(frozen=True)
class Latency:
    """Wall-clock milliseconds of one run; both sides took turns."""

    median_ms: float
    min_ms: float
    max_ms: float
    runs: int

    def as_json(self) -> dict[str, object]:
        """Return the keys of the report."""
        return {
            "p50": self.median_ms,
            "min": self.min_ms,
            "max": self.max_ms,
            "runs": self.runs,
        }


@dataclass(frozen=True)
class Comparison:
    """What `compare` found. `first_divergence` is the first layer below `DIVERGED_DB`."""

    reference: Side
    other: Side
    outputs: tuple[Agreement, ...]
    layers: tuple[LayerAgreement, ...]
    latencies: tuple[Latency, Latency]

    @property
    def first_divergence(self) -> LayerAgreement | None:
        """The first tensor, in the order of computing, that says something else."""
        return next((x for x in self.layers if x.agreement.sqnr_db < DIVERGED_DB), None)

    @property
    def against(self) -> str:
        """What was held against what, in words."""
        literal = self.reference.expected is not None
        return "B against the literal run of A's model" if literal else "B against A"

    @property
    def worst_sqnr_db(self) -> float:
        """The least SQNR of any output."""
        return min(a.sqnr_db for a in self.outputs)


def compare_sides(
    reference: Side,
    other: Side,
    inputs: Tensors | None = None,
    *,
    layers: bool = True,
    runs: int = 10,
    progress: Progress = no_progress,
) -> Comparison:
    """Run both on the same inputs and say how far `other` is from `reference`.

    Without `inputs`, sample inputs with a fixed seed are made for the reference's graph; where a
    size is open there and fixed in `other`, in that size.

    Raises: OptionError where inputs do not fit; ModelError where outputs cannot be paired;
    UnsupportedError where the reference runs on no sample.
    """
    progress("compare outputs", 0, 1)
    given, expected = _first_run(reference, other, inputs)
    found = _run(other, _renamed(given, reference, other))
    pairs = _pair_outputs(reference, other, expected, found)
    outputs = tuple(agreement(name, expected[name], found[twin]) for name, twin in pairs)
    progress("compare outputs", 1, 1)
    inner = tuple(_layers(reference, other, given, progress)) if layers else ()
    latencies = _take_turns(reference, other, given, runs, progress)
    return Comparison(reference, other, outputs, inner, latencies)


def _first_run(
    reference: Side, other: Side, inputs: Tensors | None
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the inputs, those given or a sample, and what the reference gives for them."""
    right = replace(reference, run=reference.expected or reference.run)
    if inputs is not None:
        return dict(inputs), _run(right, inputs)
    found = draw_accepted(
        reference.model,
        "ordinary",
        lambda drawn: _run(right, drawn),
        sizes=fixed_sizes(reference.model, other.model),
    )
    if isinstance(found, Refusal):
        raise UnsupportedError(found.reason, where=reference.label, hint=found.hint)
    sample, expected = found
    return dict(sample.inputs), expected


def _run(side: Side, given: Tensors) -> dict[str, Array]:
    """Run one side; where its inputs do not fit, the error says which side it is."""
    try:
        return side.run(given)
    except OptionError as error:
        raise OptionError(error.message, where=side.label, hint=error.hint) from error


def _pair_outputs(
    reference: Side, other: Side, expected: Tensors, found: Tensors
) -> list[tuple[str, str]]:
    """Pair outputs by name, or by position where names differ and counts agree."""
    names = [str(v.name) for v in reference.model.graph.outputs]
    if not set(names) <= set(found):
        twins = [str(v.name) for v in other.model.graph.outputs]
        if len(twins) != len(names):
            raise ModelError(
                f"the outputs differ: {reference.label} has {', '.join(names)}; "
                f"{other.label} has {', '.join(twins)}",
                hint="compare models that compute the same outputs",
            )
        pairs = list(zip(names, twins, strict=True))
    else:
        pairs = [(name, name) for name in names]
    for name, twin in pairs:
        if expected[name].shape != found[twin].shape:
            raise ModelError(
                f"output `{name}` has shape {expected[name].shape} in {reference.label} and "
                f"{found[twin].shape} in {other.label}",
                hint="bind the same dimensions on both sides with `--dim`",
            )
    return pairs


def _renamed(given: Tensors, reference: Side, other: Side) -> Tensors:
    theirs = [str(v.name) for v in other.model.graph.inputs]
    if set(theirs) == set(given):
        return given
    ours = [str(v.name) for v in reference.model.graph.inputs]
    if len(ours) != len(theirs) or set(ours) != set(given):
        raise OptionError(
            f"the inputs differ: {reference.label} takes {', '.join(ours)}; "
            f"{other.label} takes {', '.join(theirs)}; given are {', '.join(given)}",
            hint="compare models with the same inputs",
        )
    return {twin: given[name] for name, twin in zip(ours, theirs, strict=True)}


def _layers(
    reference: Side, other: Side, given: Tensors, progress: Progress
) -> Iterator[LayerAgreement]:
    """Compare every floating-point tensor that both graphs make under the same name.

    Not those that hold other numbers with the same result, as a quantized file tells.
    """
    changed = changed_tensors(reference.model) | changed_tensors(other.model)
    theirs = {
        str(value.name): value
        for node in other.model.graph
        for value in node.outputs
        if value.name and _is_float(value)
    }
    shared = [
        value
        for node in reference.model.graph
        for value in node.outputs
        if value.name in theirs and value.name not in changed and _is_float(value)
    ]
    ours, others = noted_factors(reference.model), noted_factors(other.model)
    done = 0
    for group in _groups(shared):
        names = [str(value.name) for value in group]
        a = _tapped(reference.model, given, names)
        b = _tapped(other.model, _renamed(given, reference, other), names)
        for value in group:
            name = str(value.name)
            done += 1
            if a[name].shape != b[name].shape:
                continue
            producer = value.producer()
            op_type = producer.op_type if producer is not None else ""
            grown = ours.of(name) / others.of(name)  # powers of two suit it better so
            found = b[name] if grown == 1.0 else b[name] * np.float32(grown)
            yield LayerAgreement(agreement(name, a[name], found), op_type)
        progress("compare layers", done, len(shared))


def _is_float(value: ir.Value) -> bool:
    return value.dtype is None or value.dtype.is_floating_point()


def _groups(values: Sequence[ir.Value]) -> Iterator[list[ir.Value]]:
    group: list[ir.Value] = []
    size = 0
    for value in values:
        bytes_needed = value_bytes(value)
        if group and size + bytes_needed > TAP_BYTES:
            yield group
            group, size = [], 0
        group.append(value)
        size += bytes_needed
    if group:
        yield group


def _tapped(model: ir.Model, given: Tensors, names: Sequence[str]) -> dict[str, Array]:
    """Run `model` with `names` as its outputs. The clone shares the weights."""
    clone = model.clone()
    made = {value.name: value for node in clone.graph for value in node.outputs}
    clone.graph.outputs[:] = [made[name] for name in names]
    return dict(run_literally(clone, given, names).outputs)


def _take_turns(
    reference: Side, other: Side, given: Tensors, runs: int, progress: Progress
) -> tuple[Latency, Latency]:
    """Time both in turn, so that a machine that slows down slows both."""
    sides = ((reference, given), (other, _renamed(given, reference, other)))

    def turn(side: tuple[Side, Tensors], _: int) -> float:
        begin = time.perf_counter()
        side[0].run(side[1])
        return (time.perf_counter() - begin) * 1e3

    def tell(stage: str, done: int, total: int) -> None:
        progress("time", done, total)

    # The first turn warms caches.
    times = in_rounds(sides, turn, runs, warm_up=1, progress=tell)
    return _latency(times[0]), _latency(times[1])


def _latency(milliseconds: Sequence[float]) -> Latency:
    if not milliseconds:
        return Latency(math.nan, math.nan, math.nan, 0)
    return Latency(
        statistics.median(milliseconds), min(milliseconds), max(milliseconds), len(milliseconds)
    )
