"""Digests: of files in chunks, of named things; and whether files are as they were.

The digest of a file of one chunk is its SHA-256. That of a larger one is the SHA-256 of its
chunks' digests, one after the other.

A fingerprint is what the file system says of a file: its size, when its bytes and its entry were
last changed, and its number. Who writes to a file changes the second of these, which no program can
set back; a copy has another number. Another fingerprint does not mean other bytes: it means
reading them.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from vermilion.cores import usable_cores
from vermilion.plain import open_plain

CHUNK_BYTES = 8 * 1024 * 1024


class ChunkedHash:
    """The digest of bytes that come a few at a time."""

    def __init__(self) -> None:
        self._ended = bytearray()  # the digests of the chunks before this one
        self._chunk = hashlib.sha256()
        self._in_chunk = 0

    def update(self, data: bytes | memoryview) -> None:
        """Take the next bytes."""
        view = memoryview(data).cast("B")
        while len(view):
            if self._in_chunk == CHUNK_BYTES:
                self._end_chunk()
            some = view[: CHUNK_BYTES - self._in_chunk]
            self._chunk.update(some)
            self._in_chunk += len(some)
            view = view[len(some) :]

    def hexdigest(self) -> str:
        """Return the digest of all bytes so far."""
        if not self._ended:
            return self._chunk.hexdigest()
        return hashlib.sha256(bytes(self._ended) + self._chunk.digest()).hexdigest()

    def _end_chunk(self) -> None:
        self._ended += self._chunk.digest()
        self._chunk, self._in_chunk = hashlib.sha256(), 0


def digest_of(data: bytes | memoryview, done: Callable[[memoryview], None] | None = None) -> str:
    """Return the digest of bytes, chunks side by side; `done` is called with each chunk after it.

    hashlib lets go of the interpreter's lock, so threads do.
    """
    chunks = list(_chunks(memoryview(data).cast("B")))

    def one(chunk: memoryview) -> bytes:
        digest = hashlib.sha256(chunk).digest()
        if done is not None:
            done(chunk)
        return digest

    if len(chunks) == 1:
        return one(chunks[0]).hex()
    from concurrent.futures import ThreadPoolExecutor  # not for small files, of which most are

    with ThreadPoolExecutor(min(len(chunks), usable_cores())) as pool:
        return hashlib.sha256(b"".join(pool.map(one, chunks))).hexdigest()


def digest_of_file(path: Path) -> str:
    """Return the digest of a file, read a chunk at a time."""
    state = ChunkedHash()
    with open_plain(path) as file:
        while data := file.read(CHUNK_BYTES):
            state.update(data)
    return state.hexdigest()


def _chunks(data: memoryview) -> Iterator[memoryview]:
    for start in range(0, max(1, len(data)), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]


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


class Hash(Protocol):
    """What takes bytes: `hashlib.sha256()`."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Take more bytes."""


def cache_digest(parts: Mapping[str, str]) -> str:
    """Return one digest of all named things that a compiled bundle depends on."""
    state = hashlib.sha256()
    for key in sorted(parts):
        put(state, key, parts[key])
    return state.hexdigest()


def put(state: Hash, *items: object) -> None:
    """Take items as text or bytes."""
    # Each item with its length before it, so that no two lists run together to the same bytes.
    for item in items:
        data = item if isinstance(item, bytes) else str(item).encode("utf-8", "surrogatepass")
        state.update(struct.pack("<Q", len(data)))
        state.update(data)
