"""The pages on benchmarks and profiles tell the truth: their commands run, one after the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from readme_test import ROOT, commands, run_all
from vermilion.bench.profiling import GPU_LINE


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.needs("pygal")
def test_every_command_on_benchmarks_runs(tmp_path: Path) -> None:
    lines = commands(page("benchmarks.md"))
    assert len(lines) == 4
    run_all(lines, tmp_path)
    written = {path.name for path in (tmp_path / "suite").iterdir()}
    assert written == {"cases", "suite.csv", "suite.html", "suite.json", "suite.md"}
    suite = json.loads((tmp_path / "suite" / "suite.json").read_text(encoding="utf-8"))
    ours = suite["results"][0]
    assert (ours["engine"], ours["model"], ours["agrees"]) == ("vermilion", "resnet50", True)
    assert ours["runs_on"].startswith("CPU (native code")
    # The second time it was there already, so that nothing has changed.
    assert {delta["engine"] for delta in suite["compared"]} >= {"vermilion", "ort"}
    assert {delta["change_percent"] for delta in suite["compared"]} == {0.0}


def test_every_command_on_profiles_runs(tmp_path: Path) -> None:
    lines = commands(page("profiling.md"))
    assert len(lines) == 3
    run_all(lines, tmp_path)
    trace = json.loads((tmp_path / "tour" / "trace.json").read_text(encoding="utf-8"))
    assert len(trace["traceEvents"]) > 10


def test_the_line_for_a_gpu_is_the_one_that_the_command_prints() -> None:
    assert GPU_LINE in page("profiling.md")
