"""The parent's side of the child that runs what may loop, grow or crash.

One child a process, started when the first model needs it. Not thrown away after a model: a start
costs half a second. When it is killed (time, memory) or dies, the next order starts another.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from vermilion.errors import ModelError, OptionError, UnsupportedError, VermilionError
from vermilion.exits import exit_words
from vermilion.ir.limits import Limits, TimeLimitError
from vermilion.ir.memory import MemoryBoundError

Array = Any
Order = dict[str, Any]
Waiting = Callable[[float], None]

_COMMAND = (sys.executable, "-P", "-m", "vermilion.ir.literal.worker")
_LOG_FILE = "log.txt"
_MOST_LOG_BYTES = 1 << 20

# How often the parent looks at the child's memory and says how long it has waited.
_GLANCE_S = 0.25
# A start takes half a second; this is for a loaded machine.
_START_S = 60.0
# The child ends a run by itself when the time is up, if the engine lets it.
_GRACE_S = 1.0

_ERRORS: Mapping[str, type[VermilionError]] = {
    "MemoryBoundError": MemoryBoundError,
    "ModelError": ModelError,
    "OptionError": OptionError,
}


class CrashError(UnsupportedError):
    """The engine ended the child's process on this model."""


@dataclass
class _Process:
    """A child that runs, and the thread that reads what it says."""

    popen: subprocess.Popen[str]
    answers: queue.Queue[str | None]
    used_bytes: int = 0  # before the order

    def stop(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()
        self.close()

    def close(self) -> None:
        for stream in (self.popen.stdin, self.popen.stdout):
            if stream is not None:
                with contextlib.suppress(OSError, ValueError):
                    stream.close()


class Child:
    """A child process that obeys one order at a time, and a folder for what crosses."""

    def __init__(self) -> None:
        """Make the folder; the process starts with the first order."""
        self.folder = Path(tempfile.mkdtemp(prefix="vermilion-literal-"))
        self.starts = 0
        self._running: list[_Process] = []  # one or none; a list, for the finalizer
        self.lock = threading.RLock()
        self.to_forget: deque[int] = deque()
        self._finalizer = weakref.finalize(self, _end, self._running, self.folder)

    def obey(self, order: Order, limits: Limits, waiting: Waiting) -> dict[str, Any]:
        """Hand an order over and wait for the answer; `waiting` is told how long it has been.

        Raises: TimeLimitError, MemoryBoundError, CrashError, or what the engine found wrong.
        """
        with self.lock:
            try:
                try:
                    return self._asked(self._started(), order, limits, waiting)
                except _NotTakenError:  # it ended before, of itself or by somebody's hand
                    self.stop()
                    return self._asked(self._started(), order, limits, waiting)
            except _NotTakenError as error:
                self.stop()
                raise _crashed(error.code) from None
            except _AnsweredError as answered:
                raise answered.error from None
            except BaseException:
                # Whatever ended the wait, Ctrl-C too: nobody knows what the child is doing.
                self.stop()
                raise

    @property
    def process(self) -> int | None:
        """The process id of the child, None while there is none."""
        return self._running[0].popen.pid if self._running else None

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
            while self._running:
                self._running.pop().stop()

    def abandon(self) -> None:
        """Forget the child without ending it: it belongs to the process that this one left.

        Our copies of its pipes are closed, or it would not see when that process ends. Not by
        closing the files: a thread that did not come along may hold their locks.
        """
        self._finalizer.detach()
        nothing = os.open(os.devnull, os.O_RDWR)
        for process in self._running:
            for stream in (process.popen.stdin, process.popen.stdout):
                if stream is not None:
                    os.dup2(nothing, stream.fileno(), inheritable=False)
        os.close(nothing)

    def _started(self) -> _Process:
        if self._running and self._running[0].popen.poll() is None:
            return self._running[0]
        self.stop()
        self.folder.mkdir(mode=0o700, exist_ok=True)  # a child that ends by itself removes it
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with (self.folder / _LOG_FILE).open("ab") as log:
            popen = subprocess.Popen(
                [*_COMMAND, str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                env=environment,
            )
        answers: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_read, args=(popen.stdout, answers), daemon=True).start()
        process = _Process(popen, answers)
        self._running.append(process)
        self.starts += 1
        try:
            ready = answers.get(timeout=_START_S)
        except queue.Empty:
            ready = None
        except BaseException:
            self.stop()
            raise
        if ready is None:
            self.stop()
            raise CrashError(
                "the process that runs models with loops did not start",
                where=" ".join(_COMMAND),
                hint="start that line by hand to see why",
            )
        return process

    def _asked(
        self, process: _Process, order: Order, limits: Limits, waiting: Waiting
    ) -> dict[str, Any]:
        log = self.folder / _LOG_FILE
        with contextlib.suppress(OSError):
            if log.stat().st_size > _MOST_LOG_BYTES:
                os.truncate(log, 0)
        process.used_bytes = _resident_bytes(process.popen.pid)
        with contextlib.suppress(OSError):  # it is gone: the wait says how
            assert process.popen.stdin is not None, "stdin is a pipe"
            process.popen.stdin.write(json.dumps(order) + "\n")
            process.popen.stdin.flush()
        taken = self._waited(process, limits, waiting)
        if taken is None:
            raise _NotTakenError(process.popen.wait())
        line = self._waited(process, limits, waiting)
        if line is None:
            raise _crashed(process.popen.wait())
        answer = _parsed(line)
        if "failed" in answer:
            kind = _ERRORS.get(str(answer["failed"]), UnsupportedError)
            place, hint = str(answer.get("where", "")), str(answer.get("hint", ""))
            if answer["failed"] == "TimeLimitError":
                raise _AnsweredError(TimeLimitError(limits.seconds))
            raise _AnsweredError(kind(str(answer.get("message", "")), where=place, hint=hint))
        return answer

    def _waited(self, process: _Process, limits: Limits, waiting: Waiting) -> str | None:
        begin = time.monotonic()
        while True:
            try:
                line = process.answers.get(timeout=_GLANCE_S)
            except queue.Empty:
                waited = time.monotonic() - begin
                if waited > limits.seconds + _GRACE_S:
                    raise TimeLimitError(limits.seconds) from None
                used = _resident_bytes(process.popen.pid) - process.used_bytes
                if used > limits.memory_bytes:
                    raise MemoryBoundError(
                        f"its values need more than {limits.memory_bytes / 1e9:,.1f} GB at one "
                        "time",
                        hint="bind smaller sizes with `--dim`; if they are fixed in the file, do "
                        "not trust it",
                    ) from None
                waiting(waited)
                continue
            return line


class _NotTakenError(Exception):
    """The child was not there any more to take the order."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(str(code))


class _AnsweredError(Exception):
    """The child lives and said what is wrong."""

    def __init__(self, error: VermilionError) -> None:
        self.error = error
        super().__init__(str(error))


def _crashed(code: int) -> CrashError:
    return CrashError(
        f"ONNX Runtime crashed ({exit_words(code)}) on this model",
        hint="export the model again; if it is sound, report it to ONNX Runtime",
    )


def _parsed(line: str) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or not ("failed" in answer or "engine" in answer):
        raise CrashError("ONNX Runtime broke the process that ran this model")
    return answer


def _resident_bytes(process: int) -> int:
    try:
        return int(psutil.Process(process).memory_info().rss)
    except psutil.Error:
        return 0  # it is gone: the wait says how


def _read(stream: Any, answers: queue.Queue[str | None]) -> None:
    with contextlib.suppress(OSError, ValueError):  # closed while it reads
        for line in stream:
            answers.put(line)
    answers.put(None)


def _end(running: list[_Process], folder: Path) -> None:
    while running:
        running.pop().stop()
    shutil.rmtree(folder, ignore_errors=True)


_current: deque[Child] = deque(maxlen=1)
_making = threading.Lock()


def the_child() -> Child:
    """Return this process's child."""
    with _making:
        if not _current:
            _current.append(Child())
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
