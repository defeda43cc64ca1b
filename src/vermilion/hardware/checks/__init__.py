"""What `doctor` looks for: one function a fault, grouped by what is ill; what it found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "warning", "error"]

LEVELS: tuple[Level, ...] = ("error", "warning", "note", "ok")
"""The worst first: the order in which findings are told."""


@dataclass(frozen=True)
class Finding:
    """One finding.

    `id` is stable, `group.fault`, so that scripts may look for it. `what` is a sentence without a
    full stop. `fix` is the line to type or the thing to change; empty where nothing is wrong.
    """

    id: str
    level: Level
    what: str
    fix: str = ""

    def as_json(self) -> dict[str, object]:
        """Return the keys that `vermilion doctor --json` prints."""
        return {"id": self.id, "level": self.level, "what": self.what, "fix": self.fix}
