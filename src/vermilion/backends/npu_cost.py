"""The cost model of an NPU: what a part's layers would take on it. *Modelled*, never measured.

No latency without its interval: each published network in turn is left out of the fit (`npu_fit`)
and predicted by it, and a new network is as far from the prediction as one of those. Where what is
published cannot carry a prediction, there is none, with the reason: another chip, another release,
much more or much less work, a transformer where none is published.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import onnx_ir as ir

from vermilion.backends.npu_fit import DISPATCH_MS, Rates, Work
from vermilion.backends.npu_published import BF16_MS, INT8_MS, Layer, Published, network
from vermilion.backends.npu_rules import column_of
from vermilion.errors import Refusal
from vermilion.hardware.targets.npu import npu_facts
from vermilion.hardware.targets.target import Target
from vermilion.ir.attributes import integer
from vermilion.ir.cost import node_cost
from vermilion.ir.ops import dimensions, elements, find_operator

NEWEST = "1.7"

# Whose published latencies the rates are fitted to.
_FITTED_ON = "strix"
# So many times more or less work than any published network has is no interpolation any more.
_REACH = 4.0
# The interval goes so far beyond the furthest: files have a few more layers than the papers.
_MARGIN = 1.1
# Of a part's operations: what is not counted as a layer must be less.
_MOST_UNCOUNTED = 0.5

# What `npu_fit.fit` gives for the tables of `npu_published.py`; a test holds them to it.
INT8_RATES: Mapping[str, Rates] = MappingProxyType(
    {
        "1.4.1": Rates(0.2992, 38.32, 0.05442),
        "1.5": Rates(0.7505, 95.84, 0.1153),
        "1.6": Rates(0.4267, 383.9, 0),
        "1.7": Rates(0.424, 89.33, 0.005976),
    }
)
BF16_RATES: Mapping[str, Rates] = MappingProxyType(
    {
        "1.7": Rates(8.548, 113.4, 0),
    }
)

# Predicted ÷ published - 1 of each network by a fit to the others; the same test.
INT8_ERRORS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "1.4.1": {
            "efficientnet-b0": -0.315,
            "efficientnet-b1": -0.204,
            "efficientnet-b2": 0.287,
            "mobilenet-v2": 0.278,
            "mobilenet-v3": -0.120,
            "resnet18": -0.255,
            "resnet34": 0.403,
            "resnet50": -0.128,
        },
        "1.5": {
            "efficientnet-b0": -0.110,
            "efficientnet-b1": 0.194,
            "efficientnet-b2": -0.194,
            "mobilenet-v2": 0.260,
            "mobilenet-v3": 0.111,
            "resnet18": -0.119,
            "resnet34": 0.166,
            "resnet50": -0.224,
            "yolov8m": 0.481,
        },
        "1.6": {
            "efficientnet-b0": -0.243,
            "efficientnet-b1": -0.040,
            "efficientnet-b2": 0.304,
            "mobilenet-v2": 0.207,
            "mobilenet-v3": 0.042,
            "resnet18": -0.189,
            "resnet34": 0.595,
            "resnet50": 0.240,
            "yolov8m": -0.874,
        },
        "1.7": {
            "efficientnet-b0": -0.246,
            "efficientnet-b1": 0.082,
            "efficientnet-b2": 0.292,
            "mobilenet-v2": -0.784,
            "mobilenet-v3": -0.070,
            "resnet18": 0.015,
            "resnet34": 0.257,
            "resnet50": -0.022,
            "yolov8m": -0.471,
        },
    }
)
BF16_ERRORS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "1.7": {
            "efficientnet-b0": -0.562,
            "minilm-l6": 2.269,
            "resnet18": 0.010,
            "resnet50": -0.010,
            "yolov8m": -0.438,
        },
    }
)


@dataclass(frozen=True)
class Latency:
    """A modelled latency, its interval, and where it goes. Milliseconds.

    `dense_ms`, `depthwise_ms` and `traffic_ms` are what the fitted terms take, `dispatch_ms` what
    dispatching the parts does. `errors` are those of the published networks when left out of the
    fit; `low_ms` to `high_ms` is what the furthest of them would make of the prediction.
    """

    dense_ms: float
    depthwise_ms: float
    traffic_ms: float
    dispatch_ms: float
    layers: int
    layers_beyond_memory: int  # whose activations do not fit in the array's memory tiles
    release: str
    errors: Mapping[str, float]
    basis: str

    @property
    def total_ms(self) -> float:
        """The sum of the terms."""
        return self.dense_ms + self.depthwise_ms + self.traffic_ms + self.dispatch_ms

    @property
    def low_ms(self) -> float:
        """The least of the interval: as far below as the network that was predicted too slow."""
        return self.total_ms / (1.0 + max(0.0, *self.errors.values())) / _MARGIN

    @property
    def high_ms(self) -> float:
        """The most of the interval: as far above as the network that was predicted too fast."""
        return self.total_ms / (1.0 + min(0.0, *self.errors.values())) * _MARGIN

    @property
    def coverage(self) -> float:
        """How likely another network, drawn as these were, is in the interval: (n-1) ÷ (n+1)."""
        count = len(self.errors)
        return (count - 1) / (count + 1)

    @property
    def median_error(self) -> float:
        """The middle of the left-out errors' sizes: 0.07 is 7 %."""
        return statistics.median(abs(error) for error in self.errors.values())

    @property
    def worst_error(self) -> tuple[str, float]:
        """The network that the model is furthest off on, and by how much."""
        return max(self.errors.items(), key=lambda item: max(1 + item[1], 1 / (1 + item[1])))

    @property
    def words(self) -> str:
        """Say it in one line: `15.9 ms, 12.3 to 73.1 ms`."""
        return interval_words(self.total_ms, (self.low_ms, self.high_ms))

    def as_json(self) -> dict[str, object]:
        """Return the keys that `inspect --json` prints."""
        worst, by = self.worst_error
        return {
            "modelled_ms": self.total_ms,
            "low_ms": self.low_ms,
            "high_ms": self.high_ms,
            "coverage": self.coverage,
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
            "basis": self.basis,
        }


