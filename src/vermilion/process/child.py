"""The parent's side: a worker that may hang, crash or grow at any time, and what became of it."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from vermilion import errors
from vermilion.errors import DeviceError, VermilionError
from vermilion.forks import abandon, renew_after_fork
from vermilion.process.answers import BROKEN, Answer, Answers, read_answers
from vermilion.process.group import Group
from vermilion.process.log import bound_log, exit_words, last_words
from vermilion.process.worker import PING, Message

Kind = Literal["hung", "crashed", "grown", "raised"]

LOG_FILE = "log.txt"  # of a worker that has a folder to itself

# How often the parent looks whether the worker is still there, at its memory and at its log.
_GLANCE_S = 0.25
# So long one that has closed its pipe may take to end.
_CLOSING_S = 2.0


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
        native: bool = False,
    ) -> None:
        """Start it. `worker` is a module and what its class `Worker` is made with.

        What it prints is added to `log`; `who` names it in errors. It uses `cores` alone, any
        where none are named; removes the folder `scratch` where it outlives this process, and ends
        when it is asked for nothing for `idle_s`. `native` says that it runs somebody else's code,
        which may hold Python's lock and leave processes behind.
        """
        self.log = log
        self._who = who
        self._started_by = os.getpid()
        self._owed: deque[tuple[int, str]] = deque()  # messages without an answer, their stages
        self._sent = 0
        self._ending: str | None = None
        self._used_bytes = 0
        start = {
            "arguments": worker[1:],
            "cores": list(cores),
            "scratch": str(scratch) if scratch is not None else None,
            "idle_s": idle_s,
        }
        command = [sys.executable, "-P", "-m", "vermilion.process", worker[0], json.dumps(start)]
        with log.open("ab") as file:
            self._group = Group(command, environment(), file, native=native, scratch=scratch)
        self._process = self._group.leader
        self._answers: Answers = queue.SimpleQueue()
        # A pipe cannot be read with a time limit on Windows; a thread and a queue can.
        threading.Thread(
            target=read_answers, args=(self._process.stdout, self._answers), daemon=True
        ).start()
        self._finalizer = weakref.finalize(self, _end, self._group, os.getpid())
        renew_after_fork(self)

    @property
    def process(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return not self._group.has_ended

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
        self._sent += 1
        message = {"do": do, "with": dict(details or {}), "number": self._sent}
        line = json.dumps(message).encode() + b"\n"
        self._owed.append((self._sent, stage or f"doing `{do}`"))
        assert self._process.stdin is not None, "stdin is a pipe"
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except (OSError, ValueError):  # ValueError: it was stopped, and the pipe closed
            return  # it is gone; whoever waits for the answer is told how

    def receive(self, limit_s: float, watch: Watch | None = None) -> Message:
        """Wait for the answer to the oldest message that has none. Raises: ChildError."""
        number, stage = self._owed[0]
        answer = self._waited(stage, limit_s, watch)
        self._owed.popleft()
        if answer is None:
            raise self._gone(stage)
        if answer == BROKEN or answer.get("number") != number:
            self._stop_for("it broke: nobody could read what it answered")
            words = f"the process broke while {stage}: nobody can read what it answers"
            raise self._error("crashed", stage, words)
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
        nothing = os.open(os.devnull, os.O_RDWR)
        for process in self._group.processes():
            abandon(process)
            for stream in (process.stdin, process.stdout):
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

    def _gone(self, stage: str) -> ChildError:
        """Return what there is to say of a process from which no answer comes any more."""
        if self._ending is None:
            until = time.monotonic() + _CLOSING_S
            while not self._group.has_ended and time.monotonic() < until:
                time.sleep(_GLANCE_S / 10)
            had_ended = self._group.has_ended
            code = self._group.end()
            self._ending = exit_words(code) if had_ended else "it closed its pipe"
        self.stop()
        self._answers.put(None)  # for whoever asks again
        words = f"the process ended while {stage}: {self._ending}"
        return self._error("crashed", stage, words, ended=self._ending)

    def _stop_for(self, reason: str) -> None:
        """End the process, and say so to whoever asks it again."""
        self._ending = reason
        self.stop()

    def _waited(self, stage: str, limit_s: float, watch: Watch | None) -> Answer:
        """Return the worker's next answer, None where it has ended. Raises: ChildError."""
        begin = time.monotonic()
        while True:
            left_s = max(0.0, limit_s - (time.monotonic() - begin))
            try:
                return self._answers.get(timeout=min(left_s, _GLANCE_S))
            except queue.Empty:
                waited_s = time.monotonic() - begin
            bound_log(self.log)
            if self._group.has_ended:
                return self._last_answer()
            if waited_s >= limit_s:
                self._stop_for(f"{stage} took more than {limit_s:g} s, and it was stopped")
                words = f"{stage} took more than {limit_s:g} s and was stopped"
                raise self._error("hung", stage, words)
            if watch is not None:
                self._look(stage, watch, waited_s)

    def _last_answer(self) -> Answer:
        """Return what an ended process still wrote; its own children may hold the pipe open."""
        try:
            return self._answers.get(timeout=_GLANCE_S)
        except queue.Empty:
            return None

    def _look(self, stage: str, watch: Watch, waited_s: float) -> None:
        if _resident_bytes(self.process) - self._used_bytes > watch.memory_bytes:
            words = f"{stage} took more than {watch.memory_bytes / 1e9:,.1f} GB and was stopped"
            self._stop_for(words)
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


def _end(group: Group, started_by: int) -> None:
    if os.getpid() == started_by:  # else it is another process's child
        group.end()


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
