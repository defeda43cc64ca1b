"""The tour, taken once from the command line: what it returns, and what it prints."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from taken_tour import Taken, taken_tour
from vermilion.cli.hello import _view
from vermilion.cli.output import Result, emit
from vermilion.hello import Clock, HelloReport
from vermilion.hello_network import INPUT_SHAPE
from vermilion.progress import no_progress
from vermilion.runtime.session import Session

# The keys that others rely on.
KEYS = {
    "stages",
    "cpu_ms",
    "device",
    "device_ms",
    "device_is",
    "first_compile_s",
    "cached_compile_s",
    "sqnr_db",
    "summary_path",
}


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> Taken:
    return taken_tour(tmp_path_factory)


@pytest.fixture
def report(taken: Taken) -> HelloReport:
    return taken.report


def test_the_tour_for_machines(taken: Taken) -> None:
    assert taken.for_machines.code == 0, taken.for_machines.err
    assert taken.for_machines.err == "", "that the data are random stands in the result"
    data = json.loads(taken.for_machines.out)
    assert list(data)[:3] == ["schema_version", "verb", "ok"]
    assert data["ok"] is True
    assert set(data) >= KEYS
    assert data["calibration"] == "random"
    assert all(set(stage) == {"name", "seconds"} for stage in data["stages"])
    assert all(stage["seconds"] > 0 for stage in data["stages"])
    assert data["device_is"] in ("measured", "modelled")
    assert data["cpu_ms"] > 0
    assert data["sqnr_db"] > 25
    assert data["cached_compile_s"] < max(0.2, data["first_compile_s"] / 10)
    assert Path(data["summary_path"]).read_text().startswith("--------- Final Summary")
    assert all(Path(path).exists() for path in data["files"].values())
    left = {path.name for path in taken.cache.iterdir()} if taken.cache.exists() else set()
    made = {"calibration", ".building", ".locks"}
    assert left <= made, "all that is made of the network is in the folder"


def test_every_step_is_timed_in_order(report: HelloReport) -> None:
    assert [stage.name for stage in report.stages] == [
        "look for devices",
        "export the network",
        "quantize to XINT8",
        "compile for the CPU",
        f"compile for {report.device}",
        "compile again, from the cache",
        "run on the CPU and compare",
    ]


def test_the_cache_is_what_makes_the_difference(taken: Taken) -> None:
    report = taken.report
    assert not (taken.folder / "cache" / "earlier").exists(), "an earlier tour helps no later one"
    assert not report.first.cache_hit
    assert report.cached.cache_hit
    assert report.cached.digest == report.first.digest
    assert report.cached.seconds < max(0.2, report.first.seconds / 10)


def test_what_is_modelled_is_called_so(report: HelloReport) -> None:
    assert report.device_is == "modelled"
    data = report.as_json()
    assert data["device_is"] == "modelled"
    if not report.machine.npus:
        assert report.device == "strix"
        assert data["device_ms"] == report.first.report.predicted_ms
        low, high = data["device_interval_ms"]
        assert low < 23.0 < high, "what AMD's own example prints of this network"
    # The stand-in computes what the quantized model computes, not something near it.
    assert report.device_agreement.sqnr_db > 100
    assert report.accuracy.sqnr_db > 25


def test_only_the_border_stays_on_the_cpu(report: HelloReport) -> None:
    summary = report.first.report.summary
    assert (summary.operators, summary.offloaded_operators) == (30, 28)
    # 2 · 224² · 9 · (3·32 + 32·64 + 64·128 + 128·256) for the convolutions alone.
    assert summary.gops > 38.9


def test_the_files_that_it_names_can_be_used(report: HelloReport) -> None:
    files = report.as_json()["files"]
    assert isinstance(files, Mapping)
    assert Path(files["float"]).suffix == Path(files["quantized"]).suffix == ".onnx"
    image = {"input": np.zeros(INPUT_SHAPE, np.float32)}
    with Session(files["single_file"]) as one, Session(files["compiled"]) as other:
        np.testing.assert_array_equal(one.run(None, image)[0], other.run(None, image)[0])


def test_the_tour_for_people(report: HelloReport) -> None:
    out = io.StringIO()
    emit("hello", Result(report.as_json(), lambda: _view(report)), as_json=False, out=out)
    text = out.getvalue()
    for step in range(1, 7):
        assert f"[{step}] " in text
    assert "calibrated on random data, for this tour only" in text
    assert "28 of 30 operators and 99.9% of 39.18 GOPs offloaded" in text
    assert str(report.first.summary_path) in "".join(text.split())
    header = next(line for line in text.splitlines() if "measured ms" in line)
    row = next(line for line in text.splitlines() if f"XINT8 on {report.device}" in line)
    end = header.index("measured ms") + len("measured ms")
    assert row[:end].strip() == f"XINT8 on {report.device}", "a model measures nothing"
    low, high = report.device_interval_ms
    assert f"{report.device_ms:.2f}, {low:.2f} to {high:.2f}" in row
    assert "(on the CPU)" in row
    compiled = text[text.index("[4]") : text.index("[5]")]
    assert all(line.startswith("    ") for line in compiled.splitlines()[1:] if line.strip())


def test_a_step_that_fails_is_not_counted() -> None:
    told: list[str] = []
    clock = Clock(lambda stage, done, total: told.append(stage))
    with pytest.raises(RuntimeError), clock.stage("break"):
        raise RuntimeError
    assert (told, clock.stages) == (["break"], [])
    quiet = Clock(no_progress)
    with quiet.stage("work"):
        pass
    assert [stage.name for stage in quiet.stages] == ["work"]
