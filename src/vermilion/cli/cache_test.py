from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bundles
from commands import Command, command_line
from vermilion.runtime.cache import Cache
from vermilion.store.arrays import DATA_FILE, new_array, write_arrays
from vermilion.store.digest import cache_digest
from vermilion.store.namespaces import IMAGES
from vermilion.store.store import Store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a cache of two compiled models, `first` and `second`."""
    root = tmp_path / "cache"
    for seed, key in enumerate(("first", "second")):
        digest = cache_digest(bundles.small_cache_parts(seed))
        build = bundles.small_builder(tmp_path / key, seed)
        Cache(root).get_or_build(digest, key, build)
    return root


def objects(vermilion: Command, *words: str) -> tuple[int, dict[str, Any]]:
    done = vermilion(*words, "--json")
    return done.code, done.data


@pytest.fixture
def vermilion(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    return command_line(capfd, monkeypatch, tmp_path / "the user's")


def test_ls_lists_what_was_compiled(root: Path, vermilion: Command) -> None:
    code, listed = objects(vermilion, "cache", "ls", "--cache-dir", str(root))
    assert (code, listed["verb"]) == (0, "cache ls")
    assert {row["key"]: row["target"] for row in listed["entries"]} == {
        "first": "cpu",
        "second": "cpu",
    }
    assert listed["size_bytes"] == sum(row["size_bytes"] for row in listed["entries"])
    people = vermilion("cache", "ls", "--cache-dir", str(root)).out
    assert "first" in people
    assert "second" in people


def test_an_empty_cache_is_said_to_be_empty(tmp_path: Path, vermilion: Command) -> None:
    done = vermilion("cache", "ls", "--cache-dir", str(tmp_path / "none"))
    assert done.code == 0
    assert "holds no compiled models" in done.out


@pytest.mark.parametrize("verb", ["ls", "verify", "prune"])
def test_what_is_no_folder_is_wrong_use(verb: str, tmp_path: Path, vermilion: Command) -> None:
    (tmp_path / "file").write_text("no folder")
    more = ["--all"] if verb == "prune" else []
    done = vermilion("cache", verb, "--cache-dir", str(tmp_path / "file"), *more)
    assert done.code == 2
    assert "this is no folder" in done.err
    if verb != "ls":
        done = vermilion("cache", verb, "--cache-dir", str(tmp_path / "none"), *more)
        assert done.code == 2
        assert "there is no such folder" in done.err


def test_verify_finds_one_flipped_byte_and_fails(root: Path, vermilion: Command) -> None:
    code, sound = objects(vermilion, "cache", "verify", "--cache-dir", str(root))
    assert (code, sound["damaged"]) == (0, 0)
    weights = root / "second" / "weights.bin"
    damaged = bytearray(weights.read_bytes())
    damaged[100] ^= 1
    weights.write_bytes(damaged)
    code, found = objects(vermilion, "cache", "verify", "--cache-dir", str(root))
    assert (code, found["damaged"], found["ok"]) == (1, 1, False)
    problems = {row["key"]: row["problem"] for row in found["entries"]}
    assert problems["first"] == ""
    assert "weights.bin" in problems["second"]


def test_prune_needs_to_be_told_what_and_removes_only_that(root: Path, vermilion: Command) -> None:
    code, refused = objects(vermilion, "cache", "prune", "--cache-dir", str(root))
    assert code == 2
    assert "--all" in refused["error"]["hint"]
    done = vermilion("cache", "prune", "--older-than", "1", "--cache-dir", str(root))
    assert done.code == 0
    assert "0 entries removed" in done.out
    assert len(Cache(root).store.ls()) == 2
    kept = Cache(root).store.ls()[0].size_bytes
    limits = ["--max-size", str(kept)]
    code, pruned = objects(vermilion, "cache", "prune", *limits, "--cache-dir", str(root))
    assert (code, len(pruned["removed"]), len(Cache(root).store.ls())) == (0, 1, 1)
    assert pruned["freed_bytes"] > 0
    code, pruned = objects(vermilion, "cache", "prune", "--all", "--cache-dir", str(root))
    assert (code, len(pruned["removed"]), Cache(root).store.ls()) == (0, 1, ())
    assert json.dumps(pruned["busy"]) == "[]"


def test_what_language_models_keep_is_listed_checked_and_removed(
    tmp_path: Path, vermilion: Command
) -> None:
    wanted = [new_array("x", np.arange(1000, dtype=np.int32))]
    made = Store(tmp_path).get_or_make(IMAGES, "aa", lambda one: write_arrays(one, wanted, {}, 1))
    assert made is not None
    place = made.path
    _, listed = objects(vermilion, "cache", "ls", "--cache-dir", str(tmp_path))
    (row,) = listed["entries"]
    assert (row["key"], row["kind"]) == ("decoder-images/aa", "language engine: packed weights")
    assert "packed weights" in vermilion("cache", "ls", "--cache-dir", str(tmp_path)).out
    assert objects(vermilion, "cache", "verify", "--cache-dir", str(tmp_path))[0] == 0
    with (place / DATA_FILE).open("r+b") as file:
        file.write(b"x")
    code, found = objects(vermilion, "cache", "verify", "--cache-dir", str(tmp_path))
    assert (code, found["damaged"]) == (1, 1)
    code, pruned = objects(vermilion, "cache", "prune", "--all", "--cache-dir", str(tmp_path))
    assert (code, pruned["removed"]) == (0, ["decoder-images/aa"])
    assert pruned["freed_bytes"] > 4000
    assert not place.exists()
