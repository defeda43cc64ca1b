"""The page of the zoo: how the ratios are spread, the worst with their profile, every cell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

from vermilion.pages.charts import Bar, Series, bar_chart
from vermilion.pages.document import badge, report_page

Stored = Mapping[str, Any]
Cells = Sequence[Stored]

# Edges between the bars: ours ÷ the best peer at equal precision.
_EDGES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.05, 1.2)
_WORST = 10


def ratio_of(cell: Stored) -> Mapping[str, float] | None:
    """Return ours ÷ the best peer of a cell, None where there is none."""
    case = cell["report"]["cases"][0] if "report" in cell else None
    if case is None or case["best_peer"] is None:
        return None
    found: Mapping[str, float] = case["ratios"][case["best_peer"]]
    return found


def is_slower(cell: Stored) -> bool:
    """Say whether a peer is faster."""
    ratio = ratio_of(cell)
    return ratio is not None and ratio["median"] > 1.0


def in_words(cell: Stored) -> str:
    """Return what came out of a cell, in one line."""
    if "error" in cell:
        return f"failed: {str(cell['error']).splitlines()[0]}"
    ratio = ratio_of(cell)
    if ratio is None:
        return "no peer at this precision"
    peer = cell["report"]["cases"][0]["best_peer"]
    spread = f"{ratio['q1']:.2f}–{ratio['q3']:.2f}"
    return f"{ratio['median']:.2f} ({spread}) of {peer}"


def _medians(cells: Cells) -> list[float]:
    return [ratio["median"] for cell in cells if (ratio := ratio_of(cell)) is not None]


def _by_format(cells: Cells) -> dict[str, list[Stored]]:
    found: dict[str, list[Stored]] = {}
    for cell in cells:
        found.setdefault(str(cell["format"]), []).append(cell)
    return dict(sorted(found.items()))


def figures(cells: Cells) -> tuple[int, float, float, float]:
    """Return how many cells have a ratio, their geometric mean, the share below 1, the largest."""
    found = _medians(cells)
    if not found:
        return 0, math.nan, math.nan, math.nan
    mean = math.exp(sum(map(math.log, found)) / len(found))
    return len(found), mean, sum(ratio < 1.0 for ratio in found) / len(found), max(found)


def summary(cells: Cells) -> str:
    """Return a line for each number format."""
    lines = ["format     cells  geometric mean  ahead  largest  failed"]
    for name, mine in _by_format(cells).items():
        count, mean, ahead, largest = figures(mine)
        failed = sum("error" in cell for cell in mine)
        lines.append(f"{name:9} {count:6} {mean:15.3f} {ahead:6.0%} {largest:8.2f} {failed:7}")
    return "\n".join(lines)


def page(cells: Cells) -> str:
    """Return the page."""
    machines = sorted({f"{c['machine']['cpu']} ({c['machine']['core']})" for c in cells})
    days = sorted({str(cell["time"])[:10] for cell in cells})
    lead = (
        f"{'; '.join(machines)}, {' to '.join(dict.fromkeys((*days[:1], *days[-1:])))}. Time of "
        "ours ÷ that of the faster peer at the same precision, medians over pairs of turns: "
        "below 1 is faster. Weights are random, of a fixed seed."
    )
    parts = [f"<h2>By number format {badge('measured')}</h2>", _formats(cells)]
    parts += [_spread(name, mine) for name, mine in _by_format(cells).items() if _medians(mine)]
    parts += [f"<h2>The slowest {badge('measured')}</h2>", _worst(cells)]
    parts += [f"<h2>All cells {badge('measured')}</h2>", _all(cells)]
    return report_page("Networks that nobody tuned for", lead, parts)


def _table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col">{escape(word)}</th>' for word in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(word)}</td>' for word in row)}</tr>" for row in rows
    )
    return f'<div class="wide" tabindex="0"><table><tr>{top}</tr>{body}</table></div>'


def _formats(cells: Cells) -> str:
    def rows() -> Iterator[Sequence[str]]:
        for name, mine in _by_format(cells).items():
            count, mean, ahead, largest = figures(mine)
            failed = sum("error" in cell for cell in mine)
            yield name, str(count), f"{mean:.3f}", f"{ahead:.0%}", f"{largest:.2f}", str(failed)

    head = ("format", "cells", "geometric mean", "ahead of the best peer", "largest", "failed")
    return _table(head, rows())


def _spread(name: str, cells: Cells) -> str:
    """Return how many cells lie in each range of ratios."""
    found = _medians(cells)
    edges = (0.0, *_EDGES, math.inf)
    counts = [sum(low <= ratio < high for ratio in found) for low, high in pairwise(edges)]
    places = [f"< {_EDGES[0]:g}", *(f"{edge:g}+" for edge in _EDGES)]
    bars = tuple(Bar(float(count)) for count in counts)
    return bar_chart(
        f"{name}: cells by ratio", axis="ours ÷ best peer", unit="cells", places=places,
        series=[Series(name, bars)],
    )  # fmt: skip


def _worst(cells: Cells) -> str:
    def rows() -> Iterator[Sequence[str]]:
        measured = [cell for cell in cells if ratio_of(cell) is not None]
        measured.sort(key=lambda cell: -_medians([cell])[0])
        for cell in measured[:_WORST]:
            steps = ", ".join(f"{s['kind']} {s['share']:.0%}" for s in cell.get("steps", ()))
            yield *_name(cell), in_words(cell), steps

    return _table((*_HEAD, "ours ÷ best peer", "where the time goes"), rows())


_HEAD = ("network", "kind", "format", "batch", "threads")


def _name(cell: Stored) -> Sequence[str]:
    return tuple(str(cell[key]) for key in _HEAD)


def _all(cells: Cells) -> str:
    def rows() -> Iterator[Sequence[str]]:
        for cell in sorted(cells, key=lambda cell: [str(cell[key]) for key in _HEAD]):
            times = {
                row["engine"]: f"{row['latency_ms']['p50']:.3g}"
                for row in (cell["report"]["results"] if "report" in cell else ())
                if "latency_ms" in row
            }
            engines = ("vermilion", "ort", "openvino")
            yield *_name(cell), *(times.get(name, "") for name in engines), in_words(cell)

    head = (*_HEAD, "ours ms", "ONNX Runtime ms", "OpenVINO ms", "ours ÷ best peer")
    return _table(head, rows())
