from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vermilion.bench.regress import compare_rows, parse_percent, read_rows
from vermilion.errors import OptionError

STEADY = [1.0 + 0.001 * (i % 7) for i in range(30)]


def row(engine: str, turn_ms: list[float], **other: Any) -> dict[str, Any]:
    key = {"model": "m", "precision": "fp32", "batch": 1, "sequence": None, "threads": 2}
    return {**key, "engine": engine, "turn_ms": turn_ms, **other}


def times(factor: float) -> list[float]:
    return [ms * factor for ms in STEADY]


def test_slower_against_the_peer_is_a_regression() -> None:
    old = [row("vermilion", STEADY), row("ort", STEADY)]
    new = [row("vermilion", times(1.1)), row("ort", STEADY)]
    ours, peer = compare_rows(new, old, 5.0)
    assert ours.regressed
    assert ours.judged_by == "ratio to ort"
    assert ours.change_percent == pytest.approx(10.0)
    assert ours.significant
    assert not peer.regressed


def test_a_slower_machine_is_not_a_regression() -> None:
    old = [row("vermilion", STEADY), row("ort", STEADY)]
    new = [row("vermilion", times(1.5)), row("ort", times(1.5))]
    ours, peer = compare_rows(new, old, 5.0)
    assert not ours.regressed
    assert ours.change_percent == pytest.approx(0.0)
    assert (ours.old_ms, ours.new_ms) == (pytest.approx(1.003), pytest.approx(1.5045))
    assert peer.judged_by == "time"
    assert not peer.regressed  # a peer's time is not ours to fix


def test_a_peer_of_another_version_is_no_measure() -> None:
    """A peer that became faster must not make us look slower."""
    old = [row("vermilion", STEADY), row("ort", STEADY, version="1.31.0")]
    new = [row("vermilion", STEADY), row("ort", times(0.5), version="1.32.0")]
    ours, peer = compare_rows(new, old, 5.0)
    assert (ours.judged_by, ours.regressed) == ("time", False)
    assert peer.change_percent == pytest.approx(-50.0)


def test_without_a_common_peer_time_decides() -> None:
    (ours,) = compare_rows([row("vermilion", times(1.1))], [row("vermilion", STEADY)], 5.0)
    assert (ours.judged_by, ours.regressed) == ("time", True)


@pytest.mark.parametrize("factor", [0.5, 1.04])
def test_faster_or_little_slower_passes(factor: float) -> None:
    (ours,) = compare_rows([row("vermilion", times(factor))], [row("vermilion", STEADY)], 5.0)
    assert not ours.regressed
    assert ours.significant


def test_a_large_change_within_the_noise_passes() -> None:
    wild = [1.0, 5.0, 1.2, 4.0, 0.9, 6.0, 1.1, 5.0]
    (ours,) = compare_rows(
        [row("vermilion", wild)], [row("vermilion", [1.0, 1.3, 5.1, 4.2, 1.0, 1.1, 6.1, 1.0])], 5.0
    )
    assert ours.change_percent is not None
    assert ours.change_percent > 5.0
    assert not ours.regressed
    assert not ours.significant


def test_rows_without_a_twin_are_new_or_removed() -> None:
    deltas = compare_rows([row("vermilion", STEADY)], [row("ort", STEADY)], 5.0)
    assert [(d.state, d.key["engine"]) for d in deltas] == [
        ("new", "vermilion"),
        ("removed", "ort"),
    ]
    assert not any(d.regressed for d in deltas)


def test_another_thread_count_is_another_row() -> None:
    deltas = compare_rows(
        [row("vermilion", STEADY, threads=1)], [row("vermilion", STEADY, threads=2)], 5.0
    )
    assert [d.state for d in deltas] == ["new", "removed"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"results": 3}',
        '{"results": [3]}',
        '{"results": [{"model": "m"}]}',
        json.dumps({"results": [row("ort", [])]}),
        json.dumps({"results": [row("ort", [0.0])]}),
        json.dumps({"results": [row("ort", ["x"])]}),
    ],
)
def test_a_file_that_is_no_bench_is_wrong_use(tmp_path: Path, text: str) -> None:
    path = tmp_path / "old.json"
    path.write_text(text)
    with pytest.raises(OptionError, match=r"not JSON|not the result of a bench") as raised:
        read_rows(path)
    assert "--json >" in raised.value.hint


def test_a_missing_file_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        read_rows(tmp_path / "none.json")


@pytest.mark.parametrize(("text", "value"), [("5%", 5.0), ("2.5", 2.5), ("0 %", 0.0)])
def test_percentages(text: str, value: float) -> None:
    assert parse_percent(text) == value


@pytest.mark.parametrize("text", ["", "five", "-1%", "nan", "inf"])
def test_what_is_no_percentage_is_wrong_use(text: str) -> None:
    with pytest.raises(OptionError, match="not a percentage"):
        parse_percent(text)
