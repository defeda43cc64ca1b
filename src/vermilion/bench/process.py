"""An engine in a process of its own, as the harness sees it: every error names the engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vermilion.errors import DeviceError
from vermilion.process.child import Child, ChildError, error_of

WORKER = ("vermilion.bench.worker",)


class EngineProcess:
    """One worker process. Between questions it is blocked on its pipe and uses no time."""

    def __init__(
        self, label: str, folder: Path, *, timeout_s: float, worker: Sequence[str] = WORKER
    ) -> None:
        """Start it; what it prints goes to a file in `folder`."""
        self.label = label
        self._timeout_s = timeout_s
        who = f"the engine `{label}`"
        self._child = Child(worker, folder / f"{label}.stderr", who=who)

    @property
    def process(self) -> int:
        """The process id."""
        return self._child.process

    def ask(self, do: str, **details: Any) -> dict[str, Any]:
        """Call a method of the worker.

        Raises: what it raised, by its kind; DeviceError where it died or took too long.
        """
        try:
            return self._child.ask(do, details, limit_s=self._timeout_s)
        except ChildError as error:
            words = f"the engine `{self.label}`: {error.message}"
            if (raised := error.raised) is not None:
                where = ", ".join(part for part in (do, raised.where) if part)
                raise error_of(type(raised), words, where=where, hint=raised.hint) from error
            raise DeviceError(words, where=error.log, hint=_HINTS[error.kind]) from error

    def close(self) -> None:
        """End the process and wait until it is gone."""
        self._child.stop()

    def __enter__(self) -> Self:
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


_HINTS = {
    "hung": "give it longer with `--timeout`, or leave it out of `--against`",
    "crashed": "leave the engine out of `--against`, or try the model with it alone",
}
