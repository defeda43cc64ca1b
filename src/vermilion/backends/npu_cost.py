"""The cost model of an NPU: what a part's layers would take on it. *Modelled*, never measured.

Each network in turn is left out of the fit and predicted by it: what the model is off by there is
what it says of its own error.

A layer takes as long as its arithmetic at the array's rate or its traffic at the memory's rate,
whichever is longer; a part is dispatched once. The rates are fitted to published latencies
(`fit`), release by release, because releases of the vendor's compiler differ up to sevenfold
on the same network.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.backends.npu_published import Layer, Published, network
from vermilion.backends.npu_rules import column_of
from vermilion.hardware.targets.npu import npu_facts
from vermilion.hardware.targets.target import Target
from vermilion.ir.attributes import integer
from vermilion.ir.ops import dimensions, elements, find_operator

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


NEWEST = "1.7"


# Whose published latencies the rates are fitted to.
_FITTED_ON = "strix"

# What `fit` gives for the tables of `npu_published.py`; a test holds them to it.
INT8_RATES: Mapping[str, Rates] = MappingProxyType(
    {
        "1.4.1": Rates(0.6195, 48.21, 0.0003369),
        "1.5": Rates(1.271, 135.2, 0.0009158),
        "1.6": Rates(0.5299, 379.2, 0.001071),
        "1.7": Rates(0.4, 82.01, 0.05159),
    }
)
BF16_RATES: Mapping[str, Rates] = MappingProxyType({"1.7": Rates(8.552, 22.07, 0.3471)})

# Predicted ÷ published - 1 of each network by a fit to the others; the same test.
INT8_ERRORS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "1.4.1": {
            "efficientnet-b0": -0.194,
            "efficientnet-b1": -0.105,
            "efficientnet-b2": 0.330,
            "mobilenet-v2": 0.135,
            "mobilenet-v3": -0.121,
            "resnet18": -0.264,
            "resnet34": 0.416,
            "resnet50": 0.009,
        },
        "1.5": {
            "efficientnet-b0": -0.038,
            "efficientnet-b1": 0.192,
            "efficientnet-b2": -0.040,
            "mobilenet-v2": 0.135,
            "mobilenet-v3": 0.012,
            "resnet18": -0.288,
            "resnet34": 0.347,
            "resnet50": -0.277,
            "yolov8m": 0.459,
        },
        "1.6": {
            "efficientnet-b0": -0.334,
            "efficientnet-b1": -0.155,
            "efficientnet-b2": 0.276,
            "mobilenet-v2": 0.181,
            "mobilenet-v3": 0.019,
            "resnet18": -0.190,
            "resnet34": 0.592,
            "resnet50": 0.236,
            "yolov8m": -0.799,
        },
        "1.7": {
            "efficientnet-b0": -0.238,
            "efficientnet-b1": 0.023,
            "efficientnet-b2": 0.210,
            "mobilenet-v2": -0.774,
            "mobilenet-v3": 0.005,
            "resnet18": 0.003,
            "resnet34": 0.211,
            "resnet50": -0.014,
            "yolov8m": -0.070,
        },
    }
)
BF16_ERRORS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "1.7": {
            "efficientnet-b0": -0.265,
            "resnet18": 0.570,
            "resnet50": 0.561,
            "yolov8m": -0.447,
        }
    }
)


@dataclass(frozen=True)
class Latency:
    """A modelled latency and where it goes. Milliseconds.

    `dense_ms`, `depthwise_ms` and `traffic_ms` are the time of the layers that are bound by each.
    `errors` are those of the published networks when left out of the fit; `is_scaled` says that
    the rates are those of another chip, brought to this one's array.
    """

    total_ms: float
    dense_ms: float
    depthwise_ms: float
    traffic_ms: float
    dispatch_ms: float
    layers: int
    layers_beyond_memory: int  # whose activations do not fit in the array's memory tiles
    release: str
    errors: Mapping[str, float]
    is_scaled: bool
    basis: str

    @property
    def median_error(self) -> float:
        """The middle of the left-out errors' sizes: 0.07 is 7 %."""
        return statistics.median(abs(error) for error in self.errors.values())

    @property
    def worst_error(self) -> tuple[str, float]:
        """The network that the model is furthest off on, and by how much."""
        return max(self.errors.items(), key=lambda item: abs(item[1]))

    def as_json(self) -> dict[str, object]:
        """Return the keys that `inspect --json` prints."""
        worst, by = self.worst_error
        return {
            "modelled_ms": self.total_ms,
            "compute_dense_ms": self.dense_ms,
            "compute_depthwise_ms": self.depthwise_ms,
            "traffic_ms": self.traffic_ms,
            "dispatch_ms": self.dispatch_ms,
            "layers": self.layers,
            "layers_beyond_memory": self.layers_beyond_memory,
            "release": self.release,
            "median_error": self.median_error,
            "worst_error": {"network": worst, "error": by},
            "errors": dict(self.errors),
            "is_scaled": self.is_scaled,
            "basis": self.basis,
        }


