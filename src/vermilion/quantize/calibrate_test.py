from __future__ import annotations

import gc
import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

import models
from vermilion.errors import ModelError
from vermilion.ir.execute import Array, open_session, run_session
from vermilion.quantize import calibrate
from vermilion.quantize.calibrate import (
    EXACT_SAMPLES,
    Calibrator,
    OutputKeeper,
    TensorFacts,
    grouped,
    observe,
    tensor_facts,
    with_outputs,
)
from vermilion.quantize.native_code import this_isa
from vermilion.quantize.native_run import cost_model
from vermilion.quantize.observe import Histogram, Range
from vermilion.quantize.result import OUTPUT_SAMPLES

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
        assert facts[name] == TensorFacts(FLOAT, got[name].shape)
        assert facts[name].size_bytes == got[name].nbytes


def test_groups_stay_under_the_limit_in_order() -> None:
    sizes = {"a": 10, "b": 20, "c": 100, "d": 5, "e": None}
    facts = {name: TensorFacts(FLOAT, size and (size,)) for name, size in sizes.items()}
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


@pytest.fixture
def whatever_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks this small are not worth our kernels, but soon run."""
    monkeypatch.setattr(cost_model, "LEAST_SAVED_MS", -math.inf)


def drawn(count: int, shape: tuple[int, ...] = (2, 3, 16, 16)) -> list[dict[str, Array]]:
    rng = np.random.default_rng(9)
    return [{"input": rng.standard_normal(shape).astype(np.float32)} for _ in range(count)]


def calibrated(
    model: ir.Model, samples: list[dict[str, Array]], total: int = 0
) -> tuple[int, dict[str, Range], OutputKeeper]:
    """Run all samples, with the ranges of all layers and of the input."""
    ranges = {name: Range() for name in ["input", *conv_outputs(model)]}
    given = [str(value.name) for value in model.graph.outputs]
    outputs = OutputKeeper({name: name for name in given}, OUTPUT_SAMPLES)
    calibrator = Calibrator(model, ranges, tensor_facts(model, samples[0]), [outputs])
    observe(calibrator, samples, total=total, progress=lambda *_: None)
    return calibrator.own_samples, ranges, outputs


def exact_ranges(model: ir.Model, samples: list[dict[str, Array]]) -> dict[str, Range]:
    names = conv_outputs(model)
    ranges = {name: Range() for name in ["input", *names]}
    session = open_session(with_outputs(model, names))
    for sample in samples:
        for name, array in {**sample, **run_session(session, sample)}.items():
            ranges[name].add(array)
    return ranges


def compare(found: dict[str, Range], exact: dict[str, Range]) -> None:
    for name, here in found.items():
        there = exact[name]
        error = 0.02 * (there.highest - there.lowest)
        assert here.lowest == pytest.approx(there.lowest, abs=error)
        assert here.highest == pytest.approx(there.highest, abs=error)


@pytest.mark.usefixtures("whatever_it_takes")
@pytest.mark.parametrize("build", [models.small_cnn, models.branching_cnn, models.mobilenet])
def test_own_kernels_see_what_onnx_runtime_sees(build: Callable[..., ir.Model]) -> None:
    model = build()
    shape = model.graph.inputs[0].shape
    assert shape is not None
    samples = drawn(12, tuple(shape.numpy()))
    samples[-1]["input"] *= 3.0  # the ranges are made by one that our kernels run
    own, ranges, outputs = calibrated(model, samples)
    assert own == 12 - EXACT_SAMPLES
    compare(ranges, exact_ranges(model, samples))
    session = open_session(model)
    for kept, sample in zip(outputs.kept, samples[:OUTPUT_SAMPLES], strict=True):
        for name, expected in run_session(session, sample).items():
            np.testing.assert_allclose(kept[name], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("whatever_it_takes")
def test_samples_of_other_shapes_go_through_onnx_runtime() -> None:
    model = models.small_cnn(batch="batch")
    samples = [*drawn(8), *drawn(2, (5, 3, 16, 16)), *drawn(2)]
    samples[9]["input"] *= 4.0
    own, ranges, _ = calibrated(model, samples)
    assert own == 12 - EXACT_SAMPLES - 2
    compare(ranges, exact_ranges(model, samples))


def test_a_small_network_stays_in_onnx_runtime(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="vermilion")
    assert calibrated(models.small_cnn(batch="batch"), drawn(32))[0] == 0
    reason = "28 samples are not worth laying out this network"
    assert [record.getMessage().endswith(reason) for record in caplog.records] == [True]


@pytest.mark.skipif(not this_isa().has_bf16, reason="this machine has no AVX-512 BF16")
@pytest.mark.parametrize(("total", "own"), [(5, 0), (12, 0), (40, 36), (0, 36)])
def test_a_large_network_is_laid_out_where_enough_samples_come(total: int, own: int) -> None:
    model = models.resnet18()
    samples = drawn(2, (1, 3, 224, 224)) * 20
    assert calibrated(model, samples[: total or 40], total)[0] == own


def test_what_results_are_held_to_is_exact() -> None:
    assert OUTPUT_SAMPLES <= EXACT_SAMPLES


@pytest.mark.usefixtures("whatever_it_takes")
def test_a_network_that_bfloat16_cannot_carry_stays_in_float32() -> None:
    """Two large parts that nearly cancel each other: what is left is lost in bfloat16."""
    model = models.small_cnn(batch="batch")
    conv = next(node for node in model.graph if node.op_type == "Conv")
    weight = conv.inputs[1]
    assert weight is not None
    assert weight.const_value is not None
    values = weight.const_value.numpy().copy() + np.float32(3000.0)
    values[:, 1] = -values[:, 0] + weight.const_value.numpy()[:, 1]
    values[:, 2] = weight.const_value.numpy()[:, 2]
    weight.const_value = ir.Tensor(values, name=weight.name)
    samples = drawn(12)
    for sample in samples:
        sample["input"][:, 1] = sample["input"][:, 0]
    own, ranges, _ = calibrated(model, samples)
    assert own == 0
    compare(ranges, exact_ranges(model, samples))


@pytest.mark.parametrize("place", [0, 9])
@pytest.mark.usefixtures("whatever_it_takes")
def test_a_sample_with_nan_is_named_whatever_runs_it(place: int) -> None:
    model = models.small_cnn(batch="batch")
    samples = drawn(12)
    samples[place]["input"][1, 2, 3, 4] = np.nan
    first = conv_outputs(model)[0]
    ranges = {first: Range()}
    calibrator = Calibrator(model, ranges, tensor_facts(model, samples[1]))
    with pytest.raises(ModelError) as caught:
        observe(calibrator, samples, total=0, progress=lambda *_: None)
    assert f"`{first}` holds NaN" in str(caught.value)
    assert f"calibration sample {place}" in str(caught.value)
    if place > EXACT_SAMPLES:
        assert calibrator.own_samples == place - EXACT_SAMPLES


@pytest.mark.usefixtures("whatever_it_takes")
def test_sessions_are_let_go_once_they_are_not_needed() -> None:
    model = models.small_cnn(batch="batch")
    calibrator = Calibrator(model, {conv_outputs(model)[0]: Range()}, tensor_facts(model, X))
    before = sessions()
    for number, sample in enumerate(drawn(8)):
        calibrator.add(number, sample)
        assert sessions() - before == (number < EXACT_SAMPLES - 1)


def sessions() -> int:
    # By `type`: `isinstance` asks the objects, and some of other packages answer with a warning.
    return sum(issubclass(type(found), ort.InferenceSession) for found in gc.get_objects())
