"""The errors a user can meet, by who can fix them.

VermilionError
├── ModelError        the model file
├── OptionError       the request (wrong use: exit code 2)
├── UnsupportedError  this tool: it cannot do that yet
├── DeviceError       the machine: a device, driver or provider
└── ArtifactError     the compiled bundle or its cache

Text: what is wrong, then where (file, node, operator), then a hint that says what to do.
A rule that does not apply is not an error: it is a `Refusal`, a value with a reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from errno import EDQUOT, EFBIG, ENOSPC
from typing import ClassVar

# Room for a path of the usual length and a few names; more is a file's doing.
_MAX_CHARACTERS = 1200


class VermilionError(Exception):
    """Base of everything this package raises on purpose."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        self.message = _printable(message)
        self.where = _printable(where)
        self.hint = _printable(hint)
        super().__init__(str(self))

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        hint = f"\nhint: {self.hint}" if self.hint else ""
        return f"{self.message}{place}{hint}"


def _printable(text: str) -> str:
    """Return `text` safe for a terminal: names come from files that anybody may have written.

    Control characters (newlines, escape codes, reversed writing) are escaped, and the middle of
    what is too long is left out.
    """
    if len(text) > _MAX_CHARACTERS:
        left_out = len(text) - _MAX_CHARACTERS
        half = _MAX_CHARACTERS // 2
        text = f"{text[:half]}… {left_out:,} characters left out …{text[-half:]}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class ModelError(VermilionError):
    """The model file is damaged, unsafe, or not what it says it is."""


class OptionError(VermilionError):
    """The request makes no sense as written."""

    exit_code = 2


class UnsupportedError(VermilionError):
    """The request is fine and this tool cannot do it yet."""


class OtherSizesError(UnsupportedError):
    """A program for open sizes is not right at those of this run; the model itself may be."""


class DeviceError(VermilionError):
    """A device, driver or provider is missing or failed."""


class ArtifactError(VermilionError):
    """A compiled bundle or cache entry is damaged, foreign or stale."""


def first_line(error: BaseException) -> str:
    """Return the first line that an error has, else its kind."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)


def is_full(error: BaseException | None) -> bool:
    """Say whether a disk or a quota has no room: a fault of the machine, not of what was written.

    NumPy's `tofile` has no number for it, only `384 requested and 0 written`.
    """
    if not isinstance(error, OSError):
        return False
    return error.errno in (ENOSPC, EDQUOT, EFBIG) or (
        error.errno is None and " written" in str(error)
    )


@dataclass(frozen=True)
class Refusal:
    """Why a rule did not apply, or a backend would not take a node."""

    reason: str
    hint: str = ""
