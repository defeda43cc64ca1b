"""The process that runs what may loop, grow or crash, as the literal run sees it.

One a process, started when the first model needs it. Not thrown away after a model: a start costs
half a second. When it is killed (time, memory) or dies, the next order starts another.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vermilion.errors import UnsupportedError, VermilionError
from vermilion.ir.limits import Limits, TimeLimitError
from vermilion.ir.memory import MemoryBoundError
from vermilion.process.child import LOG_FILE, Child, ChildError, Watch, shorten_log

Array = Any
Order = dict[str, Any]
Waiting = Callable[[float], None]

_WORKER = "vermilion.ir.literal.worker"

# A process that nobody has asked for this long ends: a session of a notebook may stand for days.
_IDLE_S = 300.0
# A start takes half a second; this is for a loaded machine.
_START_S = 60.0
# The worker ends a run by itself when the time is up, if the engine lets it.
_GRACE_S = 1.0


class CrashError(UnsupportedError):
    """The engine ended the child's process on this model."""


class LiteralProcess:
    """A worker that obeys one order at a time, and a folder for what crosses."""

    def __init__(self) -> None:
        """Make the folder; the process starts with the first order."""
        self.folder = Path(tempfile.mkdtemp(prefix="vermilion-literal-"))
        self.starts = 0
        self._running: list[Child] = []  # one or none; a list, for the finalizer
        self.lock = threading.RLock()
        self.to_forget: deque[int] = deque()
        self._finalizer = weakref.finalize(self, _end, self._running, self.folder)

    def obey(self, order: Order, limits: Limits, waiting: Waiting) -> dict[str, Any]:
        """Hand an order over and wait for the answer; `waiting` is told how long it has been.

        Raises: TimeLimitError, MemoryBoundError, CrashError, or what the engine found wrong.
        """
        with self.lock:
            shorten_log(self.folder / LOG_FILE)
            try:
                return self._started().ask(
                    "obey",
                    {"order": order},
                    limit_s=limits.seconds + _GRACE_S,
                    watch=Watch(limits.memory_bytes, waiting),
                )
            except ChildError as error:
                raise _explained(error, limits) from None
            except BaseException:
                # Whatever ended the wait, Ctrl-C too: nobody knows what the worker is doing.
                self.stop()
                raise

    @property
    def process(self) -> int | None:
        """The process id, None while there is none."""
        return self._running[0].process if self._running else None

    def forgotten(self) -> list[int]:
        """Return the models that nobody holds any more since this was last asked.

        They are noted from finalizers, which may run at any time, hence not under the lock.
        """
        found = []
        while self.to_forget:
            found.append(self.to_forget.popleft())
        return found

    def stop(self) -> None:
        """End the process, whatever it is doing. The next order starts another."""
        with self.lock:
            _stop(self._running)

    def abandon(self) -> None:
        """Forget the process without ending it: it belongs to the one that this was forked from."""
        self._finalizer.detach()
        self._running.clear()

    def _started(self) -> Child:
        """Return a worker that answers: the last may have ended, of itself or by somebody's hand.

        Raises: CrashError where none starts.
        """
        for running in self._running:
            try:
                running.ping(_START_S)
            except ChildError:
                break
            return running
        self.stop()
        self.folder.mkdir(mode=0o700, exist_ok=True)  # a worker that ends by itself removes it
        child = Child(
            (_WORKER, str(self.folder)),
            self.folder / LOG_FILE,
            who="the literal run",
            scratch=self.folder,
            idle_s=_IDLE_S,
        )
        self._running.append(child)
        self.starts += 1
        try:
            child.ping(_START_S)
        except ChildError as error:
            self.stop()
            raise CrashError(
                f"the process that runs models with loops did not start: {error.message}",
                where=_WORKER,
                hint=error.hint,
            ) from None
        return child


def _explained(error: ChildError, limits: Limits) -> VermilionError:
    """Say of the model what became of the process that ran it."""
    if error.raised is not None:
        return error.raised
    if error.kind == "hung":
        return TimeLimitError(limits.seconds)
    if error.kind == "grown":
        return no_memory(limits.memory_bytes)
    if not error.ended:
        return CrashError("ONNX Runtime broke the process that ran this model")
    return CrashError(
        f"ONNX Runtime crashed ({error.ended}) on this model",
        hint="export the model again; if it is sound, report it to ONNX Runtime",
    )


def no_memory(most_bytes: int, place: str = "") -> MemoryBoundError:
    """Return the error of a model that needs more memory than it may have."""
    return MemoryBoundError(
        f"its values need more than {most_bytes / 1e9:,.1f} GB at one time",
        where=place,
        hint="bind smaller sizes with `--dim`; if they are fixed in the file, do not trust it",
    )


def _stop(running: list[Child]) -> None:
    while running:
        running.pop().stop()


def _end(running: list[Child], folder: Path) -> None:
    _stop(running)
    shutil.rmtree(folder, ignore_errors=True)


_current: deque[LiteralProcess] = deque(maxlen=1)
_making = threading.Lock()


def the_child() -> LiteralProcess:
    """Return this process's child."""
    with _making:
        if not _current:
            _current.append(LiteralProcess())
        return _current[0]


def _forked() -> None:
    """In a process that was forked off: the child is not ours, and our lock may be held."""
    global _making
    _making = threading.Lock()
    for child in _current:
        child.abandon()
    _current.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
