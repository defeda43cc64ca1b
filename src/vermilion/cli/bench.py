"""`vermilion bench`: latency, memory and accuracy beside the peers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.options import Dims, Inputs, load_inputs, parse_dims
from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb
from vermilion.errors import OptionError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.bench.measure import CaseResult, EngineResult, Plan
    from vermilion.bench.regress import Delta

Models = Annotated[
    list[Path], typer.Argument(metavar="MODEL…", help="ONNX files.", show_default=False)
]


@verb("bench")
def bench(
    terminal: Terminal,
    models: Models,
    *,
    precision: Annotated[
        str | None,
        typer.Option("--precision", help="fp32, bf16 or int8; what the model is made for if none."),
    ] = None,
    batch: Annotated[str | None, typer.Option("--batch", metavar="1,8", help="Batches.")] = None,
    sequence: Annotated[
        str | None, typer.Option("--sequence", metavar="64,128", help="Lengths of token inputs.")
    ] = None,
    threads: Annotated[
        str | None, typer.Option("--threads", metavar="1,2", help="Threads; all cores if none.")
    ] = None,
    dim: Dims = None,
    input: Inputs = None,
    against: Annotated[
        str,
        typer.Option("--against", help="Peers: ort, openvino, or at their own precision ort@fp32."),
    ] = "ort",
    pairs: Annotated[int, typer.Option("--pairs", min=1, help="Turns of each engine.")] = 30,
    compare: Annotated[
        Path | None,
        typer.Option("--compare", metavar="OLD.json", help="An earlier `bench --json`."),
    ] = None,
    max_regression: Annotated[
        str, typer.Option("--max-regression", help="With `--compare`: slower than this fails.")
    ] = "5%",
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds that an engine may take for one step.")
    ] = 600.0,
) -> Result:
    """Measure models beside ONNX Runtime and OpenVINO, at equal precision.

    Each engine is a process of its own; they take turns in short bursts while the others sleep.
    Outputs are compared first. Ratios are ours ÷ peer: below 1 is faster than the peer.
    """
    from vermilion.bench.engines import parse_precision
    from vermilion.bench.measure import Plan, bench_models
    from vermilion.bench.regress import compare_rows, parse_percent, read_rows
    from vermilion.bench.report import as_json, concerns

    limit = parse_percent(max_regression)
    old = read_rows(compare) if compare is not None else None
    plan = Plan(
        precision=parse_precision(precision) if precision is not None else None,
        batches=parse_sizes(batch, "--batch") or (None,),
        sequences=parse_sizes(sequence, "--sequence") or (None,),
        threads=parse_sizes(threads, "--threads"),
        against=tuple(word for word in against.split(",") if word),
        dims=parse_dims(dim),
        inputs=load_inputs(input),
        pairs=pairs,
        timeout_s=timeout,
    )
    found = list(bench_models(models, plan, progress=terminal.progress))
    for concern in concerns(found):
        terminal.warn(concern)
    data = as_json(found)
    deltas: list[Delta] = []
    if old is not None:
        rows = data["results"]
        assert isinstance(rows, list), "the report has a list of rows"
        deltas = compare_rows(rows, old, limit)
        data["compared"] = [delta.as_json() for delta in deltas]
    slower = [delta for delta in deltas if delta.regressed]
    if slower:
        terminal.warn(f"{len(slower)} results are more than {limit:g} % slower than before")
    return Result(data, lambda: _view(found, deltas, plan), ok=not slower)


def parse_sizes(text: str | None, where: str) -> tuple[int, ...]:
    """Read `1,8`.

    Raises: OptionError where a size is no whole number above zero.
    """
    words = [word.strip() for word in text.split(",")] if text is not None else []
    if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
        raise OptionError(
            f"`{text}` is not a list of sizes", where=where, hint="write `1`, or `1,8`"
        )
    return tuple(dict.fromkeys(int(word) for word in words))


def _view(found: Sequence[CaseResult], deltas: Sequence[Delta], plan: Plan) -> RenderableType:
    from rich.console import Group

    views: list[RenderableType] = []
    for case in found:
        views += [_title(case), _table(case), ""]
    views.append(
        f"{plan.pairs} turns of each engine; ratios are ours ÷ peer, the median over pairs of "
        "turns and its quartiles"
    )
    if deltas:
        views += ["", "against the earlier bench", _deltas(deltas)]
    return Group(*views)


def _title(found: CaseResult) -> str:
    from vermilion.bench.peak import Peak

    case = found.case
    sizes = [f"batch {case.batch}"] if case.batch is not None else []
    sizes += [f"sequence {case.sequence}"] if case.sequence is not None else []
    sizes.append(f"{case.threads} thread{'s' if case.threads > 1 else ''}")
    cost = f", {case.gops:.2f} GOPs" if case.gops is not None else ""
    title = f"{case.label}, {case.precision}, {', '.join(sizes)}{cost}"
    if isinstance(found.peak, Peak):
        title += f"; measured peak {found.peak.gops_per_s:.0f} GOP/s ({found.peak.instruction})"
    return title


def _table(found: CaseResult) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("engine")
    for column in (
        "p50 ms",
        "p90",
        "p99",
        "min",
        "ours ÷ peer",
        "of peak",
        "peak MB",
        "load s",
        "compile s",
        "cosine",
    ):
        table.add_column(column, justify="right")
    for engine in found.engines:
        table.add_row(*_cells(found, engine))
    return table


def _cells(found: CaseResult, engine: EngineResult) -> list[str]:
    from vermilion.bench.peak import Peak

    label, times = engine.engine.label, engine.latency
    if times is None:
        return [label, "not measured"]
    ratio = found.ratios.get(label)
    spread = f"{ratio.median:.3f} ({ratio.q1:.2f} to {ratio.q3:.2f})" if ratio is not None else ""
    share = ""
    same_precision = engine.engine.precision == found.case.precision
    if found.case.gops is not None and isinstance(found.peak, Peak) and same_precision:
        share = f"{found.case.gops / times.p50 * 1e3 / found.peak.gops_per_s:.0%}"
    return [
        f"{label} {engine.version}",
        *(f"{ms:.3f}" for ms in (times.p50, times.p90, times.p99, times.min)),
        spread,
        share,
        "" if engine.peak_rss_mb is None else f"{engine.peak_rss_mb:.0f}",
        "" if engine.load_s is None else f"{engine.load_s:.3f}",
        "" if engine.compile_s is None else f"{engine.compile_s:.2f}",
        f"{min(output.cosine for output in engine.outputs):.6f}",
    ]


def _deltas(deltas: Sequence[Delta]) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("model", "engine", "batch", "threads"):
        table.add_column(column)
    for column in ("before ms", "now ms", "change", "judged by", ""):
        table.add_column(column, justify="right")
    for delta in deltas:
        key = delta.key
        table.add_row(
            str(key["model"]),
            f"{key['engine']}@{key['precision']}",
            str(key["batch"]),
            str(key["threads"]),
            "" if delta.old_ms is None else f"{delta.old_ms:.3f}",
            "" if delta.new_ms is None else f"{delta.new_ms:.3f}",
            "" if delta.change_percent is None else f"{delta.change_percent:+.1f} %",
            delta.judged_by,
            _verdict(delta),
        )
    return table


def _verdict(delta: Delta) -> str:
    if delta.state != "matched":
        return delta.state
    if delta.regressed:
        return "slower"
    return "" if delta.significant else "within the noise"
