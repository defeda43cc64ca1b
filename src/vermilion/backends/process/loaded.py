"""A child with an open session as what `backends.base` calls an executable."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from contextlib import ExitStack
from pathlib import Path

from vermilion.backends.base import Array, Tensors
from vermilion.backends.process.child import Child
from vermilion.forks import renew_after_fork


class Loaded:
    """A child with an open session; one run at a time."""

    def __init__(self, child: Child, runs_on: str, stays: ExitStack) -> None:
        """Take the child, and what is to be undone when nobody holds this any more."""
        self._child = child
        self._lock = threading.Lock()
        self._runs_on = runs_on
        # The child must not outlive whoever runs it.
        self._end = weakref.finalize(self, _end, stays, os.getpid())
        renew_after_fork(self)

    @property
    def runs_on(self) -> str:
        """Say where it runs."""
        return self._runs_on

    def run(self, inputs: Tensors) -> dict[str, Array]:
        """Compute every output. Raises: ChildFailure."""
        with self._lock:
            return self._child.run(inputs)

    def after_fork(self) -> None:
        """Renew the lock in a forked process, where a run is refused: whoever held it is gone."""
        self._lock = threading.Lock()


def work_folder(stays: ExitStack) -> Path:
    """Make a folder that goes when the stack is closed, and not when a forked process ends."""
    folder = Path(tempfile.mkdtemp(prefix="vermilion-"))
    stays.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _end(stays: ExitStack, opened_in: int) -> None:
    # A forked process has a copy of this, and the child is not its to end.
    if os.getpid() == opened_in:
        stays.close()
