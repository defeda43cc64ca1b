"""What tensors hold and which range was chosen for them, for a report that people look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vermilion.quantize.constants import Constants
from vermilion.quantize.observe import BINS, Histogram, Range
from vermilion.quantize.plan import Plan

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
