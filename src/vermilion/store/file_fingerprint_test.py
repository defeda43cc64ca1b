from __future__ import annotations

import os
import shutil
from pathlib import Path

from vermilion.store.file_fingerprint import code_fingerprint, folder_fingerprint


def folder(place: Path) -> Path:
    (place / "below").mkdir(parents=True)
    (place / "a.txt").write_text("one")
    (place / "below" / "b.bin").write_bytes(b"two")
    return place


def test_it_is_the_same_while_nothing_is_touched(tmp_path: Path) -> None:
    place = folder(tmp_path / "x")
    before = folder_fingerprint(place)
    (place / "a.txt").read_text()
    assert folder_fingerprint(place) == before


def test_every_change_of_a_file_is_seen(tmp_path: Path) -> None:
    place = folder(tmp_path / "x")
    seen = {folder_fingerprint(place)}
    status = (place / "a.txt").stat()
    (place / "a.txt").write_text("eno")  # as long, and the time is put back
    os.utime(place / "a.txt", ns=(status.st_atime_ns, status.st_mtime_ns))
    seen.add(folder_fingerprint(place))
    (place / "below" / "c").write_text("")
    seen.add(folder_fingerprint(place))
    (place / "below" / "b.bin").rename(place / "below" / "d.bin")
    seen.add(folder_fingerprint(place))
    (place / "a.txt").unlink()
    seen.add(folder_fingerprint(place))
    shutil.copytree(place, tmp_path / "y")
    seen.add(folder_fingerprint(tmp_path / "y"))
    assert len(seen) == 6


def test_only_files_with_an_ending_count(tmp_path: Path) -> None:
    place = folder(tmp_path / "x")
    before = folder_fingerprint(place, (".txt",))
    (place / "below" / "b.bin").write_bytes(b"three")
    assert folder_fingerprint(place, (".txt",)) == before


def test_the_code_has_a_fingerprint() -> None:
    assert len(code_fingerprint()) == 64
