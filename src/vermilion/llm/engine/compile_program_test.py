"""Programs in the cache are read by the signature of who wrote them, for the key they were made."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import platformdirs
import pytest

from vermilion.llm.engine.compile_program import _Compiled, _read, _write
from vermilion.runtime.kept import program_digest

PROGRAM = _Compiled(((b"machine code", ("f",)), (b"more of it", ("g", "h"))), 640, ())


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    folder = tmp_path / "decoder" / "aa"
    _write(PROGRAM, folder)
    return folder


def test_what_was_written_is_read(kept: Path) -> None:
    found = _read(kept)
    assert found is not None
    assert (found.objects, found.arena_bytes, found.calls) == (PROGRAM.objects, 640, ())


def test_code_with_digests_that_fit_is_not_read(kept: Path) -> None:
    (kept / "decoder_1.o").write_bytes(b"other code")
    table = json.loads((kept / "decoder.json").read_text())
    table["digests"][1] = hashlib.sha256(b"other code").hexdigest()
    table["digest"] = program_digest(table)
    (kept / "decoder.json").write_text(json.dumps(table))
    assert _read(kept) is None


def test_a_program_of_another_key_is_not_read(kept: Path) -> None:
    shutil.copytree(kept, kept.with_name("bb"))
    assert _read(kept.with_name("bb")) is None


def test_a_program_of_another_user_is_not_read(
    kept: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(platformdirs, "user_data_dir", lambda *_, **__: str(tmp_path / "else"))
    assert _read(kept) is None
