from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

import models
from vermilion.bench.measure import Plan
from vermilion.bench.profile import GPU_LINE, CaseProfiles, profile_models
from vermilion.errors import OptionError


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> CaseProfiles:
    path = tmp_path_factory.mktemp("models") / "small.onnx"
    ir.save(models.small_cnn(batch="batch"), path)
    plan = Plan(batches=(2,), threads=(1,), against=("ort", "ort@bf16"), pairs=3)
    (case,) = profile_models([path], plan)
    return case


def test_ours_and_a_peer_are_profiled_in_processes_of_their_own(found: CaseProfiles) -> None:
    assert found.title == "small, batch 2"
    ours, peer = found.profiles
    assert (ours.engine, peer.engine) == ("vermilion", "ort")
    assert found.unlike == ()
    for profile in found.profiles:
        assert (profile.runs, profile.version != "") == (3, True)
        assert profile.run_ms > 0.0
        assert sum(line.share for line in profile.by_step) == pytest.approx(1.0)
        assert sum(line.ms for line in profile.by_kind) == pytest.approx(profile.steps_ms)
        assert len(profile.by_device) == 1
    assert {line.kind for line in peer.by_step} >= {"Conv", "MaxPool", "Gemm"}


def test_a_peer_that_cannot_is_told_with_its_reason(found: CaseProfiles) -> None:
    ((engine, error),) = found.refused
    assert engine.label == "ort@bf16"
    assert "bf16" in error.message
    words = found.as_json()["refused"]
    assert words == [{"engine": "ort@bf16", "message": error.message, "hint": error.hint}]


def test_the_report_has_every_step(found: CaseProfiles) -> None:
    report = found.as_json()
    engines = report["engines"]
    assert isinstance(engines, list)
    assert set(engines[0]["by_step"][0]) == {
        "device", "gops_per_s", "kind", "ms", "name", "share", "steps",
    }  # fmt: skip
    assert GPU_LINE.startswith("rocprofv3 ")
    assert " -- " in GPU_LINE


def test_the_sizes_are_those_of_a_bench(tmp_path: Path) -> None:
    path = tmp_path / "fixed.onnx"
    ir.save(models.small_cnn(batch=1), path)
    with pytest.raises(OptionError, match="the batch cannot be 4"):
        list(profile_models([path], Plan(batches=(4,), threads=(1,))))
