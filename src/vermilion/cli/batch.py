"""`vermilion batch`: many inputs through one model, on every device, resumable."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from vermilion.cli.fitted import Column, FittedTable, Verbatim
from vermilion.cli.options import (
    CacheDir,
    Dims,
    Mean,
    ResizeTo,
    Std,
    Threads,
    parse_dims,
    parse_shape,
)
from vermilion.cli.output import Result, console_on
from vermilion.cli.values import PRECISIONS
from vermilion.cli.verb import Terminal, verb
from vermilion.errors import OptionError
from vermilion.files import write_file

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from vermilion.batch.schedule import Status
if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.batch.batch import Engine
    from vermilion.batch.batch import Result as BatchResult
    from vermilion.ir.pictures import PictureOptions


# Where nobody watches, a log gets a line this often.
_LINE_EVERY_S = 10.0


class Shown(Protocol):
    """Told of the steps before the work, and then of the work."""

    def step(self, stage: str, done: int, total: int) -> None:
        """Note a step of compiling."""

    def watch(self, status: Status) -> None:
        """Note how far the work is."""


@contextmanager
def rates() -> Iterator[Shown]:
    """Show progress until the block ends: bars on a terminal, else lines."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[words]}"),
    )
    with Bars(*columns, console=console_on(sys.stderr), transient=True) as bars:
        yield _Bars(bars)


def words(status: Status) -> str:
    """Return rate, time left and failures: `41.2/s, 0:17 left, 1 failed`."""
    parts = [f"{status.rate:,.1f}/s"]
    if status.left_s is not None:
        minutes, seconds = divmod(round(status.left_s), 60)
        hours, minutes = divmod(minutes, 60)
        clock = f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
        parts.append(f"{clock} left")
    if status.failed:
        parts.append(f"{status.failed} failed")
    return ", ".join(parts)


class _Bars:
    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def step(self, stage: str, done: int, total: int) -> None:
        self._move(stage, done, total or None, "")

    def watch(self, status: Status) -> None:
        self._move("inputs", status.done, status.total, words(status))

    def _move(self, stage: str, done: int, total: int | None, text: str) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=total, words=text)
        self._bars.update(self._tasks[stage], completed=done, total=total, words=text)


class _Lines:
    def __init__(self) -> None:
        self._next: float | None = None

    def step(self, stage: str, done: int, total: int) -> None:
        """Nothing: compiling takes seconds."""

    def watch(self, status: Status) -> None:
        now = time.monotonic()
        is_due = self._next is not None and now >= self._next
        if self._next is None or is_due:
            self._next = now + _LINE_EVERY_S
        if not is_due:
            return
        # A short job prints nothing, and never loads what prints.
        console_on(sys.stderr).print(
            f"{status.done:,} of {status.total:,} inputs, {words(status)}", soft_wrap=True
        )


_FAILED_SHOWN = 10


@verb("batch")
def batch(
    terminal: Terminal,
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL[@PLACE]|FOLDER|NAME.rai",
            help="An ONNX file, which is compiled first: for this CPU, or for a target "
            "(`m.onnx@strix`); `m.onnx@onnxruntime` is run as it is. Or a compiled model.",
            show_default=False,
        ),
    ],
    *,
    input: Annotated[
        Path,
        typer.Option(
            "--input",
            metavar="DIR|FILE",
            help="Images, .npy, .npz or .parquet files, or one such file with an input a row.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="NAME.npz|NAME.parquet|DIR",
            help="The outputs in the inputs' order; in a folder, a file for each input.",
            show_default=False,
        ),
    ],
    devices: Annotated[
        str,
        typer.Option("--devices", metavar="all|cpu:0,cpu:1|gpu:0", help="All, or those named."),
    ] = "all",
    batch: Annotated[
        int | None,
        typer.Option("--batch", help="Inputs in a run; the model's own, or 8 where it is open."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a job for this output was ended.")
    ] = False,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            metavar="TARGET",
            help="What an ONNX file is compiled for; cpu if none.",
        ),
    ] = None,
    precision: Annotated[
        str,
        typer.Option("--precision", metavar=PRECISIONS, help="As `vermilion compile` takes it."),
    ] = "auto",
    ort: Annotated[
        bool, typer.Option("--ort", help="Run the ONNX file in ONNX Runtime as it is.")
    ] = False,
    dim: Dims = None,
    mean: Mean = None,
    std: Std = None,
    layout: Annotated[
        str, typer.Option("--layout", metavar="nchw|nhwc", help="Order of axes.")
    ] = "nchw",
    resize: ResizeTo = None,
    engine: Annotated[
        str,
        typer.Option(
            "--engine", metavar="local|ray", help="This machine, or those of a Ray cluster."
        ),
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="HOST:PORT",
            help="A Ray cluster; without it, RAY_ADDRESS, or one that is started here.",
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", help="Seconds that a worker may take for one range."
        ),
    ] = 600.0,
    threads: Threads = 0,
    cache_dir: CacheDir = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE.html", help="Write a page with plots.")
    ] = None,
) -> Result:
    """Compute a model's outputs for many inputs, with a process for each device.

    A kill loses nothing: `--resume` goes on. Inputs that cannot be computed are reported and the
    rest is done; the exit code is 1 then.
    """
    from vermilion.batch.local_worker import standing_by

    file, place, as_it_is = _placed(model, target, ort)
    local = _engine(engine) == "local"
    with standing_by(devices, threads) if local else nullcontext() as standby:
        # Loaded while the processes start.
        from vermilion.batch.batch import run_batch
        from vermilion.batch.plan import Request

        request = Request(
            model=file,
            input=input,
            output=output,
            target=place,
            precision=precision,
            as_it_is=as_it_is,
            dims=parse_dims(dim),
            batch=batch,
            pictures=_pictures(mean, std, layout, resize),
            cache_dir=cache_dir,
        )
        with rates() as shown:
            done = run_batch(
                request,
                devices=devices,
                engine=_engine(engine),
                address=address,
                resume=resume,
                limit_s=timeout,
                threads=threads,
                progress=shown.step,
                watch=shown.watch,
                standby=standby,
            )
    _warn(terminal, done)
    data: dict[str, object] = {
        "model": model,
        "output": done.output if len(done.failed) < done.total else None,
        "inputs": done.total,
        "failed": [one.as_json() for one in done.failed],
        "resumed": done.resumed,
        "batch": done.batch,
        "seconds": done.seconds,
        "inputs_per_s": done.rate,
        "placement": done.placement,
        "devices": [record.as_json() for record in done.devices],
    }
    if report is not None:
        from vermilion.batch.report import batch_report

        write_file(report, batch_report(done, str(model)))
        data["report"] = report
    return Result(data, lambda: _view(done, report), ok=not done.failed)


