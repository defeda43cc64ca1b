"""What the compiler says, read into records."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

_LINE = re.compile(
    r"(?P<file>.*?):(?P<line>\d+):(?P<column>\d+): "
    r"(?P<kind>fatal error|error|warning|note): (?P<text>.*)"
)
_BARE = re.compile(r"(?:clang\S*: )?(?:fatal )?error: (?P<text>.*)")


@dataclass(frozen=True)
class Diagnostic:
    """One message, at a place in a file of the user's; no file where it has none."""

    kind: Literal["error", "warning"]
    file: str
    line: int
    column: int
    text: str


def read_diagnostics(output: str, is_users: Callable[[str], bool]) -> list[Diagnostic]:
    """Read clang's messages.

    One in a header that is not the user's is moved to where the user's code led there: to the
    first of its notes that points into a file of the user's.
    """
    found: list[Diagnostic] = []
    waiting: Diagnostic | None = None
    for line in output.splitlines():
        message = _LINE.match(line)
        if message is None:
            if bare := _BARE.fullmatch(line):
                found.append(Diagnostic("error", "", 0, 0, bare["text"]))
            continue
        file, row, column = message["file"], int(message["line"]), int(message["column"])
        if message["kind"] == "note":
            if waiting is not None and is_users(file):
                found.append(Diagnostic(waiting.kind, file, row, column, waiting.text))
                waiting = None
            continue
        if waiting is not None:
            found.append(waiting)
            waiting = None
        kind: Literal["error", "warning"] = "warning" if message["kind"] == "warning" else "error"
        new = Diagnostic(kind, file, row, column, message["text"])
        if is_users(file):
            found.append(new)
        else:
            waiting = new
    return [*found, waiting] if waiting is not None else found
