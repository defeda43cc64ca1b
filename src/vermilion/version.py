"""The version of this package, and a digest of the code that is running."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

VERSION = "0.1.0"


@cache
def code_digest() -> str:
    """Return a digest of this package's sources.

    What a cache key needs to notice a changed compiler.

    A version number alone would let a developer, or a patched installation, meet yesterday's
    compiled models.
    """
    root = Path(__file__).parent
    state = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        if not file.name.endswith("_test.py"):
            state.update(file.relative_to(root).as_posix().encode())
            state.update(file.read_bytes())
    return state.hexdigest()
