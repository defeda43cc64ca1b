"""The errors a user can meet, by who can mend them.

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
from typing import ClassVar


class VermilionError(Exception):
    """Base of everything this package raises on purpose."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        self.message = message
        self.where = where
        self.hint = hint
        super().__init__(str(self))

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        hint = f"\nhint: {self.hint}" if self.hint else ""
        return f"{self.message}{place}{hint}"


class ModelError(VermilionError):
    """The model file is damaged, unsafe, or not what it says it is."""


class OptionError(VermilionError):
    """The request makes no sense as written."""

    exit_code = 2


class UnsupportedError(VermilionError):
    """The request is fine and this tool cannot do it yet."""


class DeviceError(VermilionError):
    """A device, driver or provider is missing or failed."""


class ArtifactError(VermilionError):
    """A compiled bundle or cache entry is damaged, foreign or stale."""


@dataclass(frozen=True)
class Refusal:
    """Why a rule did not apply, or a backend would not take a node."""

    reason: str
    hint: str = ""
