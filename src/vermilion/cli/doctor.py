"""`vermilion doctor`: what is wrong with this machine or with options, and what mends it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.hardware.doctor import Finding
    from vermilion.hardware.options.option import Linted, Setting

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
            help="With --options: the Ryzen AI release, or the GPU provider's build.",
        ),
    ] = "",
    device: Annotated[
        str, typer.Option("--device", help="With --options: the device they are for.")
    ] = "",
    precision: Annotated[
        str, typer.Option("--precision", metavar="int8|bf16", help="With --options: of the model.")
    ] = "",
) -> Result:
    """Find what keeps this machine from running models, and say how to mend it.

    With --options, look at provider options for VitisAI, MIGraphX, AMDGPU and ROCm in a file, and
    print them corrected. The exit code is 1 if there is an error among the findings.
    """
    if options is not None:
        return _options(options, release, device, precision)
    from vermilion.hardware.devices import detect_machine
    from vermilion.hardware.doctor import collect_environment, diagnose
    from vermilion.runtime.cache import default_root

    terminal.progress("looking for devices", 0, 2)
    machine = detect_machine()
    terminal.progress("looking for faults", 1, 2)
    findings = diagnose(machine, collect_environment(default_root()))
    errors = sum(finding.level == "error" for finding in findings)
    data = {"errors": errors, "findings": [finding.as_json() for finding in findings]}
    return Result(data, lambda: _view(findings), ok=errors == 0)


def _view(findings: Sequence[Finding]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(Text(finding.level, style=_STYLES[finding.level]), Text(finding.what))
        if finding.fix:
            table.add_row("", Text.assemble(("fix: ", "bold"), finding.fix))
    return table


def _options(path: Path, release: str, device: str, precision: str) -> Result:
    from vermilion.hardware.options.lint import lint
    from vermilion.hardware.options.option import Setting
    from vermilion.hardware.options.read import read_options
    from vermilion.hardware.targets.find import find_target

    found, stated = read_options(path)
    named = device or stated.device
    setting = Setting(
        build=release or stated.build,
        device=find_target(named).name if named else "",
        precision=precision or stated.precision,
        system=stated.system,
    )
    linted = [lint(given, setting) for given in found]
    errors = sum(one.errors for one in linted)
    data = {
        "errors": errors,
        "release": setting.build,
        "device": setting.device,
        "option_sets": [_row(one) for one in linted],
    }
    as_json = path.suffix.lower() == ".json"
    return Result(data, lambda: _options_view(linted, setting, as_json=as_json), ok=errors == 0)


def _row(linted: Linted) -> dict[str, object]:
    corrected = linted.corrected
    return {
        "where": linted.given.where,
        "provider": linted.given.provider,
        "options": dict(linted.given.options),
        "checked_against": linted.table.title if linted.table else "",
        "problems": [problem.as_json() for problem in linted.problems],
        "corrected": {
            "provider": corrected.provider,
            "options": dict(corrected.options),
            "environment": dict(corrected.environment),
            "config": corrected.config,
        },
    }


def _options_view(linted: Sequence[Linted], setting: Setting, *, as_json: bool) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from vermilion.hardware.options.corrected import corrected_text

    views: list[RenderableType] = []
    for one in linted:
        against = one.table.title if one.table else "no table"
        views.append(Text(f"{one.given.where}: {one.given.provider}", style="bold"))
        device = f", {setting.device}" if setting.device else "; `--device` says more"
        views.append(f"checked against: {against}{device}")
        if not one.problems:
            views += ["nothing is wrong", ""]
            continue
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column()
        table.add_column(overflow="fold")
        for problem in one.problems:
            table.add_row(Text(problem.level, style=_STYLES[problem.level]), Text(problem.what))
            if problem.fix:
                table.add_row("", Text.assemble(("fix: ", "bold"), problem.fix))
        views += [table, "", "corrected:", Text(corrected_text(one, as_json=as_json)), ""]
    return Group(*views)
