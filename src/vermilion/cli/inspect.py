"""`vermilion inspect`: what is in a model, and where its nodes would run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.fitted import Column, Facts, FittedTable
from vermilion.cli.options import Dims, Model, bytes_for_people, counted, parse_dims
from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb
from vermilion.errors import OptionError
from vermilion.files import write_file

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.buckets import Proposal
    from vermilion.inspection import Inspection
    from vermilion.ir.passes.bind_dimensions import Dimensions
    from vermilion.progress import Progress
    from vermilion.runtime.manifest import TensorRecord

_ROWS = 12


@verb("inspect", limits_threads=True)
def inspect(
    terminal: Terminal,
    model: Model,
    *,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            metavar="TARGET|all",
            help="Also say where each node would run on this target; `all` compares the NPUs.",
        ),
    ] = None,
    dim: Dims = None,
    nodes: Annotated[bool, typer.Option("--nodes", help="List every node, not groups.")] = False,
    summary: Annotated[
        Path | None,
        typer.Option(
            "--summary",
            metavar="FILE",
            help="With `--target`: also write the summary to this file.",
        ),
    ] = None,
    shapes: Annotated[
        Path | None,
        typer.Option(
            "--shapes",
            metavar="TRACE.jsonl",
            exists=True,
            dir_okay=False,
            help="Instead: which sizes to compile for, from requests, a line of shapes each.",
        ),
    ] = None,
    buckets: Annotated[
        int, typer.Option("--buckets", min=1, help="With `--shapes`: how many sets of sizes.")
    ] = 4,
) -> Result:
    """Show a model's operators, work and shapes; with `--target`, every node's place and reason.

    Nothing is compiled. Latencies of devices are modelled.
    """
    if shapes is not None:
        return _inspect_shapes(model, shapes, buckets, parse_dims(dim), terminal.progress)
    from vermilion.inspection import inspect_model

    if summary is not None and target in (None, "all"):
        raise OptionError("`--summary` needs a target", hint="add `--target strix`, say")
    with nullcontext() if target is None else terminal.measuring(str(model)):
        found = inspect_model(
            model,
            target=target,
            dims=parse_dims(dim),
            measure_cpu=target is not None,
            progress=terminal.progress,
        )
    if summary is not None and found.prediction is not None:
        write_file(summary, found.prediction.summary.to_text())
    for operator in found.cost.unpriced:
        terminal.warn(f"the operator table has no rule for `{operator}`; it counts as no work")
    return Result(found.as_json(), lambda: _view(found, every_node=nodes))


def _view(found: Inspection, *, every_node: bool) -> RenderableType:
    from rich.console import Group

    from vermilion.cli.placement import placement_view, planning_view, targets_view

    parts: list[RenderableType] = [_facts(found), "", _operators(found)]
    if found.prediction is not None:
        parts += ["", *placement_view(found.prediction, every_node=every_node)]
        parts += ["", *planning_view(found.prediction, found.cpu_ms)]
    if found.predictions:
        parts += ["", *targets_view(found)]
    return Group(*parts)


def _facts(found: Inspection) -> RenderableType:
    bound = "" if found.cost.exact else "  at least: dynamic dimensions count as 1"
    rows: list[tuple[str, str | Path]] = [
        ("model", Path(found.path)),
        ("opset", f"{found.opset}, {_producer(found.producer)}"),
        ("data type", f"{found.number_format} ({found.data_type})"),
        *_tensors("input", found.inputs),
        *_tensors("output", found.outputs),
        ("weights", f"{found.parameters:,} values, {bytes_for_people(found.weight_bytes)}"),
        (
            "operators",
            f"{len(found.cost.nodes)} (in the file: {counted(found.nodes_before, 'node')})",
        ),
        ("work", f"{found.cost.gops:.6g} GOPs{bound}"),
    ]
    if found.open_dimensions:
        rows.append(("dynamic", f"{', '.join(found.open_dimensions)}; fix with {_binding(found)}"))
    return Facts(rows)


def _producer(name: str) -> str:
    return "of an unknown producer" if name == "unknown" else f"from {name}"


def _tensors(what: str, tensors: Sequence[TensorRecord]) -> Iterator[tuple[str, str]]:
    """Yield a row for each of the first, and one for the rest: a model may have thousands."""
    for tensor in tensors[:_ROWS]:
        yield what, f"{tensor.name}  {tensor.type}  {_shape(tensor.shape)}"
    if len(tensors) > _ROWS:
        yield what, f"{len(tensors) - _ROWS:,} more; `--json` lists them"


def _binding(found: Inspection) -> str:
    """Return the `--dim` options that leave nothing open: names, or whole inputs without them."""
    options: dict[str, None] = {}
    for tensor in found.inputs:
        shape = tensor.shape or ()
        opened = [size for size in shape if not isinstance(size, int)]
        if all(size not in (None, "?") for size in opened):
            options.update((f"--dim {size}=…", None) for size in opened)
        else:
            sizes = "x".join(str(size) if isinstance(size, int) else "…" for size in shape)
            options[f"--dim {tensor.name}={sizes}"] = None
    return " ".join(options)


def _shape(shape: tuple[int | str | None, ...] | None) -> str:
    if shape is None:
        return "any shape"
    return "×".join("?" if d is None else str(d) for d in shape) or "scalar"


def _operators(found: Inspection) -> RenderableType:
    columns = (Column("operator", 0, "name"), Column("count"), Column("GOPs"), Column("share"))
    if not found.operators:
        return "the graph has no operators"
    total = found.cost.gops or 1.0
    digits = max(4, 3 - math.floor(math.log10(total)))  # three of the whole model's at least
    rows = [
        (row.op_type, str(row.count), f"{row.gops:.{digits}f}", f"{100 * row.gops / total:.1f}%")
        for row in found.operators[:_ROWS]
    ]
    rest = found.operators[_ROWS:]
    if rest:
        gops = sum(row.gops for row in rest)
        count, share = sum(row.count for row in rest), f"{100 * gops / total:.1f}%"
        rows.append((f"{len(rest)} more kinds", str(count), f"{gops:.{digits}f}", share))
    return FittedTable(columns, rows)


def _inspect_shapes(
    model: Path, trace: Path, most: int, dims: Dimensions, progress: Progress
) -> Result:
    """Propose shape buckets for the requests of a trace."""
    from vermilion.buckets import propose_buckets

    found = propose_buckets(model, trace, most=most, dims=dims, progress=progress)
    return Result(found.as_json(), lambda: _buckets_view(found, model))


def _buckets_view(found: Proposal, model: Path) -> RenderableType:
    from rich.console import Group

    from vermilion.buckets import padding_of

    columns = [Column(name) for name in (*found.names, "requests")]
    columns += [Column("GOPs a run", 2), Column("of it padding", 1)]
    rows = [
        (
            *(str(bucket.sizes[name]) for name in found.names),
            str(bucket.requests),
            f"{bucket.gops:.4g}",
            f"{100 * bucket.padding:.1f}%",
        )
        for bucket in found.chosen
    ]
    curve = ", ".join(f"{len(o)}: {100 * padding_of(o):.1f}%" for o in found.options)
    rounded = ", ".join(f"{name} to multiples of {step}" for name, step in found.steps.items())
    lines: list[RenderableType] = [
        f"{found.requests} requests of {found.distinct} different sizes"
        + (f", rounded up: {rounded}" if rounded else ""),
        "",
        FittedTable(columns, rows),
        "",
        f"work that is padding, by number of buckets: {curve}",
        "",
        "compile them:",
    ]
    for bucket in found.chosen:
        dims = " ".join(f"--dim {name}={bucket.sizes[name]}" for name in found.names)
        lines.append(f"  vermilion compile {model.name} {dims}")
    return Group(*lines)
