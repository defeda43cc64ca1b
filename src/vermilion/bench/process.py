"""A worker as seen from outside: started, asked, given a time limit, ended."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from vermilion import errors
from vermilion.errors import DeviceError, VermilionError

WORKER = ("-P", "-m", "vermilion.bench.worker")

# What is quoted of a dead worker's stderr.
_LAST_LINES = 3


class EngineProcess:
    """One worker process. Between questions it is blocked on its pipe and uses no time."""

    def __init__(
        self, label: str, folder: Path, *, timeout_s: float, command: Sequence[str] = WORKER
    ) -> None:
        """Start it; its stderr goes to a file in `folder`."""
        self.label = label
        self._timeout_s = timeout_s
        self._stderr_path = folder / f"{label}.stderr"
        self._replies: queue.Queue[str | None] = queue.Queue()
        with self._stderr_path.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=_environment(),
                encoding="utf-8",
            )
        assert self._process.stdout is not None, "stdout is a pipe"
        # A pipe cannot be read with a time limit on Windows; a thread and a queue can.
        self._reader = threading.Thread(
            target=_read_lines, args=(self._process.stdout, self._replies), daemon=True
        )
        self._reader.start()

    def ask(self, do: str, **details: Any) -> dict[str, Any]:
        """Send one message and wait for the answer.

        Raises: what the worker raised, by its kind; DeviceError where it died or took too long.
        """
        assert self._process.stdin is not None, "stdin is a pipe"
        try:
            self._process.stdin.write(json.dumps({"do": do, **details}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._died(do) from error
        try:
            line = self._replies.get(timeout=self._timeout_s)
        except queue.Empty as error:
            self.close()
            raise DeviceError(
                f"the engine `{self.label}` did not answer within {self._timeout_s:g} s",
                where=f"{do}; its process was ended",
                hint="give it longer with `--timeout`, or leave it out of `--against`",
            ) from error
        if line is None:
            raise self._died(do)
        reply = json.loads(line)
        if not reply.pop("ok"):
            raise self._failed(do, reply["error"])
        found: dict[str, Any] = reply
        return found

    def close(self) -> None:
        """End the process and wait until it is gone."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None, "both are pipes"
            try:
                pipe.close()
            except OSError:  # what was still to be written to a dead process
                continue

    def __enter__(self) -> EngineProcess:
        """Return itself: it is running already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        self.close()

    def _failed(self, do: str, error: dict[str, str]) -> VermilionError:
        kind: type[VermilionError] = getattr(errors, error["kind"], DeviceError)
        where = ", ".join(part for part in (do, error["where"]) if part)
        return kind(
            f"the engine `{self.label}`: {error['message']}", where=where, hint=error["hint"]
        )

    def _died(self, do: str) -> DeviceError:
        code = self._process.wait()
        self._reader.join()
        text = self._stderr_path.read_text(encoding="utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        words = " | ".join(lines[-_LAST_LINES:])
        return DeviceError(
            f"the process of the engine `{self.label}` ended with code {code}",
            where=f"{do}: {words}" if words else do,
            hint="leave the engine out of `--against`, or try the model with it alone",
        )


def _read_lines(pipe: IO[str], replies: queue.Queue[str | None]) -> None:
    for line in pipe:
        replies.put(line)
    replies.put(None)


def _environment() -> dict[str, str]:
    """Return this process's environment, in which the child finds this same package."""
    root = str(Path(errors.__file__).parent.parent)
    known = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([root, known] if known else [root]),
        "PYTHONIOENCODING": "utf-8",
    }
