"""The worker's side: one object whose methods are called on request, in a process of its own.

Little is loaded before the worker's module: cores are set before any library counts them.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from vermilion.errors import OptionError, VermilionError

Message = dict[str, Any]

PING = "ping"  # answered by any worker, as soon as its module is loaded

_MOST_CHARACTERS = 500  # of an error of somebody else's, which may print a whole program


def main() -> None:
    """Serve the module that the first argument names; the second says how (`Child`)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = _private_stdout()
    start = json.loads(sys.argv[2])
    stay_on(start["cores"])
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(messages, start["scratch"]), daemon=True).start()
    worker = import_module(sys.argv[1]).Worker(*start["arguments"])
    while True:
        try:
            line = messages.get(timeout=start["idle_s"])
        except queue.Empty:
            _end(start["scratch"])
        message = json.loads(line)
        answer = {"number": message["number"], **carried_out(worker, message)}
        replies.write(json.dumps(answer).encode() + b"\n")
        replies.flush()


def carried_out(worker: object, message: Message) -> Message:
    """Call the method that a message names; return the answer."""
    try:
        return {"ok": _method(worker, message["do"])(**message["with"]) or {}}
    except Exception as error:  # a library may raise anything; the process that asked decides
        return {"error": _described(error)}


def stay_on(cores: Sequence[int]) -> None:
    """Use no other cores than these, before any library counts them; empty: any."""
    if not cores:
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
        return
    import psutil

    if hasattr(psutil.Process, "cpu_affinity"):  # macOS has none
        psutil.Process().cpu_affinity(list(cores))


def print_to(log: Path) -> None:
    """Send what anything here prints to another file."""
    with log.open("ab", buffering=0) as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())


def bound_memory(most_bytes: int) -> None:
    """Let this process take that much more than it has, where the system can hold it to it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return  # the parent watches
    import resource

    lines = status.read_text(encoding="ascii", errors="replace").splitlines()
    used = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = used + most_bytes
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _private_stdout() -> BinaryIO:
    """Keep the real stdout for answers; whatever else prints goes where stderr does, a file."""
    kept = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return kept


def _listen(messages: queue.SimpleQueue[bytes], scratch: str | None) -> None:
    """Pass messages on; when no more can come, end the process in the middle of what it does."""
    # Not `sys.stdin`: an interpreter that ends waits for its lock.
    with os.fdopen(os.dup(sys.stdin.fileno()), "rb") as stdin:
        for line in stdin:
            messages.put(line)
    _end(scratch, with_group=True)


def _end(scratch: str | None, *, with_group: bool = False) -> None:
    if scratch is not None:
        import shutil

        shutil.rmtree(scratch, ignore_errors=True)
    if with_group and hasattr(os, "getpgrp") and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)  # with what this process started, itself included
    os._exit(0)


def _method(worker: object, name: str) -> Any:
    if name == PING:
        return dict
    method = getattr(type(worker), name, None)
    if name.startswith("_") or not callable(method):
        can = [key for key in dir(type(worker)) if not key.startswith("_")]
        raise OptionError(f"a worker cannot `{name}`", hint=f"it can {', '.join(can)}")
    return partial(method, worker)


def _described(error: Exception) -> Message:
    name = type(error).__name__
    if isinstance(error, VermilionError):
        # Its kind, and what to take it for where that is not known.
        kinds = [k.__name__ for k in type(error).__mro__ if issubclass(k, VermilionError)]
        return {"kinds": kinds, "message": error.message, "where": error.where, "hint": error.hint}
    words = " ".join(str(error).split())[:_MOST_CHARACTERS]
    return {"kinds": ["DeviceError"], "message": words or name, "where": name, "hint": ""}
