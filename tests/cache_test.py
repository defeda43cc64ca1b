"""What a cache must never do: give the wrong bundle, lose the right one, or trust half of one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import platformdirs
import pytest

import bundles
from vermilion.errors import ArtifactError, OptionError
from vermilion.runtime.artifact import open_artifact
from vermilion.runtime.cache import Cache, CachedModel
from vermilion.runtime.digest import model_digest
from vermilion.runtime.session import Session
from vermilion.store.cache_dir import default_root
from vermilion.store.digest import cache_digest

HERE = Path(__file__).parent


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def ask(
    cache: Cache, tmp_path: Path, seed: int = 0, key: str | None = None, **others: str
) -> CachedModel:
    parts = bundles.small_cache_parts(seed, **others)
    build = bundles.small_builder(tmp_path / "scratch", seed, parts)
    return cache.get_or_build(cache_digest(parts), key, build, parts=parts)


def never(folder: Path) -> None:
    raise AssertionError(f"{folder} must not be compiled")


def test_nothing_changed_hits(cache: Cache, tmp_path: Path) -> None:
    first = ask(cache, tmp_path)
    assert (first.hit, first.reason) == (False, "not compiled before")
    second = cache.get_or_build(first.digest, None, never)
    assert second.hit
    assert second.path == first.path
    assert [path.name for path in cache.root.iterdir() if path.name[0] != "."] == [first.key]


@pytest.mark.parametrize("how", ["changed", "another user's"])
def test_what_this_user_did_not_sign_is_compiled_again(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Every digest fits, as anybody can make them; the numbers would be others."""
    entry = ask(cache, tmp_path)
    if how == "changed":
        weights = np.concatenate([w.reshape(-1) for w in bundles.small_weights(1).values()])
        (whole,) = entry.path.glob("weights.bin")
        data = weights.tobytes().ljust(whole.stat().st_size, b"\0")[: whole.stat().st_size]
        bundles.replace_member(entry.path, "weights.bin", data)
    else:
        data_dir = str(tmp_path / "colleague")
        monkeypatch.setattr(platformdirs, "user_data_dir", lambda *_, **__: data_dir)
    (check,) = cache.store.verify()
    assert "not written by this user" in check.problem
    again = ask(cache, tmp_path)
    assert not again.hit
    assert "not written by this user" in again.reason
    np.testing.assert_array_equal(again.open().weights()["w1"], bundles.small_weights(0)["w1"])
    assert ask(cache, tmp_path).hit
    assert all(check.is_whole for check in cache.store.verify())


