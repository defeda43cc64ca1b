"""Digests of files in chunks, so that several cores can check one large file.

The digest of a file of one chunk is its SHA-256. That of a larger one is the SHA-256 of its
chunks' digests, one after the other.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

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

    with ThreadPoolExecutor(min(len(chunks), os.cpu_count() or 1)) as pool:
        return hashlib.sha256(b"".join(pool.map(one, chunks))).hexdigest()


def digest_of_file(path: Path) -> str:
    """Return the digest of a file, read a chunk at a time."""
    state = ChunkedHash()
    with path.open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            state.update(data)
    return state.hexdigest()


def _chunks(data: memoryview) -> Iterator[memoryview]:
    for start in range(0, max(1, len(data)), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]
