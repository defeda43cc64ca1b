"""What `compare` found as a page: times with their spread, outputs, layers in order."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from vermilion.bench.machine import this_machine
from vermilion.compare import DIVERGED_DB, Comparison
from vermilion.ir.measure import EXACT_DB, Agreement
from vermilion.pages.charts import Bar, Column, Series, bar_chart, column_chart
from vermilion.pages.document import badge, report_page, table

_WORST_LAYERS = 20
# Above it a layer agrees; one that is equal would make all others small.
_MOST_SHOWN_DB = 120.0


def compare_report(found: Comparison) -> str:
    """Return the page."""
    machine, now = this_machine(), datetime.now(UTC)
    lead = (
        f"{found.against}. {machine.cpu}, {machine.cores} cores, {machine.system}, {now:%Y-%m-%d}."
    )
    title = f"A: {found.reference.label}, B: {found.other.label}"
    return report_page(title, lead, [_times(found), _outputs(found), _layers(found)])


def _times(found: Comparison) -> str:
    sides = (found.reference, found.other)
    runs = found.latencies[0].runs
    rows = [
        (
            f"{letter}: {side.label}",
            side.runs_on + (", modelled numbers" if side.modelled else ""),
            side.placement,
            *(f"{x:.3f}" if runs else "" for x in (time.median_ms, time.min_ms, time.max_ms)),
        )
        for letter, side, time in zip("AB", sides, found.latencies, strict=True)
    ]
    head = ("side", "runs on", "placement", "median ms", "min", "max")
    drawn = ""
    if runs:
        bars = [
            Series(f"{letter}: {side.label}", (Bar(time.median_ms, time.min_ms, time.max_ms),))
            for letter, side, time in zip("AB", sides, found.latencies, strict=True)
        ]
        drawn = bar_chart(
            "Latency",
            axis="both took turns",
            unit="milliseconds a run",
            places=[f"{runs} runs"],
            series=bars,
            note="medians; lines from the least to the most",
        )
    return f"<h2>Side by side {badge('measured')}</h2>{table(head, rows, names=3)}{drawn}"


def _outputs(found: Comparison) -> str:
    head = ("output", "SQNR dB", "cosine", "largest error")
    return f"<h2>Outputs {badge('measured')}</h2>" + table(head, _rows(found.outputs), names=1)


def _rows(agreements: Sequence[Agreement]) -> list[tuple[str, ...]]:
    """Return a row of words for each tensor."""
    return [
        (
            one.name,
            "equal" if one.sqnr_db >= EXACT_DB else f"{one.sqnr_db:.1f}",
            f"{one.cosine:.8f}",
            f"{one.max_abs_error:.3g}",
        )
        for one in agreements
    ]


def _layers(found: Comparison) -> str:
    if not found.layers:
        return ""
    values = [layer.agreement.sqnr_db for layer in found.layers]
    columns = [
        Column(
            f"{layer.agreement.name} ({layer.op_type}): {layer.agreement.sqnr_db:.1f} dB",
            layer.agreement.sqnr_db,
            layer.agreement.sqnr_db < DIVERGED_DB,
        )
        for layer in found.layers
    ]
    first = found.first_divergence
    words = (
        f"no layer is below {DIVERGED_DB:g} dB"
        if first is None
        else f"the first below {DIVERGED_DB:g} dB: {first.agreement.name} ({first.op_type})"
    )
    drawn = column_chart(
        "Distance from A",
        axis="layer, in the order of computing",
        unit="SQNR, dB",
        columns=columns,
        high=max(40.0, *(min(value, _MOST_SHOWN_DB) for value in values)),
        note=f"{words}; point at a column for its name",
    )
    worst = sorted(found.layers, key=lambda layer: layer.agreement.sqnr_db)[:_WORST_LAYERS]
    head = ("layer", "SQNR dB", "cosine", "largest error")
    furthest = table(head, _rows([layer.agreement for layer in worst]), names=1)
    return f"<h2>Layers {badge('measured')}</h2>{drawn}<h2>The furthest apart</h2>{furthest}"
