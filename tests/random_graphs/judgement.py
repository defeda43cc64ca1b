"""Whether outputs are right: close to the reference, or no further than rounding explains.

First the reference alone, with tight bounds. Where they are passed, the reference is run with a
little noise on every number, given or computed; what that does to an output is what another order
of additions may do, several times over. Beyond it the output is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from random_graphs.reference import Noise, Reference, is_float
from vermilion.errors import VermilionError
from vermilion.ir.literal.interpret import interpret

Array = NDArray[Any]

# Of the largest value: float32 sums of a few hundred products in another order.
CLOSE = 1e-5
CLOSE_DB = 100.0
# Winograd's algorithm adds before it multiplies (`vermilion.proof.bounds`).
CLOSE_OF_WINOGRAD = 3e-5
# ONNX Runtime's logistic function is 0 where its argument is below about -18, and 1 above.
_NOUGHT = 1e-12
# Where the reference's integers are off at so many places, one in so many may be a tie of ours.
_TIES = 0.02
# Ties are so rare: a value of an image of a million lies that near to half a step.
_FEW = 1e-3
_DRAWS = 6
# A draw is one sample of what rounding does; the largest of a few understates it by less than this.
_FACTOR = 8.0
# The tangent of an angle of float16 is at least so large beside a pole, with noise in the angle.
_AT_A_POLE = 64.0
# Of its own value, by number format: the last bit, and half of it twice over where a kernel keeps
# what is between two nodes in more bits than the reference.
_LAST_BIT = {"fp32": 2.0**-23, "int8": 2.0**-23, "bf16": 2.0**-8, "fp16": 2.0**-10,
             "bf16-model": 2.0**-7}  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What is wrong with an output; `reason` is empty where nothing is."""

    output: str
    reason: str
    is_judged: bool = True  # False: noise alone makes anything of it
    is_peers: bool = False  # float64 agrees with us and not with the reference


def judge(
    reference: Reference,
    inputs: Mapping[str, Array],
    got: Mapping[str, Array],
    number_format: str,
    close: float = CLOSE,
) -> list[Verdict]:
    """Return a verdict for each output of the reference's model.

    `close` is what the largest error may be of the largest value.
    """
    names = [output.name for output in reference.model.graph.output]
    found = []
    factor = _FACTOR if close == CLOSE else 4 * _FACTOR
    draws: list[dict[str, Array]] = []
    for name in names:
        mine, right = got[name], reference.values[name]
        if (mine.shape, mine.dtype) != (right.shape, right.dtype):
            reason = f"is {mine.dtype}{list(mine.shape)}, not {right.dtype}{list(right.shape)}"
            found.append(Verdict(name, reason))
            continue
        if is_close(mine, right, close):
            found.append(Verdict(name, ""))
            continue
        draws = draws or noisy_runs(reference, inputs, number_format, range(_DRAWS))
        verdict = _among(name, mine, right, [draw[name] for draw in draws], factor)
        if verdict.reason and len(draws) == _DRAWS:  # before anything is called wrong: more of them
            draws += noisy_runs(reference, inputs, number_format, range(_DRAWS, 5 * _DRAWS))
            verdict = _among(name, mine, right, [draw[name] for draw in draws], factor)
        if verdict.reason and (is_float(mine) or close == CLOSE_OF_WINOGRAD):
            strength = _FACTOR if close == CLOSE else 4 * _FACTOR
            strong = noisy_runs(reference, inputs, number_format, range(4 * _DRAWS), strength)
            if _are_ties(mine, right, [draw[name] for draw in strong]):
                verdict = Verdict(name, "")
            elif is_float(mine) and not np.array_equal(np.isfinite(mine), np.isfinite(right)):
                # ONNX Runtime's GRU gives 1.0000005 where it saturates, of which Acos is NaN: noise
                # must be that strong to show that it decides there, and explains no more for it.
                verdict = _among(name, mine, right, [draw[name] for draw in strong], 1.0)
        if verdict.reason and _is_exact(reference, inputs, name, mine, number_format):
            verdict = Verdict(name, "", is_peers=True)
        found.append(verdict)
    return found


