"""A local worker: opens the job's program, then computes one range after another on request.

Messages are lines of JSON. From the parent first the job, `{"folder": …, "log": …, …}`, then
ranges, `{"start": 0, "stop": 64, "keep": true}`. Back: `{"ok": true, …}` once the model is open or
the range's file is in its place, or `{"ok": false, "fatal": …, "reason": …}`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, TextIO

from vermilion.errors import DeviceError, VermilionError
from vermilion.memory import peak_rss_mb


def main() -> None:
    """Serve the job that the first line names, on the cores that the argument lists."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent decides
    replies = _private_stdout()
    _stay_on([int(core) for core in sys.argv[1].split(",") if core])
    _load_libraries()
    line = sys.stdin.readline()
    if not line:  # the command ended before there was a job
        return
    job = json.loads(line)
    _print_to(Path(job["log"]))
    _serve(Path(job["folder"]), int(job["threads"]), int(job["device"]), replies)


def _private_stdout() -> TextIO:
    """Keep the real stdout for replies; whatever else prints goes to stderr, which is a file."""
    kept = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return kept


def _stay_on(cores: list[int]) -> None:
    """Use no other cores than these, before any library counts them."""
    if not cores:
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
        return
    import psutil

    if hasattr(psutil.Process, "cpu_affinity"):  # macOS has none
        psutil.Process().cpu_affinity(cores)


def _load_libraries() -> None:
    """Load what every job of a compiled model needs, while the parent plans it."""
    from vermilion.backends import native
    from vermilion.batch import compute, pictures
    from vermilion.runtime import session

    del native, compute, pictures, session


def _print_to(log: Path) -> None:
    """Send what anything here prints to the job's folder."""
    with log.open("ab", buffering=0) as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())


def _serve(folder: Path, threads: int, device: int, replies: TextIO) -> None:
    from vermilion.batch.compute import BatchError, Computer, open_program
    from vermilion.batch.job import Job, Range
    from vermilion.batch.journal import write_range

    job = Job.read(folder)
    try:
        opened = open_program(job.program, job.outputs, threads, device)
    except Exception as error:  # a backend may raise anything; the parent decides
        hopeless = isinstance(error, VermilionError) and not isinstance(error, DeviceError)
        _reply(replies, ok=False, fatal=hopeless, reason=_words(error))
        return
    _reply(replies, ok=True, runs_on=opened.runs_on, notes=list(opened.notes))
    computer = Computer(job, opened)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            computed, spent = computer.compute(Range(asked["start"], asked["stop"]))
        except Exception as error:  # as above
            _reply(replies, ok=False, fatal=isinstance(error, BatchError), reason=_words(error))
            continue
        try:
            if asked["keep"]:
                write_range(folder, computed)
        except OSError as error:  # a full disk is no input's fault
            _reply(replies, ok=False, fatal=True, reason=_words(error))
            continue
        _reply(
            replies,
            ok=True,
            failed={str(at): why for at, why in computed.failed.items()},
            read_s=spent.read_s,
            run_s=spent.run_s,
            peak_rss_mb=peak_rss_mb(),
        )


def _words(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _reply(replies: TextIO, **facts: Any) -> None:
    replies.write(json.dumps(facts) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
