"""Digests of named things, without a library of graphs: opening a bundle needs nothing more."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Protocol


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
