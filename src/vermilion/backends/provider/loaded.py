"""A compiled part that runs in a worker."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from vermilion.backends.base import Array, Tensors
from vermilion.backends.provider.child import ProviderProcess
from vermilion.forks import renew_after_fork
from vermilion.process.log import tail

Check = Callable[[Tensors, Tensors], None]


class Loaded:
    """A worker with an open session; one run at a time."""

    def __init__(
        self,
        process: ProviderProcess,
        runs_on: str,
        stays: ExitStack,
        check: Check | None = None,
    ) -> None:
        """Take the worker, and what is to be undone when nobody holds this any more.

        `check` raises where the outputs of a run are not to be handed out.
        """
        self._process = process
        self._check = check
        self._lock = threading.Lock()
        self._runs_on = runs_on
        # The worker must not outlive whoever runs it.
        self._end = weakref.finalize(self, _end, stays, os.getpid())
        renew_after_fork(self)

    @property
    def runs_on(self) -> str:
        """Say where it runs."""
        return self._runs_on

    def run(self, inputs: Tensors) -> dict[str, Array]:
        """Compute every output. Raises: DeviceError."""
        with self._lock:
            found = self._process.run(inputs)
        if self._check is not None:
            self._check(inputs, found)
        return found

    def after_fork(self) -> None:
        """Renew the lock in a forked process, where a run is refused: whoever held it is gone."""
        self._lock = threading.Lock()


def work_folder(stays: ExitStack) -> Path:
    """Make a folder that goes when the stack is closed, and not when a forked process ends."""
    folder = Path(tempfile.mkdtemp(prefix="vermilion-"))
    stays.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def keep_log(log: Path, place: Path) -> None:
    """Keep a log's end: a compiler that fails prints its whole program."""
    place.write_text(tail(log), encoding="utf-8")


def _end(stays: ExitStack, opened_in: int) -> None:
    # A forked process has a copy of this, and the worker is not its to end.
    if os.getpid() == opened_in:
        stays.close()
