"""The parent's side: a worker that may hang, crash or grow at any time, and what became of it."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, Self

from vermilion import errors
from vermilion.errors import DeviceError, VermilionError
from vermilion.exits import exit_words
from vermilion.forks import abandon, renew_after_fork
from vermilion.process.worker import PING, Message

Kind = Literal["hung", "crashed", "grown", "raised"]
Replies = queue.SimpleQueue[bytes | None]

LOG_FILE = "log.txt"  # of a worker that has a folder to itself

_LAST_LINES = 3
_MOST_LOG_BYTES = 1 << 20
# How often the parent looks at the worker's memory and says how long it has waited.
_GLANCE_S = 0.25


class ChildError(DeviceError):
    """The worker did not do what it was asked for. `kind` is what it did instead.

    `log` is the last that it printed, `ended` what its exit code means; `raised` what its method
    raised, None where the process is gone.
    """

    def __init__(
        self,
        kind: Kind,
        message: str,
        *,
        who: str,
        stage: str,
        log: str,
        ended: str = "",
        raised: VermilionError | None = None,
    ) -> None:
        self.kind, self.stage, self.log, self.ended, self.raised = kind, stage, log, ended, raised
        hint = f"its last words: {log}" if log else "it wrote nothing"
        super().__init__(message, where=f"{who}, {stage}", hint=hint)


@dataclass(frozen=True)
class Watch:
    """What is looked at while the parent waits."""

    memory_bytes: int  # how much more the worker may take than it had before the message
    waiting: Callable[[float], None]  # told how many seconds it has been


class Child:
    """A worker process. Not for several threads at once, but `stop` may come from another."""

    def __init__(
        self,
        worker: Sequence[str],
        log: Path,
        *,
        who: str,
        cores: Sequence[int] = (),
        scratch: Path | None = None,
        idle_s: float | None = None,
    ) -> None:
        """Start it. `worker` is a module and what its class `Worker` is made with.

        What it prints is added to `log`; `who` names it in errors. It uses `cores` alone, any
        where none are named; removes the folder `scratch` where it outlives this process, and ends
        when it is asked for nothing for `idle_s`.
        """
        self.log = log
        self._who = who
        self._started_by = os.getpid()
        self._owed: deque[str] = deque()  # the stages of messages that have no answer yet
        self._has_answered = False
        self._ending: str | None = None
        self._used_bytes = 0
        start = {
            "arguments": worker[1:],
            "cores": list(cores),
            "scratch": str(scratch) if scratch is not None else None,
            "idle_s": idle_s,
        }
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "vermilion.process", worker[0], json.dumps(start)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=environment(),
            )
        self._replies: Replies = queue.SimpleQueue()
        # A pipe cannot be read with a time limit on Windows; a thread and a queue can.
        threading.Thread(
            target=_read, args=(self._process.stdout, self._replies), daemon=True
        ).start()
        self._finalizer = weakref.finalize(self, _end, self._process, os.getpid())
        renew_after_fork(self)

    @property
    def process(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def ask(
        self,
        do: str,
        details: Mapping[str, Any] | None = None,
        *,
        limit_s: float,
        stage: str = "",
        watch: Watch | None = None,
    ) -> Message:
        """Send one message and wait for its answer.

        Raises: ChildError; the process lives on where `raised` is not None.
        """
        self.settle(limit_s)
        if watch is not None:
            self._used_bytes = _resident_bytes(self.process)
        self.send(do, details, stage=stage)
        return self.receive(limit_s, watch)

    def ping(self, limit_s: float) -> None:
        """Wait until the worker answers. Raises: ChildError."""
        self.ask(PING, limit_s=limit_s, stage="starting")

    def settle(self, limit_s: float) -> None:
        """Wait for what an exception left without an answer: the worker goes on with it.

        Raises: ChildError; DeviceError in a process that was forked.
        """
        self._check_is_ours()
        while self._owed:
            self.receive(limit_s)

    def send(self, do: str, details: Mapping[str, Any] | None = None, *, stage: str = "") -> None:
        """Send a message; several are carried out one after the other. Raises: DeviceError."""
        self._check_is_ours()
        line = json.dumps({"do": do, "with": dict(details or {})}).encode() + b"\n"
        self._owed.append(stage or f"doing `{do}`")
        assert self._process.stdin is not None, "stdin is a pipe"
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except (OSError, ValueError):  # ValueError: it was stopped, and the pipe closed
            return  # it is gone; whoever waits for the answer is told how

    def receive(self, limit_s: float, watch: Watch | None = None) -> Message:
        """Wait for the answer to the oldest message that has none. Raises: ChildError."""
        stage = self._owed[0]
        line = self._waited(stage, limit_s, watch)
        self._owed.popleft()
        if line is None:
            if self._ending is None:
                self._ending = exit_words(self._process.wait())
            self.stop()
            self._replies.put(None)  # for whoever asks again
            words = f"the process ended while {stage}: {self._ending}"
            raise self._error("crashed", stage, words, ended=self._ending)
        answer = _parsed(line)
        if answer is None:
            self.stop()
            words = f"the process broke while {stage}: nobody can read what it answers"
            raise self._error("crashed", stage, words)
        self._has_answered = True
        if "ok" in answer:
            found: Message = answer["ok"]
            return found
        raised = _rebuilt(answer["error"])
        raise self._error("raised", stage, raised.message, raised=raised)

    def stop(self) -> None:
        """End the process, whatever it is doing, and wait until it is gone."""
        self._finalizer()

    def after_fork(self) -> None:
        """Let go of the worker: it belongs to the process that this one was forked from.

        Our copies of its pipes are closed, or it would not see when that process ends. Not by
        closing the files: a thread that did not come along may hold their locks.
        """
        self._finalizer.detach()
        abandon(self._process)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None and not stream.closed:
                os.dup2(nothing, stream.fileno(), inheritable=False)
        os.close(nothing)

    def __enter__(self) -> Self:
        """Return itself: it is running already."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the process."""
        self.stop()

    def _check_is_ours(self) -> None:
        if os.getpid() != self._started_by:
            raise DeviceError(
                f"this process was forked: the child that runs {self._who} is its parent's",
                hint="open the model in the process that runs it",
            )

    def _waited(self, stage: str, limit_s: float, watch: Watch | None) -> bytes | None:
        """Return the next line of the worker's, None where it has ended. Raises: ChildError."""
        begin = time.monotonic()
        while True:
            left_s = max(0.0, limit_s - (time.monotonic() - begin))
            try:
                line = self._replies.get(timeout=min(left_s, _GLANCE_S) if watch else left_s)
            except queue.Empty:
                waited_s = time.monotonic() - begin
                if waited_s >= limit_s:
                    self.stop()
                    words = f"{stage} took more than {limit_s:g} s and was stopped"
                    raise self._error("hung", stage, words) from None
                if watch is not None:
                    self._look(stage, watch, waited_s)
                continue
            # What libraries print before the worker could move its stdout is no answer.
            if line is None or self._has_answered or _parsed(line) is not None:
                return line

    def _look(self, stage: str, watch: Watch, waited_s: float) -> None:
        if _resident_bytes(self.process) - self._used_bytes > watch.memory_bytes:
            self.stop()
            words = f"{stage} took more than {watch.memory_bytes / 1e9:,.1f} GB and was stopped"
            raise self._error("grown", stage, words)
        watch.waiting(waited_s)

    def _error(
        self,
        kind: Kind,
        stage: str,
        words: str,
        *,
        ended: str = "",
        raised: VermilionError | None = None,
    ) -> ChildError:
        log, who = last_words(self.log), self._who
        return ChildError(kind, words, who=who, stage=stage, log=log, ended=ended, raised=raised)


