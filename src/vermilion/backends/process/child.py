"""The parent's side: a child process that may hang or die at any time, and what became of it."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np

from vermilion.backends.base import Array, Tensors
from vermilion.backends.process.contract import LOG_FILE, Closed, Opened, Request
from vermilion.errors import DeviceError
from vermilion.exits import exit_words

Stage = Literal["opening", "running", "closing"]
Kind = Literal["hung", "crashed", "refused"]

WORKER = (sys.executable, "-c", "from vermilion.backends.process.worker import main; main()")

PROVIDER = "provider"  # what errors call the child, unless told otherwise

_LAST_LINES = 3
_END_S = 5.0


class ChildFailure(DeviceError):
    """The child did not do what it was asked for. `kind` is what it did instead."""

    def __init__(self, kind: Kind, stage: Stage, words: str, log: str, who: str = PROVIDER) -> None:
        self.kind = kind
        self.stage = stage
        self.log = log
        hint = f"its last words: {log}" if log else "it wrote nothing"
        super().__init__(words, where=f"{who}, {stage}", hint=hint)


class Child:
    """A child process with an open session. Not for several threads at once."""

    def __init__(
        self,
        request: Request,
        folder: Path,
        *,
        command: Sequence[str] = WORKER,
        open_limit_s: float,
        run_limit_s: float,
        who: str = PROVIDER,
    ) -> None:
        """Start the child on `folder`, where the model lies, and wait for its session.

        Raises: ChildFailure where it hangs, dies, or says that it cannot.
        """
        self._folder = folder
        self._run_limit_s = run_limit_s
        self._who = who
        self._opened_in = os.getpid()
        self._owes_a_run = False
        self.inputs = {t.name: t.create(folder) for t in request.inputs}
        self.outputs = {t.name: t.create(folder) for t in request.outputs}
        request.write(folder)
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._process = _start(command, folder)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        said = self._wait("opened", "opening", open_limit_s)
        self.opened = Opened(
            providers=tuple(str(name) for name in said.get("providers", ())),
            assigned={str(k): int(v) for k, v in dict(said.get("assigned", {})).items()},
            seconds=float(said.get("seconds", 0.0)),
        )

    @property
    def process(self) -> int:
        """The child's process id."""
        return self._process.pid

    def run(self, inputs: Tensors) -> dict[str, Array]:
        """Compute the outputs. They begin as `unwritten`, so that what is not written shows.

        Raises: ChildFailure.
        """
        if os.getpid() != self._opened_in:
            raise DeviceError(
                f"this process was forked: the child that runs {self._who} is its parent's",
                hint="open the model in the process that runs it",
            )
        if self._owes_a_run:  # an exception left the run before, and the child goes on with it
            self._await_run()
        for name, mapped in self.inputs.items():
            mapped[...] = inputs[name]
        for mapped in self.outputs.values():
            mapped[...] = unwritten(mapped.dtype)
        self._owes_a_run = True
        self._tell("run")
        self._await_run()
        return {name: mapped.copy() for name, mapped in self.outputs.items()}

    def _await_run(self) -> None:
        self._wait("ran", "running", self._run_limit_s)
        self._owes_a_run = False

    def close(self) -> Closed:
        """End the child in order; give what it counted. Raises: ChildFailure."""
        self._tell("close")
        said = self._wait("closed", "closing", self._run_limit_s)
        self.stop()
        return Closed({str(k): int(v) for k, v in dict(said.get("events", {})).items()})

    def stop(self) -> None:
        """End the child, whatever it is doing."""
        if os.getpid() != self._opened_in:
            return  # it is another process's child
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join(_END_S)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                _close_quietly(stream)
        self.inputs.clear()
        self.outputs.clear()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None, "stdout is a pipe"
        for line in stream:
            self._lines.put(line)
        self._lines.put(None)

    def _tell(self, line: str) -> None:
        stream = self._process.stdin
        assert stream is not None, "stdin is a pipe"
        try:
            stream.write(line + "\n")
            stream.flush()
        except OSError:
            return  # it is gone; the wait that follows says how

    def _wait(self, event: str, stage: Stage, limit_s: float) -> dict[str, Any]:
        until = time.monotonic() + limit_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                self.stop()
                raise self._failure(
                    "hung", stage, f"{stage} took more than {limit_s:g} s and was stopped"
                ) from None
            if line is None:
                code = self._process.wait()
                self.stop()
                words = f"the process ended while {stage}: {exit_words(code)}"
                raise self._failure("crashed", stage, words)
            said = _parsed(line)
            if said.get("event") == event:
                return said
            if said.get("event") == "failed":
                self.stop()
                raise self._failure("refused", stage, str(said.get("reason", "no reason given")))

    def _failure(self, kind: Kind, stage: Stage, words: str) -> ChildFailure:
        return ChildFailure(kind, stage, words, last_words(self._folder / LOG_FILE), self._who)


def unwritten(dtype: np.dtype[Any]) -> Any:
    """Return the value that outputs hold before a run: NaN, or the lowest number of the type."""
    if dtype.kind == "f":
        return np.nan
    return False if dtype.kind == "b" else np.iinfo(dtype).min


def last_words(log: Path) -> str:
    """Return the last lines of a log, on one line."""
    if not log.is_file():
        return ""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return " | ".join([line.strip() for line in lines if line.strip()][-_LAST_LINES:])


def _start(command: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with (folder / LOG_FILE).open("ab") as log:
        return subprocess.Popen(
            [*command, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            encoding="utf-8",
            env=environment,
        )


def _parsed(line: str) -> dict[str, Any]:
    try:
        said = json.loads(line)
    except ValueError:
        return {}  # a library that printed before the child could move its output
    return said if isinstance(said, dict) else {}


def _close_quietly(stream: Any) -> None:
    try:
        stream.close()
    except OSError:
        return  # what was still to be written has no reader any more
