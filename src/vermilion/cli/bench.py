"""`vermilion bench`: latency, memory and accuracy beside the peers; the suite; profiles."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.bench_views import bench_view, profile_view, table_view
from vermilion.cli.fitted import Verbatim
from vermilion.cli.options import Dims, Inputs, load_inputs, parse_dims, whole_numbers
from vermilion.cli.output import Failure, Result
from vermilion.cli.verb import Terminal, verb
from vermilion.errors import OptionError
from vermilion.files import write_file

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.bench.measure import Plan
    from vermilion.bench.regress import Delta
    from vermilion.bench.suite import SuiteResult

_SUITE, _PROFILE = "The suite", "Profiles"
_PAIRS = 30

Models = Annotated[
    list[Path] | None,
    typer.Argument(metavar="MODEL…", help="ONNX files; none with --suite.", show_default=False),
]


@verb("bench")
def bench(
    terminal: Terminal,
    models: Models = None,
    *,
    precision: Annotated[
        str | None,
        typer.Option(
            "--precision",
            metavar="fp32|bf16|int8",
            help="What to compute in; as the model says if none.",
        ),
    ] = None,
    batch: Annotated[str | None, typer.Option("--batch", metavar="1,8", help="Batches.")] = None,
    sequence: Annotated[
        str | None, typer.Option("--sequence", metavar="64,128", help="Lengths of token inputs.")
    ] = None,
    threads: Annotated[
        str | None,
        typer.Option(
            "--threads",
            metavar="1,2",
            help="Threads; as many cores as this process may keep busy if none.",
        ),
    ] = None,
    dim: Dims = None,
    input: Inputs = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="PEER,…",
            help="Other engines: ort, openvino, migraphx, rocm, directml; `ort@fp32` at "
            "its own precision. If none: ort; with --suite all that run here.",
            show_default=False,
        ),
    ] = None,
    pairs: Annotated[
        int | None, typer.Option("--pairs", min=1, help=f"Turns of each engine; {_PAIRS} if none.")
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option("--compare", metavar="OLD.json", help="An earlier `--json`, or suite.json."),
    ] = None,
    max_regression: Annotated[
        str,
        typer.Option(
            "--max-regression", metavar="5%", help="With `--compare`: slower than this fails."
        ),
    ] = "5%",
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", help="Seconds that an engine may take for one step."
        ),
    ] = 600.0,
    suite: Annotated[
        bool,
        typer.Option(
            "--suite",
            help="ResNet-50 and BERT-base over batches and lengths, as JSON, CSV, Markdown, HTML.",
            rich_help_panel=_SUITE,
        ),
    ] = False,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR", help="Its files.", rich_help_panel=_SUITE),
    ] = Path("bench-suite"),
    cases: Annotated[
        str | None,
        typer.Option(
            "--cases",
            metavar="resnet50,…",
            help="Networks, or cases such as bert_base-s128-b1; all if none.",
            rich_help_panel=_SUITE,
        ),
    ] = None,
    quoted: Annotated[
        bool,
        typer.Option(
            "--quoted",
            help="Show figures published by others beside the measured ones.",
            rich_help_panel=_SUITE,
        ),
    ] = False,
    html: Annotated[
        bool,
        typer.Option("--html/--no-html", help="The page with plots.", rich_help_panel=_SUITE),
    ] = True,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="Operator by operator: time, share, GOP/s; instead of taking turns.",
            rich_help_panel=_PROFILE,
        ),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE.json",
            help="Write one run of each engine for Perfetto or chrome://tracing.",
            rich_help_panel=_PROFILE,
        ),
    ] = None,
    top: Annotated[
        int,
        typer.Option("--top", min=1, help="Rows of a table.", rich_help_panel=_PROFILE),
    ] = 15,
) -> Result:
    """Measure models beside ONNX Runtime and OpenVINO, at equal precision.

    Each engine is a process of its own; they take turns in short bursts while the others sleep.
    Outputs are compared first. `1.29 × as fast`: the median over pairs of turns of the peer's time
    ÷ ours.
    """
    from vermilion.bench.engines import parse_precision
    from vermilion.bench.measure import Plan
    from vermilion.bench.regress import parse_percent

    limit = parse_percent(max_regression)
    plan = Plan(
        precision=parse_precision(precision) if precision is not None else None,
        batches=parse_sizes(batch, "--batch") or (None,),
        sequences=parse_sizes(sequence, "--sequence") or (None,),
        threads=parse_sizes(threads, "--threads"),
        against=_words(against if against is not None else "ort"),
        dims=parse_dims(dim),
        inputs=load_inputs(input),
        pairs=pairs or _PAIRS,
        timeout_s=timeout,
    )
    if trace is not None and not profile:
        raise OptionError("`--trace` writes a profile", hint="write `--profile` as well")
    if profile and (suite or compare is not None):
        raise OptionError(
            "`--profile` looks at one model at a time and compares nothing",
            hint="leave out --suite and --compare",
        )
    gate = _Gate(compare, limit)
    if suite:
        own = (models, batch, sequence, dim, input, pairs)
        if any(given is not None and given != [] for given in own):
            raise OptionError(
                "`--suite` brings its own models, sizes and number of turns",
                hint="leave out MODEL, --batch, --sequence, --dim, --input and --pairs",
            )
        if against is None:
            plan = _against_all(plan, terminal)
        return _suite(terminal, plan, gate, output, _words(cases or ""), quoted, html)
    if not models:
        raise OptionError("there is no model to measure", hint="name one, or write `--suite`")
    if profile:
        return _profile(terminal, models, plan, trace, top)
    return _bench(terminal, models, plan, gate)


class _Gate:
    """What `--compare` and `--max-regression` ask for. An unreadable file is told at once."""

    def __init__(self, earlier: Path | None, limit: float) -> None:
        from vermilion.bench.regress import read_rows

        self._limit = limit
        self._old = read_rows(earlier) if earlier is not None else None

    def check(self, rows: object) -> tuple[list[Delta], Failure | None]:
        """Compare; give every change, and which of ours are too slow, None where none is."""
        from vermilion.bench.regress import compare_rows

        if self._old is None:
            return [], None
        assert isinstance(rows, list), "the report has a list of rows"
        deltas = compare_rows(rows, self._old, self._limit)
        slower = [delta for delta in deltas if delta.regressed]
        if not slower:
            return deltas, None
        return deltas, Failure(
            f"{len(slower)} results are more than {self._limit:g} % slower than before",
            hint="the table says which; measure again where other programs ran meanwhile",
        )


def _bench(terminal: Terminal, models: list[Path], plan: Plan, gate: _Gate) -> Result:
    from vermilion.bench.measure import bench_models
    from vermilion.bench.report import as_json, concerns

    found = list(bench_models(models, plan, progress=terminal.progress))
    for concern in concerns(found):
        terminal.warn(concern)
    data = as_json(found)
    deltas, failure = gate.check(data["results"])
    if deltas:
        data["compared"] = [delta.as_json() for delta in deltas]
    return Result(
        data, lambda: bench_view(found, deltas, plan.pairs), ok=failure is None, failure=failure
    )


def _profile(
    terminal: Terminal, models: list[Path], plan: Plan, trace_file: Path | None, top: int
) -> Result:
    from vermilion.bench.profile import GPU_LINE, profile_models, trace

    found = list(profile_models(models, plan, progress=terminal.progress))
    for case in found:
        for engine, error in case.refused:
            hint = f" ({error.hint})" if error.hint else ""
            terminal.warn(f"{case.title}, {engine.label}: no profile: {error.message}{hint}")
        for label in case.unlike:
            terminal.warn(f"{case.title}, {label}: its outputs are not the right answers")
    if trace_file is not None:
        words = json.dumps(trace({case.title: case.profiles for case in found}))
        write_file(trace_file, words)
    data = {
        "profiles": [case.as_json() for case in found],
        "trace": trace_file,
        "on_a_gpu": GPU_LINE,
    }

    def view() -> RenderableType:
        from rich.console import Group

        written = [] if trace_file is None else [f"written: {trace_file}; open it in Perfetto"]
        hint = f"kernels of an AMD GPU are seen by: {GPU_LINE}"
        return Group(*(profile_view(case, top) for case in found), *written, hint)

    return Result(data, view)


def _against_all(plan: Plan, terminal: Terminal) -> Plan:
    from vermilion.bench.engines import engines_here

    names, reasons = engines_here()
    for reason in reasons:
        terminal.warn(f"not measured: {reason}")
    return replace(plan, against=names)


def _suite(
    terminal: Terminal,
    plan: Plan,
    gate: _Gate,
    folder: Path,
    words: tuple[str, ...],
    quoted: bool,
    html: bool,
) -> Result:
    from vermilion.bench.forms import write_forms
    from vermilion.bench.suite import chosen_cases, run_suite

    chosen = chosen_cases(words)
    found = run_suite(chosen, plan, folder, progress=terminal.progress)
    for concern in (*(f"failed: {words}" for words in found.failed), *found.concerns):
        terminal.warn(concern)
    deltas, failure = gate.check(found.data["results"])
    files = write_forms(found, folder, deltas=deltas, with_quoted=quoted, with_page=html)
    data = {
        **found.data,
        **({"compared": [delta.as_json() for delta in deltas]} if deltas else {}),
        "kept": found.kept,
        "failed": list(found.failed),
        "files": files,
    }
    return Result(
        data,
        lambda: _suite_view(found, deltas, files, quoted),
        ok=failure is None and not found.failed,
        failure=failure,
    )


def _suite_view(
    found: SuiteResult, deltas: list[Delta], files: list[Path], quoted: bool
) -> RenderableType:
    from rich.console import Group

    from vermilion.bench.tables import suite_tables

    tables = suite_tables(found.data, deltas, with_quoted=quoted)
    views = [table_view(table) for table in tables]
    if found.kept:
        views.append(f"{found.kept} cases are those that an earlier run measured in the same way")
    return Group(*views, *(Verbatim(f"written: {path}") for path in files))


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def parse_sizes(text: str | None, where: str) -> tuple[int, ...]:
    """Read `1,8`.

    Raises: OptionError where a size is no whole number above zero.
    """
    numbers = whole_numbers(text) if text is not None else ()
    if numbers is None:
        raise OptionError(
            f"`{text}` is not a list of sizes", where=where, hint="write `1`, or `1,8`"
        )
    return tuple(dict.fromkeys(numbers))
