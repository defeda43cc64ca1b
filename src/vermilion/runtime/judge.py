"""Whether an output is what it should be: within roundings, and a number where one is wanted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vermilion.backends.base import Array
from vermilion.ir.measure import EXACT_DB, Agreement, agreement

# The floor under which a compiled model is not handed out. The arithmetic is the reference's own,
# so anything near it is a wrong graph, not a rounding.
MIN_COSINE = 0.99
# Outputs of a saturated sigmoid or softmax are all rounding: 1e-7 beside the 1.0 it is computed
# from. Errors of that size say nothing about the graph.
NOTHING = 1e-6


@dataclass(frozen=True)
class Verdict:
    """One output beside its reference.

    `agreement` is over the places where both are numbers. `unlike` counts those where only one is,
    or where NaN and infinities differ; `places` counts all, `numbers` those with one on both sides.
    """

    agreement: Agreement
    unlike: int
    places: int
    numbers: int

    @property
    def is_far(self) -> bool:
        """Whether this is more than a rounding, as far as one reference can tell."""
        return self.unlike > 0 or _is_far(self.agreement)

    def is_wrong(self, spread: Verdict | None, factor: float) -> bool:
        """Say whether it is further off than `factor` times what another reference is.

        Where the reference itself turns into NaN when it is rounded (a logarithm of what is nearly
        zero), so may this, and at about as many places.
        """
        if not self.is_far or spread is None:
            return self.is_far
        most = factor * spread.agreement.max_abs_error
        beyond = _is_far(self.agreement) and self.agreement.max_abs_error > most
        return beyond or self.unlike > factor * spread.unlike

    def as_json(self) -> dict[str, object]:
        """Give the keys of one of `verification.outputs`."""
        row = self.agreement.as_json()
        if self.numbers < self.places:
            row |= {"unlike_places": self.unlike, "number_places": self.numbers}
        return row

    def __str__(self) -> str:
        found = self.agreement
        words = f"cosine {found.cosine:.6f}, largest error {found.max_abs_error:.3g}"
        if not self.unlike:
            return words
        return f"{words}, and NaN or infinities differ at {self.unlike} of {self.places} places"


def judge(name: str, reference: Array | Sequence[Array], other: Array | Sequence[Array]) -> Verdict:
    """Compare an output with its reference; of a sequence, all numbers in order."""
    a, b = _tensor(reference), _tensor(other)
    if a.shape != b.shape:  # sizes that depend on the data: nothing lies beside anything
        return Verdict(Agreement(name, 0.0, -EXACT_DB, math.inf), max(a.size, b.size), a.size, 0)
    if a.dtype.kind in "OSUbiu":
        return Verdict(agreement(name, a, b), 0, a.size, a.size)
    a, b = a.astype(np.float64), b.astype(np.float64)
    both = np.isfinite(a) & np.isfinite(b)
    unlike = int(np.count_nonzero(~(both | (a == b) | (np.isnan(a) & np.isnan(b)))))
    numbers = int(np.count_nonzero(both))
    if numbers == a.size:
        return Verdict(agreement(name, a, b), 0, a.size, numbers)
    found = agreement(name, a[both], b[both])
    return Verdict(replace(found, has_nan=unlike > 0), unlike, a.size, numbers)


def _is_far(found: Agreement) -> bool:
    return found.cosine < MIN_COSINE and found.max_abs_error > NOTHING


def _tensor(output: Array | Sequence[Array]) -> Array:
    if isinstance(output, np.ndarray):
        return output
    return np.concatenate([np.ravel(item) for item in output]) if len(output) else np.zeros(0)
