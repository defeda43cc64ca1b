"""`vermilion plan`: what a model would take where, with intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.fitted import Column, FittedTable
from vermilion.cli.options import Dims, Model, parse_dims, whole_numbers
from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb
from vermilion.errors import OptionError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.planning import Choice, DevicePlan, Span


@verb("plan", limits_threads=True)
def plan(
    terminal: Terminal,
    model: Model,
    *,
    target: Annotated[
        str,
        typer.Option(
            "--target",
            "-t",
            metavar="TARGET,…",
            help="Targets to compare; by default the CPU and each NPU.",
        ),
    ] = "",
    batch: Annotated[
        str, typer.Option("--batch", help="Batch sizes, where the file leaves them open: 1,8.")
    ] = "1",
    dim: Dims = None,
) -> Result:
    """Compare devices, number formats, batches and splits for a model, each with its interval.

    This machine's CPU is measured, NPUs are modelled; what is not known is said with its reason.
    """
    from vermilion.planning import plan_devices

    with terminal.measuring(str(model)):
        found = plan_devices(
            model,
            label=str(model),
            targets=tuple(filter(None, target.split(","))),
            batches=_batches(batch),
            dims=parse_dims(dim),
            progress=terminal.progress,
        )
    return Result(found.as_json(), lambda: _view(found))


def _batches(text: str) -> tuple[int, ...]:
    numbers = whole_numbers(text)
    if numbers is None or max(numbers) >= 1 << 20:
        raise OptionError(f"`{text}` are no batch sizes", where="--batch", hint="write `1,8`")
    return tuple(dict.fromkeys(numbers))


_COLUMNS = (
    Column("device", 0, "name"), Column("data type", 2, "name"), Column("batch", 1),
    Column("ms", 0), Column("results/s", 3), Column("on it", 5), Column("is", 4, "name"),
    Column("split", 6, "words"),
)  # fmt: skip


def _view(found: DevicePlan) -> RenderableType:
    from rich.console import Group

    known = [choice for choice in found.choices if choice.latency is not None]
    unknown = dict.fromkeys(
        f"{choice.device}{f' ({choice.numbers})' if choice.numbers else ''}: not known:"
        f" {choice.reason}"
        for choice in found.choices
        if choice.latency is None
    )
    table: list[RenderableType] = [
        "each with the interval in which it lies: of the runs measured here, or of the NPU's model",
        "",
        FittedTable(_COLUMNS, [_row(choice) for choice in known]),
        "",
    ]
    return Group(
        *(table if known else []),
        *([*unknown, ""] if unknown else []),
        f"least latency: {found.fastest}",
        f"most results a second: {found.busiest}",
    )


def _row(choice: Choice) -> list[str]:
    return [
        choice.device,
        choice.numbers,
        "" if choice.batch is None else str(choice.batch),
        _words(choice.latency, ".2f"),
        _words(choice.throughput, ".1f"),
        f"{100 * choice.offloaded:.0f}%",
        choice.how,
        choice.split,
    ]


def _words(span: Span | None, form: str) -> str:
    if span is None:
        return ""
    return f"{span.middle:{form}}, {span.low:{form}} to {span.high:{form}}"
