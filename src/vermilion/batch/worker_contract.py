"""A worker as the scheduler sees it: one that computes ranges, or dies of them.

The local one, a process, is in `local_worker`; the one on a Ray cluster in `cluster`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from vermilion.batch.job import Range
from vermilion.errors import UnsupportedError

OPEN_LIMIT_S = 600.0


class BatchError(UnsupportedError):
    """No input is at fault: the model's outputs cannot be taken apart, or written."""


class WorkerDied(Exception):
    """The process is gone, or was ended because it hung. The words say how."""


class RangeFailed(Exception):
    """The worker lives and could not compute the range. `fatal`: nor will any other."""

    def __init__(self, words: str, *, fatal: bool = False) -> None:
        super().__init__(words)
        self.fatal = fatal


@dataclass(frozen=True)
class Report:
    """What a worker says of a range that it finished."""

    failed: Mapping[int, str] = field(default_factory=dict)
    read_s: float = 0.0
    run_s: float = 0.0
    peak_rss_mb: float = 0.0


class Worker(Protocol):
    """Computes ranges; not for several threads at once, but `close` may come from another."""

    runs_on: str
    notes: tuple[str, ...]

    def begin(self, wanted: Range, *, keep: bool = True) -> None:
        """Ask for a range; several may be asked for, and are computed one after the other.

        Raises: WorkerDied.
        """

    def finish(self) -> Report:
        """Wait for the range that was asked for first, of those that are not finished.

        Where it was to be kept, its file is in the journal when this returns.

        Raises: WorkerDied, RangeFailed.
        """

    def close(self) -> None:
        """End it, whatever it is doing."""
