"""The files of a suite: the same result as JSON, CSV, Markdown and one HTML page.

The page has no scripts, and fetches nothing from elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
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
from vermilion.pages.charts import Bar, Series, bar_chart
from vermilion.pages.document import badge, report_page

_QUOTED = "quoted: "


def html_page(data: Row, tables: Sequence[Table], told: Sequence[str] = ()) -> str:
    """Return the page: plots, tables, and what a reader should know about the figures."""
    lead = (
        f"{_machine(data)}{_when(data)} Each engine is a process of its own, and they take turns; "
        "everything is measured here unless it is headed `quoted`."
    )
    warnings = "".join(f"<li>{escape(words)}</li>" for words in told)
    parts = [
        f'<ul class="told">{warnings}</ul>' if warnings else "",
        f'<div class="plots">{"".join(_plots(data))}</div>',
        *(_table(table) for table in tables),
    ]
    return report_page("Vermilion benchmark suite", lead, parts)


def _when(data: Row) -> str:
    """Say on which days it was measured, where the cases tell."""
    days = sorted({str(when)[:10] for when in data["suite"].get("measured_at", ())})
    return f" Measured on {days[0]}{f' to {days[-1]}' if len(days) > 1 else ''}." if days else ""


def _table(table: Table) -> str:
    def kind(at: int) -> str:
        if table.head[at].startswith(_QUOTED):
            return ' class="q"'
        return ' class="n"' if table.holds_numbers(at) else ""

    def cell(at: int, word: str) -> str:
        return f"<td{' class=bad' if word == 'slower' else kind(at)}>{escape(word)}</td>"

    top = "".join(
        f'<th scope="col"{kind(at)}>{escape(word)}</th>' for at, word in enumerate(table.head)
    )
    body = "".join(
        f"<tr>{''.join(cell(at, word) for at, word in enumerate(row))}</tr>" for row in table.rows
    )
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<h2>{escape(table.title)} {badge("measured")}</h2><div class="wide" tabindex="0" '
        f'role="region" aria-label="{escape(table.title)}"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{note}"
    )


def _plots(data: Row) -> Iterator[str]:
    engines = engines_of(data)
    peers = [name for name in engines if name != OURS]
    for network in networks_of(data):
        sizes = sizes_of(data, network)
        places = [size.words for size in sizes]
        of_what = "image" if sizes[0].sequence is None else "sequence"
        axis = "batch" if sizes[0].sequence is None else "sequence × batch"
        yield bar_chart(
            f"{network}: latency",
            axis=axis,
            unit=f"milliseconds an {of_what}"
            if of_what == "image"
            else f"milliseconds a {of_what}",
            places=places,
            series=[Series(e, tuple(_ms_an_item(size, e) for size in sizes)) for e in engines],
            note="medians over the runs; lines from the least to the 90th percentile",
        )
        if peers:
            yield bar_chart(
                f"{network}: how many times as fast vermilion is",
                axis=axis,
                unit="time of the peer ÷ time of vermilion",
                places=places,
                series=[
                    Series(f"as {peer}", tuple(_times_as_fast(size, peer) for size in sizes))
                    for peer in peers
                ],
                note="medians over pairs of turns that lay side by side; lines are the quartiles",
            )
        yield bar_chart(
            f"{network}: peak memory",
            axis=axis,
            unit="MB of the engine's process",
            places=places,
            series=[Series(e, tuple(_peak_mb(size, e) for size in sizes)) for e in engines],
        )


def _ms_an_item(size: Size, engine: str) -> Bar | None:
    """Return the time of one of the batch, so that the bars of all batches can be compared."""
    row = size.rows.get(engine)
    if row is None:
        return None
    times, batch = row["latency_ms"], size.batch or 1
    return Bar(times["p50"] / batch, times["min"] / batch, times["p90"] / batch)


def _times_as_fast(size: Size, peer: str) -> Bar | None:
    found = size.ratio(peer)
    return None if found is None else Bar(1.0 / found.median, 1.0 / found.q3, 1.0 / found.q1)


def _peak_mb(size: Size, engine: str) -> Bar | None:
    row = size.rows.get(engine)
    return None if row is None else Bar(row["peak_rss_mb"])


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


def _machine(data: Row) -> str:
    machine, version = data["machine"], data["suite"]["version"]
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}. Vermilion {version}."
