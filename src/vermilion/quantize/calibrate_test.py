from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import models
from vermilion.ir.execute import open_session, run_session
from vermilion.quantize import calibrate
from vermilion.quantize.calibrate import (
    Calibrator,
    TensorFacts,
    grouped,
    observe,
    tensor_facts,
    with_outputs,
)
from vermilion.quantize.observe import Histogram

X = {"input": np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)}
FLOAT = ir.DataType.FLOAT


def conv_outputs(model: ir.Model) -> list[str]:
    return [str(n.outputs[0].name) for n in model.graph if n.op_type in {"Conv", "Gemm"}]


def test_facts_follow_the_sample_not_the_file() -> None:
    model = models.small_cnn(batch="batch")
    facts = tensor_facts(model, X)
    names = conv_outputs(model)
    got = run_session(open_session(with_outputs(model, names)), X)
    for name in names:
        assert facts[name] == TensorFacts(FLOAT, got[name].size)
        assert facts[name].size_bytes == got[name].nbytes


def test_groups_stay_under_the_limit_in_order() -> None:
    sizes = {"a": 10, "b": 20, "c": 100, "d": 5, "e": None}
    facts = {name: TensorFacts(FLOAT, size) for name, size in sizes.items()}
    assert grouped(sizes, facts, 130) == [["a", "b"], ["c"], ["d"], ["e"]]
    assert grouped([], facts, 130) == []


def test_groups_count_as_one_session_would(monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.small_cnn(batch="batch")
    names = ["input", *conv_outputs(model)]
    facts = tensor_facts(model, X)
    one, other = ({name: Histogram() for name in names} for _ in range(2))
    together = Calibrator(model, one, facts)
    monkeypatch.setattr(calibrate, "GROUP_BYTES", 1)
    apart = Calibrator(model, other, facts)
    for calibrator in (together, apart):
        assert observe(calibrator, [X, X], total=2, progress=lambda *_: None) == 2
    for name in names:
        a, b = one[name], other[name]
        assert a.largest == b.largest
        assert a.counts.sum() == b.counts.sum() > 0


def test_histogram_of_an_input_is_that_of_the_sample() -> None:
    model = models.small_cnn(batch="batch")
    histogram, expected = Histogram(), Histogram()
    Calibrator(model, {"input": histogram}, tensor_facts(model, X)).add(0, X)
    expected.add(X["input"])
    np.testing.assert_array_equal(histogram.counts, expected.counts)
