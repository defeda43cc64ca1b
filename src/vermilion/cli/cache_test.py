from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import bundles
from vermilion.cli import main
from vermilion.cli.cli_test import only_object, vermilion
from vermilion.runtime.cache import Cache, cache_digest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Give a cache of two compiled models, `first` and `second`."""
    root = tmp_path / "cache"
    for seed, key in enumerate(("first", "second")):
        digest = cache_digest(bundles.small_cache_parts(seed))
        build = bundles.small_builder(tmp_path / key, seed)
        Cache(root).get_or_build(digest, key, build)
    return root


def objects(*arguments: str) -> tuple[int, dict[str, Any]]:
    done = vermilion(*arguments, "--json")
    return done.returncode, only_object(done)


def test_ls_lists_what_was_compiled(root: Path) -> None:
    code, listed = objects("cache", "ls", "--cache-dir", str(root))
    assert (code, listed["verb"]) == (0, "cache ls")
    assert {row["key"]: row["target"] for row in listed["entries"]} == {
        "first": "cpu",
        "second": "cpu",
    }
    assert listed["size_bytes"] == sum(row["size_bytes"] for row in listed["entries"])
    people = vermilion("cache", "ls", "--cache-dir", str(root)).stdout
    assert "first" in people
    assert "second" in people


def test_an_empty_cache_is_said_to_be_empty(tmp_path: Path) -> None:
    done = vermilion("cache", "ls", "--cache-dir", str(tmp_path / "none"))
    assert done.returncode == 0
    assert "holds no compiled models" in done.stdout


def test_verify_finds_one_flipped_byte_and_fails(root: Path) -> None:
    code, sound = objects("cache", "verify", "--cache-dir", str(root))
    assert (code, sound["damaged"]) == (0, 0)
    weights = root / "second" / "weights.bin"
    damaged = bytearray(weights.read_bytes())
    damaged[100] ^= 1
    weights.write_bytes(damaged)
    code, found = objects("cache", "verify", "--cache-dir", str(root))
    assert (code, found["damaged"], found["ok"]) == (1, 1, False)
    problems = {row["key"]: row["problem"] for row in found["entries"]}
    assert problems["first"] == ""
    assert "weights.bin" in problems["second"]


def test_prune_needs_to_be_told_what_and_removes_only_that(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, refused = objects("cache", "prune", "--cache-dir", str(root))
    assert code == 2
    assert "--all" in refused["error"]["hint"]
    assert main(["cache", "prune", "--older-than", "1", "--cache-dir", str(root)]) == 0
    assert "0 compiled models removed" in capsys.readouterr().out
    assert len(Cache(root).ls()) == 2
    kept = Cache(root).ls()[0].size_bytes
    limits = ["--max-size", str(kept)]
    code, pruned = objects("cache", "prune", *limits, "--cache-dir", str(root))
    assert (code, len(pruned["removed"]), len(Cache(root).ls())) == (0, 1, 1)
    assert pruned["freed_bytes"] > 0
    code, pruned = objects("cache", "prune", "--all", "--cache-dir", str(root))
    assert (code, len(pruned["removed"]), Cache(root).ls()) == (0, 1, ())
    assert json.dumps(pruned["busy"]) == "[]"
