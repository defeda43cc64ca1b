"""How many processors this process may keep busy: those it may run on, its cgroup's quota, a limit.

Source: the kernel's `Documentation/admin-guide/cgroup-v2.rst` (`cpu.max`) and
`Documentation/scheduler/sched-bwc.rst` (version 1: `cpu.cfs_quota_us`, `cpu.cfs_period_us`); where
a process's groups are, cgroups(7) and proc(5).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path, PurePosixPath

_PROCESS = Path("/proc/self")
_most: ContextVar[int] = ContextVar("most threads", default=0)


def usable_cores() -> int:
    """Return how many threads this process can keep busy: at least 1.

    Half a core by quota is one thread: a second one would use the same half up in half the time,
    and then both would stand still until the next period.
    """
    allowed = len(allowed_cores())
    if _most.get():
        allowed = min(allowed, _most.get())
    quota = cpu_quota()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


@contextmanager
def at_most(threads: int) -> Iterator[None]:
    """Keep what is opened inside to so many threads, for who cannot tell each of them; 0: to none.

    A count that somebody gives by name is not changed.
    """
    before = _most.set(threads)
    try:
        yield
    finally:
        _most.reset(before)


def allowed_cores() -> tuple[int, ...]:
    """Return the numbers of the processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def are_limited() -> bool:
    """Say whether this process may keep fewer processors busy than the machine has."""
    return usable_cores() < (os.cpu_count() or 1)


def cpu_quota(process: Path = _PROCESS) -> float | None:
    """Return how many processors' time the process's cgroups leave it; None: all there is.

    A group's quota holds for all groups below it, so the least of them counts.
    """
    try:
        groups = (process / "cgroup").read_text(encoding="utf-8", errors="replace")
        mounts = (process / "mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # no Linux, or no such files for this process
        return None
    found = map(_quota, _folders(groups, mounts))
    return min((quota for quota in found if quota is not None), default=None)


# A process may be moved to another group, and a quota changed, while it runs: only what follows
# from the texts is kept.
@lru_cache(maxsize=4)
def _folders(groups: str, mounts: str) -> tuple[Path, ...]:
    """Return the folders of the process's groups that may hold a quota, and of those above them."""
    return tuple(_found_folders(groups, mounts))


def _found_folders(groups: str, mounts: str) -> Iterator[Path]:
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2) if right.count(" ") >= 2 else ("", "", "")
        fields = left.split(" ")
        is_second = kind == "cgroup2"
        if len(fields) < 5 or not (is_second or (kind == "cgroup" and _has_cpu(options))):
            continue
        root, mounted = PurePosixPath(fields[3]), Path(fields[4])
        group = _group(groups, second=is_second)
        if group is None:
            continue
        # A container is shown its own part of the tree; a group outside of it is shown nowhere.
        inner = group.relative_to(root) if group.is_relative_to(root) else PurePosixPath()
        yield mounted
        for depth in range(len(inner.parts)):
            yield mounted.joinpath(*inner.parts[: depth + 1])


def _has_cpu(options: str) -> bool:
    return "cpu" in options.split(",")


def _group(groups: str, *, second: bool) -> PurePosixPath | None:
    """Return the process's group from `NUMBER:CONTROLLERS:PATH` lines; version 2 names none."""
    for line in groups.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (controllers == "") if second else _has_cpu(controllers):
            return PurePosixPath(path)
    return None


def _quota(folder: Path) -> float | None:
    """Return a group's quota in processors; None where it has none."""
    try:
        if (folder / "cpu.cfs_quota_us").is_file():
            quota = (folder / "cpu.cfs_quota_us").read_text(encoding="ascii")
            period = (folder / "cpu.cfs_period_us").read_text(encoding="ascii")
        else:
            quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        # `max` of version 2 and -1 of version 1 are no limit.
        if quota.strip() == "max" or int(quota) <= 0 or int(period) <= 0:
            return None
        return int(quota) / int(period)
    except (OSError, ValueError):  # the root of a tree has no such file
        return None
