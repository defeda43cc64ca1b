"""`vermilion hipify`: CUDA sources → HIP sources, with a lint and a compile check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.output import Result, to_json
from vermilion.cli.verb import Terminal, verb
from vermilion.errors import OptionError
from vermilion.files import write_file

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.hipify.hipify import Report

_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}

Sources = Annotated[
    list[Path],
    typer.Argument(metavar="SRC…", help="CUDA files or folders of them.", show_default=False),
]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="DIR", help="Write the HIP files into this folder."),
]
InPlace = Annotated[bool, typer.Option("--in-place", help="Write over the files themselves.")]
Patch = Annotated[
    Path | None, typer.Option("--patch", metavar="FILE", help="Write the change as a patch.")
]
Fix = Annotated[bool, typer.Option("--fix", help="Make the changes that the lint offers.")]
Check = Annotated[
    str | None,
    typer.Option("--check", metavar="GPU,…", help="Compile for these GPUs: `gfx942,gfx1100`."),
]
Include = Annotated[
    list[Path] | None,
    typer.Option("-I", "--include", metavar="DIR", help="A folder of headers for the check."),
]
Define = Annotated[
    list[str] | None,
    typer.Option("-D", "--define", metavar="NAME[=VALUE]", help="A macro for the check."),
]
BuildFiles = Annotated[
    bool, typer.Option("--build-files", help="Also write CMakeLists.txt and hip_setup.py.")
]
Sarif = Annotated[
    Path | None, typer.Option("--sarif", metavar="FILE", help="Write the findings as SARIF.")
]
TorchTable = Annotated[
    bool, typer.Option("--with-torch-table", help="Also use the names that torch knows.")
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=0, help="Processes at once; 0: all cores.")]


@verb("hipify")
def hipify(
    terminal: Terminal,
    sources: Sources,
    output: Output = None,
    in_place: InPlace = False,
    patch: Patch = None,
    fix: Fix = False,
    check: Check = None,
    include: Include = None,
    define: Define = None,
    build_files: BuildFiles = False,
    sarif: Sarif = None,
    with_torch_table: TorchTable = False,
    jobs: Jobs = 0,
) -> Result:
    """Translate CUDA sources to HIP, find what breaks on AMD GPUs, and compile the result.

    Without `-o` and `--in-place` nothing is written. The exit code is 1 if something is left to
    do. `// hipify: allow(RULE) why` silences a rule on a line.
    """
    from vermilion.hipify import hipify as work
    from vermilion.hipify.files import encode
    from vermilion.hipify.report import as_json, as_sarif

    options = work.Options(
        output=output,
        in_place=in_place,
        fix=fix,
        check=_gpus(check),
        includes=tuple(include or ()),
        defines=tuple(define or ()),
        build_files=build_files,
        with_torch_table=with_torch_table,
        jobs=jobs,
    )
    report = work.hipify(sources, options, terminal.progress)
    if sarif is not None:
        write_file(sarif, json.dumps(to_json(as_sarif(report)), indent=2) + "\n")
    if patch is not None:
        write_file(patch, encode(work.diff(report)))
    return Result(as_json(report), lambda: _view(report), ok=report.ok)


def _gpus(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise OptionError(f"`--check {text}` is not a list", hint="write `--check gfx942,gfx1100`")
    return names


def _view(report: Report) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    lines: list[RenderableType] = []
    for finding in report.findings:
        level = "fixed" if finding.fixed else finding.level
        style = "green" if finding.fixed else _STYLES[finding.level]
        place = f"{finding.file}:{finding.line}:{finding.column}: "
        lines.append(Text.assemble(place, (level, style), f" {finding.message} [{finding.rule}]"))
        if not finding.fixed:
            offered = " (--fix does it)" if finding.can_be_fixed else ""
            lines.append(Text(f"    hint: {finding.hint}{offered}"))
    lines += [Text(line) for line in _summary(report)]
    return Group(*lines)


def _summary(report: Report) -> list[str]:
    changed = sum(result.changed for result in report.files)
    silenced = sum(result.silenced for result in report.files)
    left = sum(finding.is_left for finding in report.findings)
    fixed = sum(finding.fixed for finding in report.findings)
    lines = [
        f"{len(report.files)} files, {changed} changed, {len(report.written)} written; "
        f"{left} left to do, {fixed} fixed, {silenced} silenced"
    ]
    for check in report.checks:
        result = (
            f"compiles, kernels: {check.kernels}, bytes: {check.code_bytes}"
            if check.ok
            else "does not compile"
        )
        lines.append(f"{check.file} for {check.architecture}: {result}")
    return lines + [f"not seen: {line}" for line in report.not_seen]
