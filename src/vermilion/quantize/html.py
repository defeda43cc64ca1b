"""A page that shows what quantizing did: one file, no scripts, nothing fetched from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from vermilion.quantize.guard import Guarded
from vermilion.quantize.report import LayerError
from vermilion.quantize.result import Quantized, TensorDetail

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem;
  color: #1d1d1f; background: #fff }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.5rem }
table { border-collapse: collapse } td, th { padding: .2rem .8rem .2rem 0; text-align: left }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
tr.met td { font-weight: 600 } svg { display: block; max-width: 100% } code { font-size: .9em }
.tensors { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: 1rem }
.tensors p { margin: 0; font-size: .8rem; overflow-wrap: anywhere }
@media (prefers-color-scheme: dark) { body { color: #eee; background: #1b1b1d } }
"""
_BAR, _LOW, _RANGE = "#c8102e", "#8a8a8e", "#0a7d5a"
_GOOD_DB = 20.0

_WIDTH, _HEIGHT = 1000, 220
_SMALL_WIDTH, _SMALL_HEIGHT = 256, 80


def html_report(quantized: Quantized, title: str, guarded: Guarded | None = None) -> str:
    """Return the page."""
    options = json.dumps(quantized.options.as_json(), indent=2)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(quantized.scheme)}, {quantized.samples} samples, "
        f"{quantized.eight_bit_share:.1%} of the operations on 8 bits</p>",
        _outputs(quantized),
        _crowded(quantized),
        _ladder(guarded) if guarded is not None else "",
        _layers(quantized.layers),
        _tensors("Activations", "activation", quantized.details),
        _tensors("Weights", "weight", quantized.details),
        f"<h2>Recipe</h2><pre><code>{escape(options)}</code></pre>",
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"{''.join(parts)}</body></html>\n"
    )


def _table(head: Sequence[str], rows: Sequence[tuple[bool, Sequence[str]]]) -> str:
    """Return a table; all columns but the first hold numbers. A marked row stands out."""
    kinds = ["", *['class="n"'] * (len(head) - 1)]
    top = "".join(f"<th {kind}>{escape(word)}</th>" for kind, word in zip(kinds, head, strict=True))
    body = ""
    for marked, cells in rows:
        cell = "".join(f"<td {k}>{escape(word)}</td>" for k, word in zip(kinds, cells, strict=True))
        body += f"<tr{' class=met' if marked else ''}>{cell}</tr>"
    return f"<table><tr>{top}</tr>{body}</table>"


def _outputs(quantized: Quantized) -> str:
    rows = [
        (False, (row.name, f"{row.sqnr_db:.1f}", f"{row.cosine:.6f}", f"{row.max_abs_error:.3g}"))
        for row in quantized.outputs
    ]
    where = (
        f"{quantized.held_out} samples held out" if quantized.held_out else "calibration samples"
    )
    return f"<h2>Outputs, on {where}</h2>" + _table(
        ("output", "SQNR dB", "cosine", "largest error"), rows
    )


def _crowded(quantized: Quantized) -> str:
    rows = [(False, (row.tensor, str(row.steps), row.node)) for row in quantized.crowded]
    if not rows:
        return ""
    head = ("tensor", "steps", "joined with larger ones by")
    return "<h2>Tensors that keep few of their steps</h2>" + _table(head, rows)


def _ladder(guarded: Guarded) -> str:
    rows = [
        (
            trial.met,
            (
                trial.what,
                f"{trial.sqnr_db:.1f}",
                trial.fault or f"{trial.drop:.2%}",
                "" if trial.fault else f"{trial.bound:.2%}",
                f"{trial.eight_bit_share:.1%}",
                f"{trial.seconds:.1f}",
            ),
        )
        for trial in guarded.ladder
    ]
    kept = "kept" if guarded.met else "not kept; the best of these was taken"
    damage = [
        (False, (", ".join(row.names), row.kind, f"{row.noise:.2e}", f"{row.operations:,}"))
        for row in guarded.damage[:20]
    ]
    shown = (
        "<h2>Where the damage is done</h2>"
        + _table(("tensor or node", "kind", "noise ÷ signal", "operations"), damage)
        if damage
        else ""
    )
    head = ("what was tried", "SQNR dB", "drop", "at most (95 %)", "on 8 bits", "s")
    return f"<h2>The promise was {kept}</h2>{_table(head, rows)}{shown}"


def _layers(layers: Sequence[LayerError]) -> str:
    """Draw the SQNR of every layer, in graph order."""
    if not layers:
        return ""
    top = max(40.0, *(layer.sqnr_db for layer in layers if layer.sqnr_db < 100.0), 0.0)
    step = _WIDTH / len(layers)
    bars = []
    for index, layer in enumerate(layers):
        height = max(1.0, min(1.0, max(0.0, layer.sqnr_db) / top) * _HEIGHT)
        colour = _BAR if layer.sqnr_db < _GOOD_DB else _LOW
        words = escape(f"{layer.name} ({layer.op_type}): {layer.sqnr_db:.1f} dB")
        bars.append(
            f'<rect x="{index * step:.1f}" y="{_HEIGHT - height:.1f}" '
            f'width="{max(0.5, step - 0.5):.1f}" height="{height:.1f}" fill="{colour}">'
            f"<title>{words}</title></rect>"
        )
    drawing = "".join(bars)
    return (
        f"<h2>Layers, SQNR up to {top:.0f} dB, in graph order</h2>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="SQNR by layer">{drawing}</svg>'
    )


def _tensors(heading: str, kind: str, details: Sequence[TensorDetail]) -> str:
    shown = [_tensor(detail) for detail in details if detail.kind == kind]
    if not shown:
        return ""
    return f'<h2>{heading}</h2><div class="tensors">{"".join(shown)}</div>'


def _tensor(detail: TensorDetail) -> str:
    """Draw a histogram with roots of the counts, so that few but large values are seen."""
    words = f"{detail.name}: {detail.number}, {detail.low:.3g} to {detail.high:.3g}"
    if not detail.counts or detail.last <= detail.first:
        return f"<div><p>{escape(words)}</p></div>"
    step = _SMALL_WIDTH / len(detail.counts)
    most = max(detail.counts) ** 0.25 or 1.0
    bars = "".join(
        f'<rect x="{index * step:.1f}" y="{_SMALL_HEIGHT * (1 - count**0.25 / most):.1f}" '
        f'width="{step:.1f}" height="{_SMALL_HEIGHT * count**0.25 / most:.1f}" fill="{_LOW}"/>'
        for index, count in enumerate(detail.counts)
        if count
    )
    lines = "".join(
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{_SMALL_HEIGHT}" stroke="{_RANGE}"/>'
        for end in (detail.low, detail.high)
        if 0.0 <= (x := _place(detail, end)) <= _SMALL_WIDTH
    )
    return (
        f'<div><svg viewBox="0 0 {_SMALL_WIDTH} {_SMALL_HEIGHT}" role="img" '
        f'aria-label="{escape(detail.name)}">{bars}{lines}</svg><p>{escape(words)}</p></div>'
    )


def _place(detail: TensorDetail, value: float) -> float:
    return (value - detail.first) / (detail.last - detail.first) * _SMALL_WIDTH
