"""How far a quantized model is from its float original: each output, and each layer on the way.

Both graphs name an operator's result alike, so the same names are fetched from both. What is
compared at a layer is the whole distance up to there, its own rounding and all that came before.
Sums run over the samples; no tensor outlives its sample.
"""

from __future__ import annotations

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
_GROUP_BYTES = 128 * 1024 * 1024

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
    layers = {
        name: node
        for node in reference.graph
        if (name := str(node.outputs[0].name)) in facts
        and facts[name].data_type == ir.DataType.FLOAT
    }
    if sum(facts[name].size_bytes for name in layers) > _ENOUGH_BYTES:
        samples = samples[:1]
    rows: list[LayerError] = []
    for group in grouped(layers, facts, _GROUP_BYTES):
        ours, theirs = (with_outputs(model, group) for model in (reference, quantized))
        sums = _add_up(_run(ours, group, samples), _run(theirs, group, samples), group)
        for name in group:
            row = sums[name].agreement(name)
            rows.append(LayerError(str(layers[name].name), layers[name].op_type, row.sqnr_db))
    return tuple(rows)


def _run(
    model: ir.Model, names: Sequence[str], samples: Iterable[Mapping[str, Array]]
) -> Iterator[dict[str, Array]]:
    session = open_session(model, quiet=True)
    for sample in samples:
        yield run_session(session, sample, names)


def _add_up(
    reference: Iterable[Mapping[str, Array]],
    quantized: Iterable[Mapping[str, Array]],
    names: Sequence[str],
) -> dict[str, _Sums]:
    sums: dict[str, _Sums] = {}
    for ours, theirs in zip(reference, quantized, strict=True):
        for name in names:
            if ours[name].dtype.kind in "fiub":
                sums.setdefault(name, _Sums()).add(ours[name], theirs[name])
    return sums
