"""How long work tells a caller how far it is, without knowing who listens."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told at each step of long work. The command line draws bars from it; tests ignore it."""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Note that `done` of `total` steps of `stage` are finished; total 0 means unknown."""


def no_progress(stage: str, done: int, total: int) -> None:
    """Ignore progress."""
