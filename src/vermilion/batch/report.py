"""A finished batch job as a page: what every worker did when, rates, inputs that failed."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from html import escape

from vermilion.batch.batch import Result
from vermilion.batch.schedule import DeviceRecord, Span
from vermilion.hardware.cpu import detect_cpu
from vermilion.pages.charts import Bar, Series, Stretch, bar_chart, lanes_chart
from vermilion.pages.document import badge, report_page, table

_MOST_FAILED = 500
_NUMBERS = 2  # columns of words in the table of workers


def batch_report(done: Result, model: str) -> str:
    """Return the page."""
    cpu, now = detect_cpu(), datetime.now(UTC)
    before = f", {done.resumed:,} of them in an earlier run" if done.resumed else ""
    lead = (
        f"{done.total:,} inputs in batches of {done.batch}{before}: {done.seconds:.2f} s, "
        f"{done.rate:,.1f} inputs a second. {done.placement}{'. ' if done.placement else ''}"
        f"{cpu.brand}, {cpu.physical_cores or cpu.logical_cores} cores, {platform.platform()}, "
        f"{now:%Y-%m-%d}."
    )
    told = [f"{len(done.failed)} of {done.total} inputs have no outputs"] if done.failed else []
    told += [f"{r.device.name} was left out: {r.left_out}" for r in done.devices if r.left_out]
    warnings = "".join(f"<li>{escape(words)}</li>" for words in told)
    parts = [f'<ul class="told">{warnings}</ul>' if warnings else ""]
    if done.devices:
        parts += [_plots(done), _workers(done)]
    return report_page(f"{model}: {done.total:,} inputs", lead, [*parts, _failures(done)])


def _plots(done: Result) -> str:
    lanes = [(one.device.name, [_stretch(span) for span in one.spans]) for one in done.devices]
    timeline = lanes_chart(
        "What each worker did",
        unit="seconds from the beginning of the job",
        lanes=lanes,
        note="a block is a range of inputs, from when it was begun to when its outputs were kept; "
        "gaps: the worker started, or waited; red: it failed or ended there",
    )
    parts = bar_chart(
        "Where the time went",
        axis="worker",
        unit="seconds",
        places=[one.device.name for one in done.devices],
        series=[
            Series("reading inputs", tuple(Bar(one.read_s) for one in done.devices)),
            Series("running the model", tuple(Bar(one.run_s) for one in done.devices)),
        ],
        note="sums over the worker's ranges; both overlap where inputs are read ahead",
    )
    rates = bar_chart(
        "Inputs a second",
        axis="worker",
        unit="inputs a second of the whole job",
        places=[one.device.name for one in done.devices],
        series=[Series("inputs", tuple(Bar(_rate(one, done)) for one in done.devices))],
    )
    return (
        f"<h2>Workers {badge('measured')}</h2>{timeline}"
        f'<h3>One beside the other</h3><div class="plots">{parts}{rates}</div>'
    )


def _rate(record: DeviceRecord, done: Result) -> float:
    return record.inputs / done.seconds if done.seconds else 0.0


def _stretch(span: Span) -> Stretch:
    took = f"{span.begin_s:.2f} to {span.end_s:.2f} s"
    if span.lost:
        words = f"{span.inputs} inputs, {took}: nothing was kept, and others computed them"
        return Stretch(span.begin_s, span.end_s, words, True)
    failed = f", {span.failed} of them could not be read" if span.failed else ""
    return Stretch(span.begin_s, span.end_s, f"{span.inputs} inputs{failed}, {took}")


def _workers(done: Result) -> str:
    head = ("worker", "runs on", "threads", "inputs", "reading s", "running s", "busy", "peak MB",
            "restarts")  # fmt: skip
    rows = []
    for one in done.devices:
        busy_s = sum(span.end_s - span.begin_s for span in one.spans)
        rows.append(
            (
                one.device.name, one.runs_on, str(one.device.threads), f"{one.inputs:,}",
                f"{one.read_s:.2f}", f"{one.run_s:.2f}",
                f"{busy_s / done.seconds:.0%}" if done.seconds else "",
                f"{one.peak_rss_mb:.0f}", str(one.restarts),
            )
        )  # fmt: skip
    return table(head, rows, names=_NUMBERS, label="workers")


def _failures(done: Result) -> str:
    if not done.failed:
        return ""
    rows = [(one.name, one.reason) for one in done.failed[:_MOST_FAILED]]
    more = len(done.failed) - len(rows)
    note = f'<p class="note">{more} more are in the list beside the output</p>' if more else ""
    listed = table(("input", "why"), rows, names=2, label="inputs without outputs")
    return f"<h2>Inputs without outputs</h2>{listed}{note}"