def predict(
    target: Target,
    number_format: str,
    nodes: Sequence[ir.Node],
    *,
    parts: int,
    release: str = NEWEST,
) -> Latency | None:
    """Return the modelled latency of `nodes` in `parts` regions; None where nothing was published.

    Counted are convolutions and matrix products; what lies between them is taken as fused.
    """
    array = None if target.npu is None else target.npu.array
    fitted_on = npu_facts(_FITTED_ON)
    is_float = column_of(number_format) == "bf16"
    rates = (BF16_RATES if is_float else INT8_RATES).get(release)
    if array is None or rates is None or (is_float and "bf16" not in target.formats):
        return None
    assert fitted_on is not None
    assert fitted_on.array is not None
    slower = fitted_on.array.int8_tops / array.int8_tops
    rates = replace(
        rates,
        dense_ms_per_gop=rates.dense_ms_per_gop * slower,
        depthwise_ms_per_gop=rates.depthwise_ms_per_gop * slower,
    )
    layers = tuple(layer for layer in map(layer_of, nodes) if layer is not None)
    element_bytes = 2 if is_float else 1
    fits = array.memory_kib * 1024
    table = LayerTable.of(layers, element_bytes)
    compute, traffic = table.compute_ms(rates), table.traffic_ms(rates)
    by_traffic = traffic > compute
    dispatch = DISPATCH_MS * parts
    return Latency(
        total_ms=dispatch + table.total_ms(rates) - DISPATCH_MS,
        dense_ms=float(compute[~by_traffic & ~table.is_depthwise].sum()),
        depthwise_ms=float(compute[~by_traffic & table.is_depthwise].sum()),
        traffic_ms=float(traffic[by_traffic].sum()),
        dispatch_ms=dispatch,
        layers=len(layers),
        layers_beyond_memory=sum(layer.activations * element_bytes > fits for layer in layers),
        release=release,
        errors=(BF16_ERRORS if is_float else INT8_ERRORS)[release],
        is_scaled=target.name != _FITTED_ON,
        basis=_basis(target, is_float=is_float, release=release),
    )


def _basis(target: Target, *, is_float: bool, release: str) -> str:
    kind = "BF16" if is_float else "INT8"
    text = f"fitted to AMD's published {kind} latencies on Strix, Ryzen AI {release}"
    if target.name == _FITTED_ON:
        return text
    return f"{text}; scaled to the array of {target.name}, where nothing is published"


def layer_of(node: ir.Node) -> Layer | None:
    """Return what the model counts of a node, None for what it takes as fused."""
    operator = find_operator(node)
    if operator is None or operator.family != "product":
        return None
    constants = [v for v in node.inputs if v is not None and _is_weight(v)]
    flowing = [v for v in node.inputs if v is not None and not _is_weight(v)]
    return Layer(
        operations=operator.rule(node),
        weights=sum(elements(value) for value in constants),
        activations=sum(elements(value) for value in [*flowing, *node.outputs]),
        is_depthwise=_is_depthwise(node),
    )


def _is_weight(value: ir.Value) -> bool:
    """Say whether a value is a weight, also one that a DequantizeLinear unpacks."""
    if value.is_initializer():
        return True
    producer = value.producer()
    if producer is None:
        return False
    if producer.op_type == "DequantizeLinear" and producer.inputs[0] is not None:
        return _is_weight(producer.inputs[0])
    return producer.op_type == "Constant"


def _is_depthwise(node: ir.Node) -> bool:
    if node.op_type not in ("Conv", "ConvTranspose", "QLinearConv"):
        return False
    weight = dimensions(node.inputs[3 if node.op_type == "QLinearConv" else 1])
    return integer(node, "group", 1) > 1 and len(weight) > 1 and weight[1] == 1
