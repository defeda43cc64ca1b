"""What is kept: found whole or made again, listed, checked, and removed; by several at once."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import platformdirs
import pytest

from vermilion.errors import OptionError
from vermilion.store.entry import INDEX_FILE, Entry, EntryWriter
from vermilion.store.namespaces import IMAGES, NOTES, PROGRAMS, TOKENIZERS, Namespace
from vermilion.store.store import Store

DAY = 86400
KEY = "0123456789abcdef" * 2


def keep(
    store: Store, namespace: Namespace, name: str, data: bytes = b"code", **about: object
) -> Entry:
    def make(writer: EntryWriter) -> dict[str, object]:
        writer.write("data", data)
        return about

    made = store.get_or_make(namespace, name, make)
    assert made is not None
    return made


def never(writer: EntryWriter) -> None:
    raise AssertionError(f"{writer.folder} must not be made")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def test_what_was_made_is_found(store: Store) -> None:
    made = keep(store, PROGRAMS, KEY, b"code", sizes=[1, 2])
    assert (made.about, bytes(made.files["data"])) == ({"sizes": [1, 2]}, b"code")
    assert made.path == store.root / "decoder" / KEY
    again = store.get_or_make(PROGRAMS, KEY, never)
    assert again is not None
    assert (again.about, again.files) == (made.about, made.files)
    assert store.find(PROGRAMS, KEY[::-1]) is None
    assert store.find(TOKENIZERS, KEY) is None
    assert list((store.root / ".building").iterdir()) == []


def test_what_is_not_worth_keeping_is_not_kept(store: Store) -> None:
    assert store.get_or_make(PROGRAMS, KEY, lambda _: None) is None
    assert store.ls() == ()


def test_a_failure_loses_nothing(store: Store) -> None:
    made = keep(store, PROGRAMS, KEY)
    (made.path / INDEX_FILE).write_text("{}")

    def fail(writer: EntryWriter) -> None:
        writer.write("data", b"half")
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        store.get_or_make(PROGRAMS, KEY, fail)
    assert (made.path / "data").read_bytes() == b"code"
    assert list((store.root / ".building").iterdir()) == []


DAMAGES: dict[str, Callable[[Path], object]] = {
    "index empty": lambda place: (place / INDEX_FILE).write_bytes(b""),
    "index cut": lambda place: (place / INDEX_FILE).write_bytes(
        (place / INDEX_FILE).read_bytes()[:-1]
    ),
    "index longer": lambda place: (place / INDEX_FILE).write_bytes(
        (place / INDEX_FILE).read_bytes() + b" "
    ),
    "index gone": lambda place: (place / INDEX_FILE).unlink(),
    "no text": lambda place: (place / INDEX_FILE).write_bytes(b"\xff" * 200),
    "other words": lambda place: (place / INDEX_FILE).write_text(
        (place / INDEX_FILE).read_text().replace("[1, 2]", "[1, 3]")
    ),
    "a byte": lambda place: (place / "data").write_bytes(b"cod3"),
    "a byte more": lambda place: (place / "data").write_bytes(b"code."),
    "gone": lambda place: (place / "data").unlink(),
}
if sys.platform != "win32":  # a pipe is waited for, a device has no end
    DAMAGES |= {
        "index a pipe": lambda place: in_place_of(place / INDEX_FILE, os.mkfifo),
        "a pipe": lambda place: in_place_of(place / "data", os.mkfifo),
        "a device": lambda place: in_place_of(
            place / "data", lambda path: path.symlink_to("/dev/zero")
        ),
    }


def in_place_of(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_entry_is_made_again_and_said(
    damage: Callable[[Path], object], store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    made = keep(store, PROGRAMS, KEY, sizes=[1, 2])
    index = (made.path / INDEX_FILE).read_bytes()
    damage(made.path)
    (check,) = store.verify()
    assert check.problem
    assert store.find(PROGRAMS, KEY) is None
    with caplog.at_level(logging.WARNING):
        keep(store, PROGRAMS, KEY, sizes=[1, 2])
    assert f"{made.path}` is made again" in caplog.text
    assert (made.path / INDEX_FILE).read_bytes() == index
    assert [check.is_whole for check in store.verify()] == [True]


def test_what_this_user_did_not_sign_for_this_place_is_not_taken(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = keep(store, PROGRAMS, KEY)
    for copy in (made.path.with_name(KEY[::-1]), store.root / TOKENIZERS.name / KEY):
        shutil.copytree(made.path, copy)
    assert store.find(PROGRAMS, KEY[::-1]) is None
    assert store.find(TOKENIZERS, KEY) is None
    problems = {check.key: check.problem for check in store.verify()}
    assert "not written by this user" in problems[f"decoder/{KEY[::-1]}"]
    assert "not written by this user" in problems[f"tokenizers/{KEY}"]
    assert not problems[f"decoder/{KEY}"]
    monkeypatch.setattr(platformdirs, "user_data_dir", lambda *_, **__: str(tmp_path / "else"))
    assert store.find(PROGRAMS, KEY) is None
    keep(store, PROGRAMS, KEY)
    assert store.find(PROGRAMS, KEY) is not None


def test_without_a_secret_nothing_is_kept(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("where the secret's folder would be")
    monkeypatch.setattr(platformdirs, "user_data_dir", lambda *_, **__: str(tmp_path / "file"))
    assert store.get_or_make(PROGRAMS, KEY, never) is None
    assert not store.root.exists()


def test_a_cache_that_cannot_be_written_is_none(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.root.write_text("a file where the folder would be")
    with caplog.at_level(logging.WARNING):
        assert store.get_or_make(PROGRAMS, KEY, lambda _: {}) is None
    assert "cache cannot be written" in caplog.text
    assert "VERMILION_CACHE" in caplog.text


def test_an_entry_from_elsewhere_is_adopted_where_this_user_wrote_it(
    store: Store, tmp_path: Path
) -> None:
    other = Store(tmp_path / "other")
    made = keep(other, PROGRAMS, KEY)
    (made.path / "more").write_text("not of the entry")
    assert store.adopt(PROGRAMS, KEY, made.path) == ""
    assert store.find(PROGRAMS, KEY) is not None
    assert sorted(path.name for path in (store.root / PROGRAMS.name / KEY).iterdir()) == [
        "data",
        INDEX_FILE,
    ]
    (made.path / "data").write_bytes(b"other")
    assert store.adopt(PROGRAMS, KEY, made.path) == "`data` is not what was written: it was changed"
    assert store.adopt(PROGRAMS, KEY, tmp_path / "none")
    store.root.rename(tmp_path / "away")
    store.root.write_text("a file where the folder would be")
    keep(other, PROGRAMS, KEY)
    assert "cannot be written" in store.adopt(PROGRAMS, KEY, made.path)


# --- as `vermilion cache` shows it ----------------------------------------------------------------


@pytest.fixture
def full(store: Store) -> Store:
    keep(store, IMAGES, "aa", bytes(5000))
    keep(store, TOKENIZERS, "bb", bytes(100))
    keep(store, PROGRAMS, "cc")
    keep(store, NOTES, "n1", key="aa")
    keep(store, NOTES, "n2", key="gone")
    return store


def notes(store: Store) -> set[str]:
    return {path.name for path in (store.root / NOTES.name).iterdir()}


def test_all_of_it_is_listed(full: Store) -> None:
    rows = {row.key: row for row in full.ls()}
    assert set(rows) == {"decoder-images/aa", "tokenizers/bb", "decoder/cc"}
    image = rows["decoder-images/aa"]
    assert image.kind == "language engine: packed weights"
    assert image.size_bytes == sum(file.stat().st_size for file in image.path.iterdir())
    assert abs(image.last_used - time.time()) < 60


def test_every_byte_is_checked(full: Store) -> None:
    assert all(check.is_whole for check in full.verify())
    (full.root / IMAGES.name / "aa" / "data").write_bytes(bytes(4999) + b"\1")
    (full.root / TOKENIZERS.name / "bb" / INDEX_FILE).write_text("{}")
    (full.root / PROGRAMS.name / "cc" / "data").unlink()
    problems = {check.key: check.problem for check in full.verify()}
    assert "was changed" in problems["decoder-images/aa"]
    assert "not written by this user" in problems["tokenizers/bb"]
    assert "cannot be read" in problems["decoder/cc"]


def test_an_entry_of_another_version_is_listed_as_such_and_pruned(store: Store) -> None:
    old = store.root / IMAGES.name / KEY
    old.mkdir(parents=True)
    (old / "arrays.json").write_text("{}")
    (row,) = store.ls()
    (check,) = store.verify()
    assert "of another version" in row.problem
    assert "of another version" in check.problem
    assert store.prune(everything=True).keys == (f"decoder-images/{KEY}",)
    assert not old.exists()


def test_a_folder_of_somebody_else_is_not_touched(store: Store) -> None:
    other = store.root / TOKENIZERS.name / "llama"
    other.mkdir(parents=True)
    (other / "tokenizer.json").write_text("{}")
    assert store.ls() == ()
    assert store.prune(everything=True).keys == ()
    assert (other / "tokenizer.json").exists()


def test_the_longest_unused_goes_first(full: Store) -> None:
    old = time.time() - 40 * DAY
    os.utime(full.root / IMAGES.name / "aa" / INDEX_FILE, (old, old))
    pruned = full.prune(older_than_days=30)
    assert pruned.keys == ("decoder-images/aa",)
    assert pruned.freed_bytes > 5000
    assert not (full.root / IMAGES.name / "aa").exists()
    assert notes(full) == set()  # neither has an image
    assert len(full.ls()) == 2


def test_use_counts_as_age(full: Store) -> None:
    index = full.root / PROGRAMS.name / "cc" / INDEX_FILE
    os.utime(index, (1, 1))
    assert full.get_or_make(PROGRAMS, "cc", never) is not None
    assert full.prune(older_than_days=1).keys == ()
    os.utime(index, (1, 1))
    assert full.find(PROGRAMS, "cc") is not None
    assert full.prune(older_than_days=1).keys == ()


def test_notes_of_images_that_are_there_stay(full: Store) -> None:
    full.prune(older_than_days=30)
    assert notes(full) == {"n1"}


def test_everything_goes(full: Store) -> None:
    assert len(full.prune(everything=True).keys) == 3
    assert full.ls() == ()
    assert notes(full) == set()


def test_prune_wants_to_be_told_what(store: Store) -> None:
    with pytest.raises(OptionError, match="nothing says what to remove"):
        store.prune()


# --- several at once ------------------------------------------------------------------------------

WORKER = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from vermilion.store.namespaces import PROGRAMS
from vermilion.store.store import Store

root, key, log, seconds = sys.argv[1:]

def make(writer):
    with open(log, "a") as file:
        file.write("made\\n")
    writer.write("data", b"code")
    print("half", flush=True)
    time.sleep(float(seconds))
    return {{}}

assert Store(root).get_or_make(PROGRAMS, key, make) is not None
"""