def _is_exact(
    reference: Reference, inputs: Mapping[str, Array], name: str, mine: Array, number_format: str
) -> bool:
    """Say whether an output is what the model gives in float64, and the reference is not.

    ONNX Runtime is off even node by node: a variance by E(x²) - E(x)², an InstanceNormalization of
    one pixel.
    """
    try:
        exact = interpret(ir.from_proto(reference.model), inputs, [name], wide=True)[name]
    except VermilionError:
        return False
    if not is_float(mine):
        # At a tie either is right, and a reference that is off more often is none.
        off, theirs_off = (
            int(np.count_nonzero(a != exact)) for a in (mine, reference.values[name])
        )
        return off <= _TIES * theirs_off
    with np.errstate(over="ignore"):  # beyond the largest number of the format is infinity
        exact = exact.astype(mine.dtype)
    a, b, c = (array.astype(np.float64) for array in (mine, reference.values[name], exact))
    known = np.isfinite(c)
    if not np.array_equal(a[~known], c[~known], equal_nan=True):
        return False
    if not np.array_equal(np.isfinite(b), known):
        # Of the reference nothing can be measured: a few roundings of the format are allowed.
        allowed = 64 * _LAST_BIT[number_format] * np.linalg.norm(c[known])
        return bool(np.linalg.norm((a - c)[known]) <= allowed)
    ours, theirs = np.abs(a - c)[known], np.abs(b - c)[known]
    return bool(
        np.linalg.norm(ours) <= np.linalg.norm(theirs)
        and ours.max(initial=0.0) <= theirs.max(initial=0.0)
    )


def _are_ties(mine: Array, right: Array, draws: list[Array]) -> bool:
    """Say whether the few places that are off are those that stronger noise moves as far."""
    a, b = mine.astype(np.float64), right.astype(np.float64)
    with np.errstate(invalid="ignore"):
        moved = np.max([np.abs(draw.astype(np.float64) - b) for draw in draws], axis=0)
        error = np.abs(a - b)
    wrong = ~(error <= CLOSE * float(np.max(np.abs(b), where=np.isfinite(b), initial=0.0)))
    few = wrong.sum() <= max(1, _FEW * wrong.size)
    return bool(few and (error[wrong] <= 2.0 * moved[wrong]).all())


def noisy_runs(
    reference: Reference,
    inputs: Mapping[str, Array],
    number_format: str,
    seeds: range,
    times: float = 1.0,
) -> list[dict[str, Array]]:
    """Return every value of some runs with noise as large as the format's last bit."""
    size = _LAST_BIT[number_format] * times
    rounded = number_format == "bf16"
    return [
        reference.run(inputs, _noise(np.random.default_rng(seed), size, rounded and seed % 2 == 0))
        for seed in seeds
    ]


def _noise(random: np.random.Generator, size: float, rounds: bool) -> Noise:
    def noise(array: Array, times: float) -> Array:
        if not is_float(array):
            return array
        if rounds and array.dtype == np.float32:
            return array.astype(ml_dtypes.bfloat16).astype(np.float32)
        wide = array.astype(np.float64)
        drawn = random.uniform(-size * times, size * times, array.shape)
        with np.errstate(all="ignore"):
            return np.asarray(wide + wide * drawn).astype(array.dtype)

    return noise


def is_close(mine: Array, right: Array, close: float = CLOSE) -> bool:
    """Say whether two arrays are as equal as two orders of additions leave them."""
    if not is_float(mine):
        return bool(np.array_equal(mine, right))
    a, b = mine.astype(np.float64), right.astype(np.float64)
    known = np.isfinite(b)
    if not np.array_equal(a[~known], b[~known], equal_nan=True) or not np.isfinite(a[known]).all():
        return False
    if not known.any():
        return True
    error, largest = np.abs(a[known] - b[known]), float(np.abs(b[known]).max())
    power = float(np.square(b[known]).sum())
    noise = float(np.square(error).sum())
    is_clean = noise == 0 or (power > 0 and 10 * np.log10(power / noise) >= CLOSE_DB)
    return bool(error.max() <= close * largest and is_clean)


