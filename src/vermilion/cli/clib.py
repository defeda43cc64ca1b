"""`vermilion clib`: where the C library and its header are, and how to compile with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb

if TYPE_CHECKING:
    from rich.console import RenderableType


@verb("clib")
def clib(
    terminal: Terminal,
    *,
    flags: Annotated[
        bool, typer.Option("--flags", help="Print only what a compiler is given.")
    ] = False,
) -> Result:
    """Show where the C library and its header are, and how programs are compiled with them."""
    from vermilion.clib.build import INCLUDE
    from vermilion.clib.library import library

    terminal.progress("looking for the library", 0, 0)
    file = library()
    given = [f"-I{INCLUDE}", str(file), f"-Wl,-rpath,{file.parent}"]
    data: dict[str, object] = {
        "header": INCLUDE / "vermilion.h",
        "library": file,
        "flags": given,
    }
    return Result(data, lambda: _flags(given) if flags else _view(data, given))


def _flags(given: list[str]) -> RenderableType:
    from rich.text import Text

    return Text(" ".join(given), no_wrap=True, overflow="ignore")


def _view(data: dict[str, object], given: list[str]) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("header", str(data["header"]))
    table.add_row("library", str(data["library"]))
    table.add_row("flags", " ".join(given))
    return table
