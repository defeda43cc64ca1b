"""The doors to a compiled model: a cell of the bench, whose bits have to be equal through each."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pages import ROOT

pytestmark = pytest.mark.needs("c compiler")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import doors_bench

    return doors_bench


@pytest.mark.long
def test_the_bits_are_equal_through_every_door(
    bench: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "doors.json"
    words = ["--out", str(output), "--only", "ocr-cls", "--formats", "fp32", "--sizes", "dynamic"]
    words += ["--turns", "2", "--workers", "1", "--clock", "cpu", "--cache", str(tmp_path / "c")]
    monkeypatch.setattr(sys, "argv", ["doors_bench.py", *words])
    monkeypatch.setattr(bench, "MOST_TIME", 100.0)  # two turns on a busy machine say nothing
    assert bench.main() == 0
    (row,) = json.loads(output.read_text()).values()
    assert {"c", "c++", "plugin"} <= set(row["doors"])
    assert all(not door["differs"] for door in row["doors"].values())
    # One that differs is found: bytes of its output are not those of `Session`.
    row["doors"]["c"]["differs"] = ["one/out0"]
    output.write_text(json.dumps({"ocr-cls fp32 dynamic": row}))
    monkeypatch.setattr(sys, "argv", ["doors_bench.py", *words, "--print"])
    assert bench.main() == 1
    assert "DIFFERS" in capsys.readouterr().out


def test_a_byte_that_differs_is_seen(bench: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "session-out0.bin").write_bytes(b"abc")
    (tmp_path / "c-out0.bin").write_bytes(b"abd")
    door = bench.Door("c", (), {})
    assert bench.differing(door, [tmp_path]) == [f"{tmp_path.name}/out0"]
    (tmp_path / "c-out0.bin").write_bytes(b"abc")
    assert bench.differing(door, [tmp_path]) == []
    (tmp_path / "c-out0.bin").unlink()
    assert bench.differing(door, [tmp_path]) == [f"{tmp_path.name}/out0"]
