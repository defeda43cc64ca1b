"""`vermilion view`: one page of a model, or of what differs between two."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.fitted import Verbatim
from vermilion.cli.options import Dims, bytes_for_people, counted, parse_dims
from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb
from vermilion.errors import OptionError
from vermilion.files import resolved, write_file
from vermilion.memory import no_collection

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.view.build import View

_SHOWN = 12


@verb("view")
def view(
    terminal: Terminal,
    things: Annotated[
        list[Path],
        typer.Argument(
            metavar="A [B] [RESULT.json…]",
            help="A model: an ONNX file, a `.rai` or compiled folder, a language model's folder. "
            "Two are compared. Beside them, or alone, what `inspect`, `compile`, `compare`, "
            "`quantize` and `bench --profile` print with `--json`, and the file of `--trace`.",
            show_default=False,
        ),
    ],
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="PAGE.html", help="The page; A.html if none."),
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            metavar="TARGET",
            help="The target shown first; the page has all of them.",
        ),
    ] = None,
    dim: Dims = None,
    dump: Annotated[
        Path | None,
        typer.Option(
            "--dump",
            metavar="DIR",
            exists=True,
            file_okay=False,
            help="What `compile --dump` wrote: the assembly of each kernel.",
        ),
    ] = None,
) -> Result:
    """Write one page that shows a model: its map, where nodes run and why, time, error, memory.

    The page is one file that fetches nothing. Nothing is compiled or measured for it; with two
    models it says what differs, by structure and not by names.
    """
    from vermilion.view.build import build_view
    from vermilion.view.page import view_page

    place = output if output is not None else Path(f"{_stem(things[0])}.html")
    if place.suffix.lower() not in (".html", ".htm"):
        raise OptionError(f"the page `{place}` does not end in .html", hint="name it PAGE.html")
    with no_collection():
        found = build_view(
            things, dims=parse_dims(dim), target=target or "", dump=dump, progress=terminal.progress
        )
        write_file(place, view_page(found.data))
    if open_it:
        _show(place, terminal)
    size = place.stat().st_size
    data = {
        "page": place,
        "bytes": size,
        "nodes": [len(model["graph"]["nodes"]) for model in found.data["models"]],
        "difference": found.changes.as_json() if found.changes is not None else None,
        "notes": found.data["notes"],
    }
    return Result(data, lambda: _view(found, place, size))


def _stem(thing: Path) -> str:
    return thing.stem or resolved(thing).name


def _show(place: Path, terminal: Terminal) -> None:
    import webbrowser

    if not webbrowser.open(resolved(place).as_uri()):
        terminal.warn(f"there is no browser here: open {place} in one")
    sys.stdout.flush()


def _view(found: View, place: Path, size: int) -> RenderableType:
    from rich.console import Group

    lines: list[RenderableType] = [Verbatim(f"{place}: {bytes_for_people(size)}")]
    for model in found.data["models"]:
        graph = model["graph"]
        lines.append(f"{model['label']}: {counted(len(graph['nodes']), 'node')}")
    changes = found.changes
    if changes is not None:
        alike = f"{len(changes.pairs)} nodes match"
        if changes.renamed:
            alike += f", {changes.renamed} of them under another name"
        lines.append(f"{alike}; {len(changes.changes) or 'no'} differences")
        lines += [f"  {change.kind}: {change.what}" for change in changes.changes[:_SHOWN]]
        if len(changes.changes) > _SHOWN:
            lines.append(f"  {len(changes.changes) - _SHOWN} more: see the page, or `--json`")
    return Group(*lines)
