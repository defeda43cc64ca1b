"""Plots of reports as SVG: bars with axes, units and spread, in the page's own colours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

SERIES = 6
"""Colours that `style.css` has; a seventh series has the first one's."""

_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 10, 14, 46
_TICKS = 5
# Bars that are narrower have no room for their value above them.
_LEAST_FOR_VALUE = 20.0


@dataclass(frozen=True)
class Bar:
    """One value with what it was seen to reach from and to, where it was seen more than once."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """Bars of one colour: one for each place of the axis, None where there is no value."""

    name: str
    bars: tuple[Bar | None, ...]


def ticks(high: float, wanted: int = _TICKS) -> list[float]:
    """Return round numbers from 0 to above `high`, about `wanted` of them."""
    if not (math.isfinite(high) and high > 0.0):
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(high / wanted))
    step = next(n * power for n in (1, 2, 5, 10) if n * power >= high / wanted)
    return [step * n for n in range(math.ceil(high / step - 1e-9) + 1)]


def short(value: float) -> str:
    """Return a number as a plot shows it: three digits, more where it is larger."""
    return f"{value:,.0f}" if abs(value) >= 100.0 else f"{value:.3g}"


def bar_chart(
    title: str,
    *,
    axis: str,
    unit: str,
    places: Sequence[str],
    series: Sequence[Series],
    note: str = "",
) -> str:
    """Return a figure: for each place of the axis a bar of each series, with lines for spread.

    `axis` says what the places are, `unit` what the height is; both stand at the plot.
    """
    tops = [bar.high or bar.value for one in series for bar in one.bars if bar is not None]
    scale = ticks(max(tops, default=1.0))
    high = scale[-1]
    parts = [*_grid(scale, high), *_bars(series, places, high), *_places(axis, unit, places)]
    words = f"{title}, {unit}: {len(series)} series over {axis}"
    small = f'<div class="note">{escape(note)}</div>' if note else ""
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(words)}">{"".join(parts)}</svg>{_key(series)}{small}</figure>'
    )


def _y(value: float, high: float) -> float:
    return _HEIGHT - _BOTTOM - value / high * (_HEIGHT - _TOP - _BOTTOM)


def _grid(scale: Sequence[float], high: float) -> Iterator[str]:
    for value in scale:
        y = _y(value, high)
        kind = "axis" if value == 0.0 else "grid"
        ends = f'x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
        yield f'<line class="{kind}" {ends}/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short(value)}</text>'


def _bars(series: Sequence[Series], places: Sequence[str], high: float) -> Iterator[str]:
    room = (_WIDTH - _LEFT - _RIGHT) / max(1, len(places))
    width = min(46.0, room * 0.8 / max(1, len(series)))
    for at in range(len(places)):
        begin = _LEFT + room * (at + 0.5) - width * len(series) / 2
        for number, one in enumerate(series):
            bar = one.bars[at] if at < len(one.bars) else None
            if bar is not None:
                yield from _bar(bar, f"{one.name}, {places[at]}", begin + number * width, width,
                                f"s{number % SERIES}", high)  # fmt: skip


def _bar(bar: Bar, words: str, x: float, width: float, colour: str, high: float) -> Iterator[str]:
    top, ground = _y(bar.value, high), _y(0.0, high)
    spread = f" ({short(bar.low)} to {short(bar.high)})" if bar.low and bar.high else ""
    yield (
        f'<rect class="{colour}" x="{x:.1f}" y="{top:.1f}" width="{max(1.0, width - 2):.1f}" '
        f'height="{max(0.5, ground - top):.1f}"><title>{escape(words)}: {short(bar.value)}{spread}'
        "</title></rect>"
    )
    above = top
    if bar.low is not None and bar.high is not None:
        middle = x + width / 2 - 1
        above = _y(bar.high, high)
        yield (
            f'<path class="whisker" d="M{middle:.1f},{_y(bar.low, high):.1f}V{above:.1f}m-3,0h6"/>'
        )
    if width >= _LEAST_FOR_VALUE:
        yield (
            f'<text class="value" x="{x + width / 2 - 1:.1f}" y="{max(9.0, above - 4):.1f}" '
            f'text-anchor="middle">{short(bar.value)}</text>'
        )


def _places(axis: str, unit: str, places: Sequence[str]) -> Iterator[str]:
    room = (_WIDTH - _LEFT - _RIGHT) / max(1, len(places))
    for at, word in enumerate(places):
        x = _LEFT + room * (at + 0.5)
        yield f'<text x="{x:.1f}" y="{_HEIGHT - 29}" text-anchor="middle">{escape(word)}</text>'
    yield from _titles(axis, unit)


def _titles(axis: str, unit: str) -> Iterator[str]:
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    yield (
        f'<text class="title" x="{middle:.0f}" y="{_HEIGHT - 9}" text-anchor="middle">'
        f"{escape(axis)}</text>"
    )
    down = (_TOP + _HEIGHT - _BOTTOM) / 2
    yield (
        f'<text class="title" x="13" y="{down:.0f}" text-anchor="middle" '
        f'transform="rotate(-90 13 {down:.0f})">{escape(unit)}</text>'
    )


def _key(series: Sequence[Series]) -> str:
    words = "".join(
        f'<span><svg viewBox="0 0 10 10" aria-hidden="true"><rect class="s{n % SERIES}" width="10" '
        f'height="10" rx="2"/></svg>{escape(one.name)}</span>'
        for n, one in enumerate(series)
    )
    return f'<div class="key">{words}</div>'


@dataclass(frozen=True)
class Column:
    """One of many values in a row, with words for who points at it."""

    words: str
    value: float
    is_bad: bool = False


def column_chart(
    title: str, *, axis: str, unit: str, columns: Sequence[Column], high: float, note: str = ""
) -> str:
    """Return a figure of many values in order, those that are bad in another colour.

    What is above `high` or below 0 reaches to the end.
    """
    scale = ticks(high)
    top = scale[-1]
    step = (_WIDTH - _LEFT - _RIGHT) / max(1, len(columns))
    parts = [*_grid(scale, top), *_titles(axis, unit)]
    for at, one in enumerate(columns):
        y = _y(min(top, max(0.0, one.value)), top)
        height = max(1.0, _y(0.0, top) - y)
        parts.append(
            f'<rect class="{"s-bad" if one.is_bad else "s1"}" x="{_LEFT + at * step:.1f}" '
            f'y="{_y(0.0, top) - height:.1f}" width="{max(0.5, step - 0.5):.1f}" '
            f'height="{height:.1f}"><title>{escape(one.words)}</title></rect>'
        )
    every = max(1, round(ticks(len(columns))[1]))
    parts += [
        f'<text x="{_LEFT + at * step:.1f}" y="{_HEIGHT - 29}" text-anchor="middle">{at}</text>'
        for at in range(0, len(columns) + 1, every)
    ]
    small = f'<div class="note">{escape(note)}</div>' if note else ""
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(f"{title}, {unit}")}">{"".join(parts)}</svg>{small}</figure>'
    )


_SMALL_WIDTH, _SMALL_HEIGHT = 256, 84
_SMALL_GROUND = _SMALL_HEIGHT - 14


def histogram(
    counts: Sequence[int], first: float, last: float, marks: Sequence[float], words: str
) -> str:
    """Return a small histogram between two ends, in roots of the counts, with marked values.

    Fourth roots: few but large values are what a scale is chosen for, and must be seen.
    """
    step = _SMALL_WIDTH / max(1, len(counts))
    most = max(counts, default=0) ** 0.25 or 1.0
    bars = "".join(
        f'<rect class="s-soft" x="{at * step:.1f}" '
        f'y="{_SMALL_GROUND * (1 - count**0.25 / most):.1f}" width="{step:.1f}" '
        f'height="{_SMALL_GROUND * count**0.25 / most:.1f}"/>'
        for at, count in enumerate(counts)
        if count
    )
    places = [(mark - first) / (last - first) * _SMALL_WIDTH for mark in marks]
    lines = "".join(
        f'<line class="s-mark" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{_SMALL_GROUND}"/>'
        for x in places
        if 0.0 <= x <= _SMALL_WIDTH
    )
    return (
        f'<svg class="plot" viewBox="0 0 {_SMALL_WIDTH} {_SMALL_HEIGHT}" role="img" '
        f'aria-label="{escape(words)}">{bars}{lines}'
        f'<line class="axis" x1="0" x2="{_SMALL_WIDTH}" y1="{_SMALL_GROUND}" '
        f'y2="{_SMALL_GROUND}"/><text x="0" y="{_SMALL_HEIGHT - 3}">{short(first)}</text>'
        f'<text x="{_SMALL_WIDTH}" y="{_SMALL_HEIGHT - 3}" text-anchor="end">{short(last)}</text>'
        "</svg>"
    )


@dataclass(frozen=True)
class Stretch:
    """Something that took from one moment to another, with words for who points at it."""

    begin: float
    end: float
    words: str
    is_bad: bool = False


_LANE = 26


def lanes_chart(
    title: str, *, unit: str, lanes: Sequence[tuple[str, Sequence[Stretch]]], note: str = ""
) -> str:
    """Return a figure with a lane for each worker, and what it did along the time below.

    `unit` stands at the time's axis; every lane begins with its name.
    """
    scale = ticks(max((one.end for _, row in lanes for one in row), default=1.0))
    high, ground = scale[-1], _TOP + _LANE * len(lanes) + 4
    left = min(200, 14 + 6 * max((len(name) for name, _ in lanes), default=0))

    def across(moment: float) -> float:
        return left + min(1.0, max(0.0, moment / high)) * (_WIDTH - _RIGHT - left)

    parts = []
    for value in scale:
        x = across(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{ground}"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{ground + 14}" text-anchor="middle">{short(value)}</text>'
        )
    for number, (name, row) in enumerate(lanes):
        y = _TOP + _LANE * number
        parts.append(f'<text x="4" y="{y + _LANE / 2 + 4:.0f}">{escape(name)}</text>')
        for at, one in enumerate(row):
            colour = "s-bad" if one.is_bad else ("s1", "s5")[at % 2]
            x, width = across(one.begin), across(one.end) - across(one.begin)
            parts.append(
                f'<rect class="{colour}" x="{x:.1f}" y="{y + 3}" width="{max(0.6, width):.1f}" '
                f'height="{_LANE - 6}"><title>{escape(one.words)}</title></rect>'
            )
    parts.append(
        f'<text class="title" x="{(left + _WIDTH) / 2:.0f}" y="{ground + 32}" '
        f'text-anchor="middle">{escape(unit)}</text>'
    )
    small = f'<div class="note">{escape(note)}</div>' if note else ""
    words = f"{title}: {len(lanes)} lanes over {unit}"
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {ground + 40}" role="img" '
        f'aria-label="{escape(words)}">{"".join(parts)}</svg>{small}</figure>'
    )
