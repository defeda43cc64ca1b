"""Comparing version numbers field by field, as integers."""

from __future__ import annotations

import re
from itertools import zip_longest

_LEADING_FIELDS = re.compile(r"\d+(?:\.\d+)*")


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
