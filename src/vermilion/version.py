"""The version of this package, a digest of the code that is running, and versions compared."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from itertools import zip_longest
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


_LEADING_FIELDS = re.compile(r"\d{1,18}(?:\.\d{1,18})*")


def version_fields(text: str) -> tuple[int, ...]:
    """Return the first dotted number in `text` as integers; empty where there is none.

    `6.8.0-45-generic` → (6, 8, 0), `1.27.1+rocm7.14` → (1, 27, 1).
    """
    found = _LEADING_FIELDS.search(text)
    return tuple(int(field) for field in found.group().split(".")) if found else ()


def is_older(version: str, minimum: str) -> bool:
    """Say whether `version` comes before `minimum`; a version that cannot be read does not.

    Fields are compared as integers from the left: AMD's OEM drivers carry numbers such as
    32.0.22032.6002, which is newer than 32.0.203.280 although it sorts before it as text.
    """
    fields = version_fields(version)
    if not fields:
        return False
    for ours, wanted in zip_longest(fields, version_fields(minimum), fillvalue=0):
        if ours != wanted:
            return ours < wanted
    return False
