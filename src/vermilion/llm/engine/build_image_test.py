"""Compiled programs that are kept: found again, and never believed when they are damaged."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import pytest

from kernels import isa_for
from vermilion.llm.engine.build_image import compile_program
from vermilion.llm.engine.description import RowOperation, Rows
from vermilion.llm.engine.lower import lower
from vermilion.llm.engine.lowering import Lowered, Shape, Weighed
from vermilion.store.entry import INDEX_FILE
from vermilion.store.namespaces import PROGRAMS
from vermilion.store.store import Store


def program(width: int) -> Lowered:
    rows = Rows("x", 0, width)
    operation = RowOperation("sum", "sum", (rows, rows), "", None, "y")
    shape = Shape(16, "f32", "f32", "f32", 1, is_single=False)
    return lower(Weighed((operation,), {}), shape, {"x": width}, ["y"])


def compiled(width: int, cache: Path) -> list[object]:
    """Return a program by its fields."""
    table = compile_program(program(width), isa_for("cpu"), cache)
    fields = (getattr(table, field.name) for field in dataclasses.fields(table))
    return [one.tolist() if isinstance(one, np.ndarray) else one for one in fields]


def files(cache: Path) -> dict[Path, tuple[int, bytes]]:
    """Return what is kept, and which file it is."""
    found = (path for path in (cache / PROGRAMS.name).rglob("*") if path.is_file())
    return {path: (path.stat().st_ino, path.read_bytes()) for path in found}


def test_a_program_is_compiled_once(tmp_path: Path) -> None:
    first = compiled(64, tmp_path)
    kept = files(tmp_path)
    assert compiled(64, tmp_path) == first
    assert files(tmp_path) == kept
    compiled(96, tmp_path)
    assert len(files(tmp_path)) == 2 * len(kept)


def _changed(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def damage(path: Path) -> None:
        index = json.loads(path.read_text())
        change(index["entry"])
        path.write_text(json.dumps(index))

    return damage


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "no text": lambda path: path.write_bytes(b"\xff" * 40),
    "no table": lambda path: path.write_text("[1]"),
    "a number": lambda path: path.write_text("7"),
    "gone": lambda path: path.unlink(),
    "an object too few": _changed(lambda entry: entry["about"]["objects"].pop()),
    "no digests": _changed(lambda entry: entry.pop("files")),
    "no room": _changed(lambda entry: entry["about"].update(arena_bytes=0)),
    "another argument": _changed(lambda entry: entry["about"]["addresses"][0].__setitem__(1, 8)),
    "an unknown word": _changed(lambda entry: entry["about"]["calls"][0].append(1)),
    "fewer units": _changed(lambda entry: entry["about"]["calls"][0].__setitem__(1, 1)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_index_is_written_again(damage: Callable[[Path], object], tmp_path: Path) -> None:
    first = compiled(64, tmp_path)
    kept = {path: data for path, (_, data) in files(tmp_path).items()}
    (path,) = tmp_path.rglob(INDEX_FILE)
    assert not any(check.problem for check in Store(tmp_path).verify())
    damage(path)
    assert all(check.problem for check in Store(tmp_path).verify())
    assert compiled(64, tmp_path) == first
    assert {path: data for path, (_, data) in files(tmp_path).items()} == kept


def test_a_cache_that_cannot_be_written_costs_time_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = compiled(64, tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "decoder").write_text("a file where the folder would be")
    with caplog.at_level(logging.WARNING):
        assert compiled(64, tmp_path / "b") == first
    assert "cannot be kept" in caplog.text


def signature_fails(folder: Path) -> bool:
    """Return whether the entry in a folder, whose digests all fit, is left alone all the same."""
    index = json.loads((folder / INDEX_FILE).read_text())
    for row in index["entry"]["files"]:
        data = (folder / row["name"]).read_bytes()
        row.update(sha256=sha256(data).hexdigest(), size_bytes=len(data))
    (folder / INDEX_FILE).write_text(json.dumps(index))
    return Store(folder.parent.parent).find(PROGRAMS, folder.name) is None


def test_code_that_somebody_else_put_there_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compiled(64, tmp_path / "a")
    (folder,) = (tmp_path / "a" / "decoder").iterdir()
    assert not signature_fails(folder)  # what is written again as it was has the signature still
    copy = shutil.copytree(folder, folder.with_name("0" * 64))
    assert signature_fails(copy)  # the program of another key
    (folder / "decoder_0.o").write_bytes(b"other code")
    assert signature_fails(folder)
    assert compiled(64, tmp_path / "a") == first
    monkeypatch.setattr(platformdirs, "user_data_dir", lambda *_, **__: str(tmp_path / "else"))
    assert signature_fails(folder)  # another user's
