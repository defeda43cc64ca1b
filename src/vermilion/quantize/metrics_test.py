"""Metrics that are known by name, against figures counted by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from vermilion.errors import OptionError
from vermilion.quantize.metrics import METRICS, decisions
from vermilion.quantize.own_metric import KNOWN, as_metric
from vermilion.quantize.texts import alphabet_of, edit_distance


def figure(name: str, pairs: list[tuple[dict[str, Any], Any]], **more: Any) -> float:
    metric = as_metric(name, **more)
    rows = [metric.row(outputs, {}, n, label) for n, (outputs, label) in enumerate(pairs)]
    found = metric.figure(rows)
    return float(found if isinstance(found, float) else next(iter(found.values())))


def scores(*rows: list[float]) -> dict[str, np.ndarray]:
    return {"y": np.asarray(rows, np.float32)}


@pytest.mark.parametrize("metric", ["top1", "top5", "f1"])
@pytest.mark.parametrize("label", [3, -1])
def test_a_label_that_is_no_class_is_told(metric: str, label: int) -> None:
    with pytest.raises(OptionError, match=rf"a label is {label}, and .* scores for 0 to 2"):
        figure(metric, [(scores([0.1, 0.7, 0.2]), label)])


def test_a_token_that_is_none_is_told() -> None:
    logits = {"y": np.zeros((1, 3, 4), np.float32)}
    with pytest.raises(OptionError, match=r"a label is 4, and .* scores for 0 to 3"):
        figure("perplexity", [(logits, np.asarray([[0, 4, -100]]))])


def test_decisions() -> None:
    assert decisions(np.asarray([[0.1, 0.9], [0.8, 0.2]])).tolist() == [1, 0]
    image = np.zeros((1, 2, 1, 2))
    image[0, 1, 0, 1] = 1.0
    assert decisions(image).tolist() == [[[0, 1]]]
    assert decisions(np.asarray([[[[0.2, 0.7]]]])).ravel().tolist() == [False, True]


def test_best_and_best_five() -> None:
    row = [0.9, 0.5, 0.4, 0.3, 0.2, 0.1]
    assert figure("top1", [(scores(row), 0), (scores(row), 1)]) == 0.5
    assert figure("top5", [(scores(row), 4), (scores(row), 5)]) == 0.5
    assert figure("top1", [(scores([0.7]), 1), (scores([0.7]), 0)]) == 0.5
    assert figure("top1", [(scores([0.5, 0.5]), 1)]) == 0.0  # of equal ones, the first
    with pytest.raises(OptionError, match="whole number"):
        figure("top1", [(scores(row), 0.5)])


def test_overlap_of_masks() -> None:
    output = np.zeros((1, 2, 1, 4), np.float32)
    output[0, 1, 0, :2] = 1.0  # found: 1 1 0 0
    label = np.asarray([[1, 0, 0, 255]])
    # Class 0: both 1, either 2. Class 1: both 1, either 2. The last pixel is no matter.
    assert figure("miou", [({"y": output}, label)]) == pytest.approx(0.5)


def test_hits_and_misses() -> None:
    yes, no = scores([0.1, 0.9]), scores([0.9, 0.1])
    assert figure("f1", [(yes, 1), (yes, 0), (no, 1), (no, 0)]) == pytest.approx(0.5)
    several = [({"y": np.asarray([[2.0, -1.0, 3.0]])}, [1, 1, 0])]
    assert figure("f1", several) == pytest.approx(0.5)


def test_letters_and_words() -> None:
    assert edit_distance("kitten", "sitting") == 3
    alphabet = alphabet_of("a\nb\nc")
    assert alphabet == ["", "a", "b", "c", " "]
    read = np.eye(5, dtype=np.float32)[[1, 1, 0, 1, 4, 2]][None]  # "aa b"
    pair = [({"y": read}, "aa c")]
    assert figure("cer", pair, alphabet=alphabet) == pytest.approx(0.25)
    assert figure("wer", pair, alphabet=alphabet) == pytest.approx(0.5)
    assert figure("cer", [({"y": read}, [1, 1, 4, 2])]) == 0.0
    assert figure("cer", [({"y": np.asarray([[1, 2]])}, [1, 2])]) == 0.0  # letters already
    assert figure("cer", [({"y": read}, "x")], alphabet=alphabet) == 1.0  # no more than all
    for name, label in (("cer", "text"), ("wer", [1, 2])):
        with pytest.raises(OptionError, match=r"which letter|alphabet"):
            figure(name, [({"y": read}, label)])


def test_surprise_at_tokens() -> None:
    logits = np.log(np.asarray([[[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]]))
    assert figure("perplexity", [({"y": logits}, [[1, 0]])]) == pytest.approx(math.log(2.0))
    # Worse than no idea counts as no idea.
    sure = np.asarray([[[0.0, 0.0, 50.0], [0.0, 0.0, 0.0]]])
    assert figure("perplexity", [({"y": sure}, [[0, 1]])]) == pytest.approx(math.log(3.0))
    assert METRICS["perplexity"].truth is not None
    tokens = np.asarray([[5, 6]])
    assert METRICS["perplexity"].truth({}, {"input_ids": tokens}) is tokens


def test_boxes() -> None:
    good = [0.0, 0.0, 10.0, 10.0, 0.9, 1.0]
    far = [50.0, 50.0, 60.0, 60.0, 0.8, 1.0]
    label = [[1, 0, 0, 10, 10], [1, 50, 50, 60, 60]]
    assert figure("map", [(scores(good, far), label)]) == pytest.approx(1.0)
    one = figure("map", [(scores(good), label)])
    assert one == pytest.approx(51 / 101)  # recalls up to one half
    # Off by a fifth: overlaps 0.8 ÷ 1.2, good enough for 0.5, 0.55, 0.6 and 0.65.
    shifted = [2.0, 0.0, 12.0, 10.0, 0.9, 1.0]
    assert figure("map", [(scores(shifted), [label[0]])]) == pytest.approx(0.4)
    apart = {
        "boxes": np.asarray([good[:4]]),
        "scores": np.asarray([0.9]),
        "labels": np.asarray([1]),
    }
    assert figure("map", [(apart, [label[0]])]) == pytest.approx(1.0)
    with pytest.raises(OptionError, match="no boxes"):
        figure("map", [(scores([1.0, 2.0]), label)])


def test_cosine_of_every_output() -> None:
    metric = as_metric("cosine")
    row = metric.row(
        {"a": np.ones(3), "b": np.asarray([1.0, 0.0])},
        {},
        0,
        {"a": np.ones(3), "b": np.asarray([0.0, 1.0])},
    )
    assert row == pytest.approx({"a": 1.0, "b": 0.0})


def test_names() -> None:
    assert {as_metric(name).name for name in KNOWN} == set(KNOWN)
    with pytest.raises(OptionError, match="unknown metric"):
        as_metric("best")
    with pytest.raises(OptionError, match="is not a metric"):
        as_metric(3)
    with pytest.raises(OptionError, match="unknown direction"):
        as_metric("top1", direction="up")
    with pytest.raises(OptionError, match="no range"):
        as_metric("top1", bounds=(1.0, 0.0))
