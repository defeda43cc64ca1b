"""What the run of a model that nobody has vouched for may take: time, memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import psutil

from vermilion.errors import ModelError, UnsupportedError

if TYPE_CHECKING:
    import onnxruntime as ort


# `kSameAsRequested` in ONNX Runtime's `core/framework/arena_extend_strategy.h`: the other one
# doubles, and would ask for more than is needed.
_AS_REQUESTED = 1

# How `core/framework/bfc_arena.cc` begins when a request would pass the bound.
_REFUSED = "Available memory of "


class MemoryBoundError(ModelError):
    """Running the model needs more memory than it is lent."""


def memory_limit_bytes() -> int:
    """Return what a model's values may take together: half of the machine's memory."""
    total: int = psutil.virtual_memory().total
    return total // 2


def bound_memory(options: ort.SessionOptions) -> None:
    """Make a session take its memory from one arena of at most `memory_limit_bytes`.

    All bounded sessions of the process share the arena.
    """
    _make_arena()
    options.add_session_config_entry("session.use_env_allocators", "1")


def bounded_run() -> ort.RunOptions:
    """Return run options that return the arena's memory to the machine after the run."""
    import onnxruntime as ort

    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


def check_bound(error: Exception) -> None:
    """Raise MemoryBoundError where ONNX Runtime failed because of the bound, else do nothing."""
    if _REFUSED not in str(error):
        return
    raise MemoryBoundError(
        f"its values need more than {memory_limit_bytes() / 1e9:,.1f} GB (half of this machine's "
        "memory) at one time",
        where=_node_of(str(error)),
        hint="bind smaller sizes with `--dim`; if they are fixed in the file, do not trust it",
    ) from error


def _node_of(text: str) -> str:
    """Return the node and operator that ONNX Runtime names: `running Tile node. Name:'t'`."""
    _, found, rest = text.partition("running ")
    operator, _, after = rest.partition(" node. Name:'")
    name = after.partition("'")[0]
    return f"node `{name or '?'}`, {operator}" if found and after else ""


@cache
def _make_arena() -> None:
    import onnxruntime as ort

    settings = {"max_mem": memory_limit_bytes(), "arena_extend_strategy": _AS_REQUESTED}
    place = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    ort.create_and_register_allocator(place, ort.OrtArenaCfg(settings))


# How ONNX Runtime's `core/framework/sequential_executor.cc` words a run that it was told to end.
_TERMINATED = "terminate flag"


@dataclass(frozen=True)
class Limits:
    """How long one run may take, or opening the model, and how much memory."""

    seconds: float = 60.0
    # A model with loops may well never end: it is given less.
    loop_seconds: float = 5.0
    memory_bytes: int = field(default_factory=memory_limit_bytes)


class TimeLimitError(UnsupportedError):
    """The model ran longer than it may."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the model ran longer than {seconds:g} s and was stopped",
            hint="it may hold an endless loop, or this machine is too slow for its samples",
        )


@contextmanager
def ended_after(seconds: float, options: ort.RunOptions) -> Iterator[None]:
    """Tell the run with these `options` to end once the time is up; it does after a node."""

    def end() -> None:
        options.terminate = True

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def check_time(error: Exception, seconds: float) -> None:
    """Raise TimeLimitError where a run failed because it was told to end, else do nothing."""
    if _TERMINATED in str(error):
        raise TimeLimitError(seconds) from error