def test_one_changed_weight_attribute_or_option_misses(cache: Cache, tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
      a = Add (x, w)
      y = LeakyRelu <alpha = 0.1> (a)
    }"""
    variants = [text, text.replace("{1, 2}", "{1, 2.0000002}"), text.replace("= 0.1", "= 0.2")]
    requests = [{"model": model_digest(_model(variant)), "option": "a"} for variant in variants]
    requests.append({**requests[0], "option": "b"})
    built = []
    for _ in range(2):
        for parts in requests:
            build = bundles.small_builder(tmp_path / "scratch", 0, parts)
            built.append(not cache.get_or_build(cache_digest(parts), None, build).hit)
    assert built == [True] * 4 + [False] * 4


def _model(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(text))


def test_a_users_key_with_another_model_recompiles_and_says_so(
    cache: Cache, tmp_path: Path
) -> None:
    assert ask(cache, tmp_path, key="mine").path == cache.root / "mine"
    assert ask(cache, tmp_path, key="mine").hit
    other = ask(cache, tmp_path, seed=1, key="mine")
    assert (other.hit, other.reason) == (False, "key `mine` held another model")
    np.testing.assert_array_equal(other.open().weights()["w1"], bundles.small_weights(1)["w1"])
    option = ask(cache, tmp_path, seed=1, key="mine", precision="bf16")
    assert option.reason == "key `mine` held this model compiled with another `precision`"


def test_what_was_open_stays_readable_when_its_key_is_given_away(
    cache: Cache, tmp_path: Path
) -> None:
    entry = ask(cache, tmp_path, key="mine")
    session = Session(entry.open(), threads=1)
    ask(cache, tmp_path, seed=1, key="mine")
    x = np.ones((1, 64), np.float32)
    np.testing.assert_allclose(
        session.run(["y"], {"x": x})[0], bundles.small_answer(x)[0], atol=1e-3
    )
    with pytest.raises(ArtifactError, match="`mine` was given to another model"):
        entry.open()


@pytest.mark.parametrize("name", ["weights.bin", "model.onnx", "cpu_par_0/part.onnx"])
def test_a_flipped_byte_is_found_named_and_compiled_anew(
    cache: Cache, tmp_path: Path, name: str
) -> None:
    entry = ask(cache, tmp_path)
    assert [check.problem for check in cache.store.verify()] == [""]
    _flip(entry.path / name)
    (check,) = cache.store.verify()
    assert not check.is_whole
    assert f"`{name}`" in check.problem
    again = ask(cache, tmp_path)
    assert not again.hit
    assert f"`{name}`" in again.reason
    assert ask(cache, tmp_path).hit


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_lost_manifest_is_compiled_anew_under_our_own_name(cache: Cache, tmp_path: Path) -> None:
    entry = ask(cache, tmp_path)
    (entry.path / "manifest.json").unlink()
    assert not ask(cache, tmp_path).hit
    assert ask(cache, tmp_path).hit


def test_a_failed_build_loses_nothing(cache: Cache, tmp_path: Path) -> None:
    entry = ask(cache, tmp_path, key="mine")

    def fail(folder: Path) -> None:
        bundles.write_small(folder, tmp_path / "scratch", 1)
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        cache.get_or_build("0" * 64, "mine", fail)
    assert cache.get_or_build(entry.digest, "mine", never).hit
    assert list((cache.root / ".building").iterdir()) == []


def test_a_build_of_something_else_is_not_kept(cache: Cache, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="another digest than was asked for"):
        cache.get_or_build("0" * 64, "mine", bundles.small_builder(tmp_path / "scratch"))
    assert not (cache.root / "mine").exists()


@pytest.mark.parametrize(
    "key",
    [
        *["", ".", "..", "a/b", "a\\b", "/etc", "C:x", ".hidden", "con", "NUL.txt", "COM1"],
        *["a" * 101, "x ", "x.", "a\0b", "a\nb", "a?b", "lpt9.log", "\ud800", "я" * 51],
    ],
)
def test_a_key_that_cannot_be_a_folder_is_refused(cache: Cache, key: str) -> None:
    with pytest.raises(OptionError, match="cache key") as error:
        cache.get_or_build("0" * 64, key, never)
    assert "name of a folder" in error.value.hint
    assert not cache.root.exists()


@pytest.mark.parametrize(
    "key", ["resnet18.a1_in1k", "Модель", "a" * 100, "я" * 50, "console", "x-1"]
)
def test_a_usual_key_is_taken(cache: Cache, tmp_path: Path, key: str) -> None:
    assert ask(cache, tmp_path, key=key).path.name == key


@pytest.mark.parametrize(
    ("made", "words"),
    [("photo.jpg", "not a compiled model"), ("context.json", "VitisAI")],
)
def test_a_folder_of_somebody_else_is_not_touched(
    cache: Cache, tmp_path: Path, made: str, words: str
) -> None:
    (cache.root / "mine").mkdir(parents=True)
    (cache.root / "mine" / made).write_text("{}")
    with pytest.raises(ArtifactError, match=words):
        ask(cache, tmp_path, key="mine")
    assert cache.store.ls() == ()
    assert cache.store.prune(everything=True).keys == ()
    assert (cache.root / "mine" / made).exists()


@pytest.mark.parametrize("key", ["decoder", "calibration", "tokenizers"])
def test_a_key_that_is_a_folder_of_the_cache_is_refused(cache: Cache, key: str) -> None:
    with pytest.raises(OptionError, match="folder of the cache's own"):
        cache.get_or_build("0" * 64, key, never)


def test_a_file_in_the_way_is_not_touched(cache: Cache, tmp_path: Path) -> None:
    cache.root.mkdir()
    (cache.root / "mine").write_text("notes")
    with pytest.raises(ArtifactError, match="`mine` that is not a folder"):
        ask(cache, tmp_path, key="mine")
    assert (cache.root / "mine").read_text() == "notes"


def test_ls_shows_size_target_and_trouble(cache: Cache, tmp_path: Path) -> None:
    ask(cache, tmp_path, key="good")
    broken = ask(cache, tmp_path, seed=1, key="broken")
    (broken.path / "manifest.json").write_text("{}")
    os.utime(broken.path / "manifest.json", (1, 1))
    good, bad = cache.store.ls()
    assert (good.key, good.kind, good.problem) == ("good", "compiled model", "")
    assert (good.facts["target"], good.facts["parts"]) == ("cpu", 2)
    assert good.size_bytes == sum(
        path.stat().st_size for path in good.path.rglob("*") if path.is_file()
    )
    assert bad.key == "broken"
    assert "format_version" in bad.problem


def test_prune_by_age_size_and_all(cache: Cache, tmp_path: Path) -> None:
    for number, name in enumerate(["old", "middle", "new"]):
        entry = ask(cache, tmp_path, seed=number, key=name)
        days_ago = time.time() - (2 - number) * 10 * 86400
        os.utime(entry.path / "manifest.json", (days_ago, days_ago))
    size = cache.store.ls()[0].size_bytes
    assert cache.store.prune(older_than_days=15).keys == ("old",)
    pruned = cache.store.prune(max_bytes=size + size // 2)
    assert pruned.keys == ("middle",)
    assert size * 0.9 < pruned.freed_bytes < size * 1.1
    assert [row.key for row in cache.store.ls()] == ["new"]
    assert cache.store.prune(everything=True).keys == ("new",)
    assert cache.store.ls() == ()


def test_prune_wants_to_be_told_what(cache: Cache) -> None:
    with pytest.raises(OptionError, match="nothing says what to remove"):
        cache.store.prune()
    with pytest.raises(OptionError, match="less than nothing"):
        cache.store.prune(max_bytes=-1)


def test_use_counts_as_age(cache: Cache, tmp_path: Path) -> None:
    entry = ask(cache, tmp_path)
    os.utime(entry.path / "manifest.json", (1, 1))
    ask(cache, tmp_path)
    assert cache.store.prune(older_than_days=1).keys == ()


def test_a_cache_that_may_only_be_read_still_hits(cache: Cache, tmp_path: Path) -> None:
    entry = ask(cache, tmp_path)
    # Not by permissions: those do not hold for root.
    (cache.root / ".locks").rename(tmp_path / "locks")
    (cache.root / ".locks").write_text("in the way")
    assert cache.get_or_build(entry.digest, None, never).hit
    with pytest.raises(ArtifactError, match="cannot be written") as error:
        ask(cache, tmp_path, seed=1)
    assert "--cache-dir" in error.value.hint


def test_the_usual_place_is_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERMILION_CACHE", str(tmp_path))
    assert Cache().root == tmp_path
    monkeypatch.delenv("VERMILION_CACHE")
    assert Cache().root == default_root()
    assert default_root().name in {"vermilion", "Cache"}


# --- several at once ------------------------------------------------------------------------------

WORKER = f"""
import sys, time
from pathlib import Path
sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent / "src")!r}]
import bundles
from vermilion.runtime.cache import Cache
from vermilion.store.digest import cache_digest

