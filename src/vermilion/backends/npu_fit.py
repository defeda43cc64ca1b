"""Fitting the rates of the NPU's cost model to published latencies, and what it is off by.

The model is a sum: so long a 10^9 operations of dense and of depthwise layers, so long a 10^6 bytes
of traffic, and a dispatch a part. The loss is the sum of |log(predicted ÷ published)|: twice too
fast is as wrong as twice too slow, and one network that a release does badly does not bend the
rest. As with any fit by absolute values, the best rates meet as many networks exactly as there are
rates; so every such set of rates is tried, with none at the wrong sign. No start is searched from,
and the same data give the same rates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from vermilion.backends.npu_published import Layer, Published, network

Floats = NDArray[np.float64]

# `xrt-smi validate --run latency` on Strix: a dispatch of nothing takes 84 µs, on Phoenix 90 µs.
# Source: Ryzen AI documentation, xrt_smi.rst; github.com/amd/xdna-driver/issues/1355.
DISPATCH_MS = 0.09

# Of a system of equations: beyond it two networks are the same to the model.
_WORST_CONDITION = 1e9


@dataclass(frozen=True)
class Rates:
    """The free parameters of the model.

    Units: milliseconds a 10^9 operations of dense and of depthwise layers, and a 10^6 bytes.
    """

    dense_ms_per_gop: float
    depthwise_ms_per_gop: float
    ms_per_megabyte: float


# 5 % of the array's peak, 1 % of that, 20 GB/s: what stands where nothing can be fitted.
START = Rates(0.4, 60.0, 0.05)


@dataclass(frozen=True)
class Work:
    """What a network asks of the chip: operations in 10^9, and traffic in 10^6 bytes.

    `product_gops` are the part of the dense ones that is matrix products, as transformers have.
    """

    dense_gops: float
    depthwise_gops: float
    megabytes: float
    product_gops: float = 0.0

    @classmethod
    def of(cls, layers: Sequence[Layer], bytes_per_element: int) -> Work:
        """Add up layers whose elements take this many bytes."""
        elements = sum(layer.weights + layer.activations for layer in layers)
        return cls(
            sum(layer.operations for layer in layers if not layer.is_depthwise) / 1e9,
            sum(layer.operations for layer in layers if layer.is_depthwise) / 1e9,
            elements * bytes_per_element / 1e6,
            sum(layer.operations for layer in layers if layer.is_product) / 1e9,
        )

    @property
    def gops(self) -> float:
        """All operations."""
        return self.dense_gops + self.depthwise_gops

    @property
    def is_of_products(self) -> bool:
        """Whether most of it is matrix products: a transformer."""
        return self.product_gops > 0.5 * self.gops

    def milliseconds(self, rates: Rates) -> tuple[float, float, float]:
        """Return what dense arithmetic, depthwise arithmetic and traffic take."""
        return (
            self.dense_gops * rates.dense_ms_per_gop,
            self.depthwise_gops * rates.depthwise_ms_per_gop,
            self.megabytes * rates.ms_per_megabyte,
        )

    def total_ms(self, rates: Rates, parts: int = 1) -> float:
        """Return the latency of `parts` dispatches."""
        return parts * DISPATCH_MS + sum(self.milliseconds(rates))


def fit(published: Published, bytes_per_element: int) -> Rates:
    """Return the rates with the smallest sum of |log(predicted ÷ published)|."""
    works = [Work.of(network(name), bytes_per_element) for name in published]
    terms = np.array([(w.dense_gops, w.depthwise_gops, w.megabytes) for w in works])
    milliseconds = np.fromiter(published.values(), np.float64)
    tried = _exact_solutions(terms, milliseconds - DISPATCH_MS)
    predicted = DISPATCH_MS + tried @ terms.T
    losses = np.abs(np.log(predicted / milliseconds)).sum(axis=1)
    best = tried[int(losses.argmin())] if len(tried) else np.array(astuple(START))
    return Rates(*(float(rate) for rate in best))


def _exact_solutions(terms: Floats, wanted: Floats) -> Floats:
    """Return every set of rates, none negative, that meets as many rows as there are rates.

    A rate of zero counts as a row.
    """
    count = terms.shape[1]
    rows = np.vstack([terms, np.eye(count)])
    values = np.concatenate([wanted, np.zeros(count)])
    chosen = np.array(list(combinations(range(len(rows)), count)))
    systems, results = rows[chosen], values[chosen]
    usable = np.linalg.cond(systems) < _WORST_CONDITION
    found = np.linalg.solve(systems[usable], results[usable][..., None])[..., 0]
    positive = found[(found > -1e-12).all(axis=1)]
    return np.asarray(np.maximum(positive, 0.0))


def left_out_errors(published: Published, bytes_per_element: int) -> Mapping[str, float]:
    """Return predicted ÷ published - 1 of each network, by the fit to all the others."""
    errors = {}
    for name, ms in published.items():
        others = {other: value for other, value in published.items() if other != name}
        work = Work.of(network(name), bytes_per_element)
        errors[name] = work.total_ms(fit(others, bytes_per_element)) / ms - 1
    return errors
