"""Fitting the free parameters of the NPU cost model to published latencies.

Each network in turn is left out of the fit and predicted by it: what the model is off by there is
what it says of its own error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vermilion.backends.npu_published import Layer, Published, network

Floats = NDArray[np.float64]

# `xrt-smi validate --run latency` on Strix: a dispatch of nothing takes 84 µs, on Phoenix 90 µs.
# Source: Ryzen AI documentation, xrt_smi.rst; github.com/amd/xdna-driver/issues/1355.
DISPATCH_MS = 0.09

_FIRST_STEP = 1.0
_LAST_STEP = 0.02


@dataclass(frozen=True)
class Rates:
    """The free parameters of the model.

    Units: milliseconds a 10^9 operations of dense and of depthwise layers, and a 10^6 bytes.
    """

    dense_ms_per_gop: float
    depthwise_ms_per_gop: float
    ms_per_megabyte: float


# Where the search begins: 5 % of the array's peak, 1 % of that, 20 GB/s.
START = Rates(0.4, 60.0, 0.05)


@dataclass(frozen=True)
class LayerTable:
    """Layers as columns, for adding them up quickly. Bytes are 10^6."""

    gops: Floats
    megabytes: Floats
    is_depthwise: NDArray[np.bool_]

    @classmethod
    def of(cls, layers: Sequence[Layer], bytes_per_element: int) -> LayerTable:
        """Return the columns of layers whose elements take this many bytes."""
        elements = np.array([layer.weights + layer.activations for layer in layers], np.float64)
        return cls(
            np.array([layer.operations for layer in layers], np.float64) / 1e9,
            elements * bytes_per_element / 1e6,
            np.array([layer.is_depthwise for layer in layers], np.bool_),
        )

    def compute_ms(self, rates: Rates) -> Floats:
        """Return each layer's time at the array's rate for its kind."""
        slow, fast = rates.depthwise_ms_per_gop, rates.dense_ms_per_gop
        return self.gops * np.where(self.is_depthwise, slow, fast)

    def traffic_ms(self, rates: Rates) -> Floats:
        """Return each layer's time at the memory's rate."""
        return self.megabytes * rates.ms_per_megabyte

    def total_ms(self, rates: Rates) -> float:
        """Return the latency: each layer is bound by its arithmetic or by its traffic."""
        bound = np.maximum(self.compute_ms(rates), self.traffic_ms(rates))
        return DISPATCH_MS + float(bound.sum())


def fit(published: Published, bytes_per_element: int) -> Rates:
    """Return the rates with the smallest sum of |log(predicted ÷ published)|.

    The logarithm makes twice too fast as wrong as twice too slow, its absolute value keeps one
    network that a release does badly from bending the rest.
    """
    tables = {name: LayerTable.of(network(name), bytes_per_element) for name in published}

    def loss(rates: Rates) -> float:
        return sum(
            abs(math.log(tables[name].total_ms(rates) / ms)) for name, ms in published.items()
        )

    rates, best, step = START, loss(START), _FIRST_STEP
    names = ("dense_ms_per_gop", "depthwise_ms_per_gop", "ms_per_megabyte")
    while step > _LAST_STEP:
        improved = False
        for name in names:
            for factor in (math.exp(step), math.exp(-step)):
                tried = replace(rates, **{name: getattr(rates, name) * factor})
                found = loss(tried)
                if found < best - 1e-9:
                    rates, best, improved = tried, found, True
        if not improved:
            step /= 2
    return rates


def left_out_errors(published: Published, bytes_per_element: int) -> Mapping[str, float]:
    """Return predicted ÷ published - 1 of each network, by the fit to all the others."""
    errors = {}
    for name, ms in published.items():
        others = {other: value for other, value in published.items() if other != name}
        table = LayerTable.of(network(name), bytes_per_element)
        errors[name] = table.total_ms(fit(others, bytes_per_element)) / ms - 1
    return errors
