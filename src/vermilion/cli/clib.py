"""`vermilion clib`: where the C library and its header are, and how to compile with them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.fitted import Facts, Verbatim
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
    return Verbatim(" ".join(given))


def _view(data: dict[str, object], given: list[str]) -> RenderableType:
    rows = [("header", Path(str(data["header"]))), ("library", Path(str(data["library"])))]
    return Facts([*rows, ("flags", " ".join(given))])
