"""What quantizing gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.ir.measure import Agreement
from vermilion.quantize.constants import Constants
from vermilion.quantize.inner import InnerNode
from vermilion.quantize.low_resolution import LowResolution
from vermilion.quantize.observe import BINS, Histogram, Range
from vermilion.quantize.options import Options
from vermilion.quantize.plan import Plan
from vermilion.quantize.report import LayerError

SHOWN_BINS = 64


@dataclass(frozen=True)
class TensorDetail:
    """One rounded tensor.

    `low` and `high` are the range that its integers cover, in the tensor's own units. `counts`
    lie in equal bins between `first` and `last`; there are none where only the ends were seen.
    """

    name: str
    kind: str  # `activation` or `weight`
    number: str  # `int8`
    low: float
    high: float
    first: float
    last: float
    counts: tuple[int, ...] = ()


def tensor_details(
    plan: Plan, constants: Constants, statistics: Mapping[str, Histogram | Range]
) -> tuple[TensorDetail, ...]:
    """Describe every observed activation and every weight of a plan, before it is written."""
    found = []
    for name, seen in statistics.items():
        counts = _shown(seen) if isinstance(seen, Histogram) else ()
        end = BINS * seen.width if isinstance(seen, Histogram) else 0.0
        first, last = (-end, end) if counts else (seen.lowest, seen.highest)
        found.append(_detail(name, "activation", constants, (first, last), counts))
    for value in plan.weights:
        if value.const_value is None:
            continue
        array = value.const_value.numpy()
        end = float(np.abs(array).max(initial=0.0))
        bins: NDArray[np.int64] = np.histogram(array, SHOWN_BINS, (-end, end) if end else None)[0]
        counts = tuple(int(n) for n in bins)
        found.append(_detail(str(value.name), "weight", constants, (-end, end), counts))
    return tuple(found)


def _shown(seen: Histogram) -> tuple[int, ...]:
    return tuple(int(n) for n in seen.signed.reshape(SHOWN_BINS, -1).sum(axis=1))


def _detail(
    name: str,
    kind: str,
    constants: Constants,
    ends: tuple[float, float],
    counts: tuple[int, ...],
) -> TensorDetail:
    given = constants.parameters[name]
    scale = float(given.scale.max())  # of the widest channel
    low = (given.number.low - given.zero_point) * scale
    high = (given.number.high - given.zero_point) * scale
    return TensorDetail(name, kind, given.number.name, low, high, *ends, counts)


# Samples on which outputs and layers are compared. An int8 model may run two to three times slower
# than the float one on a CPU (an int8 bias keeps ONNX Runtime from fusing), so not on all.
OUTPUT_SAMPLES = 4
LAYER_SAMPLES = 2


@dataclass(frozen=True)
class Quantized:
    """A quantized model, and how far it is from the original.

    `own_samples` of all samples ran in our own kernels, in bfloat16, the others in ONNX Runtime.
    `outputs` and `layers` were measured on `held_out` samples, which were not calibrated on; where
    that is none, for want of samples, on the first ones. `moved` scales were made coarser to
    fit the NPU's shifters; at the nodes in `unmet` its limits still do not hold.
    `crowded` tensors share a scale that is too coarse for them. `eight_bit_share` is the part of
    all operations that matrix products on 8 bits have. `details` are there where they were asked
    for. `inner` nodes are in branches and bodies, or recurrent layers, and compute in float.
    """

    model: ir.Model
    scheme: str
    samples: int
    outputs: tuple[Agreement, ...]
    layers: tuple[LayerError, ...]
    options: Options = field(default_factory=Options)
    eight_bit_share: float = 0.0
    moved: int = 0
    unmet: tuple[str, ...] = ()
    crowded: tuple[LowResolution, ...] = ()
    details: tuple[TensorDetail, ...] = ()
    own_samples: int = 0
    held_out: int = 0
    inner: tuple[InnerNode, ...] = ()
