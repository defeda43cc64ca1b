from __future__ import annotations

import stat
import sys
from pathlib import Path

import platformdirs
import pytest

from vermilion.store.signature import is_signed_here, key_file, signature_of


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(platformdirs, "user_data_dir", lambda *_, **__: str(tmp_path / "data"))
    return tmp_path


def test_a_signature_holds_for_its_digest_alone(home: Path) -> None:
    signature = signature_of("a" * 64)
    assert is_signed_here("a" * 64, signature)
    assert not is_signed_here("b" * 64, signature)
    assert not is_signed_here("a" * 64, "")
    assert not is_signed_here("a" * 64, signature[:-1] + ("0" if signature[-1] != "0" else "1"))


def test_another_machine_has_another_signature(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signature = signature_of("a" * 64)
    monkeypatch.setattr(platformdirs, "user_data_dir", lambda *_, **__: str(home / "elsewhere"))
    assert not is_signed_here("a" * 64, signature)


@pytest.mark.skipif(sys.platform == "win32", reason="this system has other file rights")
def test_the_secret_is_for_its_user_alone(home: Path) -> None:
    signature_of("a" * 64)
    assert stat.S_IMODE(key_file().stat().st_mode) == 0o600


def test_a_short_secret_signs_nothing(home: Path) -> None:
    key_file().parent.mkdir(parents=True)
    key_file().write_bytes(b"short")
    assert signature_of("a" * 64) == ""
    assert not is_signed_here("a" * 64, "")


def test_without_a_place_for_the_secret_nothing_is_signed(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (home / "data").write_text("a file where the folder should be")
    assert signature_of("a" * 64) == ""
    assert "compiled again when opened" in caplog.text