def _among(name: str, mine: Array, right: Array, draws: list[Array], factor: float) -> Verdict:
    """Judge an output by what noise does to it, `factor` times over."""
    if not is_float(mine):
        open_places = np.any([draw != right for draw in draws], axis=0)
        wrong = (mine != right) & ~open_places
        loose = float(open_places.mean()) if open_places.size else 0.0
        # Where noise turns many places, it turns others in the next draw.
        if not wrong.any() or wrong.mean() <= loose:
            return Verdict(name, "", is_judged=loose < 0.2)
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        return Verdict(name, f"is {mine[at]} at {list(at)}, not {right[at]}: {_share(wrong)}")
    a, b = mine.astype(np.float64), right.astype(np.float64)
    others = [draw.astype(np.float64) for draw in draws]
    settled = np.isfinite(b) & np.all([np.isfinite(o) for o in others], axis=0)
    unlike = (np.isfinite(a) != np.isfinite(b)) & np.all(
        [np.isfinite(o) == np.isfinite(b) for o in others], axis=0
    )
    # At a pole, the tangent of a right angle, noise gives numbers of either sign, none small.
    turns = np.any([np.signbit(o) != np.signbit(b) for o in others], axis=0)
    unlike &= ~(
        np.isinf(a) & turns & np.all([np.abs(o) > _AT_A_POLE for o in (b, *others)], axis=0)
    )
    unlike |= np.isnan(a) & np.all([~np.isnan(o) for o in (b, *others)], axis=0)
    if unlike.any():
        at = tuple(int(i) for i in np.argwhere(unlike)[0])
        return Verdict(name, f"is {a[at]} at {list(at)}, not {b[at]}: {_share(unlike)}")
    settled &= np.isfinite(a)
    if not settled.any():
        return Verdict(name, "", is_judged=False)
    spread = np.max([np.abs(o - b) for o in others], axis=0, where=settled, initial=0.0)
    error = np.where(settled, np.abs(a - b), 0.0)
    power = float(np.sqrt(np.square(np.where(settled, b, 0.0)).mean()))
    typical = float(np.sqrt(np.square(spread).mean()))
    # An element's own spread, or what most have where the draws missed it; not that of the few
    # which jump because they lie at a step.
    usual = float(np.quantile(spread, 0.9, method="lower"))
    allowed = factor * np.maximum(spread, usual) + CLOSE * 0.1 * np.abs(b) + _NOUGHT
    mean_error = float(np.sqrt(np.square(error).mean()))
    if (error > allowed).any() and _flips(error, allowed, spread):
        at = tuple(int(i) for i in np.argwhere(error > allowed)[0])
        return Verdict(
            name, f"is {a[at]:.9g} at {list(at)}, not {b[at]:.9g}, of which noise explains "
            f"{allowed[at]:.3g}: {_share(error > allowed)}"
        )  # fmt: skip
    if mean_error > 2 * typical * factor + _NOUGHT:
        return Verdict(name, f"is off by {mean_error:.3g} in the mean, noise by {typical:.3g}")
    return Verdict(name, "", is_judged=typical * factor < 0.5 * power or power == 0)


def _flips(error: Array, allowed: Array, spread: Array) -> bool:
    """Say whether the large errors are more than the steps that noise makes elsewhere.

    A value at a tie falls on either side: some places do in each draw, others in the next one.
    """
    wrong = error > allowed
    steps = spread > 0.25 * spread.max(initial=0.0)
    rare = float(steps.mean()) < 0.25  # a few places jump, the others do not
    is_step = bool((error[wrong] <= 2.0 * spread.max(initial=0.0)).all())
    return not (rare and is_step and wrong.sum() <= max(1, 2 * int(steps.sum())))


def _share(wrong: Array) -> str:
    return f"{int(wrong.sum())} of {wrong.size} places"
