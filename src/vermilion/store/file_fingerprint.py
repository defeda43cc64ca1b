"""Whether files are as they were, without reading them.

A fingerprint is what the file system says of a file: its size, when its bytes and its entry were
last changed, and its number. Who writes to a file changes the second of these, which no program can
set back; a copy has another number. Another fingerprint does not mean other bytes: it means
reading them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path

Fingerprint = tuple[int, int, int, int]


def fingerprint_of(status: os.stat_result) -> Fingerprint:
    """Return the fingerprint of a file."""
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def folder_fingerprint(folder: Path, endings: Iterable[str] = ("",)) -> str:
    """Return one digest of the names and fingerprints of files with one of the endings."""
    state = sha256()
    for name, status in sorted(_files(str(folder), tuple(endings)), key=lambda row: row[0]):
        state.update(f"{name}\0{fingerprint_of(status)}\n".encode("utf-8", "surrogatepass"))
    return state.hexdigest()


@cache
def code_fingerprint() -> str:
    """Return the fingerprint of this package's sources: `code_digest`, without reading."""
    return folder_fingerprint(Path(__file__).parent.parent, (".py",))


def _files(folder: str, endings: tuple[str, ...]) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    yield from _files(entry.path, endings)
            elif entry.name.endswith(endings):
                # On Windows, an entry's own status lacks the number.
                status = Path(entry.path).stat() if os.name == "nt" else entry.stat()
                yield entry.path, status
