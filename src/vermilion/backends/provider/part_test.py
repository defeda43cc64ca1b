from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from vermilion.backends.provider.part import pack_folder, unpack_folder
from vermilion.errors import DeviceError


def write(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_files_with_two_names_are_kept_as_two(tmp_path: Path) -> None:
    written = write(tmp_path / "written", "a/one.bin")
    os.link(written / "a" / "one.bin", written / "two.bin")
    pack_folder(written, tmp_path / "packed.tar")
    unpack_folder(memoryview((tmp_path / "packed.tar").read_bytes()), tmp_path / "again")
    assert [(tmp_path / "again" / n).read_text() for n in ("a/one.bin", "two.bin")] == [
        "a/one.bin"
    ] * 2
    assert not written.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="this system refuses the names itself")
@pytest.mark.parametrize(
    "names",
    [
        ("x:y",), ("aux.json",), ("nul .txt",), ("CONIN$",), ("com¹.bin",), ("a.",),
        ("A/one.bin", "a/ONE.bin"), ("caf\u00e9", "cafe\u0301"),
    ],
)  # fmt: skip
def test_names_that_another_system_loses_are_refused(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(DeviceError, match="a file that cannot be kept"):
        pack_folder(write(tmp_path / "written", *names), tmp_path / "packed.tar")


@pytest.mark.skipif(sys.platform == "win32", reason="this system refuses the names itself")
def test_a_folder_that_cannot_be_read_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = write(tmp_path / "written", "a.bin")
    monkeypatch.chdir(written)
    for _ in range(25):  # longer than any path may be
        os.mkdir("d" * 200)  # noqa: PTH102
        os.chdir("d" * 200)
    with pytest.raises(DeviceError, match="a file that cannot be kept: File name too long"):
        pack_folder(written, tmp_path / "packed.tar")
