"""Names that are safe on every file system: of a bundle's files, and of a cache entry."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vermilion.errors import ArtifactError, OptionError

MAX_MEMBERS = 4096  # far above any bundle: a part has a handful of files, and there are few parts
MAX_KEY_BYTES = 100  # room for what is put around a key, in the 255 that file systems allow
MAX_NAME_CHARACTERS = 200
MAX_NAME_BYTES = 4 * MAX_NAME_CHARACTERS  # UTF-8

_MAX_DEPTH = 4
# Source: Microsoft, "Naming Files, Paths, and Namespaces".
_FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')
_RESERVED = re.compile(r"(con|prn|aux|nul|(com|lpt)[0-9¹²³])(\..*)?", re.IGNORECASE)
_HINT = "do not use this bundle: it was not written by Vermilion, or somebody changed it"


def check_member_names(names: Sequence[str], where: str) -> None:
    """Raise ArtifactError for names that lead out of the bundle, cannot exist, or collide."""
    if len(names) > MAX_MEMBERS:
        raise ArtifactError(
            f"the bundle has {len(names)} files, at most {MAX_MEMBERS} are allowed",
            where=where,
            hint=_HINT,
        )
    # Two names that differ in case alone are one file on Windows.
    seen: set[str] = set()
    for name in names:
        problem = _member_problem(name)
        if problem:
            raise ArtifactError(f"`{name[:80]}` {problem}", where=where, hint=_HINT)
        if name.casefold() in seen:
            raise ArtifactError(f"`{name}` stands in the bundle twice", where=where, hint=_HINT)
        seen.add(name.casefold())


def check_key(key: str) -> str:
    """Return back a cache key that can be the name of a folder.

    Raises: OptionError where it cannot.
    """
    problem = _segment_problem(key)
    if not problem and key.startswith("."):
        problem = "begins with a dot"
    if not problem and len(key.encode()) > MAX_KEY_BYTES:
        problem = f"is longer than {MAX_KEY_BYTES} bytes"
    if problem:
        raise OptionError(
            f"the cache key `{key[:MAX_KEY_BYTES]}` {problem}",
            hint="a cache key is the name of a folder: use letters, digits, `-`, `_` and `.`",
        )
    return key


def _member_problem(name: str) -> str:
    if not name or len(name) > MAX_NAME_CHARACTERS:
        return "is not a name of a usual length"
    if name.startswith(("/", "\\")) or re.match(r"[A-Za-z]:", name):
        return "is an absolute path"
    segments = name.split("/")
    if any(segment in {".", ".."} for segment in segments):
        return "leads out of the bundle"
    if len(segments) > _MAX_DEPTH:
        return "lies too deep"
    return next(filter(None, map(_segment_problem, segments)), "")


def _segment_problem(segment: str) -> str:
    if not segment:
        return "is empty"
    if segment in {".", ".."}:
        return "leads somewhere else"
    if _FORBIDDEN.search(segment):
        return "has a character that file names must not have"
    if segment != segment.strip() or segment.endswith("."):
        return "begins or ends with a space, or ends with a dot"
    if _RESERVED.fullmatch(segment):
        return "is a name that Windows keeps for itself"
    try:
        segment.encode("utf-8")
    except UnicodeEncodeError:
        return "is not text"
    return ""
