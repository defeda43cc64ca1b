"""`vermilion optimize`: a transformer's operators fused, and the result proven."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.fitted import Column, FittedTable, Verbatim
from vermilion.cli.options import Dims, Model, parse_dims
from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.optimize import Optimized


@verb("optimize", limits_threads=True)
def optimize(
    terminal: Terminal,
    model: Model,
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.onnx", help="The file to write.")
    ],
    kind: Annotated[
        str, typer.Option("--type", metavar="bert|gpt2|vit|clip|t5|…", help="The graph's kind.")
    ] = "bert",
    heads: Annotated[
        int, typer.Option("--heads", help="Attention heads; 0: read from the graph.")
    ] = 0,
    width: Annotated[
        int, typer.Option("--width", help="Size of the hidden state; 0: read from the graph.")
    ] = 0,
    precision: Annotated[
        str,
        typer.Option("--precision", "-p", metavar="fp32|fp16", help="Of weights and arithmetic."),
    ] = "fp32",
    dim: Dims = None,
) -> Result:
    """Fuse a transformer's small operators for ONNX Runtime's providers.

    ONNX Runtime's own optimizer fuses; the result is compared with the model as it came on several
    inputs, and is written only if it agrees. The exit code is 1 where it does not.
    """
    from vermilion.optimize import LEAST_DB, optimize_transformer

    done = optimize_transformer(
        model,
        output,
        kind=kind,
        heads=heads,
        width=width,
        precision=precision,
        dims=parse_dims(dim),
        progress=terminal.progress,
    )
    if not done.fused:
        terminal.warn("nothing was fused: another `--type` may fit, or the export hides patterns")
    if not done.agrees:
        terminal.warn(
            f"nothing was written: an output keeps less than {LEAST_DB[precision]:g} dB of the"
            " model as it came"
        )
    return Result(done.as_json(), lambda: _view(done), ok=done.agrees)


def _view(done: Optimized) -> RenderableType:
    from rich.console import Group

    fused = ", ".join(f"{count} {name}" for name, count in sorted(done.fused.items()))
    columns = (
        Column("output", 0, "name"), Column("cosine", 1), Column("SQNR dB", 1),
        Column("largest error", 2),
    )  # fmt: skip
    rows = [
        (row.name, f"{row.cosine:.7f}", f"{row.sqnr_db:.1f}", f"{row.max_abs_error:.2g}")
        for row in done.agreements
    ]
    return Group(
        Verbatim(str(done.output) if done.agrees else "not written"),
        f"{done.precision}, {done.nodes_before}"
        f" operators → {done.nodes_after} in {done.seconds:.1f} s",
        f"fused: {fused or 'nothing'}",
        "compared with the model as it came, the worst of several inputs:",
        FittedTable(columns, rows),
    )
