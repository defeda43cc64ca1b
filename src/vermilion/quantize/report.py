"""How far a quantized model is from its float original: each output, and each layer on the way.

Both graphs name an operator's result alike, so the same names are fetched from both. What is
compared at a layer is the whole distance up to there, its own rounding and all that came before.
Sums run over the samples; no tensor outlives its sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from vermilion.ir.execute import Array, open_session, run_session
from vermilion.ir.measure import Agreement, sqnr_from_sums
from vermilion.quantize.calibrate import GROUP_BYTES, TensorFacts, grouped, with_outputs


@dataclass(frozen=True)
class LayerError:
    """How far the result of one operator is from what the float model has there."""

    name: str
    op_type: str
    sqnr_db: float


class _Sums:
    """Running sums of one tensor over samples."""

    def __init__(self) -> None:
        self.signal = self.other = self.noise = self.dot = self.worst = 0.0
        self.has_nan = False

    def add(self, reference: Array, other: Array) -> None:
        # Plain products in float32 pieces would lose digits; float64 pairs are summed instead.
        a = reference.astype(np.float64).reshape(-1)
        b = other.astype(np.float64).reshape(-1)
        self.signal += float(np.dot(a, a))
        self.other += float(np.dot(b, b))
        self.dot += float(np.dot(a, b))
        np.subtract(a, b, out=a)
        self.noise += float(np.dot(a, a))
        self.worst = max(self.worst, float(np.max(np.abs(a), initial=0.0)))
        self.has_nan |= not math.isfinite(self.noise)

    def agreement(self, name: str) -> Agreement:
        if self.has_nan:
            return Agreement(name, 0.0, sqnr_from_sums(0.0, 1.0), math.inf, has_nan=True)
        if self.signal == 0.0 or self.other == 0.0:
            cosine = float(self.signal == self.other)
        else:
            cosine = self.dot / math.sqrt(self.signal * self.other)
        return Agreement(name, cosine, sqnr_from_sums(self.signal, self.noise), self.worst)


def compare_outputs(
    reference: ir.Model, quantized: ir.Model, samples: Iterable[Mapping[str, Array]]
) -> tuple[Agreement, ...]:
    """Compare the outputs of both models as they will be run, over all `samples` together."""
    names = [str(value.name) for value in reference.graph.outputs]
    sums = _compare(reference, quantized, names, samples)
    return tuple(sums[name].agreement(name) for name in names if name in sums)


def compare_layers(
    reference: ir.Model,
    quantized: ir.Model,
    facts: Mapping[str, TensorFacts],
    samples: Sequence[Mapping[str, Array]],
) -> tuple[LayerError, ...]:
    """Compare the first result of every operator that gives float32."""
    layers = {
        str(node.outputs[0].name): node
        for node in reference.graph
        if facts[str(node.outputs[0].name)].data_type == ir.DataType.FLOAT
    }
    rows: list[LayerError] = []
    for group in grouped(layers, facts, GROUP_BYTES // 2):
        pair = with_outputs(reference, group), with_outputs(quantized, group)
        sums = _compare(*pair, group, samples)
        for name in group:
            row = sums[name].agreement(name)
            rows.append(LayerError(str(layers[name].name), layers[name].op_type, row.sqnr_db))
    return tuple(rows)


def _compare(
    reference: ir.Model,
    quantized: ir.Model,
    names: Sequence[str],
    samples: Iterable[Mapping[str, Array]],
) -> dict[str, _Sums]:
    sessions = open_session(reference, quiet=True), open_session(quantized, quiet=True)
    sums: dict[str, _Sums] = {}
    for sample in samples:
        ours, theirs = (run_session(session, sample, names) for session in sessions)
        for name in names:
            if ours[name].dtype.kind == "f":
                sums.setdefault(name, _Sums()).add(ours[name], theirs[name])
    return sums
