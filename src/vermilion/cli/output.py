"""What the command line prints: one result on stdout, all else on stderr, progress too.

For machines (`--json`) a result is one JSON object with `schema_version`, `verb` and `ok`; for
people it is whatever rich can draw. Both come from the same `Result`.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, TextIO

from vermilion.cli.fitted import columns_given, draw, visible
from vermilion.files import hint_of

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


SCHEMA_VERSION = 1

# Width of tables where nobody's terminal says one; rich would cut at 80.
_PIPE_WIDTH = 120


@dataclass(frozen=True)
class Result:
    """What a verb found out.

    `data` holds the JSON keys beside the three that every object has. `view` draws the same for
    people, and is only called when they are who reads it. `ok` false is exit code 1: the work
    was done and a gate was not met. `failure` says which, where the view does not.
    """

    data: Mapping[str, object]
    view: Callable[[], RenderableType]
    ok: bool = True
    failure: Failure | None = None


@dataclass(frozen=True)
class Failure:
    """Why there is no result; the exit code is 2 for wrong use."""

    message: str
    where: str = ""
    hint: str = ""
    exit_code: int = 1


def emit(
    verb: str, result: Result, *, as_json: bool, out: TextIO, warnings: Sequence[str] = ()
) -> None:
    """Print a result on `out`, for machines or for people."""
    if as_json:
        extra: dict[str, object] = {"warnings": list(warnings)} if warnings else {}
        if result.failure is not None:
            extra["error"] = _error_object(result.failure)
        _print_object({**_head(verb, result.ok), **result.data, **extra}, out)
    else:
        draw(console_on(out), result.view())
    out.flush()
    if result.failure is not None:
        _print_failure(result.failure)


def emit_failure(verb: str, failure: Failure, *, as_json: bool, out: TextIO) -> None:
    """Print a failure: for people on stderr, and with `as_json` also as an object on `out`."""
    _print_failure(failure)
    if as_json:
        _print_object({**_head(verb, False), "error": _error_object(failure)}, out)
        out.flush()


def _error_object(failure: Failure) -> dict[str, str]:
    return {"message": failure.message, "where": failure.where, "hint": failure.hint}


def _print_failure(failure: Failure) -> None:
    place = f" ({failure.where})" if failure.where else ""
    say("error:", "bold red", f"{failure.message}{place}")
    if failure.hint:
        say("hint:", "bold", failure.hint)


def say(label: str, style: str, text: str) -> None:
    """Print one line on stderr; where that cannot be written to, the result matters more."""
    from rich.text import Text

    with suppress(OSError):
        line = Text.assemble(Text(label, style=style), visible(f" {text}"))
        console_on(sys.stderr).print(line, soft_wrap=True)


def console_on(stream: TextIO) -> Console:
    """Return a rich console that writes on `stream` and cuts no table short in a pipe."""
    from rich.console import Console

    width = columns_given()
    if width is None:
        width = shutil.get_terminal_size().columns if stream.isatty() else _PIPE_WIDTH
    # No markup: a name with brackets in it is a name, not a style.
    return Console(
        file=stream,
        width=width,
        highlight=False,
        markup=False,
        emoji=False,
    )


def open_streams() -> None:
    """Open what a process was started without, `2>&-` say: on a file that takes everything.

    Else the next file that is opened would get the number, and with it what libraries print.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        # What took the number before Python asked is a library's, which nothing should print into.
        nowhere = os.open(os.devnull, os.O_RDWR)
        if nowhere != number:
            os.dup2(nowhere, number)
            os.close(nowhere)
        mode = "r" if name == "stdin" else "w"
        setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def give_up_stdout(error: OSError) -> int:
    """Say why the result cannot be printed, print nothing more, and give the exit code.

    A reader that has gone, as of `| head`, knows it.
    """
    # What Python flushes at exit must not raise a second time.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not isinstance(error, BrokenPipeError):
        reason = f"the result cannot be printed: {error.strerror or error}"
        _print_failure(Failure(reason, hint=hint_of(error)))
    return 1


def forgive_unprintable() -> None:
    """Print `?` for what the terminal's encoding lacks: many a code page has no `→`."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


@contextmanager
def stdout_for_result_only() -> Iterator[TextIO]:
    """Lend the real stdout, while everything else that is written there goes to stderr.

    Works on file descriptors, because native libraries and the user's own code also print.
    """
    _flush_all()
    duplicate = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        out = os.fdopen(os.dup(duplicate), "w", encoding="utf-8")
        yield out
    finally:
        with suppress(OSError):  # what could not be written was told when it was flushed
            out.close()
        _flush_all()
        os.dup2(duplicate, sys.stdout.fileno())
        os.close(duplicate)


def _flush_all() -> None:
    """Let Python's and C's buffers out while the descriptor still leads where they belong."""
    sys.stdout.flush()
    ctypes.CDLL("ucrtbase" if sys.platform == "win32" else None).fflush(None)


def _head(verb: str, ok: bool) -> dict[str, object]:
    return {"schema_version": SCHEMA_VERSION, "verb": verb, "ok": ok}


def _print_object(data: Mapping[str, object], out: TextIO) -> None:
    # ASCII only, so that no pipe's encoding can damage it.
    out.write(json.dumps(to_json(data), allow_nan=False, indent=2) + "\n")


def to_json(value: object) -> object:
    """Return `value` in JSON's own types: NaN and infinity become null, paths text.

    Raises: TypeError for a type that has no place in a report.
    """
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (Sequence, set, frozenset)):
        items = sorted(value) if isinstance(value, (set, frozenset)) else value
        return [to_json(item) for item in items]
    scalar = getattr(value, "item", None)  # numpy's scalars
    if scalar is not None and not hasattr(value, "__len__"):
        return to_json(scalar())
    raise TypeError(f"a report cannot hold a {type(value).__name__}")


class Bars:
    """A `vermilion.progress.Progress` with one bar a stage, gone when the work is done.

    Draws nothing where stderr is not a terminal: logs would fill with its frames.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._drawn: RichProgress | None = None
        self._bars: dict[str, TaskID] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Move the bar of `stage`; total 0 means unknown."""
        if not self._console.is_terminal:
            return
        if self._drawn is None:
            self._drawn = _rich_progress(self._console)
            self._drawn.start()
        known = total or None
        if stage not in self._bars:
            self._bars[stage] = self._drawn.add_task(stage, total=known)
        self._drawn.update(self._bars[stage], completed=done, total=known)

    def __enter__(self) -> Bars:
        """Start with no bar; the first call draws one."""
        return self

    def __exit__(self, *error: object) -> None:
        """Wipe the bars, so that what follows stands on clean lines."""
        if self._drawn is not None:
            self._drawn.stop()
            self._drawn = None


def _rich_progress(console: Console) -> RichProgress:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console, transient=True)