def interval_words(milliseconds: float, interval: Sequence[float]) -> str:
    """Return a modelled latency with its interval, in words."""
    low, high = interval
    return f"{milliseconds:.2f} ms, {low:.2f} to {high:.2f} ms"


def predict(
    target: Target,
    number_format: str,
    nodes: Sequence[ir.Node],
    *,
    parts: int,
    release: str = NEWEST,
) -> Latency | Refusal:
    """Return the modelled latency of `nodes` in `parts` regions, or why there is none.

    Counted are convolutions and matrix products; what lies between them is taken as fused.
    """
    is_float = column_of(number_format) == "bf16"
    published = (BF16_MS if is_float else INT8_MS).get(release)
    kind = "BF16" if is_float else "INT8"
    if target.npu is None or target.name != _FITTED_ON or published is None:
        of = f"of {kind} networks on {target.name} with Ryzen AI {release}"
        return Refusal(f"no latencies are published {of}", _MEASURE)
    layers = tuple(layer for layer in map(layer_of, nodes) if layer is not None)
    work = Work.of(layers, 2 if is_float else 1)
    refused = _not_carried(work, nodes, published, f"{kind} networks of Ryzen AI {release}")
    if refused is not None:
        return refused
    rates = (BF16_RATES if is_float else INT8_RATES)[release]
    dense, depthwise, traffic = work.milliseconds(rates)
    return Latency(
        dense_ms=dense,
        depthwise_ms=depthwise,
        traffic_ms=traffic,
        dispatch_ms=DISPATCH_MS * parts,
        layers=len(layers),
        layers_beyond_memory=_beyond_memory(layers, 2 if is_float else 1),
        release=release,
        errors=(BF16_ERRORS if is_float else INT8_ERRORS)[release],
        basis=f"fitted to {len(published)} published {kind} latencies on Strix, Ryzen AI {release}",
    )


_MEASURE = "measure it on the device: `vermilion bench MODEL` there"


def _not_carried(
    work: Work, nodes: Sequence[ir.Node], published: Published, what: str
) -> Refusal | None:
    """Say why the published networks do not carry a prediction of this work."""
    known = [Work.of(network(name), 1) for name in published]
    least, most = min(w.gops for w in known), max(w.gops for w in known)
    if not least / _REACH <= work.gops <= most * _REACH:
        return Refusal(
            f"it has {work.gops:.3g} GOPs of convolutions and products, the published {what} have"
            f" {least:.3g} to {most:.3g}",
            _MEASURE,
        )
    if work.is_of_products and not any(w.is_of_products for w in known):
        return Refusal(f"it is a transformer, and none of the published {what} is", _MEASURE)
    operations = sum(node_cost(node).operations for node in nodes) / 1e9
    if operations - work.gops > _MOST_UNCOUNTED * operations:
        return Refusal(
            f"{(operations - work.gops) / operations:.0%} of its work is in operators that none of"
            f" the published {what} is made of",
            _MEASURE,
        )
    return None


def _beyond_memory(layers: Sequence[Layer], element_bytes: int) -> int:
    facts = npu_facts(_FITTED_ON)
    assert facts is not None
    assert facts.array is not None, "its array is in its row"
    fits = facts.array.memory_kib * 1024
    return sum(layer.activations * element_bytes > fits for layer in layers)


def node_milliseconds(
    number_format: str, nodes: Sequence[ir.Node], release: str = NEWEST
) -> list[float]:
    """Return what the model gives each node on the chip that it is fitted to; 0 for fused ones."""
    is_float = column_of(number_format) == "bf16"
    rates = (BF16_RATES if is_float else INT8_RATES)[release]
    layers = [layer_of(node) for node in nodes]
    return [
        sum(Work.of((layer,), 2 if is_float else 1).milliseconds(rates)) if layer else 0.0
        for layer in layers
    ]


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
        is_product=node.op_type not in _CONVOLUTIONS,
    )


_CONVOLUTIONS = ("Conv", "ConvTranspose", "QLinearConv", "ConvInteger")


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
