"""A bench held against an older one: what became slower, and whether that is more than noise.

A change of ours is judged by its ratio to a peer where both benches have that peer, since then a
busier machine or another clock speed cancels out; else by its time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vermilion.bench.engines import OPENERS, OURS
from vermilion.bench.figures import chance_of_difference, pair_ratios
from vermilion.errors import OptionError

Row = Mapping[str, Any]
State = Literal["matched", "new", "removed"]

_KEY = ("model", "engine", "precision", "batch", "sequence", "threads")

# One change in a hundred runs of an unchanged program may look real.
SIGNIFICANT = 0.01


@dataclass(frozen=True)
class Delta:
    """One row of both benches. `change_percent` above 0 means slower than before.

    `judged_by` is `time`, or the peer whose ratio was compared.
    """

    key: Mapping[str, object]
    state: State
    old_ms: float | None = None
    new_ms: float | None = None
    change_percent: float | None = None
    chance: float | None = None
    judged_by: str = ""
    regressed: bool = False

    @property
    def significant(self) -> bool:
        """Whether the change is more than noise."""
        return self.chance is not None and self.chance < SIGNIFICANT

    def as_json(self) -> dict[str, object]:
        """Return the keys of the report."""
        return {
            **self.key,
            "state": self.state,
            "old_ms": self.old_ms,
            "new_ms": self.new_ms,
            "change_percent": self.change_percent,
            "chance": self.chance,
            "significant": self.significant,
            "judged_by": self.judged_by,
            "regressed": self.regressed,
        }


def parse_percent(text: str) -> float:
    """Read `5%` or `5`.

    Raises: OptionError.
    """
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0.0):
        raise OptionError(f"`{text}` is not a percentage", hint="write `5%`")
    return value


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of an earlier `bench --json`.

    Raises: OptionError where the file is missing or something else.
    """
    hint = "write one with `vermilion bench MODEL --json > OLD.json`"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(
            f"the earlier bench cannot be read: {error.strerror}", where=str(path), hint=hint
        ) from error
    except ValueError as error:
        raise OptionError("this is not JSON", where=str(path), hint=hint) from error
    rows = stored.get("results") if isinstance(stored, dict) else None
    if not isinstance(rows, list) or not all(_is_row(row) for row in rows):
        raise OptionError("this is not the result of a bench", where=str(path), hint=hint)
    return rows


def _is_row(row: object) -> bool:
    if not isinstance(row, dict) or not all(key in row for key in _KEY):
        return False
    times = row.get("turn_ms")
    measured = isinstance(times, list) and times and all(_is_time(ms) for ms in times)
    return "error" in row or bool(measured)


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0


def compare_rows(
    new: Sequence[Row], old: Sequence[Row], max_regression_percent: float
) -> list[Delta]:
    """Return a delta for every row of either bench, ours and peers', new rows first.

    Only rows of ours can regress: significantly, and by more than `max_regression_percent`.
    """
    newer, older = _measured(new), _measured(old)
    deltas = [
        _delta(key, newer, older, max_regression_percent)
        if key in older
        else Delta(_named(key), "new", new_ms=newer[key].median)
        for key in newer
    ]
    gone = [key for key in older if key not in newer]
    return deltas + [Delta(_named(key), "removed", old_ms=older[key].median) for key in gone]


Key = tuple[object, ...]


@dataclass(frozen=True)
class _Times:
    """A measured row: the median of each turn in milliseconds, and which version it was."""

    turn_ms: Sequence[float]
    version: str

    @property
    def median(self) -> float:
        return _median(self.turn_ms)


Times = Mapping[Key, _Times]


def _measured(rows: Sequence[Row]) -> Times:
    return {
        tuple(row[k] for k in _KEY): _Times(row["turn_ms"], str(row.get("version", "")))
        for row in rows
        if "turn_ms" in row
    }


def _named(key: Key) -> Mapping[str, object]:
    return dict(zip(_KEY, key, strict=True))


def _median(values: Sequence[float]) -> float:
    return float(np.median(np.asarray(values)))


def _delta(key: Key, newer: Times, older: Times, limit_percent: float) -> Delta:
    new, old, judged_by = newer[key].turn_ms, older[key].turn_ms, "time"
    ours = _named(key)["engine"] == OURS
    peer = _common_peer(key, newer, older) if ours else None
    if peer is not None:
        new, old = pair_ratios(new, newer[peer].turn_ms), pair_ratios(old, older[peer].turn_ms)
        judged_by = f"ratio to {_named(peer)['engine']}"
    change = (_median(new) / _median(old) - 1.0) * 100.0
    chance = chance_of_difference(new, old)
    return Delta(
        key=_named(key),
        state="matched",
        old_ms=older[key].median,
        new_ms=newer[key].median,
        change_percent=change,
        chance=chance,
        judged_by=judged_by,
        regressed=ours and change > limit_percent and chance < SIGNIFICANT,
    )


def _common_peer(key: Key, newer: Times, older: Times) -> Key | None:
    """Find a peer, of one version, that both benches ran beside this row, in the same rounds."""
    position = _KEY.index("engine")
    for name in OPENERS:
        twin = (*key[:position], name, *key[position + 1 :])
        both = twin in newer and twin in older
        if name == OURS or not both:
            continue
        same_version = newer[twin].version == older[twin].version
        if same_version and _beside(newer, twin, key) and _beside(older, twin, key):
            return twin
    return None


def _beside(times: Times, one: Key, other: Key) -> bool:
    return len(times[one].turn_ms) == len(times[other].turn_ms)
