"""What the engine of language models and calibration keep in the cache, beside compiled bundles.

`decoder/KEY/` holds programs (machine code by shapes, no weights), `decoder-images/KEY/` a model's
packed weights with its programs, `tokenizers/KEY/` vocabularies in a form that loads fast; each has
a table that names the rest. `decoder-notes/` says which image belongs to a folder of a model.
`calibration/KEY/` holds one file, a seal and the machine code that it is of.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vermilion.runtime.array_folder import TABLE_FILE, problem_of
from vermilion.store.signature import is_signed_here, signature_of, unsigned_bytes

PROGRAMS, IMAGES, NOTES, TOKENIZERS = "decoder", "decoder-images", "decoder-notes", "tokenizers"
CALIBRATION = "calibration"
_CODE_FILE = "code.o"
_PROGRAM_TABLE, _PROGRAM_OBJECT = "decoder.json", "decoder_{}.o"
_TITLES = {
    PROGRAMS: "language engine: machine code",
    IMAGES: "language engine: packed weights",
    TOKENIZERS: "tokenizer",
    CALIBRATION: "calibration: machine code",
}
# Each kind with its table, or its only file.
_KINDS = {
    PROGRAMS: _PROGRAM_TABLE,
    IMAGES: TABLE_FILE,
    TOKENIZERS: TABLE_FILE,
    CALIBRATION: _CODE_FILE,
}
# The cache itself, and where the programs of hybrid folders are installed.
_BELOW = ("", "engine/")
_LOCKS = ".locks"
_NOT_OURS = "was changed, or was not written by this user here"
# Who writes an entry is done long before this.
_OLD_ASIDE_SECONDS = 3600.0


@dataclass(frozen=True)
class Kept:
    """An entry: its kind and key, where it is, and when it was used last (seconds since 1970)."""

    kind: str
    path: Path
    size_bytes: int
    last_used: float

    @property
    def title(self) -> str:
        """What it is, for people."""
        return _TITLES[self.kind.rpartition("/")[2]]

    @property
    def key(self) -> str:
        """The name that `cache ls` shows."""
        return f"{self.kind}/{self.path.name}"


@contextmanager
def locked(root: Path, name: str) -> Iterator[None]:
    """Hold a lock of the cache; the system lets go of it when the process dies.

    Raises: OSError where the cache cannot be written.
    """
    from filelock import FileLock

    folder = root / _LOCKS
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"{name}.lock"):
        yield


@contextmanager
def new_folder(place: Path) -> Iterator[Path]:
    """Yield a folder beside an entry's place, to be written and renamed; it goes if it was not."""
    import shutil

    place.parent.mkdir(parents=True, exist_ok=True)
    aside = _aside(place)
    aside.mkdir()
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def swap_kept(new: Path, place: Path) -> None:
    """Rename a new folder into its place. Who has the one before it mapped keeps what is mapped."""
    if place.exists():
        remove_kept(place)
    new.rename(place)


def free_bytes(place: Path) -> int:
    """Return the room on the disk of an entry that may not be there yet."""
    import shutil

    place.parent.mkdir(parents=True, exist_ok=True)
    return shutil.disk_usage(place.parent).free


def kept_entries(root: Path) -> Iterator[Kept]:
    """Yield all entries."""
    for below in _BELOW:
        for kind, table in _KINDS.items():
            for path in _folders(root / below / kind):
                try:
                    used = (path / table).stat().st_mtime
                    size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
                except OSError:
                    continue  # no entry, or removed by another process while this one looked
                yield Kept(below + kind, path, size, used)


def kept_problem(entry: Kept) -> str:
    """Read every byte of an entry; say what is wrong, nothing if all is as it was written."""
    kind = entry.kind.rpartition("/")[2]
    if kind in (IMAGES, TOKENIZERS):
        return problem_of(entry.path)
    try:
        if kind == CALIBRATION:
            stored = (entry.path / _CODE_FILE).read_bytes()
            is_ours = unsigned_bytes(f"{CALIBRATION}/{entry.path.name}", stored) is not None
            return "" if is_ours else f"`{_CODE_FILE}` {_NOT_OURS}"
        table = json.loads((entry.path / _PROGRAM_TABLE).read_text(encoding="utf-8"))
        if not is_our_program(table, entry.path.name):
            return f"`{_PROGRAM_TABLE}` {_NOT_OURS}"
        for number, digest in enumerate(table["digests"]):
            name = _PROGRAM_OBJECT.format(number)
            if hashlib.sha256((entry.path / name).read_bytes()).hexdigest() != digest:
                return f"`{name}` was changed"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"it cannot be read: {error}"
    return ""


def sealed_program(table: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a compiled program's table with its digest, and this user's seal for the key."""
    digest = program_digest(table)
    return {**table, "digest": digest, "seal": signature_of(f"{PROGRAMS}/{key} {digest}")}


def is_our_program(table: object, key: str) -> bool:
    """Say whether a program's table is as this user wrote it, for this key."""
    if not isinstance(table, dict):
        return False
    digest = f"{PROGRAMS}/{key} {program_digest(table)}"
    return is_signed_here(digest, str(table.get("seal", "")))


def program_digest(table: Mapping[str, Any]) -> str:
    """Return the digest of all that a compiled program's table says, but for digest and seal."""
    said = {name: value for name, value in table.items() if name not in ("digest", "seal")}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def remove_kept(path: Path) -> Literal["removed", "busy", "gone"]:
    """Remove an entry. Who has it mapped keeps what is mapped; on Windows it is in use."""
    import shutil

    aside = _aside(path)
    try:
        path.rename(aside)  # so that nobody finds half an entry
    except FileNotFoundError:
        return "gone"
    except PermissionError:
        return "busy"
    shutil.rmtree(aside, ignore_errors=True)
    return "removed"


def sweep_kept(root: Path) -> None:
    """Remove what processes that died left behind, and notes of images that are gone."""
    import shutil

    long_ago = time.time() - _OLD_ASIDE_SECONDS
    for below in _BELOW:
        for kind in _KINDS:
            for path in _folders(root / below / kind, hidden=True):
                if path.stat().st_mtime < long_ago:
                    shutil.rmtree(path, ignore_errors=True)
        images = {path.name for path in _folders(root / below / IMAGES)}
        notes = root / below / NOTES
        for note in sorted(notes.iterdir()) if notes.is_dir() else ():
            words = note.read_text(encoding="ascii", errors="replace").split()
            if not words or words[0] not in images:
                note.unlink(missing_ok=True)


def _aside(place: Path) -> Path:
    return place.with_name(f".{place.name}.{os.urandom(6).hex()}")


def _folders(parent: Path, *, hidden: bool = False) -> Iterator[Path]:
    if not parent.is_dir():
        return
    for path in sorted(parent.iterdir()):
        if path.name.startswith(".") == hidden and path.is_dir() and not path.is_symlink():
            yield path
