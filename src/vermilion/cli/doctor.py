"""`vermilion doctor`: what is wrong with this machine, and the line that mends it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.hardware.doctor import Finding

_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}


@verb("doctor")
def doctor(terminal: Terminal) -> Result:
    """Find what keeps this machine from running models, and say how to mend it.

    The exit code is 1 if there is an error among the findings.
    """
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
