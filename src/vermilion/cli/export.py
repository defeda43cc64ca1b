"""`vermilion export`: PyTorch → ONNX, with a report of how far both agree."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.fitted import Column, FittedTable, Verbatim
from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.export import ExportReport


@verb("export", limits_threads=True)
def export(
    terminal: Terminal,
    module: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FACTORY",
            help="`package.module:factory` or `path/to/file.py:factory`: a torch.nn.Module, its "
            "class, or a function without arguments that gives one.",
        ),
    ],
    inputs: Annotated[
        list[str],
        typer.Option(
            "--input",
            metavar="SHAPE",
            help="An input: `1x3x224x224`, `ids:1x128:int64`, or `batch=2x3x224x224`, where the "
            "size with a name stays dynamic. One for each.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.onnx", help="The file to write.")
    ],
    opset: Annotated[
        int | None,
        typer.Option(help="The version of ONNX's operators; 17, or 18 if PyTorch does that alone."),
    ] = None,
) -> Result:
    """Export a PyTorch module to ONNX, and check that both compute the same.

    This imports and runs the code that MODULE:FACTORY names. Sizes are fixed, as NPUs need
    them, but for those with a name. The exit code is 1 if an output differs from PyTorch's.
    """
    from vermilion.export import export_model

    report = export_model(module, inputs, output, opset=opset, progress=terminal.progress)
    for note in report.notes:
        terminal.warn(note)
    if not report.agrees:
        terminal.warn("the exported model does not agree with PyTorch; do not rely on it")
    return Result(report.as_json(), lambda: _view(report), ok=report.agrees)


def _view(report: ExportReport) -> RenderableType:
    from rich.console import Group

    columns = (
        Column("output", 0, "name"), Column("shape", 3, "name"), Column("cosine", 1),
        Column("SQNR dB", 1), Column("largest error", 2),
    )  # fmt: skip
    rows = []
    agreements = {agreement.name: agreement for agreement in report.agreements}
    for tensor in report.outputs:
        row = agreements.get(tensor.name)
        figures = (
            (f"{row.cosine:.7f}", f"{row.sqnr_db:.1f}", f"{row.max_abs_error:.2g}")
            if row
            else ("not compared", "", "")
        )
        rows.append((tensor.name, "×".join(str(size) for size in tensor.shape), *figures))
    inputs = ", ".join(
        f"`{t.name}` {'×'.join(map(str, t.shape))} {t.data_type}" for t in report.inputs
    )
    title = (
        f"opset {report.opset}, input {inputs}, by PyTorch's {report.exporter} "
        f"exporter in {report.seconds:.1f} s"
    )
    return Group(
        Verbatim(str(report.output)),
        title,
        "compared with PyTorch on other values than it was traced with:",
        FittedTable(columns, rows),
    )
