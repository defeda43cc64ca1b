"""What a graph asks of a value's elements, and how requests for one value are joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]

SampleKind = Literal["ordinary", "edges", "large"]


@dataclass(frozen=True)
class Want:
    """The interval that elements of a value must lie in.

    Shapes: `low` and `high` broadcast to the value's shape; integers up to 2^53 are exact in them.
    `nonzero` leaves out zero, `whole` all but whole numbers; `marked` asks for at least one 1 in
    each row (a mask that hides everything makes 0/0). What is not `hard` is plausible only: it
    gives way to what is.
    """

    low: Floats
    high: Floats
    nonzero: bool = False
    whole: bool = False
    marked: bool = False
    hard: bool = True

    @property
    def is_bounded(self) -> bool:
        """Whether every element has both ends."""
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())

    def reshaped(self, old: Sequence[int] | None, new: Sequence[int] | None) -> Want | None:
        """Return what is wanted of a value whose elements are those of another, in the same order.

        None where the elements cannot be followed.
        """
        if self.low.ndim == 0 and self.high.ndim == 0:
            return self
        if old is None or new is None or np.prod(old) != np.prod(new):
            return None
        return self.moved(lambda array: np.broadcast_to(array, old).reshape(new))

    def moved(self, move: Any) -> Want:
        """Return the request with both ends moved alike."""
        return replace(self, low=move(self.low), high=move(self.high))


def between(low: float, high: float, **flags: bool) -> Want:
    """Return a request for the interval from `low` to `high`, both included."""
    return Want(np.array(low, np.float64), np.array(max(low, high), np.float64), **flags)


def exactly(values: Any, **flags: bool) -> Want:
    """Return a request for these very values."""
    array = np.asarray(values, np.float64)
    return Want(array, array, **flags)


def joined(first: Want | None, second: Want | None) -> Want | None:
    """Return the request that meets both, or the stronger, or the first where they conflict."""
    if first is None or second is None:
        return second if first is None else first
    if first.hard != second.hard:
        return first if first.hard else second
    try:
        low = np.maximum(first.low, second.low)
        high = np.minimum(first.high, second.high)
    except ValueError:  # ends of two shapes: one of them lies about its value
        return first
    if (low > high).any():
        return first
    return Want(
        low,
        high,
        first.nonzero or second.nonzero,
        first.whole or second.whole,
        first.marked or second.marked,
        first.hard,
    )
