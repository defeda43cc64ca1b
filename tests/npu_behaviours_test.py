"""What a hostile provider does, from the command's side: gates, summaries, notes."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

import vermilion.runtime.build as build
import vermilion.runtime.prove as prove
from vermilion.api import OffloadError, compile_model
from vermilion.backends import backend as usual
from vermilion.backends.vitisai.backend_test import backend, part


@pytest.fixture
def model(tmp_path: Path) -> Path:
    ir.save(part().model, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def stand_in(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stands = backend(mode)
    for module in (build, prove):
        monkeypatch.setattr(
            module, "backend", lambda name: stands if name == "vitisai" else usual(name)
        )


def test_a_gate_counts_what_ran(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in("a report of one on the NPU", monkeypatch)
    cache = model.parent / "cache"
    with pytest.raises(OffloadError, match=r"33\.333% of the operators ran on") as caught:
        compile_model(model, target="strix", min_offload="operators=100%", cache_dir=cache)
    compiled = caught.value.compiled
    assert compiled.offload_is == "ran"
    report = compiled.report
    assert (report.summary.offloaded_operators, report.summary.operators) == (1, 3)
    assert report.summary.offloaded_gops < 0.01 * report.summary.gops
    assert [row["device"] for row in report.nodes] == ["cpu", "cpu", "npu"]
    assert "has 2 of 3 operators on a processor" in str(report.nodes[0]["reason"])
    assert compiled.placement.startswith("1 of 3 operators native on strix; 2 on the CPU")
    assert any("were not seen on the NPU" in note for note in report.notes)


def test_a_part_of_which_nothing_ran_is_the_cpus(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in("a report of all on the CPU", monkeypatch)
    compiled = compile_model(model, target="strix", cache_dir=model.parent / "cache")
    summary = compiled.report.summary
    assert (summary.offloaded_operators, summary.fallback.compile_error) == (0, 1)
    assert "3 of 3 operators on a processor" in str(compiled.report.nodes[0]["reason"])
