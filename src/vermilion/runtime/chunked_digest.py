"""Digests of files in pieces, so that several cores can check one large file.

The digest of a file of one piece is its SHA-256. That of a larger one is the SHA-256 of its
pieces' digests, one after the other.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

PIECE_BYTES = 8 * 1024 * 1024


class PieceHash:
    """The digest of bytes that come a few at a time."""

    def __init__(self) -> None:
        self._whole = bytearray()
        self._piece = hashlib.sha256()
        self._in_piece = 0

    def update(self, data: bytes | memoryview) -> None:
        """Take the next bytes."""
        view = memoryview(data).cast("B")
        while len(view):
            if self._in_piece == PIECE_BYTES:
                self._end_piece()
            some = view[: PIECE_BYTES - self._in_piece]
            self._piece.update(some)
            self._in_piece += len(some)
            view = view[len(some) :]

    def hexdigest(self) -> str:
        """Return the digest of all bytes so far."""
        if not self._whole:
            return self._piece.hexdigest()
        return hashlib.sha256(bytes(self._whole) + self._piece.digest()).hexdigest()

    def _end_piece(self) -> None:
        self._whole += self._piece.digest()
        self._piece, self._in_piece = hashlib.sha256(), 0


def digest_of(data: bytes | memoryview, done: Callable[[memoryview], None] | None = None) -> str:
    """Return the digest of bytes, pieces side by side; `done` is called with each piece after it.

    hashlib lets go of the interpreter's lock, so threads do.
    """
    pieces = list(_pieces(memoryview(data).cast("B")))

    def one(piece: memoryview) -> bytes:
        digest = hashlib.sha256(piece).digest()
        if done is not None:
            done(piece)
        return digest

    if len(pieces) == 1:
        return one(pieces[0]).hex()
    from concurrent.futures import ThreadPoolExecutor  # not for small files, of which most are

    with ThreadPoolExecutor(min(len(pieces), os.cpu_count() or 1)) as pool:
        return hashlib.sha256(b"".join(pool.map(one, pieces))).hexdigest()


def digest_of_file(path: Path) -> str:
    """Return the digest of a file, read a piece at a time."""
    state = PieceHash()
    with path.open("rb") as file:
        while data := file.read(PIECE_BYTES):
            state.update(data)
    return state.hexdigest()


def _pieces(data: memoryview) -> Iterator[memoryview]:
    for start in range(0, max(1, len(data)), PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]
