"""A worker's process with all that it starts: begun in a group of its own, ended together.

Where the worker runs somebody else's native code, two more things hold. A guard, a shell that
waits for this process to end, ends the group where neither this process nor the worker could: both
may be killed, or stuck in code that never gives Python's lock back. And what left the group is
known by a word in its environment, and ended as well.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

_IS_POSIX = os.name == "posix"
_MARK = "VERMILION_WORKER"
# So long a worker whose parent is gone may take to end by itself and to remove its folder.
_GUARD_WAITS_S = 2
_GUARD = 'read -r _; sleep "$3"; kill -s KILL -- "-$1" 2>/dev/null; [ -z "$2" ] || rm -rf -- "$2"'
_SHELL = "/bin/sh"
# Of processes that start others while they are being ended.
_ROUNDS = 5


class Group:
    """The worker, its group and its guard."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: IO[bytes],
        *,
        native: bool,
        scratch: Path | None,
    ) -> None:
        """Start `command`; its stderr goes to `log`. The guard also removes `scratch`."""
        self._mark = f"{_MARK}={secrets.token_hex(16)}" if native else ""
        marked = dict(environment)
        if native:
            name, _, word = self._mark.partition("=")
            marked[name] = word
        self.leader = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=marked,
            start_new_session=True,
        )
        self._guard = _guard(self.leader.pid, scratch) if native else None
        self._is_over = False

    @property
    def has_ended(self) -> bool:
        """Whether the worker has. It is not waited for: its number stays its own until `end`."""
        if self._is_over or self.leader.returncode is not None:
            return True
        if not _IS_POSIX:
            return self.leader.poll() is not None
        try:
            return os.waitid(os.P_PID, self.leader.pid, _ENDED) is not None
        except ChildProcessError:  # somebody else waited for it
            return True

    def end(self) -> int:
        """End all of it, whatever it is doing, and wait. Return the worker's exit code."""
        if self._is_over:
            return self.leader.wait()
        self._is_over = True
        strays = _below(self.leader.pid) if self._mark and not _HAS_PROC else []
        if _IS_POSIX and self.leader.returncode is None:
            _kill_group(self.leader.pid)
        elif self.leader.poll() is None:
            self.leader.kill()
        code = self.leader.wait()
        for number in strays:
            _kill(number)
        if self._mark:
            _end_marked(self._mark)
        if self._guard is not None:
            self._guard.kill()
            self._guard.wait()
            _close(self._guard.stdin)
        _close(self.leader.stdin)
        return code

    def processes(self) -> tuple[subprocess.Popen[bytes], ...]:
        """Return the processes that were started here."""
        return (self.leader,) if self._guard is None else (self.leader, self._guard)


_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT if _IS_POSIX else 0
_HAS_PROC = sys.platform.startswith("linux")


def _guard(group: int, scratch: Path | None) -> subprocess.Popen[bytes] | None:
    if not _IS_POSIX or not os.access(_SHELL, os.X_OK):
        return None
    folder = "" if scratch is None else str(scratch.absolute())
    return subprocess.Popen(
        [_SHELL, "-c", _GUARD, "guard", str(group), folder, str(_GUARD_WAITS_S)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # or Ctrl-C would end it before what it guards
    )


def _end_marked(mark: str) -> None:
    """End every process that has the mark in its environment: it left the group."""
    for _ in range(_ROUNDS if _HAS_PROC else 0):
        found = [number for number in _process_numbers() if _is_marked(number, mark.encode())]
        if not found:
            return
        for number in found:
            _kill(number)


def _process_numbers() -> list[int]:
    mine = os.getpid()
    return [int(n) for n in os.listdir("/proc") if n.isdecimal() and int(n) != mine]  # noqa: PTH208


def _is_marked(number: int, mark: bytes) -> bool:
    """Whether a process has the mark and runs: a zombie has no environment."""
    try:
        with open(f"/proc/{number}/environ", "rb") as file:  # noqa: PTH123
            return mark in file.read()
    except OSError:  # another user's, or gone
        return False


def _below(number: int) -> list[int]:
    import psutil

    try:
        return [child.pid for child in psutil.Process(number).children(recursive=True)]
    except psutil.Error:
        return []  # it is gone


def _kill_group(number: int) -> None:
    try:
        os.killpg(number, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # all of it is gone; macOS says so of zombies with EPERM


def _kill(number: int) -> None:
    try:
        os.kill(number, signal.SIGKILL if _IS_POSIX else signal.SIGTERM)
    except OSError:
        return  # it is gone


def _close(stream: IO[bytes] | None) -> None:
    if stream is None:
        return
    try:
        stream.close()
    except OSError:
        return  # what was still to be written has no reader any more
