"""What each sample lost, figure by figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from vermilion.errors import ModelError, OptionError
from vermilion.quantize.evidence import binomial_bound
from vermilion.quantize.hold_out import HeldOut
from vermilion.quantize.judge import Judge, Verdict, lost_by_each
from vermilion.quantize.labels import as_labels
from vermilion.quantize.metrics import DECISIONS, Metric
from vermilion.quantize.own_metric import as_metric

RNG = np.random.default_rng(2)
Rows = list[dict[str, np.ndarray]]


def rows(values: Sequence[Any]) -> Rows:
    return [{"y": np.asarray([value])} for value in values]


def judged(
    metric: Metric, exact: Rows, found: Rows, labels: Sequence[Any] | None = None
) -> Verdict:
    held = HeldOut([{"x": np.zeros(1)} for _ in exact], [3 + 4 * n for n in range(len(exact))])
    known = as_labels(labels)
    label = None if known is None else (lambda index: known.of((index - 3) // 4, None))
    return Judge(metric, exact, held, label).judge(found)


@pytest.mark.parametrize("changed", [(), (0,), (7, 8), (3, 20, 36), tuple(range(37))])
def test_what_each_sample_loses_is_found(changed: tuple[int, ...]) -> None:
    labels = RNG.integers(0, 5, 37)
    found = labels.copy()
    found[list(changed)] += 1
    calls = 0

    def accuracy(outputs: Sequence[int]) -> float:
        nonlocal calls
        calls += 1
        return float(np.mean(np.asarray(outputs) == labels))

    lost = lost_by_each(accuracy, list(labels), list(found), 1.0)
    assert [number for number, loss in enumerate(lost) if loss] == list(changed)
    assert sum(lost) == pytest.approx(1.0 - accuracy(list(found)))
    if len(changed) < 3:
        assert calls < 20  # not one for each sample


def test_a_gain_does_not_hide_a_loss_far_from_it() -> None:
    exact, found = [0.0] * 32, [0.0] * 32
    found[1], found[30] = 1.0, -1.0
    lost = lost_by_each(lambda o: -sum(o), exact, found, 0.0)
    assert (lost[1], lost[30]) == (1.0, -1.0)


def test_outputs_that_never_change_hide_none_that_does() -> None:
    exact = [{"a": np.eye(4)[n % 4], "sure": np.asarray([9.0, 0.0])} for n in range(20)]
    found = [{**row, "a": row["a"][::-1]} if n < 2 else row for n, row in enumerate(exact)]
    verdict = judged(DECISIONS, exact, found)
    assert verdict.drop == pytest.approx(0.1)
    assert verdict.bound() == pytest.approx(binomial_bound(2, 20))


def error_rate(outputs: Rows) -> float:
    return float(np.mean([row["y"][0] for row in outputs]))


def test_an_error_rate_that_rises_is_a_loss() -> None:
    """Nobody says that less is better: then a change either way counts."""
    exact, found = rows([0.0] * 98 + [1.0] * 2), rows([0.0] * 92 + [1.0] * 8)
    undeclared = judged(as_metric(error_rate), exact, found)
    assert undeclared.drop == pytest.approx(3.0)  # of 2 % of errors, three times as many came
    declared = judged(as_metric(error_rate, direction="smaller"), exact, found)
    assert declared.drop == pytest.approx(0.06 / 0.98)
    assert declared.bound() > binomial_bound(6, 100)
    assert judged(as_metric(error_rate, direction="larger"), exact, found).drop < 0.0
    better = judged(as_metric(error_rate, direction="smaller"), found, exact)
    assert better.drop < 0.0


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (lambda outputs: None, "returned nothing"),
        (lambda outputs: math.nan, "gives nan"),
        (lambda outputs: math.inf, "gives inf"),
        (lambda outputs: "much", "not a number"),
        (lambda outputs: [1.0, 2.0], "2 numbers"),
        (lambda outputs: outputs["z"], "failed: TypeError"),
        (lambda outputs, what: 1.0, "asks for `what`"),
    ],
)
def test_a_metric_without_a_number_is_refused(metric: Callable[..., Any], words: str) -> None:
    exact = rows([1.0, 2.0])
    with pytest.raises(OptionError, match=words):
        judged(as_metric(metric), exact, exact)


@pytest.mark.parametrize("gives", [-5.0, 1.25])
def test_a_figure_outside_its_range_is_refused(gives: float) -> None:
    """What one sample can lose follows from the range: a wrong one would be no bound."""

    def constant(outputs: Rows) -> float:
        return gives

    metric = as_metric(constant, direction="larger", bounds=(0.0, 1.0))
    with pytest.raises(OptionError, match="and figures from 0 to 1 were said"):
        judged(metric, rows([0.0] * 12), rows([0.0] * 12))


def test_a_metric_sees_which_sample_it_judges() -> None:
    labels = [f"label {n}" for n in range(6)]
    seen: list[tuple[int, str]] = []

    def one(outputs: Any, sample: Any, index: int, label: str) -> float:
        seen.append((index, label))
        return 1.0

    def places(found: Any, given: Any, number: int, truth: str) -> float:
        return one(found, given, number, truth)

    def all_at_once(outputs: Rows, samples: Rows, indices: list[int], labels: list[str]) -> float:
        assert len(outputs) == len(samples) == len(indices) == len(labels) == 6
        seen.extend(zip(indices, labels, strict=True))
        return 1.0

    for metric in (one, places, all_at_once):
        seen.clear()
        judged(as_metric(metric), rows(range(6)), rows(range(6)), labels)
        assert seen[:6] == [(3 + 4 * n, f"label {n}") for n in range(6)]


class Tally:
    """As those of torchmetrics are."""

    higher_is_better = True
    plot_lower_bound, plot_upper_bound = 0.0, 1.0

    def reset(self) -> None:
        self.right: list[bool] = []

    def update(self, found: np.ndarray, label: int) -> None:
        self.right.append(int(found[0]) == label)

    def compute(self) -> np.ndarray:
        return np.asarray(np.mean(self.right))


def test_objects_are_updated_and_asked() -> None:
    labels = [0, 1, 2, 3]
    exact, found = rows([0.0, 1.0, 2.0, 9.0]), rows([0.0, 1.0, 0.0, 9.0])
    verdict = judged(as_metric(Tally()), exact, found, labels)
    assert verdict.drop == pytest.approx(1 / 3)  # of 3 in 4 that were right
    assert verdict.losses[0].highest == pytest.approx(4 / 3)


def test_figures_by_name_are_judged_one_by_one() -> None:
    def two(outputs: Any, sample: Any) -> dict[str, float]:
        return {"good": 1.0, "bad": float(outputs["y"][0])}

    verdict = judged(as_metric(two, direction="larger"), rows([1.0] * 10), rows([1.0] * 9 + [0.0]))
    assert {row.name: round(row.drop, 3) for row in verdict.losses} == {"good": 0.0, "bad": 0.1}
    assert verdict.drop == pytest.approx(0.1)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_fails(wrong: float) -> None:
    exact, found = rows([1.0, 2.0, 3.0]), rows([1.0, wrong, 3.0])
    verdict = judged(DECISIONS, exact, found)
    assert "sample 7, held out" in verdict.fault
    assert (verdict.drop, verdict.bound(), verdict.needed(0.5)) == (1.0, 1.0, 0)
    assert Judge(None, exact, HeldOut([], [1, 2, 3]), None).judge(found).sqnr_db == -200.0


def test_infinities_of_the_float_model_stay_in_place() -> None:
    exact = rows([-math.inf, 2.0])
    assert judged(DECISIONS, exact, exact).fault == ""
    with pytest.raises(ModelError, match="itself gives NaN"):
        judged(DECISIONS, rows([math.nan]), rows([1.0]))


def test_a_figure_without_an_end_shows_only_what_is_like_the_samples() -> None:
    def cost(outputs: Any, index: int) -> float:
        return float(outputs["y"][0])

    metric = as_metric(cost, direction="smaller")
    exact = rows([2.0] * 30)
    nothing = judged(metric, exact, exact)
    assert nothing.bound() == math.inf
    some = judged(metric, exact, rows([2.0] * 20 + [2.1] * 10))
    assert some.drop < some.bound() < 0.05
    ended = judged(as_metric(cost, direction="smaller", bounds=(0.0, 10.0)), exact, exact)
    assert ended.bound() == pytest.approx(binomial_bound(0, 30))
