"""Samples that are held out, and what each loses."""

from __future__ import annotations

import numpy as np
import pytest

from vermilion.quantize.hold_out import (
    HELD_OUT_SAMPLES,
    Outputs,
    disagreement,
    held_out_of,
    lost_by_each,
    most_for,
    samples_for,
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


def test_smaller_drops_take_more_samples() -> None:
    assert most_for(0.5) == HELD_OUT_SAMPLES
    assert most_for(0.02) == 315
    assert most_for(0.0) == most_for(1e-6) == 1024


RNG = np.random.default_rng(2)


def rows(values: np.ndarray) -> list[dict[str, np.ndarray]]:
    return [{"y": np.asarray([value])} for value in values]


@pytest.mark.parametrize("changed", [(), (0,), (7, 8), (3, 20, 36), tuple(range(37))])
def test_what_each_sample_loses_is_found(changed: tuple[int, ...]) -> None:
    labels = RNG.integers(0, 5, 37)
    found = labels.copy()
    found[list(changed)] += 1
    calls = 0

    def accuracy(outputs: Outputs) -> float:
        nonlocal calls
        calls += 1
        return float(np.mean([row["y"][0] for row in outputs] == labels))

    lost = lost_by_each(accuracy, rows(labels), rows(found), 1.0)
    assert [number for number, loss in enumerate(lost) if loss] == list(changed)
    assert sum(lost) == pytest.approx(1.0 - accuracy(rows(found)))
    if len(changed) < 3:
        assert calls < 20  # not one for each sample


def test_a_gain_does_not_hide_a_loss_far_from_it() -> None:
    exact, found = np.zeros(32), np.zeros(32)
    found[1], found[30] = 1.0, -1.0
    lost = lost_by_each(lambda o: -sum(float(r["y"][0]) for r in o), rows(exact), rows(found), 0.0)
    assert (lost[1], lost[30]) == (1.0, -1.0)


def test_disagreement_counts_decisions() -> None:
    exact = {"text": np.eye(4)[None], "yes": np.asarray([0.7])}
    other = {"text": np.eye(4)[None, [0, 1, 2, 2]], "yes": np.asarray([0.6])}
    assert disagreement(exact, exact) == (0.0, 1.0 / 8.0)
    assert disagreement(exact, other) == (0.25 / 2.0, 1.0 / 8.0)
