"""Showing what AMD's own provider wrote, and whether it may be used on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vermilion.cli.options import bytes_for_people
from vermilion.cli.output import Result

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.backends.vitisai.found import Stack
    from vermilion.runtime.vendor import VendorArtifact


def vendor_result(path: Path) -> Result:
    """Read an artifact of AMD's provider; not ok where it is not to be used here."""
    from vermilion.runtime.vendor import read_vendor, why_not_reusable

    artifact = read_vendor(path)
    reasons = why_not_reusable(artifact, _stack())
    data = {"vendor": artifact.as_json(), "reusable": not reasons, "reasons": list(reasons)}
    return Result(data, lambda: _view(artifact, reasons), ok=not reasons)


def _stack() -> Stack | None:
    from vermilion.backends.base import Availability
    from vermilion.backends.vitisai.found import find_stack
    from vermilion.hardware.devices import detect_machine
    from vermilion.hardware.targets.find import find_target

    machine = detect_machine(probe_providers=False)
    for npu in machine.npus:
        if npu.target is not None:
            found = find_stack(find_target(npu.target), machine, probe=False)
            if not isinstance(found, Availability):
                return found
    return None


def _view(artifact: VendorArtifact, reasons: Sequence[str]) -> RenderableType:
    from rich.console import Group
    from rich.table import Table

    from vermilion.cli.placement import summary_view

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    size = bytes_for_people(artifact.size_bytes)
    table.add_row(artifact.kind, f"{artifact.path}: {len(artifact.files)} files, {size}")
    table.add_row("parts", ", ".join(artifact.parts) or "none")
    for name, version in artifact.versions.items():
        table.add_row("written by", f"{name} {version}")
    for device, count in artifact.report.items():
        table.add_row("report", f"{count} nodes on {device}")
    for reason, count in artifact.reasons.items():
        table.add_row("left out", f"{count} × {reason}")
    views: list[RenderableType] = [table]
    if artifact.summary is not None:
        views += ["", summary_view(artifact.summary, ran="not known: files do not say")]
    if reasons:
        views += ["", "not to be used here:", *(f"  {reason}" for reason in reasons)]
    return Group(*views)
