"""One output held against its expected values: direction, scale, every row, every NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from vermilion.ir.arrays import Array
from vermilion.ir.measure import Agreement, agreement
from vermilion.proof.bounds import BOUNDS, Bound, FormatName, bound_of

# A row is what lies side by side: trailing dimensions are joined until it has this many elements.
_ROW_ELEMENTS = 16
# Of the places that noise turns over, as many may lie elsewhere: three runs do not find them all.
_OUTSIDE_SHARE = 0.05
# A small row may be off by this share of what noise does to the tensor's rows on the whole.
_SPREAD_SHARE = 0.1
# Of roundings to steps: as many times as many may be turned over as noise turns over, and so many
# steps may come together in one value.
_TURNED, _STEPS = 8.0, 2.0
# Sums of squares of larger tensors are made in float64.
_LARGEST_SQUARE = 1e30

# Where every part is right and an output is further off than a tenth, the model itself decides
# nothing any more in this number format: nobody may call that proven.
_LEAST_AMPLIFIED_DB = 20.0


@dataclass(frozen=True)
class Spread:
    """What noise of the size of one rounding did to an output, over several runs.

    Shapes: `rows` has the largest error of each row; `low` and `high` are of the output's shape.
    `discrete` says that the model rounds to steps on the way: noise turns over some of them, here
    and there, each time in other places. `is_complete` says that whatever one rounding
    turns over is another in `low` or `high`.
    """

    energy: float
    rows: Array
    unlike: int
    low: Array
    high: Array
    discrete: bool = False
    is_complete: bool = False

    def allowed_energy(self, factor: float) -> float:
        """Return the energy of errors that noise explains."""
        return (_TURNED if self.discrete else factor * factor) * self.energy

    def allowed_rows(self, factor: float) -> Array:
        """Return the largest errors that noise explains, by row."""
        wide = self.rows.astype(np.float64)
        if self.discrete:
            return np.full(wide.shape, _STEPS * wide.max(initial=0.0))
        mean = math.sqrt(float(np.mean(np.square(wide)))) if wide.size else 0.0
        return factor * np.maximum(wide, _SPREAD_SHARE * mean)


@dataclass(frozen=True)
class OutputCheck:
    """One output beside its expected values.

    `noise_energy` and `signal_energy` are sums of squares over the places where both are numbers.
    `excess` is the worst ratio of a row's error to what is allowed: more than 1 is beyond it.
    `unlike` counts places where only one is a number, or NaN and infinities differ; `wrong` those
    of an exact output that are other values. `shape` says how the shapes differ, if they do.
    """

    name: str
    format: FormatName
    places: int
    numbers: int
    unlike: int
    wrong: int
    signal_energy: float
    noise_energy: float
    largest_error: float
    excess: float
    shape: str = ""
    spread: Spread | None = None
    bound: Bound = BOUNDS["fp32"]

    @property
    def sqnr_db(self) -> float:
        """Return the signal to noise ratio in dB, cut off at 200."""
        if self.noise_energy == 0.0:
            return 200.0
        if self.signal_energy == 0.0 or not math.isfinite(self.noise_energy):
            return -200.0
        ratio = math.log10(self.signal_energy) - math.log10(self.noise_energy)
        return max(-200.0, min(200.0, 10.0 * ratio))

    @property
    def passed(self) -> bool:
        """Whether roundings explain all of the difference."""
        if self.shape:
            return False
        bound = self.bound
        factor = bound.factor
        noise = self.spread
        if self.unlike > (factor * noise.unlike if noise else 0):
            return False
        if self.format == "exact":
            return self.wrong == 0
        allowed = self.signal_energy * 10.0 ** (-bound.sqnr_db / 10.0)
        allowed = max(allowed, self.places * bound.least**2)
        if noise is not None:
            allowed = max(allowed, noise.allowed_energy(factor))
        return self.excess <= 1.0 and self.noise_energy <= allowed

    def __str__(self) -> str:
        if self.shape:
            return self.shape
        if self.format == "exact":
            return f"{self.wrong} of {self.places} values differ"
        words = f"SQNR {self.sqnr_db:.1f} dB, largest error {self.largest_error:.3g}"
        if self.unlike:
            words += f", NaN or infinities differ at {self.unlike} of {self.places} places"
        return words


Output = Array | Sequence[Array]


def check_output(
    name: str,
    expected: Output,
    found: Output,
    form: FormatName,
    spread: Spread | None = None,
    *,
    fewer_products: bool = False,
) -> OutputCheck:
    """Compare an output with its expected values; of a sequence, all values in order."""
    a, b = flat(expected), flat(found)
    if a.shape != b.shape or a.dtype.kind != b.dtype.kind:
        words = f"{b.dtype.name}{list(b.shape)} instead of {a.dtype.name}{list(a.shape)}"
        return OutputCheck(name, form, a.size, 0, a.size, a.size, 0.0, 0.0, math.inf, 0.0, words)
    if a.dtype.kind in "OSUbiu" or form == "exact":
        return _exact(name, a, b, spread)
    bound = bound_of(form, fewer_products=fewer_products)
    return _floats(name, a, b, form, bound, spread)


def flat(output: Output) -> Array:
    """Return a tensor as it is, a sequence as all its values in order."""
    if isinstance(output, np.ndarray):
        return output
    if not isinstance(output, Sequence):  # an optional that is empty
        return np.zeros(0, np.float32)
    return np.concatenate([np.ravel(item) for item in output]) if len(output) else np.zeros(0)


def rows(array: Array) -> Array:
    """Return a view of shape (rows, elements), a row at least `_ROW_ELEMENTS` where there are."""
    count = 1
    for size in reversed(array.shape):
        if count >= _ROW_ELEMENTS:
            break
        count *= size
    return array.reshape(-1, max(1, count)) if array.size else array.reshape(0, 1)


def _exact(name: str, a: Array, b: Array, spread: Spread | None) -> OutputCheck:
    differ = a != b
    wrong = int(np.count_nonzero(differ))
    if wrong and spread is not None and a.dtype.kind not in "OSU":
        outside = differ & ((b < spread.low) | (b > spread.high))
        turned = int(np.count_nonzero(spread.low != spread.high))
        beyond = int(np.count_nonzero(outside))
        allowed = _OUTSIDE_SHARE * turned
        if spread.is_complete and (
            not spread.discrete or (outside & (spread.low == spread.high)).any()
        ):
            allowed = 0.0
        wrong = 0 if beyond <= allowed else beyond
    energy, noise, largest = 0.0, 0.0, 0.0
    if a.dtype.kind in "biu" and a.size:
        wide = a.astype(np.float64)
        error = wide - b.astype(np.float64)
        energy, noise = float(np.sum(wide * wide)), float(np.sum(error * error))
        largest = float(np.max(np.abs(error)))
    elif differ.any():
        noise, largest = float(np.count_nonzero(differ)), 1.0
    return OutputCheck(
        name, "exact", a.size, a.size, 0, wrong, energy, noise, largest, 0.0, spread=spread
    )


def _floats(
    name: str, a: Array, b: Array, form: FormatName, bound: Bound, spread: Spread | None
) -> OutputCheck:
    if a.dtype.itemsize < 4 or a.dtype.kind == "V":
        a, b = a.astype(np.float32), b.astype(np.float32)
    signal = _energy(a)
    other = _energy(b)
    unlike, numbers = 0, a.size
    if not (signal < _LARGEST_SQUARE and other < _LARGEST_SQUARE):  # NaN is not less
        a, b = a.astype(np.float64), b.astype(np.float64)
        both = np.isfinite(a) & np.isfinite(b)
        unlike = int(np.count_nonzero(~(both | (a == b) | (np.isnan(a) & np.isnan(b)))))
        numbers = int(np.count_nonzero(both))
        a, b = np.where(both, a, 0.0), np.where(both, b, 0.0)
        signal = _energy(a)
    error = np.abs(a - b)
    noise = _energy(error)
    row_errors = rows(error).max(axis=1, initial=0.0)
    row_sizes = rows(np.abs(a)).max(axis=1, initial=0.0)
    return OutputCheck(
        name, form, a.size, numbers, unlike, 0, signal, noise,
        float(row_errors.max(initial=0.0)),
        _excess(row_errors, row_sizes, bound, spread), spread=spread, bound=bound,
    )  # fmt: skip


def _energy(array: Array) -> float:
    """Return the sum of squares. No BLAS: its threads wait for each other on a busy machine."""
    line = array.reshape(-1)
    return float(np.einsum("i,i->", line, line))


def _excess(errors: Array, sizes: Array, bound: Bound, spread: Spread | None) -> float:
    if not errors.size:
        return 0.0
    allowed = allowed_errors(sizes, bound, spread)
    ratio = np.divide(errors, allowed, out=np.where(errors > 0, np.inf, 0.0), where=allowed > 0)
    return float(ratio.max())


def allowed_errors(sizes: Array, bound: Bound, spread: Spread | None) -> Array:
    """Return the largest error that is allowed in each row; `sizes` are its largest magnitudes."""
    floor = bound.floor * float(sizes.max(initial=0.0))
    allowed = np.maximum(sizes.astype(np.float64) * bound.row_error, max(floor, bound.least))
    if spread is None:
        return allowed
    return np.maximum(allowed, spread.allowed_rows(bound.factor))


def agreement_of(check: OutputCheck, expected: Output, found: Output) -> Agreement:
    """Return the three figures that every report has, over the places where both are numbers."""
    if check.shape:
        return Agreement(check.name, 0.0, -200.0, math.inf)
    a, b = flat(expected), flat(found)
    if a.dtype.kind in "fV":
        return replace(agreement(check.name, a, b, numbers_only=True), has_nan=check.unlike > 0)
    return agreement(check.name, a, b)


def is_nan_everywhere(output: Output) -> bool:
    """Say whether an output has elements and none is a number."""
    if not isinstance(output, np.ndarray) or output.dtype.kind not in "fV" or not output.size:
        return False
    return bool(np.isnan(output.astype(np.float32)).all())


def nothing_shown(check: OutputCheck, expected: Array, amplified: bool) -> str:
    """Return why an output within its bounds is not proven, empty where it is."""
    if check.format == "exact" or not isinstance(expected, np.ndarray):
        return ""
    if check.places and not check.numbers and is_nan_everywhere(expected):
        return "it is NaN everywhere on every sample"
    least = check.bound.least
    if check.largest_error and np.abs(expected.astype(np.float32)).max(initial=0.0) < least:
        return f"all its numbers are below {least:.0e}, which {check.format} products do not keep"
    if amplified and check.sqnr_db < _LEAST_AMPLIFIED_DB:
        return (
            f"the model amplifies the roundings of {check.format} to {check.sqnr_db:.1f} dB, though"
            " every part is right"
        )
    return ""


def spread_of(
    expected: Output,
    runs: Sequence[Output],
    *,
    discrete: bool = False,
    is_complete: bool = False,
) -> Spread | None:
    """Return what noise did to an output; None where a run gave another shape or text."""
    a = flat(expected)
    others = [flat(run) for run in runs]
    if not others or a.dtype.kind in "OSU" or any(b.shape != a.shape for b in others):
        return None
    if a.dtype.kind in "biu":
        stacked = np.stack([a, *others])
        low, high = stacked.min(axis=0), stacked.max(axis=0)
        return Spread(0.0, np.zeros(len(rows(a))), 0, low, high, discrete, is_complete)
    wide = a.astype(np.float64)
    energy, unlike, errors = 0.0, 0, np.zeros(len(rows(wide)))
    for other in others:
        b = other.astype(np.float64)
        both = np.isfinite(wide) & np.isfinite(b)
        strange = ~(both | (wide == b) | (np.isnan(wide) & np.isnan(b)))
        error = np.where(both, np.abs(np.where(both, wide, 0.0) - np.where(both, b, 0.0)), 0.0)
        energy = max(energy, _energy(error))
        errors = np.maximum(errors, rows(error).max(axis=1, initial=0.0))
        unlike = max(unlike, int(np.count_nonzero(strange)))
    return Spread(energy, errors, unlike, a, a, discrete)
