"""`vermilion compare`: two models or targets side by side."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.fitted import Column, Facts, FittedTable
from vermilion.cli.options import CacheDir, Dims, Inputs, Threads, load_inputs, parse_dims
from vermilion.cli.output import Failure, Result
from vermilion.cli.verb import Terminal, verb
from vermilion.files import write_file

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.compare import Comparison

_WORST_LAYERS = 8


@verb("compare")
def compare(
    terminal: Terminal,
    a: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="The reference: MODEL.onnx, whose literal run says what is right; or FOLDER, "
            "NAME.rai, MODEL.onnx@PLACE, as they run.",
        ),
    ],
    b: Annotated[
        str,
        typer.Argument(
            metavar="B",
            help="The other. A model file is compiled first: for this CPU, or for a target "
            "(`m.onnx@strix`); `m.onnx@onnxruntime` is run as it is.",
        ),
    ],
    *,
    input: Inputs = None,
    dim: Dims = None,
    threads: Threads = 0,
    cache_dir: CacheDir = None,
    runs: Annotated[int, typer.Option("--runs", min=0, help="Timed runs of each side.")] = 10,
    layers: Annotated[
        bool, typer.Option("--layers/--no-layers", help="Also compare what is inside.")
    ] = True,
    min_sqnr: Annotated[
        float | None,
        typer.Option("--min-sqnr", help="Fail if an output's SQNR (dB) is below this."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE.html", help="Write a page with plots.")
    ] = None,
) -> Result:
    """Compare outputs, layers and latency of two models, or of one on two targets.

    Without `--input`, sample inputs with a fixed seed are used, and a warning says so.
    """
    from vermilion.compare import compare_sides
    from vermilion.runtime.placement_line import told
    from vermilion.sides import open_reference, open_side, split_place

    split_place(a)  # a path that leads nowhere is told before the other side is compiled
    dims, progress = parse_dims(dim), terminal.progress
    other = open_side(b, dims=dims, cache_dir=cache_dir, threads=threads, progress=progress)
    reference = open_reference(
        a, other, timed=runs > 0, dims=dims, cache_dir=cache_dir, threads=threads, progress=progress
    )  # fmt: skip
    for side in (reference, other):
        for note in told(side.notes, side.placement):
            terminal.warn(note)
    inputs = load_inputs(input)
    if not inputs:
        terminal.warn("no --input given: compared on sample inputs, not on real data")
    with terminal.measuring(f"{a}, {b}") if runs else nullcontext():
        found = compare_sides(
            reference, other, inputs or None, layers=layers, runs=runs, progress=progress
        )
    failure = None
    if min_sqnr is not None and not found.worst_sqnr_db >= min_sqnr:
        failure = Failure(
            f"the least SQNR is {found.worst_sqnr_db:.2f} dB, `--min-sqnr` asks for {min_sqnr:g}",
            where=other.label,
            hint="the table says at which layer the two part first",
        )
    if report is not None:
        from vermilion.view.compare_report import compare_report

        write_file(report, compare_report(found))
    return Result(as_json(found), lambda: _view(found), ok=failure is None, failure=failure)


def as_json(found: Comparison) -> dict[str, object]:
    """Return the keys of `compare --json`."""
    sides = (found.reference, found.other)
    first = found.first_divergence
    return {
        "sides": [
            {
                "label": side.label,
                "runs_on": side.runs_on,
                "placement": side.placement,
                "modelled": side.modelled,
                "latency_ms": latency.as_json(),
            }
            for side, latency in zip(sides, found.latencies, strict=True)
        ],
        "outputs": [output.as_json() for output in found.outputs],
        "layers": [
            {**layer.agreement.as_json(), "op_type": layer.op_type} for layer in found.layers
        ],
        "first_divergence": first.agreement.name if first is not None else None,
    }


_SIDES = (
    Column("", 0, "name"), Column("runs on", 3, "words"), Column("median ms", 0), Column("min", 1),
    Column("max", 2),
)  # fmt: skip


def _view(found: Comparison) -> RenderableType:
    from rich.console import Group

    labels, rows = [], []
    for letter, side, latency in zip(
        "AB", (found.reference, found.other), found.latencies, strict=True
    ):
        timed = (
            [f"{x:.3f}" for x in (latency.median_ms, latency.min_ms, latency.max_ms)]
            if latency.runs
            else ["", "", ""]
        )
        labels.append((letter, Path(side.label)))
        rows.append((letter, side.runs_on, *timed))
    sides = FittedTable(_SIDES, rows)
    outputs = _agreements("output", [(o, "") for o in found.outputs])
    views: list[RenderableType] = [Facts(labels), "", sides, *_placements(found)]
    views += ["", found.against, outputs]
    if found.layers:
        worst = sorted(found.layers, key=lambda layer: layer.agreement.sqnr_db)[:_WORST_LAYERS]
        views += [
            "",
            f"{len(found.layers)} layers by name; the {len(worst)} furthest apart",
            _agreements("layer", [(x.agreement, x.op_type) for x in worst]),
            _first(found),
        ]
    return Group(*views)


def _placements(found: Comparison) -> list[str]:
    sides = zip("AB", (found.reference, found.other), strict=True)
    return [f"{letter}: {side.placement}" for letter, side in sides if side.placement]


def _first(found: Comparison) -> str:
    from vermilion.compare import DIVERGED_DB

    first = found.first_divergence
    if first is None:
        return f"no layer is below {DIVERGED_DB:g} dB"
    return (
        f"first layer below {DIVERGED_DB:g} dB: {first.agreement.name} ({first.op_type}), "
        f"{first.agreement.sqnr_db:.1f} dB"
    )


def _agreements(what: str, rows: list[tuple[object, str]]) -> RenderableType:
    from vermilion.ir.measure import EXACT_DB, Agreement

    has_kinds = any(op for _, op in rows)
    columns = [Column(what, 0, "name"), *([Column("operator", 3, "name")] if has_kinds else [])]
    columns += [Column("cosine", 2), Column("SQNR dB", 1), Column("largest error", 4)]
    drawn = []
    for row, op_type in rows:
        if isinstance(row, Agreement):
            sqnr = "equal" if row.sqnr_db >= EXACT_DB else f"{row.sqnr_db:.1f}"
            kind = [op_type] if has_kinds else []
            figures = (f"{row.cosine:.8f}", sqnr, f"{row.max_abs_error:.3g}")
            drawn.append((row.name, *kind, *figures))
    return FittedTable(columns, drawn)
