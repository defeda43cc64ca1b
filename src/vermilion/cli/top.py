"""`vermilion top`: what a running server is doing."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.output import Result, console_on
from vermilion.cli.serve import check_packages
from vermilion.cli.verb import Terminal, verb
from vermilion.errors import OptionError

if TYPE_CHECKING:
    from rich.table import Table

    from vermilion.serve.top import Row


_MOST_S = 1_000_000


@verb("top")
def top(
    terminal: Terminal,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Where `vermilion serve` listens.")
    ] = "http://127.0.0.1:8000",
    *,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", help="Seconds between two readings.")
    ] = 2.0,
    count: Annotated[
        int, typer.Option("--count", metavar="N", help="Readings to show; 0: until Ctrl-C.")
    ] = 0,
    key_file: Annotated[
        Path | None,
        typer.Option("--key-file", metavar="FILE", help="A file whose first line is an API key."),
    ] = None,
) -> Result:
    """Show what a server's models are doing: rates, times, queues, tokens, the cache.

    Of the times, `p50 ≤` and `p99 ≤` are upper bounds: those of the buckets of the server's
    histogram that the requests are in.

    Where nobody watches, or with `--json`, one reading is taken.
    """
    check_packages()
    from vermilion.serve.top import read, rows

    if not 0 < every <= _MOST_S:
        raise OptionError(f"`--every` is more than 0 seconds, and {_MOST_S:,} or less")
    if count < 0:
        raise OptionError("`--count` is 0 or more")
    key = ""
    if key_file is not None:
        key = _key_of(key_file)
    is_watched = sys.stderr.isatty() and not terminal.as_json
    most = count or (0 if is_watched else 1)
    before, found, done = read(url, key), [], 0
    if is_watched:
        from rich.live import Live

        with Live(console=console_on(sys.stderr), auto_refresh=False, transient=True) as live:
            while not most or done < most:
                time.sleep(every)
                after = read(url, key)
                found, before, done = rows(before, after), after, done + 1
                live.update(view(found), refresh=True)
    else:
        for _ in range(most):
            time.sleep(every)
            after = read(url, key)
            found, before = rows(before, after), after
    return Result({"url": url, "models": [row.as_json() for row in found]}, lambda: view(found))


def _key_of(file: Path) -> str:
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise OptionError(f"the key cannot be read: {words}", where=str(file)) from error
    key = next((line for line in lines if line and not line.startswith("#")), "")
    if not (key and key.isascii() and key.isprintable()):
        raise OptionError("the file holds no key", where=str(file))
    return key


def view(rows: list[Row]) -> Table:
    """Return a table of models."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("model")
    table.add_column("state")
    for column in (
        "requests/s", "failed/s", "p50 ≤ ms", "p99 ≤ ms", "waiting", "batch", "tokens/s", "cache",
        "restarts",
    ):  # fmt: skip
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row.model,
            "ready" if row.is_ready else "not ready",
            f"{row.requests_per_s:,.1f}",
            f"{row.failed_per_s:,.1f}",
            _time(row.p50_at_most_ms),
            _time(row.p99_at_most_ms),
            f"{row.waiting:,}",
            f"{row.batch:.1f}",
            f"{row.tokens_per_s:,.1f}",
            "-" if row.cache is None else f"{row.cache:.0%}",
            f"{row.restarts}",
        )
    return table


def _time(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:,g}"
