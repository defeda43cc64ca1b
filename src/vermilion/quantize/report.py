"""How far a quantized model is from its float original: each output, and each layer on the way.

Both graphs name an operator's result alike, so the same names are fetched from both. What is
compared at a layer is the whole distance up to there, its own rounding and all that came before.
Sums run over the samples; no tensor outlives its sample.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.ir.execute import Array, open_session, run_session
from vermilion.ir.measure import Agreement, sqnr_from_sums
from vermilion.quantize.calibrate import TensorFacts, grouped, with_outputs


@dataclass(frozen=True)
class LayerError:
    """How far the result of one operator is from what the float model has there."""

    name: str
    op_type: str
    sqnr_db: float


# Pieces stay in the cache, and below the 10,000 elements from which OpenBLAS wakes its threads for
# a dot product of doubles: measured 50 ns an element at 16,384, 0.15 at 8,192.
_PIECE_ELEMS = 1 << 13


# Of one sample's layers, fetched at once from each of the two models.
_GROUP_BYTES = 112 * 1024 * 1024

# The same where the sessions that fetch them are those that give the outputs: both are alive then.
_TOGETHER_BYTES = 96 * 1024 * 1024

_ENOUGH_BYTES = 16 * 1024 * 1024


class _Sums:
    """Running sums of one tensor over samples."""

    def __init__(self) -> None:
        self.signal = self.other = self.noise = self.dot = self.worst = 0.0
        self.has_nan = False

    def add(self, reference: Array, other: Array) -> None:
        a, b = reference.reshape(-1), other.reshape(-1)
        for start in range(0, a.size, _PIECE_ELEMS):
            piece = slice(start, start + _PIECE_ELEMS)
            self._add_piece(a[piece].astype(np.float64), b[piece].astype(np.float64))

    def _add_piece(self, a: NDArray[np.float64], b: NDArray[np.float64]) -> None:
        with np.errstate(invalid="ignore"):  # infinity less infinity
            difference = a - b
        noise = float(np.dot(difference, difference))
        if not math.isfinite(noise):
            same = a == b  # infinities that agree, as in masks, are no error and no signal
            self.has_nan |= not bool(np.all(same | (np.isfinite(a) & np.isfinite(b))))
            a, b = np.where(same, 0.0, a), np.where(same, 0.0, b)
            difference = a - b
            noise = float(np.dot(difference, difference))
        self.signal += float(np.dot(a, a))
        self.other += float(np.dot(b, b))
        self.dot += float(np.dot(a, b))
        self.noise += noise
        self.worst = max(self.worst, float(np.abs(difference).max()))

    def agreement(self, name: str) -> Agreement:
        if self.has_nan:
            return Agreement(name, 0.0, sqnr_from_sums(0.0, 1.0), math.inf, has_nan=True)
        if self.signal == 0.0 or self.other == 0.0:
            cosine = float(self.signal == self.other)
        else:
            cosine = self.dot / math.sqrt(self.signal * self.other)
        return Agreement(name, cosine, sqnr_from_sums(self.signal, self.noise), self.worst)


def compare_outputs(
    reference: ir.Model | Sequence[Mapping[str, Array]],
    quantized: ir.Model,
    samples: Sequence[Mapping[str, Array]],
) -> tuple[Agreement, ...]:
    """Compare outputs with those of the quantized model as it will be run, over all `samples`.

    `reference` is the float model, or what it gave for each of the samples.
    """
    if isinstance(reference, ir.Model):
        names = [str(value.name) for value in reference.graph.outputs]
        exact: Iterable[Mapping[str, Array]] = _run(reference, names, samples)
    else:
        names, exact = list(reference[0]), reference
    sums = _add_up(exact, _run(quantized, names, samples), names)
    return tuple(sums[name].agreement(name) for name in names if name in sums)


def compare_layers(
    reference: ir.Model,
    quantized: ir.Model,
    facts: Mapping[str, TensorFacts],
    samples: Sequence[Mapping[str, Array]],
) -> tuple[LayerError, ...]:
    """Compare the first result of every operator that gives float32.

    One sample has to do where its layers alone hold millions of numbers.
    """
    layers = _layers(reference, facts)
    samples = samples[: _enough(layers, facts, len(samples))]
    sums: dict[str, _Sums] = {}
    for group in grouped(layers, facts, _GROUP_BYTES):
        ours, theirs = (with_outputs(model, group) for model in (reference, quantized))
        sums |= _add_up(_run(ours, group, samples), _run(theirs, group, samples), group)
    return _rows(layers, sums)


def compare_both(
    reference: Sequence[Mapping[str, Array]],
    float_model: ir.Model,
    quantized: ir.Model,
    facts: Mapping[str, TensorFacts],
    samples: Sequence[Mapping[str, Array]],
    layer_samples: int,
) -> tuple[tuple[Agreement, ...], tuple[LayerError, ...]] | None:
    """Compare outputs over all `samples` and layers over the first, with one run of each sample.

    `reference` is what the float model gave. None where the layers are too large to be fetched at
    once: then both have to be compared one after the other.
    """
    layers = _layers(float_model, facts)
    names = [str(value.name) for value in quantized.graph.outputs]
    inner = [name for name in layers if name not in names]
    if len(grouped(inner, facts, _TOGETHER_BYTES)) > 1:
        return None
    count = _enough(layers, facts, layer_samples)
    # It runs once or twice: what ONNX Runtime would make of the graph first takes longer.
    exact = (
        _run(with_outputs(float_model, inner), inner, samples[:count], optimize=False)
        if inner
        else itertools.repeat({}, count)
    )
    session = open_session(with_outputs(quantized, [*names, *inner]), quiet=True)
    outputs: dict[str, _Sums] = {}
    sums: dict[str, _Sums] = {}
    for number, (sample, given) in enumerate(zip(samples, reference, strict=True)):
        if number < count:
            found = run_session(session, sample, [*names, *inner])
            _add(sums, {**next(exact), **given}, found, list(layers))
        else:
            found = run_session(session, sample, names)
        _add(outputs, given, found, names)
    return tuple(outputs[n].agreement(n) for n in names if n in outputs), _rows(layers, sums)


def _layers(model: ir.Model, facts: Mapping[str, TensorFacts]) -> dict[str, ir.Node]:
    return {
        name: node
        for node in model.graph
        if (name := str(node.outputs[0].name)) in facts
        and facts[name].data_type == ir.DataType.FLOAT
    }


def _enough(layers: Iterable[str], facts: Mapping[str, TensorFacts], samples: int) -> int:
    return 1 if sum(facts[name].size_bytes for name in layers) > _ENOUGH_BYTES else samples


def _rows(layers: Mapping[str, ir.Node], sums: Mapping[str, _Sums]) -> tuple[LayerError, ...]:
    return tuple(
        LayerError(str(node.name), node.op_type, sums[name].agreement(name).sqnr_db)
        for name, node in layers.items()
    )


def _run(
    model: ir.Model,
    names: Sequence[str],
    samples: Iterable[Mapping[str, Array]],
    *,
    optimize: bool = True,
) -> Iterator[dict[str, Array]]:
    session = open_session(model, quiet=True, optimize=optimize)
    for sample in samples:
        yield run_session(session, sample, names)


def _add_up(
    reference: Iterable[Mapping[str, Array]],
    quantized: Iterable[Mapping[str, Array]],
    names: Sequence[str],
) -> dict[str, _Sums]:
    sums: dict[str, _Sums] = {}
    for ours, theirs in zip(reference, quantized, strict=True):
        _add(sums, ours, theirs, names)
    return sums


def _add(
    sums: dict[str, _Sums],
    ours: Mapping[str, Array],
    theirs: Mapping[str, Array],
    names: Sequence[str],
) -> None:
    for name in names:
        if ours[name].dtype.kind in "fiub":
            sums.setdefault(name, _Sums()).add(ours[name], theirs[name])