def _placed(model: Path, target: str | None, ort: bool) -> tuple[Path, str, bool]:
    """Return the file, its target, and whether ONNX Runtime runs it as it is.

    Raises: OptionError where the name and the options say it twice.
    """
    from vermilion.runtime.placement_line import ONNX_RUNTIME, named_place

    file, place = named_place(str(model))
    if place and (target is not None or ort):
        raise OptionError(
            f"`{place}` stands behind the model's name, and an option says where it runs, too",
            where=str(model),
            hint="leave out `--target` and `--ort`",
        )
    as_it_is = ort or place in ONNX_RUNTIME
    return file, "cpu" if as_it_is else place or target or "cpu", as_it_is


def _warn(terminal: Terminal, done: BatchResult) -> None:
    from vermilion.runtime.placement_line import told

    notes = tuple(dict.fromkeys(note for record in done.devices for note in record.notes))
    for note in told(notes, done.placement):
        terminal.warn(note)
    for record in done.devices:
        if record.left_out:
            terminal.warn(f"{record.device.name} was left out: {record.left_out}")
        if "modelled" in record.runs_on:
            terminal.warn(f"{record.device.name} is modelled: {record.runs_on}")
    if done.failed:
        terminal.warn(f"{len(done.failed)} of {done.total} inputs have no outputs")


def _pictures(mean: str | None, std: str | None, layout: str, resize: str | None) -> PictureOptions:
    from vermilion.ir.pictures import PictureOptions

    size = parse_shape(resize, where="--resize") if resize is not None else None
    if size is not None and len(size) != 2:
        raise OptionError(f"`{resize}` is not HEIGHTxWIDTH", where="--resize")
    if layout not in ("nchw", "nhwc"):
        raise OptionError(f"unknown layout `{layout}`", hint="known layouts: `nchw`, `nhwc`")
    return PictureOptions(
        _numbers(mean, "--mean", (0.0,)),
        _numbers(std, "--std", (1.0,)),
        "nchw" if layout == "nchw" else "nhwc",
        (size[0], size[1]) if size is not None else None,
    )


def _numbers(text: str | None, where: str, default: tuple[float, ...]) -> tuple[float, ...]:
    if text is None:
        return default
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError as error:
        raise OptionError(
            f"`{text}` is not a list of numbers", where=where, hint="write `0.485,0.456,0.406`"
        ) from error


def _engine(word: str) -> Engine:
    if word == "local":
        return "local"
    if word == "ray":
        return "ray"
    raise OptionError(f"no engine is called `{word}`", where="--engine", hint="local or ray")


def _view(done: BatchResult, report: Path | None = None) -> RenderableType:
    from rich.console import Group

    columns = (
        Column("device", 0, "name"), Column("runs on", 3, "words"), Column("inputs", 0),
        Column("reading s", 2), Column("running s", 1), Column("peak MB", 4), Column("restarts", 5),
    )  # fmt: skip
    rows = [
        (
            record.device.name,
            record.runs_on,
            f"{record.inputs:,}",
            f"{record.read_s:.2f}",
            f"{record.run_s:.2f}",
            f"{record.peak_rss_mb:.0f}",
            str(record.restarts),
        )
        for record in done.devices
    ]
    before = f", {done.resumed:,} of them before" if done.resumed else ""
    words = (
        f"{done.total:,} inputs in batches of {done.batch}{before}: "
        f"{done.seconds:.2f} s, {done.rate:,.1f} a second"
    )
    placement = [done.placement] if done.placement else []
    views: list[RenderableType] = [words, FittedTable(columns, rows), *placement]
    if len(done.failed) < done.total:
        views.append(Verbatim(f"written to {done.output}"))
    if report is not None:
        views.append(Verbatim(f"report: {report}"))
    shown = done.failed[:_FAILED_SHOWN]
    views += [f"failed: {one.name}: {one.reason}" for one in shown]
    if len(done.failed) > len(shown):
        views.append(f"failed: {len(done.failed) - len(shown)} more; all are in the list beside")
    return Group(*views)
