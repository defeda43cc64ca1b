from __future__ import annotations

import numpy as np
import pytest

from vermilion.quantize.losses import Outputs, disagreement, lost_by_each

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