root, scratch, log, key, seconds = sys.argv[1:]
parts = bundles.small_cache_parts()

def build(folder):
    with open(log, "a") as file:
        file.write("compiled\\n")
    bundles.write_small(folder, Path(scratch), 0, parts)
    print("half", flush=True)
    time.sleep(float(seconds))

entry = Cache(root).get_or_build(cache_digest(parts), key or None, build, parts=parts)
print("hit" if entry.hit else "built", flush=True)
"""


def start(
    cache: Cache, tmp_path: Path, name: str, key: str, seconds: float
) -> subprocess.Popen[str]:
    arguments = [cache.root, tmp_path / name, tmp_path / "log", key, seconds]
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def test_two_processes_compile_once(cache: Cache, tmp_path: Path) -> None:
    workers = [start(cache, tmp_path, name, "", 0.5) for name in ("a", "b")]
    answers = [worker.communicate(timeout=60)[0].split()[-1] for worker in workers]
    assert sorted(answers) == ["built", "hit"]
    assert (tmp_path / "log").read_text() == "compiled\n"


def test_two_threads_compile_once(cache: Cache, tmp_path: Path) -> None:
    parts = bundles.small_cache_parts()
    compiled: list[Path] = []

    def build(folder: Path) -> None:
        compiled.append(folder)
        bundles.write_small(folder, tmp_path / "scratch", 0, parts)

    threads = [
        threading.Thread(target=cache.get_or_build, args=(cache_digest(parts), None, build))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiled) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no SIGKILL")
@pytest.mark.parametrize("key", ["", "mine"])
def test_a_killed_process_leaves_nothing_that_is_trusted(
    cache: Cache, tmp_path: Path, key: str
) -> None:
    before = ask(cache, tmp_path, seed=7, key="mine")
    worker = start(cache, tmp_path, "a", key, 60)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "half\n"
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    worker.stdout.close()
    # Half of it lies there, whole to look at, and is not found.
    leftovers = list((cache.root / ".building").glob("*/*"))
    assert len(leftovers) == 1
    assert [row.key for row in cache.store.ls()] == ["mine"]
    assert cache.get_or_build(before.digest, "mine", never).hit
    entry = ask(cache, tmp_path, key=key or None)
    assert not entry.hit
    open_artifact(entry.path)
    assert not leftovers[0].exists()


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no SIGKILL")
def test_prune_sweeps_after_the_dead_and_spares_the_living(cache: Cache, tmp_path: Path) -> None:
    ask(cache, tmp_path, seed=7, key="mine")
    dead = start(cache, tmp_path, "a", "dead", 60)
    living = start(cache, tmp_path, "b", "mine", 60)
    for worker in (dead, living):
        assert worker.stdout is not None
        assert worker.stdout.readline() == "half\n"
    dead.send_signal(signal.SIGKILL)
    dead.wait()
    pruned = cache.store.prune(everything=True)
    assert (pruned.keys, pruned.busy) == ((), ("mine",))
    assert [path.name for path in (cache.root / ".building").iterdir()] == ["mine"]
    living.send_signal(signal.SIGKILL)
    living.wait()
    assert cache.store.prune(everything=True).keys == ("mine",)
    assert list((cache.root / ".building").iterdir()) == []
    for worker in (dead, living):
        assert worker.stdout is not None
        worker.stdout.close()
