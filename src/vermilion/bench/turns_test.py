from __future__ import annotations

import json
from pathlib import Path

import pytest

import fake_worker
from vermilion.bench.process import EngineProcess
from vermilion.bench.turns import MAX_RUNS, MIN_RUNS, WARM_UP_TURNS, runs_in_a_turn, take_turns


def engine(folder: Path, label: str, ms: float, quiet: float | None = 0.5) -> EngineProcess:
    """An engine whose runs take a set time, and which writes down who was asked."""
    worker = (fake_worker.__name__, "", label, str(ms), str(folder / "log"), json.dumps(quiet))
    return EngineProcess(label, folder, timeout_s=30.0, worker=worker)


@pytest.mark.parametrize(
    ("run_ms", "count"),
    [
        (0.001, MAX_RUNS),
        (0.5, 40),
        (5.0, 4),
        (9.0, MIN_RUNS),
        (249.0, MIN_RUNS),
        (250.0, 1),
        (0.0, MAX_RUNS),
    ],
)
def test_a_turn_is_filled(run_ms: float, count: int) -> None:
    assert runs_in_a_turn(run_ms) == count


def test_every_engine_has_one_turn_a_round_and_none_is_always_first(tmp_path: Path) -> None:
    rounds = 6
    with (
        engine(tmp_path, "a", 5.0) as a,
        engine(tmp_path, "b", 2.0) as b,
        engine(tmp_path, "c", 40.0, None) as c,
    ):
        timed = take_turns([a, b, c], rounds)
    asked = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    after = [label for label, *_ in asked[3 * WARM_UP_TURNS :]]
    each_round = ["".join(after[3 * i : 3 * i + 3]) for i in range(rounds)]
    assert each_round == ["abc", "cba", "bca", "acb", "cab", "bac"]
    assert [len(t.turn_ms) for t in timed] == [rounds] * 3
    assert [len(t.run_ms) for t in timed] == [rounds * 4, rounds * 10, rounds * MIN_RUNS]
    assert [t.turn_ms[0] for t in timed] == [5.0, 2.0, 40.0]
    assert [t.quiet_after_ms for t in timed] == [0.5, 0.5, None]


def test_a_long_run_is_a_turn_and_needs_little_warming_up(tmp_path: Path) -> None:
    with engine(tmp_path, "a", 400.0) as a:
        (timed,) = take_turns([a], 3)
    asked = [json.loads(line)[1:] for line in (tmp_path / "log").read_text().splitlines()]
    assert asked == [[1, 1], [1, 0], [1, 0], [1, 0]]
    assert timed.run_ms == timed.turn_ms == (400.0,) * 3
