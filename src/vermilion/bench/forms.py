"""The files of a suite: the same result as JSON, CSV, Markdown and one HTML page.

The page has no scripts, and fetches nothing from elsewhere.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from html import escape
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vermilion.bench.engines import OURS
from vermilion.bench.regress import Delta
from vermilion.bench.suite import SuiteResult
from vermilion.bench.tables import (
    Row,
    Size,
    Table,
    comma_separated,
    engines_of,
    markdown,
    networks_of,
    sizes_of,
    suite_tables,
)
from vermilion.errors import DeviceError

_STYLE = """
:root { color-scheme: light }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
  color: #1d1d1f; background: #fff }
h1 { font-size: 1.6rem; margin-bottom: .2rem } h2 { font-size: 1.15rem; margin-top: 2.5rem }
p.about, p.note { color: #5c5c61; margin: .3rem 0 } p.note { font-size: .85rem }
table { border-collapse: collapse; margin-top: .6rem }
td, th { padding: .25rem 1rem .25rem 0; text-align: left; border-bottom: 1px solid #e5e5ea;
  vertical-align: top }
th { font-weight: 600; white-space: nowrap } tr:last-child td { border-bottom: 0 }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
td.q, th.q { text-align: right; color: #8a6d3b; background: #fdf8ec; padding-left: .6rem;
  font-style: italic } td.bad { color: #b3261e; font-weight: 600 }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(28rem, 1fr)); gap: 1.5rem }
.plots figure { margin: 0 } .plots figcaption { font-weight: 600; margin-bottom: .3rem }
.plots svg { display: block; width: 100%; height: auto } .wide { overflow-x: auto }
ul.told { color: #7a4b00 }
"""
_COLOURS = ("#c8102e", "#5b6b7b", "#0a7d5a", "#c98a00", "#6a4fb3", "#2a7fbf")
_QUOTED = "quoted: "


def check_plots() -> None:
    """Raise DeviceError, with the line that fixes it, where what draws plots is not installed."""
    if find_spec("pygal") is None:
        raise DeviceError(
            "the HTML page needs `pygal`, which draws its plots",
            hint="pip install 'vermilion[report]', or write `--no-html`",
        )


def html_page(data: Row, tables: Sequence[Table], told: Sequence[str] = ()) -> str:
    """Return the page: plots, tables, and what a reader should know about the figures.

    Raises: DeviceError where pygal is not installed.
    """
    check_plots()
    machine, title = data["machine"], "Vermilion benchmark suite"
    about = f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}"
    warnings = "".join(f"<li>{escape(words)}</li>" for words in told)
    parts = [
        f'<h1>{title}</h1><p class="about">{escape(about)}. Vermilion '
        f"{escape(data['suite']['version'])}. Each engine is a process of its own, and they take "
        "turns; everything is measured here unless it is headed <em>quoted</em>.</p>",
        f'<ul class="told">{warnings}</ul>' if warnings else "",
        f'<div class="plots">{"".join(_plots(data))}</div>',
        *(_table(table) for table in tables),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _table(table: Table) -> str:
    def kind(at: int) -> str:
        if table.head[at].startswith(_QUOTED):
            return ' class="q"'
        return ' class="n"' if table.holds_numbers(at) else ""

    def cell(at: int, word: str) -> str:
        return f"<td{' class=bad' if word == 'slower' else kind(at)}>{escape(word)}</td>"

    top = "".join(f"<th{kind(at)}>{escape(word)}</th>" for at, word in enumerate(table.head))
    body = "".join(
        f"<tr>{''.join(cell(at, word) for at, word in enumerate(row))}</tr>" for row in table.rows
    )
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<h2>{escape(table.title)}</h2><div class="wide"><table><tr>{top}</tr>{body}</table></div>'
        f"{note}"
    )


def _plots(data: Row) -> list[str]:
    found = []
    peers = [name for name in engines_of(data) if name != OURS]
    for network in networks_of(data):
        sizes = sizes_of(data, network)
        axis = "batch" if sizes[0].sequence is None else "sequence × batch"
        unit = "an image" if sizes[0].sequence is None else "a sequence"
        found.append(_bars(f"{network}: ms {unit}", axis, sizes, data, _ms_an_item))
        if peers:
            found.append(_speed_ups(network, axis, sizes, peers))
        found.append(_bars(f"{network}: peak MB", axis, sizes, data, _peak_mb))
    return found


def _ms_an_item(size: Size, engine: str) -> float | None:
    """Return the time of one of the batch, so that the bars of all batches can be compared."""
    row = size.rows.get(engine)
    return None if row is None else row["latency_ms"]["p50"] / (size.batch or 1)


def _peak_mb(size: Size, engine: str) -> float | None:
    row = size.rows.get(engine)
    return None if row is None else row["peak_rss_mb"]


def _bars(
    title: str,
    axis: str,
    sizes: Sequence[Size],
    data: Row,
    value: Callable[[Size, str], float | None],
) -> str:
    engines = engines_of(data)
    chart = _chart(axis, [size.words for size in sizes], len(engines))
    for engine in engines:
        chart.add(engine, [value(size, engine) for size in sizes])
    return _figure(title, chart)


def _speed_ups(network: str, axis: str, sizes: Sequence[Size], peers: Sequence[str]) -> str:
    chart = _chart(axis, [size.words for size in sizes], len(peers), _COLOURS[1:])
    for peer in peers:
        chart.add(f"than {peer}", [size.speed_up(peer) for size in sizes])
    return _figure(f"{network}: how many times faster vermilion is", chart)


def _chart(axis: str, labels: Sequence[str], series: int, colours: Sequence[str] = _COLOURS) -> Any:
    pygal = _pygal()
    style = import_module("pygal.style").Style(
        background="transparent",
        plot_background="transparent",
        foreground="#5c5c61",
        foreground_strong="#1d1d1f",
        foreground_subtle="#8a8a8e",
        guide_stroke_color="#e5e5ea",
        major_guide_stroke_color="#d0d0d5",
        guide_stroke_dasharray="0",
        major_guide_stroke_dasharray="0",
        value_colors=("#1d1d1f",) * len(colours),
        colors=tuple(colours),
        opacity="1",
        font_family="system-ui, sans-serif",
        label_font_size=12,
        major_label_font_size=12,
        value_font_size=10,
        legend_font_size=13,
        title_font_size=13,
    )
    chart = pygal.Bar(
        style=style,
        js=(),
        width=640,
        height=320,
        margin=8,
        spacing=6,
        include_x_axis=True,
        print_values=True,
        print_values_position="top",
        value_formatter=_short,
        legend_at_bottom=True,
        # With more columns than series pygal leaves no room for the legend.
        legend_at_bottom_columns=min(3, series),
        legend_box_size=12,
        x_title=axis,
        min_scale=4,
        max_scale=7,
    )
    chart.x_labels = list(labels)
    chart.add_xml_filter(_without_scripts)
    return chart


def _pygal() -> Any:
    """Import pygal, and take back the finder of its plugins that it puts into every import.

    It has no `find_spec`, so each module that is not there would be warned about for ever after.
    """
    pygal = import_module("pygal")
    sys.meta_path[:] = [f for f in sys.meta_path if type(f).__module__ != "pygal"]
    return pygal


def _short(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100.0 else f"{value:.3g}"


def _figure(title: str, chart: Any) -> str:
    drawn = chart.render(is_unicode=True, disable_xml_declaration=True)
    # What pygal writes of itself and of the day would make equal results unequal files.
    drawn = re.sub(r"<!--.*?-->", "", drawn, flags=re.DOTALL)
    known = f"chart-{chart.uuid}"
    drawn = drawn.replace(known, "plot-" + re.sub(r"\W+", "-", title).strip("-"))
    return f"<figure><figcaption>{escape(title)}</figcaption>{drawn}</figure>"


def _without_scripts(root: Any) -> Any:
    for parent in root.iter():
        for script in [child for child in parent if str(child.tag).endswith("script")]:
            parent.remove(script)
    return root


STEM = "suite"


def write_forms(
    result: SuiteResult,
    folder: Path,
    *,
    deltas: Sequence[Delta] = (),
    with_quoted: bool = False,
    with_page: bool = True,
) -> list[Path]:
    """Write every form into `folder`; give the files. The JSON is what `--compare` reads later."""
    data: dict[str, Any] = dict(result.data)
    if deltas:
        data["compared"] = [delta.as_json() for delta in deltas]
    told = (*(f"failed: {words}" for words in result.failed), *result.concerns)
    tables = suite_tables(data, deltas, with_quoted=with_quoted)
    heading = f"# Vermilion benchmark suite\n\n{_machine(data)}\n\n"
    warnings = "".join(f"- {words}\n" for words in told)
    forms = {
        "json": json.dumps(data, indent=2) + "\n",
        "csv": comma_separated(data, with_quoted=with_quoted),
        "md": heading + (warnings + "\n" if warnings else "") + markdown(tables),
    }
    if with_page:
        forms["html"] = html_page(data, tables, told)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for ending, text in forms.items():
        path = folder / f"{STEM}.{ending}"
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def _machine(data: dict[str, Any]) -> str:
    machine, version = data["machine"], data["suite"]["version"]
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}. Vermilion {version}."
