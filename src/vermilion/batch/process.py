"""A worker as the scheduler sees it: one that computes ranges, or dies of them.

This is the local one, a process; the one on a Ray cluster is in `cluster`.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from vermilion import errors
from vermilion.backends.process.child import exit_words, last_words
from vermilion.batch.devices import BatchDevice
from vermilion.batch.job import Range

LOGS_FOLDER = "logs"

_WORKER = ("-P", "-m", "vermilion.batch.worker")
OPEN_LIMIT_S = 600.0


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

    def compute(self, wanted: Range, *, keep: bool = True) -> Report:
        """Compute a range; with `keep`, its file is in the journal when this returns.

        Raises: WorkerDied, RangeFailed.
        """

    def close(self) -> None:
        """End it, whatever it is doing."""


class LocalWorker:
    """A process on this machine."""

    def __init__(self, folder: Path, device: BatchDevice, *, limit_s: float) -> None:
        """Start it and wait until its model is open.

        Raises: WorkerDied, also where the device would not open the model; a fatal RangeFailed
        where the model itself is at fault.
        """
        self._limit_s = limit_s
        self._log = folder / LOGS_FOLDER / f"{device.name.replace(':', '-')}.log"
        self._replies: queue.Queue[str | None] = queue.Queue()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, *_WORKER, str(folder), *_arguments(device)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(),
                encoding="utf-8",
            )
        assert self._process.stdout is not None, "stdout is a pipe"
        # A pipe cannot be read with a time limit on Windows; a thread and a queue can.
        self._listener = threading.Thread(
            target=_listen, args=(self._process.stdout, self._replies), daemon=True
        )
        self._listener.start()
        try:
            said = self._reply(OPEN_LIMIT_S)
        except RangeFailed as error:
            self.close()
            words = f"the model could not be opened: {error}"
            if error.fatal:
                raise RangeFailed(words, fatal=True) from error
            raise WorkerDied(words) from error
        self.runs_on = str(said["runs_on"])
        self.notes = tuple(str(note) for note in said["notes"])

    @property
    def process(self) -> int:
        """The process id."""
        return self._process.pid

    def compute(self, wanted: Range, *, keep: bool = True) -> Report:
        """Compute a range. Raises: WorkerDied, RangeFailed."""
        assert self._process.stdin is not None, "stdin is a pipe"
        message = {"start": wanted.start, "stop": wanted.stop, "keep": keep}
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._gone() from error
        said = self._reply(self._limit_s)
        return Report(
            {int(at): str(why) for at, why in said["failed"].items()},
            float(said["read_s"]),
            float(said["run_s"]),
            float(said["peak_rss_mb"]),
        )

    def close(self) -> None:
        """End the process and wait until it is gone."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None, "both are pipes"
            try:
                pipe.close()
            except OSError:  # what was still to be written to a dead process
                continue

    def _reply(self, limit_s: float) -> dict[str, Any]:
        try:
            line = self._replies.get(timeout=limit_s)
        except queue.Empty:
            self.close()
            raise WorkerDied(f"it took more than {limit_s:g} s and was ended") from None
        if line is None:
            raise self._gone()
        said: dict[str, Any] = json.loads(line)
        if not said["ok"]:
            raise RangeFailed(str(said["reason"]), fatal=bool(said["fatal"]))
        return said

    def _gone(self) -> WorkerDied:
        code = self._process.wait()
        self.close()
        words = last_words(self._log)
        return WorkerDied(
            f"its process ended: {exit_words(code)}" + (f": {words}" if words else "")
        )


def _arguments(device: BatchDevice) -> tuple[str, str, str]:
    return ",".join(map(str, device.cores)), str(device.threads), str(device.index)


def environment() -> dict[str, str]:
    """Give this process's environment, in which the child finds this same package."""
    root = str(Path(errors.__file__).parent.parent)
    known = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([root, known] if known else [root]),
        "PYTHONIOENCODING": "utf-8",
    }


def _listen(pipe: IO[str], replies: queue.Queue[str | None]) -> None:
    for line in pipe:
        replies.put(line)
    replies.put(None)