def start(store: Store, tmp_path: Path, seconds: float) -> subprocess.Popen[str]:
    arguments = [store.root, KEY, tmp_path / "log", seconds]
    command = [sys.executable, "-c", WORKER, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_make_one(store: Store, tmp_path: Path) -> None:
    workers = [start(store, tmp_path, 0.5) for _ in range(2)]
    for worker in workers:
        worker.communicate(timeout=60)
        assert worker.returncode == 0
    assert (tmp_path / "log").read_text() == "made\n"


def test_several_threads_make_one(store: Store) -> None:
    made: list[Path] = []

    def make(writer: EntryWriter) -> dict[str, object]:
        made.append(writer.folder)
        time.sleep(0.1)
        return {}

    threads = [
        threading.Thread(target=store.get_or_make, args=(PROGRAMS, KEY, make)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_prune_sweeps_after_the_dead_and_spares_the_living(store: Store, tmp_path: Path) -> None:
    made = keep(store, PROGRAMS, KEY)
    (made.path / "data").write_bytes(b"damaged")
    worker = start(store, tmp_path, 60)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "half\n"
    pruned = store.prune(everything=True)
    assert (pruned.keys, pruned.busy) == ((), (f"decoder/{KEY}",))
    (workplace,) = (store.root / ".building").iterdir()
    worker.kill()
    worker.wait()
    worker.stdout.close()
    assert store.prune(everything=True).keys == (f"decoder/{KEY}",)
    assert not workplace.exists()
    keep(store, PROGRAMS, KEY)
