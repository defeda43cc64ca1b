"""`vermilion hello`: the tour of the whole path."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.fitted import Column, FittedTable, Verbatim
from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.hello import HelloReport


@verb("hello", limits_threads=True)
def hello(
    terminal: Terminal,
    *,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="Where to put the files; a folder in the cache by default."),
    ] = None,
) -> Result:
    """Take a small network along the whole path, and say what each step did.

    Export, quantize, compile, cache, run, compare: the first command to try.
    """
    from vermilion.hello import hello as take_tour
    from vermilion.store.cache_dir import default_root

    report = take_tour(folder or default_root() / "hello", progress=terminal.progress)
    return Result(report.as_json(), lambda: _view(report))


def _view(report: HelloReport) -> RenderableType:
    from rich.console import Group

    first, cached = report.first, report.cached
    summary = first.report.summary
    faster = first.seconds / max(cached.seconds, 1e-9)
    return Group(
        "[1] This machine",
        *_machine_lines(report),
        "",
        "[2] A network of four 3×3 convolutions (3→32→64→128→256) with ReLU, and a final add",
        f"    from:      {report.exported_from}",
        Verbatim(f"    float:     {report.float_file}"),
        "",
        "[3] Quantized to XINT8: 8-bit integers, scales that are powers of two",
        Verbatim(f"    {report.quantized.output}"),
        f"    calibrated on random data, for this tour only; {report.quantized.seconds:.1f} s",
        "",
        f"[4] Compiled for {report.device}",
        f"    {summary.offloaded_operators} of {summary.operators} operators and "
        f"{100 * summary.offloaded_gops / summary.gops:.1f}% of {summary.gops:.4g} GOPs offloaded",
        f"    first time {first.seconds:.2f} s, from the cache {cached.seconds:.3f} s "
        f"({faster:.0f} × as fast)",
        f"    {first.availability.reason}",
        "",
        "[5] Results",
        _table(report),
        "",
        "[6] Look at",
        Verbatim(f"    summary    {first.summary_path}"),
        Verbatim(f"    one file   {first.artifact}"),
        Verbatim(f"    next       vermilion inspect {report.float_file} --target {report.device}"),
    )


def _machine_lines(report: HelloReport) -> list[str]:
    machine = report.machine
    lines = [f"    CPU: {machine.cpu.brand} ({machine.cpu.core or 'x86-64'})"]
    lines += [f"    NPU: {npu.title}" for npu in machine.npus] or [
        f"    NPU: none found (looked at {', '.join(machine.looked_at) or 'nothing'}); "
        f"{report.device} is modelled"
    ]
    lines += [f"    GPU: {gpu.title}" for gpu in machine.gpus] or ["    GPU: no AMD GPU found"]
    return lines


def _table(report: HelloReport) -> RenderableType:
    columns = (
        Column("    what", 0, "name"), Column("measured ms", 1), Column("modelled ms", 1),
        Column("SQNR dB against float", 2),
    )  # fmt: skip
    sqnr = f"{report.accuracy.sqnr_db:.1f}"
    cpu_sqnr = f"{report.cpu_accuracy.sqnr_db:.1f}"
    device_ms = "not known" if report.device_ms is None else f"{report.device_ms:.2f}"
    if report.device_interval_ms is not None:
        low, high = report.device_interval_ms
        device_ms += f", {low:.2f} to {high:.2f}"
    is_measured = report.device_is == "measured"
    rows = [
        ("    FP32 on the CPU", f"{report.cpu_ms:.1f}", "", "reference"),
        ("    XINT8 on the CPU", f"{report.cpu_int8_ms:.1f}", "", cpu_sqnr),
        (
            f"    XINT8 on {report.device}",
            device_ms if is_measured else "",
            "" if is_measured else device_ms,
            sqnr if is_measured else f"{sqnr} (on the CPU)",
        ),
    ]
    return FittedTable(columns, rows)
