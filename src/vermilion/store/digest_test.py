"""Digests in chunks: the same however the bytes come, other for any other bytes."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from vermilion.store.digest import (
    CHUNK_BYTES,
    ChunkedHash,
    code_fingerprint,
    digest_of,
    digest_of_file,
    folder_fingerprint,
)


def some(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES])
def test_one_chunk_is_plain_sha256(size: int) -> None:
    assert digest_of(some(size)) == hashlib.sha256(some(size)).hexdigest()


@pytest.mark.parametrize("size", [0, 5, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
@pytest.mark.parametrize("step", [CHUNK_BYTES // 3, 2 * CHUNK_BYTES])
def test_the_same_however_the_bytes_come(size: int, step: int, tmp_path: Path) -> None:
    data = some(size)
    state = ChunkedHash()
    for start in range(0, size, step):
        state.update(data[start : start + step])
    (tmp_path / "file").write_bytes(data)
    assert state.hexdigest() == digest_of(data) == digest_of_file(tmp_path / "file")


def test_any_change_is_another_digest() -> None:
    data = bytearray(some(2 * CHUNK_BYTES + 10))
    before = digest_of(bytes(data))
    for at in (0, CHUNK_BYTES, len(data) - 1):
        data[at] ^= 1
        assert digest_of(bytes(data)) != before
        data[at] ^= 1
    swapped = data[CHUNK_BYTES : 2 * CHUNK_BYTES] + data[:CHUNK_BYTES] + data[2 * CHUNK_BYTES :]
    assert digest_of(bytes(swapped)) != before
    # A file that holds the digests of another's chunks is not that file.
    digests = b"".join(
        hashlib.sha256(data[at : at + CHUNK_BYTES]).digest()
        for at in range(0, len(data), CHUNK_BYTES)
    )
    assert digest_of(digests) == before, "so sizes are compared too, before digests are"


def test_every_chunk_is_told_when_it_is_done() -> None:
    sizes: list[int] = []
    digest_of(some(CHUNK_BYTES + 7), lambda chunk: sizes.append(len(chunk)))
    assert sorted(sizes) == [7, CHUNK_BYTES]


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
