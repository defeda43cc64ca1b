"""`vermilion doctor`: what is wrong with this machine or with options, and what fixes it.

And scripts that build ONNX Runtime for AMD GPUs, and verify it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.fitted import Column, FittedTable, Verbatim
from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.hardware.doctor import Finding
    from vermilion.hardware.recipes.recipe import Recipe


_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}


@verb("doctor")
def doctor(
    terminal: Terminal,
    *,
    options: Annotated[
        Path | None,
        typer.Option(
            "--options",
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Check provider options instead: a .json, .py or .cpp file that has some.",
        ),
    ] = None,
    release: Annotated[
        str,
        typer.Option(
            "--release",
            metavar="1.7|plugin|…",
            help="With those: the Ryzen AI release, or the GPU provider's build.",
        ),
    ] = "",
    device: Annotated[
        str,
        typer.Option(
            "--device", metavar="TARGET", help="With --options, --suggest: the device they are for."
        ),
    ] = "",
    precision: Annotated[
        str,
        typer.Option("--precision", metavar="int8|bf16", help="With those: the model's data type."),
    ] = "",
    suggest: Annotated[
        bool,
        typer.Option(
            "--suggest", help="Print VitisAI's options for --device, and why each is set."
        ),
    ] = False,
    build_recipe: Annotated[
        str,
        typer.Option(
            "--build-recipe",
            metavar="onnxruntime|genai",
            help="Print the script that builds it for AMD GPUs, what that needs, and the check.",
        ),
    ] = "",
    rocm: Annotated[
        str, typer.Option("--rocm", metavar="7.0", help="With it: the release of ROCm.")
    ] = "7.2",
    gfx: Annotated[
        str, typer.Option("--gfx", metavar="GPU,…", help="With it: the GPUs.")
    ] = "gfx1100",
    provider: Annotated[
        str,
        typer.Option(
            "--provider", metavar="migraphx|rocm", help="With it: the provider; rocm ends at 7.0."
        ),
    ] = "migraphx",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="With it: write the scripts there."),
    ] = None,
) -> Result:
    """Find what keeps this machine from running models, and say how to fix it.

    With --options, look at provider options for VitisAI, MIGraphX, AMDGPU and ROCm in a file, and
    print them corrected. The exit code is 1 if there is an error among the findings.
    """
    if build_recipe:
        return show_recipe(build_recipe, rocm, gfx, provider, output)
    if options is not None or suggest:
        from vermilion.cli.provider_options import lint_file, suggest_options

        if options is not None:
            return lint_file(options, release, device, precision)
        return suggest_options(release, device, precision)
    from vermilion.hardware.devices import detect_machine
    from vermilion.hardware.doctor import collect_environment, diagnose
    from vermilion.store.cache_dir import default_root

    terminal.progress("looking for devices", 0, 2)
    machine = detect_machine()
    terminal.progress("looking for faults", 1, 2)
    findings = diagnose(machine, collect_environment(default_root()))
    errors = sum(finding.level == "error" for finding in findings)
    data = {"errors": errors, "findings": [finding.as_json() for finding in findings]}
    return Result(data, lambda: _view(findings), ok=errors == 0)


def _view(findings: Sequence[Finding]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    lines: list[Text] = []
    for finding in findings:
        label = (f"{finding.level}: ", _STYLES[finding.level])
        lines.append(Text.assemble(label, finding.what))
        if finding.fix:
            lines.append(Text.assemble("  ", ("fix: ", "bold"), finding.fix))
    return Group(*lines)


def show_recipe(project: str, rocm: str, gfx: str, provider: str, output: Path | None) -> Result:
    """Print a recipe, or write its scripts into a folder.

    Raises: OptionError for what there is no recipe for.
    """
    from vermilion.hardware.recipes.recipe import Wanted, make_recipe, write_recipe

    gpus = tuple(name.strip() for name in gfx.split(",") if name.strip())
    recipe = make_recipe(Wanted(project, rocm, gpus, provider))
    written = write_recipe(recipe, output) if output is not None else ()
    data = recipe.as_json() | {"written": [str(path) for path in written]}
    return Result(data, lambda: _recipe_view(recipe, written))


def _recipe_view(recipe: Recipe, written: Sequence[Path]) -> RenderableType:
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
