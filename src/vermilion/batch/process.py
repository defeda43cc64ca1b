"""The local worker: a process that computes ranges, or dies of them."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from pathlib import Path
from typing import IO, Any

from vermilion.batch.devices import BatchDevice
from vermilion.batch.job import Range
from vermilion.batch.standby import start_process
from vermilion.batch.worker_contract import OPEN_LIMIT_S, RangeFailed, Report, WorkerDied
from vermilion.exits import exit_words
from vermilion.process.child import last_words

LOGS_FOLDER = "logs"


class LocalWorker:
    """A process on this machine."""

    def __init__(
        self,
        folder: Path,
        device: BatchDevice,
        *,
        limit_s: float,
        process: subprocess.Popen[str] | None = None,
    ) -> None:
        """Return it the job, and wait until its model is open.

        `process` is one that was started ahead, and is taken over.

        Raises: WorkerDied, also where the device would not open the model; a fatal RangeFailed
        where the model itself is at fault.
        """
        self._limit_s = limit_s
        self._log = folder / LOGS_FOLDER / f"{device.name.replace(':', '-')}.log"
        self._replies: queue.Queue[str | None] = queue.Queue()
        self._log.write_bytes(b"")
        self._process = process or start_process(device, self._log)
        assert self._process.stdout is not None, "stdout is a pipe"
        # A pipe cannot be read with a time limit on Windows; a thread and a queue can.
        self._listener = threading.Thread(
            target=_listen, args=(self._process.stdout, self._replies), daemon=True
        )
        self._listener.start()
        try:
            self._say(
                folder=str(folder),
                log=str(self._log),
                threads=device.threads,
                device=device.index,
            )
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

    def begin(self, wanted: Range, *, keep: bool = True) -> None:
        """Ask for a range. Raises: WorkerDied."""
        self._say(start=wanted.start, stop=wanted.stop, keep=keep)

    def finish(self) -> Report:
        """Return what became of the first range. Raises: WorkerDied, RangeFailed."""
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

    def _say(self, **facts: object) -> None:
        assert self._process.stdin is not None, "stdin is a pipe"
        try:
            self._process.stdin.write(json.dumps(facts) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._gone() from error

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


def _listen(pipe: IO[str], replies: queue.Queue[str | None]) -> None:
    for line in pipe:
        replies.put(line)
    replies.put(None)