def environment() -> dict[str, str]:
    """Return this process's environment, in which a worker finds what this process can import."""
    root = str(Path(errors.__file__).parent.parent)
    places = dict.fromkeys([root, *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places), "PYTHONIOENCODING": "utf-8"}


def error_of(kind: type[VermilionError], message: str, *, where: str, hint: str) -> VermilionError:
    """Return an error of any kind: some are made with other things than these."""
    error = kind.__new__(kind)
    VermilionError.__init__(error, message, where=where, hint=hint)
    return error


def last_words(log: Path) -> str:
    """Return the last lines of a log, on one line."""
    if not log.is_file():
        return ""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return " | ".join([line.strip() for line in lines if line.strip()][-_LAST_LINES:])


def shorten_log(log: Path) -> None:
    """Empty the log of a worker that stays for days, once it is long."""
    try:
        if log.stat().st_size > _MOST_LOG_BYTES:
            os.truncate(log, 0)
    except OSError:
        return  # it is not there


def _read(stream: IO[bytes], replies: Replies) -> None:
    with stream:
        for line in stream:
            replies.put(line)
    replies.put(None)


def _end(process: subprocess.Popen[bytes], started_by: int) -> None:
    if os.getpid() != started_by:
        return  # it is another process's child
    if process.poll() is None:
        process.kill()
    process.wait()
    assert process.stdin is not None, "stdin is a pipe"
    try:
        process.stdin.close()
    except OSError:
        return  # what was still to be written has no reader any more


def _parsed(line: bytes) -> Message | None:
    try:
        answer = json.loads(line)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) and ("ok" in answer or "error" in answer) else None


def _rebuilt(described: Mapping[str, Any]) -> VermilionError:
    """Return the error that the worker described, of its kind where it is known here."""
    known = _kinds(VermilionError)
    kind = next((known[name] for name in described["kinds"] if name in known), DeviceError)
    message, where, hint = (str(described.get(key, "")) for key in ("message", "where", "hint"))
    return error_of(kind, message, where=where, hint=hint)


def _kinds(kind: type[VermilionError]) -> dict[str, type[VermilionError]]:
    below = {name: k for sub in kind.__subclasses__() for name, k in _kinds(sub).items()}
    return {kind.__name__: kind, **below}


def _resident_bytes(process: int) -> int:
    import psutil

    try:
        return int(psutil.Process(process).memory_info().rss)
    except psutil.Error:
        return 0  # it is gone: the wait says how
