"""What the run of a model that nobody has vouched for may take."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vermilion.errors import UnsupportedError
from vermilion.ir.memory import memory_limit_bytes

if TYPE_CHECKING:
    import onnxruntime as ort

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
