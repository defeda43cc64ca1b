"""A worker for tests: it does what its methods say, and what a worker should not."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vermilion.backends.provider.contract import Request
from vermilion.errors import ArtifactError
from vermilion.process.worker import bound_memory


class Worker:
    def __init__(self, folder: str = "", *more: str) -> None:
        if folder == "none":  # what a library does that does not load
            os._exit(11)
        self.folder, self.more = Path(folder), more

    # A session, as `backends.provider.contract` has it: it takes a while to double its input.

    def open(self, request: Mapping[str, Any]) -> dict[str, object]:
        asked = Request.of_message(request)
        self.x = asked.inputs[0].map(self.folder)
        self.y = asked.outputs[0].map(self.folder)
        return {"providers": [], "assigned": {}}

    def run(self) -> None:
        time.sleep(0.3)
        self.y[...] = 2 * self.x

    # An engine that is measured: each run takes the same time, and who was asked is written down.

    def turn(self, runs: int, settle: int) -> dict[str, object]:
        label, ms, log, quiet = self.more
        with Path(log).open("a") as file:
            file.write(json.dumps([label, runs, settle]) + "\n")
        return {"ms": [float(ms)] * runs, "quiet_after_ms": json.loads(quiet)}

    # What `vermilion.process` has to stand.

    def echo(self, **what: Any) -> dict[str, Any]:
        return what

    def cores(self) -> dict[str, object]:
        return {"cores": sorted(os.sched_getaffinity(0))}

    def say(self, words: str) -> None:
        print(words)  # by Python,
        sys.stdout.flush()
        os.write(1, b"natively, no line\n")  # and by a library, to both
        os.write(2, b"at last\n")
        subprocess.run([sys.executable, "-c", "print('a process of its own')"], check=True)

    def sleep(self, seconds: float, then: str = "") -> dict[str, str]:
        time.sleep(seconds)
        return {"then": then}

    def start_others(self, code: int = -1) -> dict[str, list[int]]:
        """Start processes that hold the pipes: of the group, of none, and of nobody's."""
        mine, other = sleeping(alone=False), sleeping(alone=True)
        read, write = os.pipe()
        between = os.fork()
        if between == 0:
            os.write(write, str(sleeping(alone=True)).encode())
            os._exit(0)
        os.waitpid(between, 0)
        orphan = int(os.read(read, 20))
        if code >= 0:
            os._exit(code)
        return {"started": [mine, other, orphan]}

    def hold_python(self, seconds: int) -> None:
        ctypes.PyDLL(None).sleep(seconds)  # native code that never gives the lock back

    def answer_anything(self, line: str) -> None:
        for number in range(3, 64):  # wherever the pipe for answers is
            try:
                os.write(number, line.encode() + b"\n")
            except OSError:
                continue

    def flood(self, megabytes: int) -> None:
        for _ in range(megabytes):
            os.write(2, b"E: a message, and again, and again\n" * 30000)
        time.sleep(600)

    def end(self, code: int) -> None:
        os.write(2, b"free(): invalid pointer\n")
        os._exit(code)

    def end_by(self, number: int) -> None:
        os.kill(os.getpid(), number)

    def fail(self, words: str) -> None:
        raise ArtifactError(words, where="here", hint="do it again")

    def break_down(self, words: str) -> None:
        raise RuntimeError(words)

    def grow(self, bytes_a_step: int) -> None:
        held = []
        while True:
            held.append(np.ones(bytes_a_step, np.uint8))
            time.sleep(0.02)

    def grow_bounded(self, most_bytes: int) -> None:
        bound_memory(most_bytes)
        np.ones(4 * most_bytes, np.uint8)


def sleeping(*, alone: bool) -> int:
    """Fork a process that sleeps, with the pipes of this one; `alone` in a session of its own."""
    number = os.fork()
    if number == 0:
        if alone:
            os.setsid()
        time.sleep(600)
        os._exit(0)
    return number
