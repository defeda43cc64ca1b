"""Mutated model files: how they are made, and what is seen of a path that goes wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from mutated_files import path_child
from mutated_files.files import Mutated, file_of, sources, table, try_files
from mutated_files.wire import every, parse, written

linux = pytest.mark.skipif(sys.platform != "linux", reason="this system does not fork")


def test_a_message_taken_apart_and_put_together_is_the_same() -> None:
    for data in sources()[:8]:
        fields = parse(data)
        assert fields is not None
        assert written(fields) == data
        assert len(every(fields)) > 20


def test_a_seed_gives_one_file_and_most_differ_from_their_source() -> None:
    made = [file_of(seed) for seed in range(200)]
    assert made == [file_of(seed) for seed in range(200)]
    same = sum(data == sources()[seed % len(sources())] for seed, (data, _) in enumerate(made))
    assert same < 20
    assert len({changes for _, changes in made}) > 30


def test_a_sound_file_and_one_that_is_none() -> None:
    with TemporaryDirectory() as name:
        file = Path(name) / "m.onnx"
        file.write_bytes(sources()[0])
        assert path_child.take_path(file, Path(name))["kind"] == "right"
        file.write_bytes(b"nothing")
        found = path_child.take_path(file, Path(name))
        assert found["kind"] == "error"
        assert "ModelError" in found["detail"]


@linux
@pytest.mark.parametrize(
    ("act", "kind"),
    [
        ("raise IndexError('of ours')", "traceback"),
        ("import os; os.kill(os.getpid(), 9)", "signal"),
        ("import time; time.sleep(60)", "hang"),
        ("while True: pass", "hang"),
        ("bytearray(3 << 28)", "memory"),
    ],
)
def test_what_a_path_may_do_is_seen(
    act: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage that goes wrong stands in for any of them; the rest of the child is real."""
    monkeypatch.setattr(path_child, "load_model", lambda file: exec(act))
    monkeypatch.setattr(path_child, "SECONDS", 60.0 if "sleep" not in act else 3.0)
    monkeypatch.setattr(path_child, "CPU_SECONDS", 3)
    monkeypatch.setattr(path_child, "MEMORY_BYTES", 1 << 29)
    file = tmp_path / "m.onnx"
    file.write_bytes(b"nothing")
    assert path_child._in_fork(file)["kind"] == kind


@linux
def test_some_files_go_through_the_path() -> None:
    found = try_files(range(6), jobs=2)
    assert sorted(one.seed for one in found) == list(range(6))
    assert "6 files: " in table(found)
    assert all(one.seconds > 0 and one.peak_bytes > 0 for one in found)


def test_the_line_that_writes_a_file_again_names_its_seed() -> None:
    assert "file_of(7)" in Mutated(7, "cut", "signal", "SIGSEGV", 0.1, 1).line
