"""How far a quantized model is from its float original: each output, and each layer on the way.

Both graphs name an operator's result alike, so the same names are fetched from both. What is
compared at a layer is the whole distance up to there, its own rounding and all that came before.
Sums run over the samples; no tensor outlives its sample.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.ir.execute import Array, run_session
from vermilion.ir.measure import Agreement, sqnr_from_sums
from vermilion.quantize.calibrate import TensorFacts, grouped, open_fetching
from vermilion.quantize.operators import FUSED_PRODUCERS, fuses_into_producer


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
_GROUP_BYTES = 192 * 1024 * 1024

# What a layer is judged by: groups of neighbours, and so many of them of each sample.
_GROUP_ELEMS = 64
_MOST_GROUPS = 128
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0

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
        ours, theirs = (_run(model, group, samples) for model in (reference, quantized))
        sums |= _add_up(ours, theirs, group)
    return _rows(layers, sums)


class LayerKeeper:
    """Keeps some values of every layer while the float model runs, to hold the quantized one to.

    Few are enough for an SQNR: a tensor is looked at in groups of neighbours all over it. (Against
    all values of the same samples: 0.3 dB of standard deviation over the layers of a trained
    ResNet-50, 0.4 over those of PP-OCR's detection.)
    """

    def __init__(self, names: Iterable[str], most: int) -> None:
        """Keep of the tensors `names`, for the first `most` samples."""
        self._most = most
        self.kept: dict[str, list[Array]] = {name: [] for name in names}

    @property
    def wanted(self) -> frozenset[str]:
        """Names of the tensors that are kept."""
        return frozenset(self.kept)

    def add(self, name: str, array: Array) -> None:
        """Keep some values of one tensor of one sample."""
        kept = self.kept.get(name)
        if kept is not None and len(kept) < self._most:
            kept.append(some_of(array))


def some_of(array: Array) -> Array:
    """Return a copy of the values that a layer is judged by: the same places for the same size."""
    flat = array.reshape(-1)
    groups = flat.size // _GROUP_ELEMS
    if groups <= _MOST_GROUPS:
        return flat.copy()
    # Fractions of multiples of the golden ratio fill the line evenly, whatever the row's length.
    places = (np.arange(1, _MOST_GROUPS + 1) * _GOLDEN % 1.0 * groups).astype(np.intp)
    return flat[: groups * _GROUP_ELEMS].reshape(groups, _GROUP_ELEMS)[places]


def compare_both(
    reference: ir.Model | Sequence[Mapping[str, Array]],
    layers: Mapping[str, Sequence[Array]],
    float_model: ir.Model,
    quantized: ir.Model,
    facts: Mapping[str, TensorFacts],
    samples: Sequence[Mapping[str, Array]],
) -> tuple[tuple[Agreement, ...], tuple[LayerError, ...]]:
    """Compare outputs over all `samples`, and layers over those that were kept of them.

    `reference` is the model that outputs are held to, or what it gave for each of the samples;
    `layers` is what `LayerKeeper` kept of `float_model`.
    """
    names = [str(value.name) for value in quantized.graph.outputs]
    there = {str(value.name) for node in quantized.graph for value in node.outputs}
    rows = _layer_names(float_model, layers.keys() & there)
    first, *further = grouped(
        [name for name in rows if name not in names], facts, _GROUP_BYTES
    ) or [[]]
    outputs: dict[str, _Sums] = {}
    sums = {name: _Sums() for name in rows}
    exact = _run(reference, names, samples) if isinstance(reference, ir.Model) else reference
    session = open_fetching(quantized, [*names, *first])
    for number, (sample, given) in enumerate(zip(samples, exact, strict=True)):
        inner = [name for name in first if number < len(layers[name])]
        found = run_session(session, sample, [*names, *inner])
        _add(outputs, given, found, names)
        for name in [*inner, *(n for n in names if n in rows and number < len(layers[n]))]:
            sums[name].add(layers[name][number], some_of(found[name]))
        del found  # so that the next run has its memory
    del session
    for group in further:
        most = max(len(layers[name]) for name in group)
        runs = _run(quantized, group, samples[:most])
        for number, found in enumerate(runs):
            for name in group:
                if number < len(layers[name]):
                    sums[name].add(layers[name][number], some_of(found[name]))
    return (
        tuple(outputs[name].agreement(name) for name in names if name in outputs),
        tuple(LayerError(*rows[name], sums[name].agreement(name).sqnr_db) for name in rows),
    )


def _layer_names(model: ir.Model, kept: Collection[str]) -> dict[str, tuple[str, str]]:
    """Return, for every kept tensor of `model`, name and kind of what makes it.

    What is computed together with its activation has the activation's result, under its own name.
    """
    found: dict[str, tuple[str, str]] = {}
    for node in model.graph:
        for value in node.outputs:
            if (name := str(value.name)) not in kept:
                continue
            maker = node.inputs[0].producer() if node.inputs and node.inputs[0] else None
            if (
                maker is not None
                and maker.op_type in FUSED_PRODUCERS
                and fuses_into_producer(node)
                and str(maker.outputs[0].name) not in kept
            ):
                found[name] = (str(maker.name), f"{maker.op_type} + {node.op_type}")
            else:
                found[name] = (str(node.name), node.op_type)
    return found


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
) -> Iterator[dict[str, Array]]:
    session = open_fetching(model, names)
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
        if ours[name].dtype.kind in "fiub" or ours[name].dtype.name == "bfloat16":
            sums.setdefault(name, _Sums()).add(ours[name], theirs[name])
