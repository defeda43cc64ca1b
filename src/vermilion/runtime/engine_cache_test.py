"""What the language engine keeps, as `vermilion cache` lists, checks and removes it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from vermilion.runtime.array_folder import DATA_FILE, TABLE_FILE, new_array, write_arrays
from vermilion.runtime.cache import Cache
from vermilion.runtime.engine_cache import (
    IMAGES,
    NOTES,
    PROGRAMS,
    TOKENIZERS,
    new_folder,
    program_digest,
    sealed_program,
)

DAY = 86400


def arrays(place: Path, size: int) -> Path:
    with new_folder(place) as aside:
        write_arrays(aside, [new_array("x", np.ones(size, np.uint8))], {}, 1)
        aside.rename(place)
    return place


def program(place: Path) -> Path:
    place.mkdir(parents=True)
    (place / "decoder_0.o").write_bytes(b"code")
    table = sealed_program({"digests": [hashlib.sha256(b"code").hexdigest()]}, place.name)
    (place / "decoder.json").write_text(json.dumps(table))
    return place


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "cache"
    arrays(root / IMAGES / "aa", 5000)
    arrays(root / TOKENIZERS / "bb", 100)
    program(root / PROGRAMS / "cc")
    program(root / "engine" / PROGRAMS / "dd")
    (root / NOTES).mkdir()
    (root / NOTES / "n1.txt").write_text("aa seal")
    (root / NOTES / "n2.txt").write_text("gone seal")
    return root


def test_all_of_it_is_listed(root: Path) -> None:
    rows = {row.key: row for row in Cache(root).ls()}
    assert set(rows) == {
        "decoder-images/aa", "tokenizers/bb", "decoder/cc", "engine/decoder/dd",
    }  # fmt: skip
    image = rows["decoder-images/aa"]
    assert image.kind == "language engine: packed weights"
    assert image.size_bytes == sum(file.stat().st_size for file in image.path.iterdir())
    assert abs(image.last_used - time.time()) < 60


def test_every_byte_is_checked(root: Path) -> None:
    assert all(check.is_whole for check in Cache(root).verify())
    for file in (root / IMAGES / "aa" / DATA_FILE, root / "engine/decoder/dd/decoder_0.o"):
        data = bytearray(file.read_bytes())
        data[0] ^= 1
        file.write_bytes(data)
    (root / TOKENIZERS / "bb" / TABLE_FILE).write_text("{}")
    damaged = sealed_program({"digests": 3}, "cc")
    (root / PROGRAMS / "cc" / "decoder.json").write_text(json.dumps(damaged))
    problems = {check.key: check.problem for check in Cache(root).verify()}
    assert "was changed" in problems["decoder-images/aa"]
    assert "was changed" in problems["engine/decoder/dd"]
    assert "damaged" in problems["tokenizers/bb"]
    assert "cannot be read" in problems["decoder/cc"]


def test_programs_that_somebody_else_put_there_are_told(root: Path) -> None:
    """Whoever may write there can make every digest fit, and cannot sign it."""
    place = root / PROGRAMS / "cc"
    (place / "decoder_0.o").write_bytes(b"other")
    table = json.loads((place / "decoder.json").read_text())
    table["digests"] = [hashlib.sha256(b"other").hexdigest()]
    table["digest"] = program_digest(table)
    (place / "decoder.json").write_text(json.dumps(table))
    # What this user did sign, for another key.
    shutil.copytree(root / "engine" / PROGRAMS / "dd", root / PROGRAMS / "ee")
    problems = {check.key: check.problem for check in Cache(root).verify()}
    assert "not written by this user" in problems["decoder/cc"]
    assert "not written by this user" in problems["decoder/ee"]
    assert not problems["engine/decoder/dd"]


def test_the_longest_unused_goes_first(root: Path) -> None:
    old = time.time() - 40 * DAY
    os.utime(root / IMAGES / "aa" / TABLE_FILE, (old, old))
    pruned = Cache(root).prune(older_than_days=30)
    assert pruned.keys == ("decoder-images/aa",)
    assert pruned.freed_bytes > 5000
    assert not (root / IMAGES / "aa").exists()
    assert not list((root / NOTES).iterdir())  # neither has an image
    assert len(Cache(root).ls()) == 3


def test_notes_of_images_that_are_there_stay(root: Path) -> None:
    Cache(root).prune(older_than_days=30)
    assert [path.name for path in (root / NOTES).iterdir()] == ["n1.txt"]


def test_everything_goes(root: Path) -> None:
    assert len(Cache(root).prune(everything=True).keys) == 4
    assert Cache(root).ls() == ()


def test_what_a_dead_process_left_is_swept(root: Path) -> None:
    left = root / IMAGES / ".ee.0123"
    left.mkdir()
    fresh = root / IMAGES / ".ff.0123"
    fresh.mkdir()
    long_ago = time.time() - DAY
    os.utime(left, (long_ago, long_ago))
    Cache(root).prune(older_than_days=30)
    assert not left.exists()
    assert fresh.exists()
