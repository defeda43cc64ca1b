"""Recipes on the command line: scripts that build ONNX Runtime for AMD GPUs, and verify it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vermilion.cli.fitted import Column, FittedTable, Verbatim
from vermilion.cli.output import Result

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.hardware.recipes.recipe import Recipe


def show_recipe(project: str, rocm: str, gfx: str, provider: str, output: Path | None) -> Result:
    """Print a recipe, or write its scripts into a folder.

    Raises: OptionError for what there is no recipe for.
    """
    from vermilion.hardware.recipes.recipe import Wanted, make_recipe, write_recipe

    gpus = tuple(name.strip() for name in gfx.split(",") if name.strip())
    recipe = make_recipe(Wanted(project, rocm, gpus, provider))
    written = write_recipe(recipe, output) if output is not None else ()
    data = recipe.as_json() | {"written": [str(path) for path in written]}
    return Result(data, lambda: _view(recipe, written))


def _view(recipe: Recipe, written: Sequence[Path]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    wanted = recipe.wanted
    views: list[RenderableType] = [
        Text(
            f"ONNX Runtime {recipe.release.tag}, {wanted.provider_name}, ROCm {wanted.rocm}, "
            f"{', '.join(wanted.gpus)}",
            style="bold",
        )
    ]
    columns = (Column("needed", 0, "words"), Column("for", 1, "words"), Column("check", 0, "words"))
    needs = [(need.what, need.why, need.check) for need in recipe.needs]
    views += ["", FittedTable(columns, needs), ""]
    if written:
        views += [Verbatim(f"written: {path}") for path in written]
    else:
        for name, text in recipe.files.items():
            views += [Text(f"----- {name}", style="bold"), Verbatim(text)]
    views += [Text(f"note: {note}") for note in recipe.notes]
    return Group(*views)
