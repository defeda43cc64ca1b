"""One entry that is kept: the files of a folder, and an index that is signed; put in place whole.

`entry.json` names the files with their sizes and digests, and holds what is said about them. Its
signature stands first and covers every byte behind it, with the namespace and the key: an entry
from elsewhere, or of another key, is not taken. Files lead to machine code, so each is compared
with its digest whenever the entry is read. A large one that is mapped has a fingerprint as well:
while that fits it is not read again, which takes microseconds.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import re
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from vermilion.errors import ArtifactError, Refusal
from vermilion.plain import open_plain
from vermilion.store.digest import digest_of, digest_of_file, fingerprint_of
from vermilion.store.signature import is_signed_here, signature_of

INDEX_FILE = "entry.json"
FORMAT = 1
MISSING = Refusal("there is no entry")

_HEAD = re.compile(rb'\{"signature": "([0-9a-f]{64})", "entry": ')
_NOT_OURS = f"`{INDEX_FILE}` was changed, or was not written by this user here"
# The largest is of a language model's programs: a few hundred kilobytes.
_MAX_INDEX_BYTES = 64 << 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Entry:
    """An entry as it was written: what was said about its files, and their bytes by name."""

    path: Path
    about: Mapping[str, Any]
    files: Mapping[str, memoryview] = field(repr=False)


@dataclass(frozen=True)
class StoredFile:
    """A file of an entry. `fingerprint` is empty for one that is read, and not mapped."""

    name: str
    size_bytes: int
    sha256: str
    fingerprint: tuple[int, ...] = ()


class EntryWriter:
    """An entry that is being written, in a folder beside its place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: list[StoredFile] = []

    def write(self, name: str, data: bytes) -> None:
        """Write a file that is read as a whole."""
        (self.folder / name).write_bytes(data)
        self._files.append(StoredFile(name, len(data), digest_of(data)))

    def add_mapped(self, name: str, digest: str) -> None:
        """Take a file that is written in the folder already, and is mapped when it is read."""
        status = (self.folder / name).stat()
        row = StoredFile(name, status.st_size, digest, fingerprint_of(status))
        self._files.append(row)

    def finish(self, place: Path, about: Mapping[str, Any]) -> None:
        """Write the index of an entry that is going to lie at `place`."""
        _write_index(self.folder, place, about, self._files)


def read_entry(place: Path) -> Entry | Refusal:
    """Return an entry whose bytes are what this user wrote here, or why there is none."""
    index = _read_index(place)
    if isinstance(index, Refusal):
        return index
    about, rows = index
    files: dict[str, memoryview] = {}
    seen: list[StoredFile] = []
    for row in rows:
        try:
            data, fingerprint = _contents(place / row.name, is_mapped=bool(row.fingerprint))
        except (OSError, ValueError) as error:  # ValueError: an empty file is not mapped
            return _unreadable(row.name, error)
        is_known = row.fingerprint and fingerprint == row.fingerprint
        if not is_known and (len(data) != row.size_bytes or digest_of(data) != row.sha256):
            return _changed(row.name)
        files[row.name] = data
        seen.append(replace(row, fingerprint=fingerprint))
    if (*seen,) != rows:
        _renew_fingerprints(place, about, seen)
    return Entry(place, about, files)


def entry_problem(place: Path) -> str:
    """Read every byte of an entry; return what is wrong, nothing if all is as it was written."""
    index = _read_index(place)
    if isinstance(index, Refusal):
        return index.reason
    for row in index[1]:
        path = place / row.name
        try:
            is_same = path.stat().st_size == row.size_bytes and digest_of_file(path) == row.sha256
        except OSError as error:
            return _unreadable(row.name, error).reason
        if not is_same:
            return _changed(row.name).reason
    return ""


def entry_files(place: Path) -> tuple[str, ...]:
    """Return the names of an entry's files, the index last; none where it is not this user's."""
    index = _read_index(place)
    return () if isinstance(index, Refusal) else (*(row.name for row in index[1]), INDEX_FILE)


def _contents(path: Path, *, is_mapped: bool) -> tuple[memoryview, tuple[int, ...]]:
    with open_plain(path) as file:
        if not is_mapped:
            return memoryview(file.read()), ()
        fingerprint = fingerprint_of(os.fstat(file.fileno()))
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel that has no pages of 2 MiB
            mapped.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(mapped), fingerprint


def _read_index(place: Path) -> tuple[Mapping[str, Any], tuple[StoredFile, ...]] | Refusal:
    try:
        if not place.is_dir():
            return MISSING
        with open_plain(place / INDEX_FILE) as file:
            data = file.read(_MAX_INDEX_BYTES)
    except FileNotFoundError:
        return Refusal(f"it has no `{INDEX_FILE}`: it is damaged, or of another version")
    except OSError as error:
        return _unreadable(INDEX_FILE, error)
    head = _HEAD.match(data)
    if head is None:
        return Refusal(_NOT_OURS)
    body = data[head.end() : -1]
    if data[-1:] != b"}" or not is_signed_here(_digest(place, body), head[1].decode()):
        return Refusal(_NOT_OURS)
    index = json.loads(body)
    # What carries the signature was written here, so its parts are as this file writes them.
    if index["format"] != FORMAT:
        return Refusal(f"it has format {index['format']}, this version reads {FORMAT}")
    rows = (StoredFile(**{**row, "fingerprint": (*row["fingerprint"],)}) for row in index["files"])
    return index["about"], tuple(rows)


def _write_index(
    folder: Path, place: Path, about: Mapping[str, Any], files: Sequence[StoredFile]
) -> None:
    index = {"format": FORMAT, "about": about, "files": [asdict(row) for row in files]}
    body = json.dumps(index).encode()
    signature = signature_of(_digest(place, body)).encode()
    new = folder / f".{INDEX_FILE}.{uuid.uuid4().hex[:12]}"
    new.write_bytes(b'{"signature": "%b", "entry": %b}' % (signature, body))
    new.replace(folder / INDEX_FILE)


def _renew_fingerprints(place: Path, about: Mapping[str, Any], rows: Sequence[StoredFile]) -> None:
    """Note how mapped files looked that were compared then: a copied cache has others."""
    try:
        _write_index(place, place, about, rows)
    except OSError as error:  # a cache that may only be read is read whole each time
        _log.debug("`%s` cannot be written: %s", place, error)


def _digest(place: Path, body: bytes) -> str:
    """Return what is signed: an entry of another namespace or key is another one."""
    return f"{place.parent.name}/{place.name} {sha256(body).hexdigest()}"


def _unreadable(name: str, error: Exception) -> Refusal:
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return Refusal(f"`{name}` cannot be read: {words}")


def _changed(name: str) -> Refusal:
    return Refusal(f"`{name}` is not what was written: it was changed")


def swap_in(new: Path, place: Path, old: Path | None = None) -> None:
    """Rename a finished folder into its place; what was there goes only when the new one stands.

    `old` is where the former one lies meanwhile; beside its place unless said otherwise.

    A reader that has the old files mapped keeps them: they are renamed away, then unlinked.
    """
    if not place.exists():
        new.rename(place)
        return
    old = old or place.with_name(f".{place.name}.{uuid.uuid4().hex[:12]}.old")
    try:
        place.rename(old)
    except OSError as error:
        raise in_use(place, error) from error
    new.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def in_use(place: Path, error: OSError) -> ArtifactError:
    """Return the error for a bundle that cannot be replaced."""
    # Windows does not rename or remove what a program has mapped.
    return ArtifactError(
        f"the bundle that is there cannot be replaced: {error.strerror or error}",
        where=str(place),
        hint="close the programs that have it open",
    )
