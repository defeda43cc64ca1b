from __future__ import annotations

import os
import shutil
from pathlib import Path

from vermilion.runtime.file_fingerprint import code_stamp, stamps_digest


def folder(place: Path) -> Path:
    (place / "below").mkdir(parents=True)
    (place / "a.txt").write_text("one")
    (place / "below" / "b.bin").write_bytes(b"two")
    return place


def test_it_is_the_same_while_nothing_is_touched(tmp_path: Path) -> None:
    place = folder(tmp_path / "x")
    before = stamps_digest(place)
    (place / "a.txt").read_text()
    assert stamps_digest(place) == before


def test_every_change_of_a_file_is_seen(tmp_path: Path) -> None:
    place = folder(tmp_path / "x")
    seen = {stamps_digest(place)}
    status = (place / "a.txt").stat()
    (place / "a.txt").write_text("eno")  # as long, and the time is put back
    os.utime(place / "a.txt", ns=(status.st_atime_ns, status.st_mtime_ns))
    seen.add(stamps_digest(place))
    (place / "below" / "c").write_text("")
    seen.add(stamps_digest(place))
    (place / "below" / "b.bin").rename(place / "below" / "d.bin")
    seen.add(stamps_digest(place))
    (place / "a.txt").unlink()
    seen.add(stamps_digest(place))
    shutil.copytree(place, tmp_path / "y")
    seen.add(stamps_digest(tmp_path / "y"))
    assert len(seen) == 6


def test_only_files_with_an_ending_count(tmp_path: Path) -> None:
    place = folder(tmp_path / "x")
    before = stamps_digest(place, (".txt",))
    (place / "below" / "b.bin").write_bytes(b"three")
    assert stamps_digest(place, (".txt",)) == before


def test_the_code_has_a_stamp() -> None:
    assert len(code_stamp()) == 64
