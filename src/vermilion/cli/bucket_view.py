"""What `vermilion inspect --shapes` prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vermilion.cli.output import Result

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.buckets import Proposal
    from vermilion.ir.passes.bind_dimensions import Dimensions
    from vermilion.progress import Progress


def inspect_shapes(
    model: Path, trace: Path, most: int, dims: Dimensions, progress: Progress
) -> Result:
    """Propose shape buckets for the requests of a trace."""
    from vermilion.buckets import propose_buckets

    found = propose_buckets(model, trace, most=most, dims=dims, progress=progress)
    return Result(found.as_json(), lambda: _view(found, model))


def _view(found: Proposal, model: Path) -> RenderableType:
    from rich.console import Group
    from rich.table import Table

    from vermilion.buckets import padding_of

    table = Table(box=None, pad_edge=False)
    for name in found.names:
        table.add_column(name, justify="right")
    for head in ("requests", "GOPs a run", "of it padding"):
        table.add_column(head, justify="right")
    for bucket in found.chosen:
        sizes = [str(bucket.sizes[name]) for name in found.names]
        table.add_row(
            *sizes, str(bucket.requests), f"{bucket.gops:.4g}", f"{100 * bucket.padding:.1f}%"
        )
    curve = ", ".join(f"{len(o)}: {100 * padding_of(o):.1f}%" for o in found.options)
    rounded = ", ".join(f"{name} to multiples of {step}" for name, step in found.steps.items())
    lines: list[RenderableType] = [
        f"{found.requests} requests of {found.distinct} different sizes"
        + (f", rounded up: {rounded}" if rounded else ""),
        "",
        table,
        "",
        f"work that is padding, by number of buckets: {curve}",
        "",
        "compile them:",
    ]
    for bucket in found.chosen:
        dims = " ".join(f"--dim {name}={bucket.sizes[name]}" for name in found.names)
        lines.append(f"  vermilion compile {model.name} {dims}")
    return Group(*lines)
