from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import fake_worker
import models
from vermilion.bench import measure
from vermilion.bench.cases import Sizes, prepare_case
from vermilion.bench.harness import EngineProcess
from vermilion.bench.measure import CaseResult, Plan, bench_models
from vermilion.bench.report import as_json, concerns
from vermilion.cli.output import to_json
from vermilion.errors import DeviceError, OptionError

RESULT_KEYS = {
    "agrees",
    "batch",
    "compile_peak_rss_mb",
    "compile_s",
    "engine",
    "file_bytes",
    "first_run_ms",
    "gops_per_s",
    "import_s",
    "latency_ms",
    "load_s",
    "model",
    "outputs",
    "peak_rss_mb",
    "peak_share",
    "precision",
    "quiet_after_ms",
    "runs",
    "runs_on",
    "placement",
    "sequence",
    "threads",
    "throughput",
    "turn_ms",
    "version",
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "small.onnx"
    ir.save(models.small_cnn(batch="batch"), path)
    return path


@pytest.fixture(scope="module")
def found(small: Path) -> tuple[CaseResult, ...]:
    plan = Plan(batches=(1, 4), threads=(1,), against=("ort", "ort@bf16"), pairs=3)
    return tuple(bench_models([small], plan))


def test_ours_and_the_peer_compute_the_same_and_are_timed(found: tuple[CaseResult, ...]) -> None:
    first, second = found
    assert (first.case.batch, second.case.batch) == (1, 4)
    for case in found:
        ours, peer, _ = case.engines
        assert [ours.engine.label, peer.engine.label] == ["vermilion@fp32", "ort@fp32"]
        assert ours.agrees
        assert ours.timed is not None
        assert peer.timed is not None
        assert len(ours.timed.turn_ms) == len(peer.timed.turn_ms) == 3
        expected = ours.timed.turn_ms[1] / peer.timed.turn_ms[1]
        assert case.pairs["ort@fp32"][1] == expected
        assert case.best_peer == "ort@fp32"
    assert second.case.gops == pytest.approx(4 * (first.case.gops or 0.0))


def test_a_peer_that_cannot_is_a_row_with_its_reason(found: tuple[CaseResult, ...]) -> None:
    refused = found[0].engines[2]
    assert refused.timed is None
    assert refused.error is not None
    assert "does not compute a float32 model in bf16" in refused.error.message
    (told, _) = [words for words in concerns(found) if "not measured" in words]
    assert told.startswith("small, ort@bf16: not measured")


def test_the_report_has_the_keys_that_others_rely_on(found: tuple[CaseResult, ...]) -> None:
    report: Any = to_json(as_json(found))
    assert set(report) == {"machine", "results", "cases", "ratios"}
    assert len(report["results"]) == 6
    for row in report["results"]:
        if "error" in row:
            assert set(row["error"]) == {"message", "where", "hint"}
            continue
        assert set(row) == RESULT_KEYS
        assert set(row["latency_ms"]) == {"p50", "p90", "p99", "min", "mean"}
        assert row["throughput"] == pytest.approx(row["batch"] * 1e3 / row["latency_ms"]["p50"])
        assert (row["compile_s"] is None) == (row["engine"] != "vermilion")
        assert row["outputs"][0]["cosine"] > 0.99999
        assert row["placement"].endswith("operators native") == (row["engine"] == "vermilion")
    assert report["ratios"]["ort"]["pairs"] == 6  # of both cases
    assert set(report["ratios"]["ort"]) == {"median", "q1", "q3", "pairs"}
    assert set(report["cases"][0]["ratios"]) == {"ort"}
    assert report["cases"][0]["best_peer"] == "ort"
    assert set(report["cases"][0]) == {
        "batch",
        "best_peer",
        "gops",
        "model",
        "other_load",
        "peak",
        "precision",
        "ratios",
        "sequence",
        "threads",
    }


@pytest.mark.needs("openvino")
def test_openvino_runs_beside_us(small: Path) -> None:
    (case,) = bench_models(
        [small], Plan(batches=(1,), threads=(1,), against=("openvino",), pairs=1)
    )
    assert case.engines[1].agrees
    assert case.engines[1].timed is not None


def test_a_peer_whose_process_dies_leaves_the_others_their_figures(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer is a program that ends when it starts: what a crash looks like."""
    real = EngineProcess.__init__

    def start(self: EngineProcess, label: str, folder: Path, **how: Any) -> None:
        worker = {"worker": (fake_worker.__name__, "none")} if label == "ort@fp32" else {}
        real(self, label, folder, **{**how, **worker})

    monkeypatch.setattr(EngineProcess, "__init__", start)
    (case,) = bench_models([small], Plan(batches=(1,), threads=(1,), pairs=1))
    ours, peer = case.engines
    assert ours.timed is not None
    assert peer.error is not None
    words = "the engine `ort@fp32`: the process ended while doing `open`: exit code 11"
    assert peer.error.message == words
    assert case.ratios == {}
    assert case.best_peer is None


def test_our_own_engine_has_to_answer_in_time(small: Path) -> None:
    plan = Plan(batches=(1,), threads=(1,), pairs=1, timeout_s=0.05)
    with pytest.raises(DeviceError, match=r"`vermilion@fp32.*took more than") as raised:
        list(bench_models([small], plan))
    assert "--timeout" in raised.value.hint


def test_wrong_answers_are_told(found: tuple[CaseResult, ...]) -> None:
    first = found[0]
    wrong = replace(first.ours.outputs[0], cosine=0.5)
    damaged = replace(first, engines=(replace(first.ours, outputs=(wrong,)), first.engines[1]))
    assert not damaged.ours.agrees
    assert any("is not the right answer (cosine 0.5000)" in words for words in concerns([damaged]))


def test_ours_on_onnx_runtime_is_told(found: tuple[CaseResult, ...]) -> None:
    first = found[0]
    assert not any("our own code" in words for words in concerns(found))
    fallen = replace(first.ours, runs_on="CPU (ONNX Runtime 1.32.0)")
    (words,) = [w for w in concerns([replace(first, engines=(fallen,))]) if "our own code" in w]
    assert words.startswith("small, vermilion@fp32: not all of it is our own code")


def test_a_machine_at_other_work_is_told(found: tuple[CaseResult, ...]) -> None:
    busy, free = replace(found[0], other_load=0.4), replace(found[0], other_load=0.01)
    assert any("used 40% of the processors" in words for words in concerns([busy]))
    assert not any("of the processors meanwhile" in words for words in concerns([free]))


def prepared(model: ir.Model, folder: Path, sizes: Sizes, **options: Any) -> Any:
    how = {"precision": None, "dims": {}, "inputs": {}, **options}
    return prepare_case(Path("m.onnx"), model, sizes, folder=folder, **how)


def test_batch_and_sequence_go_where_they_belong(tmp_path: Path) -> None:
    net = models.Net("tokens", seed=0)
    ids = net.input("ids", ("n", "s"), ir.DataType.INT64)
    state = net.input("state", (2, "n", 8))
    table = net.constant("table", net.normal((2, 8), 1.0))
    net.output(net.op("Gather", table, ids, name="embed"), "y", ("n", "s", 8))
    net.output(net.op("Neg", state, name="neg"), "z", (2, "n", 8))
    case = prepared(net.model(), tmp_path, Sizes(3, 5, 1))
    assert (case.batch, case.sequence) == (3, 5)
    assert case.reference["y"].shape == (3, 5, 8)
    assert case.reference["z"].shape == (2, 3, 8)


def test_a_batch_changes_the_shape_that_was_given_for_an_input(tmp_path: Path) -> None:
    model = models.small_cnn(batch="n")
    case = prepared(model, tmp_path, Sizes(4, None, 1), dims={"input": (1, 3, 16, 16)})
    assert case.batch == 4


def test_given_inputs_say_their_own_sizes(tmp_path: Path) -> None:
    given = np.ones((2, 3, 16, 16), np.float32)
    case = prepared(
        models.small_cnn(batch="n"), tmp_path, Sizes(None, None, 1), inputs={"input": given}
    )
    assert case.batch == 2
    with np.load(case.inputs_path) as stored:
        np.testing.assert_array_equal(stored["arr_0"], given)


@pytest.mark.parametrize(
    ("sizes", "options", "words"),
    [
        (Sizes(None, None, 1), {}, "dynamic dimensions: n"),
        (Sizes(None, None, 1), {"precision": "int8"}, "needs a quantized model"),
        (Sizes(1, None, 1), {"inputs": {"x": np.ones(1)}}, "no input `x`"),
        (Sizes(2, None, 1), {"dims": {"n": 1}}, "the batch cannot be 2"),
    ],
)
def test_what_cannot_be_measured_is_wrong_use(
    tmp_path: Path, sizes: Sizes, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        prepared(models.small_cnn(batch="n"), tmp_path, sizes, **options)


def test_a_fixed_model_says_that_its_batch_is_fixed(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="the batch cannot be 8") as raised:
        prepared(models.small_cnn(), tmp_path, Sizes(8, None, 1))
    assert "dynamic batch dimension" in raised.value.hint


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pairs": 0}, "--pairs"),
        ({"timeout_s": 0.0}, "--timeout"),
        ({"threads": (0,)}, "at least 1"),
        ({"batches": (0,)}, "at least 1"),
    ],
)
def test_a_plan_checks_itself(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        Plan(**options)


@pytest.mark.parametrize(
    ("against", "words"),
    [
        (("tensorrt",), "no engine is called `tensorrt`"),
        (("ort@fp16",), "no precision is called `fp16`"),
        (("ort", "ort@fp32"), "`ort@fp32` is asked for twice"),
        (("vermilion",), "`vermilion@fp32` is asked for twice"),
    ],
)
def test_engines_are_checked_before_anything_runs(
    small: Path, against: tuple[str, ...], words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        list(bench_models([small], Plan(batches=(1,), threads=(1,), against=against)))


def test_an_engine_that_is_not_installed_is_told_with_the_line_that_mends_it(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vermilion.bench import engines

    monkeypatch.setitem(engines._PACKAGES, "openvino", "no_such_package")
    with pytest.raises(DeviceError, match="`openvino` is not installed") as raised:
        list(bench_models([small], Plan(batches=(1,), against=("openvino",))))
    assert "vermilion[bench]" in raised.value.hint


def test_threads_are_all_cores_where_none_are_asked_for() -> None:
    assert measure.this_machine().cores >= 1
