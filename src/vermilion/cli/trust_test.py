"""`vermilion trust` and `compile --sign` as their user meets them."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import platformdirs
import pytest

import models
from commands import Command, command_line

pytestmark = pytest.mark.needs("cryptography")


@pytest.fixture
def vermilion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    monkeypatch.setattr(platformdirs, "user_data_dir", lambda *_, **__: str(tmp_path / "data"))
    monkeypatch.delenv("VERMILION_TRUST", raising=False)
    monkeypatch.chdir(tmp_path)
    return command_line(capfd, monkeypatch, tmp_path / "cache")


def test_a_model_goes_from_one_user_to_another(
    vermilion: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ir.save(models.small_cnn(), tmp_path / "net.onnx")
    made = vermilion("trust", "new", "key.pem", "--json").data
    compiled = vermilion("compile", "net.onnx", "-o", "net.rai", "--sign", "key.pem", "--json")
    assert compiled.data["signed_by"] == made["key"]
    shown = vermilion("compile", "net.onnx", "--sign", "key.pem")
    assert f"signed by {made['key']}" in shown.words

    # The other user: another secret.
    monkeypatch.setattr(platformdirs, "user_data_dir", lambda *_, **__: str(tmp_path / "other"))
    monkeypatch.setenv("VERMILION_CACHE", str(tmp_path / "others-cache"))
    assert "no key is trusted" in vermilion("trust", "list").out
    before = vermilion("run", "net.rai", "--json").data
    assert "which is not trusted here" in str(before["warnings"])
    added = vermilion("trust", "add", "key.pem.pub", "--name", "builders")
    assert "trusted: builders" in added.out
    assert "trusted" not in str(vermilion("run", "net.rai", "--json").data["warnings"])
    assert vermilion("trust", "list", "--json").data["keys"] == [
        {"name": "builders", "key": made["key"]}
    ]
    assert made["key"] in vermilion("trust", "list").words
    assert "no longer trusted" in vermilion("trust", "remove", "builders").out
    assert vermilion("trust", "list", "--json").data["keys"] == []


def test_wrong_use_is_told(vermilion: Command, tmp_path: Path) -> None:
    ir.save(models.small_cnn(), tmp_path / "net.onnx")
    done = vermilion("compile", "net.onnx", "--sign", "nothing.pem")
    assert done.code == 2
    assert "vermilion trust new" in done.err
    assert not (tmp_path / "cache").exists()  # said before anything is compiled
    assert vermilion("trust", "add", "nothing.pub").code == 2
    assert vermilion("trust", "remove", "nobody").code == 2
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "trusted_keys").write_text("what\n")
    done = vermilion("trust", "list")
    assert done.code == 1
    assert "line 1" in done.err


def test_the_list_says_that_all_is_trusted(
    vermilion: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERMILION_TRUST", "1")
    done = vermilion("trust", "list", "--json")
    assert done.data["trusts_all"] is True
    assert "machine code from anywhere runs" in done.err
