"""Samples that are held out."""

from __future__ import annotations

import numpy as np
import pytest

from vermilion.quantize.hold_out import (
    MOST_HELD_OUT,
    HeldOut,
    drained,
    held_out_of,
    hold_out,
    samples_for,
    some_held_out,
)


def numbered(count: int) -> list[dict[str, np.ndarray]]:
    return [{"x": np.full(1, number, np.float32)} for number in range(count)]


def test_every_sample_goes_one_way() -> None:
    samples = numbered(300)
    held_out, rest = held_out_of(samples, 150)
    both = sorted(int(sample["x"][0]) for sample in (*held_out, *rest))
    assert both == list(range(300))
    assert len(held_out) == 150


@pytest.mark.parametrize("held_out", [1, 5, 10, 11, 12, 60, 149, 400])
def test_so_many_samples_hold_out_as_many_as_are_wanted(held_out: int) -> None:
    total = samples_for(held_out)
    assert held_out <= len(held_out_of(numbered(total), 1000)[0]) <= held_out + 3
    assert len(held_out_of(numbered(total - 5), 1000)[0]) < held_out


def test_few_are_held_out_of_few_and_many_of_many() -> None:
    assert len(held_out_of(numbered(32), 300)[0]) == 8
    held_out, rest = held_out_of(numbered(400), 300)
    assert len(held_out) == 300
    assert len(rest) == 100
    # Both are drawn from all over the data.
    assert max(float(sample["x"][0]) for sample in rest[:80]) > 300


def test_what_can_never_be_held_out_is_not_asked_for() -> None:
    assert samples_for(MOST_HELD_OUT) > MOST_HELD_OUT
    assert samples_for(MOST_HELD_OUT + 1) == samples_for(101, 100) == 0


def test_a_few_are_compared_on_and_not_calibrated_on() -> None:
    for count, expected in {3: 0, 4: 0, 6: 1, 40: 1}.items():
        feed = iter(numbered(count))
        held, ahead = some_held_out(feed, 0, None)
        assert len(held) == expected
        both = sorted(int(sample["x"][0]) for sample in (*held, *drained(ahead), *feed))
        assert both == list(range(count))
        assert not ahead
    for count, expected in {5: 1, 24: 2, 64: 4}.items():  # where that is known beforehand
        held, _ = some_held_out(iter(numbered(count)), count, None)
        assert len(held) == expected


def test_which_were_held_out_is_known() -> None:
    kept = HeldOut()
    rest = list(hold_out(numbered(100), kept, 300))
    assert [int(sample["x"][0]) for sample in kept.samples] == kept.indices
    assert len(rest) + len(kept.indices) == 100
