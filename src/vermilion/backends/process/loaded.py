"""A child with an open session as what `backends.base` calls an executable."""

from __future__ import annotations

import threading
import weakref
from contextlib import ExitStack

from vermilion.backends.base import Array, Tensors
from vermilion.backends.process.child import Child


class Loaded:
    """A child with an open session; one run at a time."""

    def __init__(self, child: Child, runs_on: str, stays: ExitStack) -> None:
        """Take the child, and what is to be undone when nobody holds this any more."""
        self._child = child
        self._lock = threading.Lock()
        self._runs_on = runs_on
        # The child must not outlive whoever runs it.
        self._end = weakref.finalize(self, stays.close)

    @property
    def runs_on(self) -> str:
        """Say where it runs."""
        return self._runs_on

    def run(self, inputs: Tensors) -> dict[str, Array]:
        """Compute every output. Raises: ChildFailure."""
        with self._lock:
            return self._child.run(inputs)
