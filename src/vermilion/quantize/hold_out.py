"""Which samples are held out of calibration, to measure on them."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from vermilion.ir.execute import Array
from vermilion.quantize.result import OUTPUT_SAMPLES

_T = TypeVar("_T")

HELD_OUT_SAMPLES = 32
"""Held out for an SQNR at most, which is a mean over all numbers of an output."""

HELD_OUT_EVERY = 4  # of the first samples, every fourth is not calibrated on
_CALIBRATED_FIRST = 32  # then ranges hardly widen any more, and all but every eighth is held out
_CALIBRATED_EVERY = 8

MOST_HELD_OUT = 1 << 14
"""Held out for a largest drop at most. How many show it depends on what they lose, and is not known
before: all that are given are taken."""

MOST_TOGETHER = 1 << 11
"""The same where a metric sees all samples at once: its time grows with the square of them."""

HELD_OUT_BYTES = 512 * 1024 * 1024  # of samples; and of what the model gives for them

# Without a promise, of the first samples so many are compared on where there are as many at least.
# Reading ahead tells that there are a few; of more, only who gives them knows.
_COMPARED = {64: 4, 24: 2, 6: 1}
_READ_AHEAD = 5
_READ_AHEAD_HELD = 16  # where samples are held out anyway, until the first four of them are


@dataclass
class HeldOut:
    """Samples that are not calibrated on, and which of all samples they are."""

    samples: list[dict[str, Array]] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)


def held_out_of(
    samples: Iterable[Mapping[str, Array]], most: int = HELD_OUT_SAMPLES
) -> tuple[list[Mapping[str, Array]], list[Mapping[str, Array]]]:
    """Return the samples that a promise is held to, and those that are calibrated on."""
    kept = HeldOut()
    rest = list(hold_out(samples, kept, most))
    return list(kept.samples), rest


def hold_out(
    samples: Iterable[Mapping[str, Array]], kept: HeldOut, most: int
) -> Iterator[Mapping[str, Array]]:
    """Pass on what is calibrated on, and keep the rest, `most` samples of it."""
    calibrated = size = 0
    for number, sample in enumerate(samples):
        later = calibrated >= _CALIBRATED_FIRST and most > HELD_OUT_SAMPLES
        turn = (
            number % _CALIBRATED_EVERY != 0
            if later
            else number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        )
        if turn and len(kept.samples) < most and size < HELD_OUT_BYTES:
            kept.samples.append(dict(sample))
            kept.indices.append(number)
            size += sum(array.nbytes for array in sample.values())
        else:
            calibrated += 1
            yield sample


def samples_for(held_out: int, most: int = MOST_HELD_OUT) -> int:
    """Return how many samples there must be for so many to be held out of them.

    0 where that would be more than are held out at `most`.
    """
    if held_out > most:
        return 0
    early = _CALIBRATED_FIRST * HELD_OUT_EVERY // (HELD_OUT_EVERY - 1)
    held_early = early - _CALIBRATED_FIRST
    if held_out <= held_early:
        return held_out * HELD_OUT_EVERY
    later = math.ceil((held_out - held_early) * _CALIBRATED_EVERY / (_CALIBRATED_EVERY - 1))
    return early + 1 + later


def some_held_out(
    samples: Iterator[dict[str, Array]], hint: int, held: HeldOut | None
) -> tuple[list[dict[str, Array]], deque[dict[str, Array]]]:
    """Read ahead; return a few samples to compare on, and those read that are calibrated on.

    There are `hint` samples or more. With `held`, reading fills it. Of fewer than six samples none
    is held out: ranges need them more.
    """
    ahead = deque(itertools.islice(samples, _READ_AHEAD if held is None else _READ_AHEAD_HELD))
    if held is not None:
        return held.samples[:OUTPUT_SAMPLES], ahead
    count = max(hint, len(ahead) + (len(ahead) == _READ_AHEAD))
    compared = next((number for least, number in _COMPARED.items() if count >= least), 0)
    held_out = [ahead.pop() for _ in range(min(compared, len(ahead)))]
    return held_out[::-1], ahead


def drained(ahead: deque[_T]) -> Iterator[_T]:
    """Yield what was read ahead, and forget it."""
    while ahead:
        yield ahead.popleft()
