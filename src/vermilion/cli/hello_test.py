from __future__ import annotations

from pathlib import Path

import pytest

from commands import command_line
from vermilion.hello_test import tour_folder

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


def test_the_tour_for_machines(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vermilion = command_line(capfd, monkeypatch, tmp_path)
    done = vermilion("hello", "--folder", tour_folder(tmp_path_factory), "--json")
    assert done.code == 0, done.err
    assert done.err == "", "that the data are random stands in the result"
    data = done.data
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
    left = {path.name for path in tmp_path.iterdir()}
    made = {"calibration", ".building", ".locks"}
    assert left <= made, "all that is made of the network is in the folder"
