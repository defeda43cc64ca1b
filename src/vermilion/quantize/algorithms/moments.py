"""First and second moments of what each layer reads, in one pass and in bounded memory.

Where there are fewer rows than numbers in a row, the rows themselves are the smaller thing to
keep; from there on they are folded into Σ x·xᵀ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from vermilion.ir.execute import Array
from vermilion.quantize.algorithms.layers import Drawn, Float32, Layer
from vermilion.quantize.algorithms.native_moments import native_draw, native_fold

ROWS_PER_SAMPLE = 32
"""Drawn from each sample: neighbouring patches say the same, so more of them tell little.

Twice as many until there are two rows for each number in a row. (Measured on a trained ResNet-50
with 32 samples: 16, 32, 64 and 128 rows give the same accuracy to a tenth of a decibel.)
"""

_MOST_ROWS = 1 << 13
"""A layer has seen enough after these; samples that come later cost it nothing."""


_MOST_ROWS_OF_A_GROUP = 1 << 10
"""The same where a weight has groups: their rows are short, and there are many."""

ALL_ROWS = 1 << 12
"""Drawn from each sample at most where weights get few bits: there each direction counts."""

_FOLDED_ROWS = 256
"""Folded at once, at least, so that narrow layers are not folded again with every sample."""

_KEPT_ROWS = 128
"""Room for rows that are folded in machine code, which needs fewer at once."""


class Moments:
    """What one layer reads: number of rows, Σ x, Σ x·xᵀ."""

    def __init__(self, layer: Layer, rows_per_sample: int | None = None) -> None:
        self.layer = layer
        self._rows_per_sample = rows_per_sample
        self.count = 0
        self._total = np.zeros((layer.groups * layer.blocks, layer.width))
        self._gram: Float32 | None = None
        self._rows: list[Float32] = []
        self._drawn = _DrawnRows(layer)
        self._turn = 0

    @property
    def size_bytes(self) -> int:
        """Size of Σ x·xᵀ."""
        layer = self.layer
        return 4 * layer.groups * layer.blocks * layer.width**2

    @property
    def is_full(self) -> bool:
        """Say whether enough rows were seen."""
        layer = self.layer
        if layer.groups > 1:
            return self.count >= max(_MOST_ROWS_OF_A_GROUP, 16 * layer.width)
        return self.count >= max(_MOST_ROWS, 2 * layer.width * layer.blocks)

    def add(self, read: Array) -> None:
        """Take rows from one sample."""
        if self.is_full:
            return
        limit = (self._rows_per_sample or ROWS_PER_SAMPLE) * (
            2 if self.count < 2 * self.layer.width else 1
        )
        drawn = self.layer.drawn(read, limit, self._turn)
        if drawn is not None:
            self._drawn.add(read, drawn)
            self.count += len(drawn.places)
        else:
            rows = self.layer.rows(read, limit, self._turn)
            self.count += rows.shape[1]
            self._rows.append(rows)
            if sum(kept.shape[1] for kept in self._rows) >= max(self.layer.width, _FOLDED_ROWS):
                self._fold()
        self._turn += 1

    def mean(self) -> NDArray[np.float64]:
        """Return the mean row, (G, K)."""
        self._fold()
        return (self._total + self._drawn.total()) / max(1, self.count)

    def gram(self, *, centred: bool) -> Float32:
        """Return the mean of x·xᵀ, (G, K, K), about the mean row or about zero."""
        self._fold()
        gram = self._drawn.gram()
        if gram is None:
            assert self._gram is not None, "folding makes it"
            gram = self._gram.copy()
        elif self._gram is not None:
            gram += self._gram
        gram /= np.float32(max(1, self.count))
        if centred:
            mean = self.mean().astype(np.float32)
            gram -= mean[:, :, None] * mean[:, None, :]
        return gram

    def shown_gram(self, *, centred: bool) -> Float32:
        """Return as much of `gram` as so many rows can show: what rounding may rely on."""
        gram = self.gram(centred=centred)
        _shrink(gram, self.count)
        return gram

    def _fold(self) -> None:
        if self._rows:
            rows = self._rows[0] if len(self._rows) == 1 else np.concatenate(self._rows, axis=1)
            self._rows.clear()
            self._total += (np.ones((1, rows.shape[1]), np.float32) @ rows)[:, 0]
            # Of one matrix and itself, half is computed.
            found = (
                (rows[0].T @ rows[0])[None] if len(rows) == 1 else rows.transpose(0, 2, 1) @ rows
            )
            self._gram = found if self._gram is None else self._gram + found


def _shrink(gram: Float32, rows: int) -> None:
    """Shrink, in place, what relates numbers to each other as far as so few rows cannot show it.

    Rounding that cancels errors by chance relations of the samples would add to them on others.
    Source: Y. Chen et al., "Shrinkage Algorithms for MMSE Covariance Estimation", 2010 (OAS), of
    correlations, so that what each number is by itself stays.
    """
    width = gram.shape[1]
    if width == 1:
        return
    places = np.arange(width)
    own = gram[:, places, places].copy()
    # Of a number that never differs from its mean, what is left is rounding.
    least = 1e-6 * own.max(axis=1, keepdims=True) + np.finfo(np.float32).tiny
    size = np.sqrt(np.maximum(own, least))
    correlation = gram / size[:, :, None]
    correlation /= size[:, None, :]
    related = np.einsum("gij,gij->g", correlation, correlation)
    shown = (rows + 1.0 - 2.0 / width) * (related - width)
    chance = (1.0 - 2.0 / width) * related + width**2
    # Where rows are enough to show something, less than OAS does, by the square: what layers read
    # is far from Gaussian, and what relates it is worth more than chance relations cost. (Layers of
    # `bench/int4_layers_bench.py`, 128 to 2,048 tokens: up to a decibel less where all is shrunk,
    # up to 0.7 where nothing is.)
    kept = 1.0 - (chance / np.maximum(shown, chance)) ** (2 if rows >= width else 1)
    gram *= kept.astype(np.float32)[:, None, None]
    gram[:, places, places] = own


class _DrawnRows:
    """Rows that machine code draws and folds, their numbers place by place."""

    def __init__(self, layer: Layer) -> None:
        self._blocks, self._width = layer.groups * layer.blocks, layer.width
        self._taps = 1 if layer.window is None else math.prod(layer.window.kernel)
        self._held = 0
        self._rows: Float32 | None = None
        self._gram: Float32 | None = None
        self._sums = np.empty((self._blocks, self._width), np.float32)
        self._total = np.zeros((self._blocks, self._width))

    def add(self, read: Array, drawn: Drawn) -> None:
        count = len(drawn.places)
        if self._rows is None or self._held + count > self._rows.shape[1]:
            self._fold()
        if self._rows is None or count > self._rows.shape[1]:
            self._rows = np.empty((self._blocks, max(_KEPT_ROWS, count), self._width), np.float32)
        native_draw(read, drawn.step, drawn.places, self._rows, self._held)
        self._held += count

    def total(self) -> NDArray[np.float64]:
        """Return Σ x, (G, K)."""
        self._settle()
        total: NDArray[np.float64] = self._total[:, _in_order(self._width, self._taps)]
        return total

    def gram(self) -> Float32 | None:
        """Return Σ x·xᵀ, (G, K, K), None where there were no rows."""
        self._settle()
        if self._gram is None:
            return None
        cells = _cells(self._width, self._taps)
        flat: Float32 = self._gram.reshape(self._blocks, -1).take(cells, axis=1)
        return flat.reshape(self._gram.shape)

    def _settle(self) -> None:
        """Fold what is left; others may have the memory."""
        self._fold()
        self._rows = None

    def _fold(self) -> None:
        if self._rows is None or not self._held:
            return
        if self._gram is None:
            self._gram = np.zeros((self._blocks, self._width, self._width), np.float32)
        native_fold(self._rows, self._held, self._gram, self._sums)
        self._total += self._sums
        self._held = 0


def _in_order(width: int, taps: int) -> NDArray[np.intp]:
    """Return where each value of a row, channel by channel, lies in one place by place."""
    return np.arange(width).reshape(taps, -1).T.reshape(-1)


@lru_cache(maxsize=64)
def _cells(width: int, taps: int) -> NDArray[np.intp]:
    """Return where each product of two numbers lies.

    That with the smaller one first was computed.
    """
    at = _in_order(width, taps)
    first, second = np.minimum(at[:, None], at), np.maximum(at[:, None], at)
    return (first * width + second).reshape(-1)


class MomentsObserver:
    """Moments of many layers, filled tensor by tensor.

    Products that read the same tensor have the same moments.
    """

    def __init__(self, layers: Iterable[Layer], rows_per_sample: int | None = None) -> None:
        self.by_weight: dict[str, Moments] = {}
        self._by_source: dict[str, list[Moments]] = {}
        for layer in layers:
            there = self._by_source.setdefault(layer.source, [])
            moments = next((m for m in there if m.layer.reads_as(layer)), None)
            if moments is None:
                moments = Moments(layer, rows_per_sample)
                there.append(moments)
            self.by_weight[str(layer.weight.name)] = moments

    def different(self) -> list[Moments]:
        """Return all moments once."""
        return [moments for there in self._by_source.values() for moments in there]

    @property
    def wanted(self) -> frozenset[str]:
        """Names of the tensors that are looked at."""
        return frozenset(self._by_source)

    def add(self, name: str, array: Array) -> None:
        """Look at one tensor of one sample."""
        for moments in self._by_source.get(name, ()):
            moments.add(array)
