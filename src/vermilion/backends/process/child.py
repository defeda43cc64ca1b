"""A vendor's session in a worker, and that as what `backends.base` calls an executable."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from vermilion.backends.base import Array, Tensors
from vermilion.backends.process.contract import Closed, Opened, Request
from vermilion.forks import renew_after_fork
from vermilion.process.child import LOG_FILE, Child, ChildError
from vermilion.process.worker import Message

WORKER = ("vermilion.backends.process.worker",)

PROVIDER = "provider"  # what errors call the worker, unless told otherwise


class ProviderProcess:
    """A worker with an open session. Not for several threads at once."""

    def __init__(
        self,
        request: Request,
        folder: Path,
        *,
        worker: Sequence[str] = WORKER,
        open_limit_s: float,
        run_limit_s: float,
        who: str = PROVIDER,
    ) -> None:
        """Start the worker on `folder`, where the model lies, and wait for its session.

        Raises: ChildError where it hangs, dies, or says that it cannot.
        """
        self._run_limit_s = run_limit_s
        self.inputs = {t.name: t.create(folder) for t in request.inputs}
        self.outputs = {t.name: t.create(folder) for t in request.outputs}
        self._child = Child((*worker, str(folder)), folder / LOG_FILE, who=who, scratch=folder)
        said = self._ask("open", "opening", open_limit_s, {"request": asdict(request)})
        self.opened = Opened(
            providers=tuple(str(name) for name in said["providers"]),
            assigned={str(k): int(v) for k, v in said["assigned"].items()},
        )

    @property
    def process(self) -> int:
        """The worker's process id."""
        return self._child.process

    def run(self, inputs: Tensors) -> dict[str, Array]:
        """Compute the outputs. They begin as `unwritten`, so that what is not written shows.

        Raises: ChildError; DeviceError in a process that was forked.
        """
        # An exception may have left the run before, and the worker goes on with it.
        self._child.settle(self._run_limit_s)
        for name, mapped in self.inputs.items():
            mapped[...] = inputs[name]
        for mapped in self.outputs.values():
            mapped[...] = unwritten(mapped.dtype)
        self._ask("run", "running", self._run_limit_s)
        return {name: mapped.copy() for name, mapped in self.outputs.items()}

    def close(self) -> Closed:
        """End the worker in order; return what it counted. Raises: ChildError."""
        said = self._ask("close", "closing", self._run_limit_s)
        self.stop()
        return Closed({str(k): int(v) for k, v in said["events"].items()})

    def stop(self) -> None:
        """End the worker, whatever it is doing."""
        self._child.stop()
        self.inputs.clear()
        self.outputs.clear()

    def __enter__(self) -> Self:
        """Return itself: it is open already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the worker."""
        self.stop()

    def _ask(
        self, do: str, stage: str, limit_s: float, details: Mapping[str, Any] | None = None
    ) -> Message:
        try:
            return self._child.ask(do, details, limit_s=limit_s, stage=stage)
        except ChildError:
            self.stop()
            raise


class Loaded:
    """A worker with an open session; one run at a time."""

    def __init__(self, process: ProviderProcess, runs_on: str, stays: ExitStack) -> None:
        """Take the worker, and what is to be undone when nobody holds this any more."""
        self._process = process
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
        """Compute every output. Raises: ChildError."""
        with self._lock:
            return self._process.run(inputs)

    def after_fork(self) -> None:
        """Renew the lock in a forked process, where a run is refused: whoever held it is gone."""
        self._lock = threading.Lock()


def work_folder(stays: ExitStack) -> Path:
    """Make a folder that goes when the stack is closed, and not when a forked process ends."""
    folder = Path(tempfile.mkdtemp(prefix="vermilion-"))
    stays.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def unwritten(dtype: np.dtype[Any]) -> Any:
    """Return the value that outputs hold before a run: NaN, or the lowest number of the type."""
    if dtype.kind == "f":
        return np.nan
    return False if dtype.kind == "b" else np.iinfo(dtype).min


def _end(stays: ExitStack, opened_in: int) -> None:
    # A forked process has a copy of this, and the worker is not its to end.
    if os.getpid() == opened_in:
        stays.close()
