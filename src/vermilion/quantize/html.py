"""A page that shows what quantizing did: one file, no scripts, nothing fetched from elsewhere."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

from vermilion.hardware.cpu import detect_cpu
from vermilion.pages.charts import Column, column_chart, histogram
from vermilion.pages.document import badge, report_page, table
from vermilion.quantize.guard import Guarded
from vermilion.quantize.report import LayerError
from vermilion.quantize.result import Quantized, TensorDetail

_GOOD_DB = 20.0
# Above it a layer is as good as float, and one exact layer would make all others small.
_MOST_SHOWN_DB = 100.0


def html_report(quantized: Quantized, title: str, guarded: Guarded | None = None) -> str:
    """Return the page."""
    options = json.dumps(quantized.options.as_json(), indent=2)
    parts = [
        _outputs(quantized),
        _crowded(quantized),
        _ladder(guarded) if guarded is not None else "",
        _layers(quantized.layers),
        _tensors("Activations", "activation", quantized.details),
        _tensors("Weights", "weight", quantized.details),
        f'<h2>Recipe</h2><pre tabindex="0"><code>{escape(options)}</code></pre>',
    ]
    lead = (
        f"{quantized.scheme}, {quantized.samples} samples, {quantized.eight_bit_share:.1%} of the "
        f"operations on 8 bits. {detect_cpu().brand}, {platform.platform()}, "
        f"{datetime.now(UTC):%Y-%m-%d}."
    )
    return report_page(title, lead, parts)


def _outputs(quantized: Quantized) -> str:
    rows = [
        (row.name, f"{row.sqnr_db:.1f}", f"{row.cosine:.6f}", f"{row.max_abs_error:.3g}")
        for row in quantized.outputs
    ]
    where = (
        f"{quantized.held_out} samples held out" if quantized.held_out else "calibration samples"
    )
    return f"<h2>Outputs, on {where} {badge('measured')}</h2>" + table(
        ("output", "SQNR dB", "cosine", "largest error"), rows, names=1
    )


def _crowded(quantized: Quantized) -> str:
    rows = [(row.tensor, str(row.steps), row.node) for row in quantized.crowded]
    if not rows:
        return ""
    head = ("tensor", "steps", "joined with larger ones by")
    return "<h2>Tensors that keep few of their steps</h2>" + table(head, rows, names=1)


def _ladder(guarded: Guarded) -> str:
    rows = [
        (
            trial.what,
            f"{trial.sqnr_db:.1f}",
            trial.fault or f"{trial.drop:.2%}",
            "" if trial.fault else f"{trial.bound:.2%}",
            f"{trial.eight_bit_share:.1%}",
            f"{trial.seconds:.1f}",
        )
        for trial in guarded.ladder
    ]
    met = {number for number, trial in enumerate(guarded.ladder) if trial.met}
    kept = "kept" if guarded.met else "not kept; the best of these was taken"
    damage = [
        (", ".join(row.names), row.kind, f"{row.noise:.2e}", f"{row.operations:,}")
        for row in guarded.damage[:20]
    ]
    shown = (
        "<h2>Where the damage is done</h2>"
        + table(("tensor or node", "kind", "noise ÷ signal", "operations"), damage, names=1)
        if damage
        else ""
    )
    head = ("what was tried", "SQNR dB", "drop", "at most (95 %)", "on 8 bits", "s")
    return f"<h2>The promise was {kept}</h2>{table(head, rows, names=1, met=met)}{shown}"


def _layers(layers: Sequence[LayerError]) -> str:
    """Draw the SQNR of every layer, in graph order."""
    if not layers:
        return ""
    shown = [layer.sqnr_db for layer in layers if layer.sqnr_db < _MOST_SHOWN_DB]
    columns = [
        Column(
            f"{layer.name} ({layer.op_type}): {layer.sqnr_db:.1f} dB",
            layer.sqnr_db,
            layer.sqnr_db < _GOOD_DB,
        )
        for layer in layers
    ]
    return f"<h2>Layers {badge('measured')}</h2>" + column_chart(
        "Distance from the float model",
        axis="layer, in the order of computing",
        unit="SQNR, dB",
        columns=columns,
        high=max(40.0, *shown, 0.0),
        note=f"below {_GOOD_DB:g} dB in red; point at a column for its name",
    )


def _tensors(heading: str, kind: str, details: Sequence[TensorDetail]) -> str:
    shown = [_tensor(detail) for detail in details if detail.kind == kind]
    if not shown:
        return ""
    return f'<h2>{heading} {badge("measured")}</h2><div class="small">{"".join(shown)}</div>'


def _tensor(detail: TensorDetail) -> str:
    """Draw a histogram and the ends of the range that the integers cover."""
    words = f"{detail.name}: {detail.number}, {detail.low:.3g} to {detail.high:.3g}"
    drawn = ""
    if detail.counts and detail.last > detail.first:
        ends = (detail.low, detail.high)
        drawn = histogram(detail.counts, detail.first, detail.last, ends, detail.name)
    return f'<figure>{drawn}<div class="note name">{escape(words)}</div></figure>'
