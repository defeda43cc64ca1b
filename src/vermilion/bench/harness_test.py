from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import fake_worker
from vermilion.bench.harness import (
    MAX_RUNS,
    MIN_RUNS,
    WARM_UP_TURNS,
    EngineProcess,
    head,
    in_turns,
    printed_record,
    rows,
    runs_in_a_turn,
    save_json,
    take_turns,
)
from vermilion.errors import DeviceError, OptionError, UnsupportedError


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[EngineProcess]:
    worker = (fake_worker.__name__,)
    with EngineProcess("peer@fp32", tmp_path, timeout_s=60.0, worker=worker) as started:
        yield started


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[EngineProcess]:
    with EngineProcess("real", tmp_path, timeout_s=60.0) as started:
        yield started


def test_a_question_reaches_the_worker_and_its_answer_comes_back(fake: EngineProcess) -> None:
    assert fake.ask("echo", runs=3) == {"runs": 3}


def test_a_worker_that_dies_is_one_clear_error_however_often_it_is_asked(
    fake: EngineProcess,
) -> None:
    for _ in range(2):
        with pytest.raises(DeviceError) as raised:
            fake.ask("end", code=3)
        words = "the engine `peer@fp32`: the process ended while doing `end`: exit code 3"
        assert raised.value.message == words
        assert raised.value.where == "free(): invalid pointer"
        assert "--against" in raised.value.hint


def test_a_worker_that_hangs_is_ended_in_time(tmp_path: Path) -> None:
    begin = time.perf_counter()
    worker = (fake_worker.__name__,)
    with (
        EngineProcess("peer@fp32", tmp_path, timeout_s=0.3, worker=worker) as engine,
        pytest.raises(DeviceError, match=r"`peer@fp32`: .* took more than 0\.3 s") as raised,
    ):
        engine.ask("sleep", seconds=60)
    assert time.perf_counter() - begin < 10.0
    assert "--timeout" in raised.value.hint
    assert not psutil.pid_exists(engine.process)


def test_leaving_ends_the_process(tmp_path: Path) -> None:
    worker = (fake_worker.__name__,)
    with EngineProcess("peer@fp32", tmp_path, timeout_s=60.0, worker=worker) as engine:
        assert psutil.pid_exists(engine.process)
    assert not psutil.pid_exists(engine.process)


def test_the_real_worker_passes_errors_on_by_their_kind(worker: EngineProcess) -> None:
    with pytest.raises(
        UnsupportedError, match="does not compute a float32 model in bf16"
    ) as raised:
        worker.ask("open", engine="ort", precision="bf16", model="x.onnx", threads=1)
    assert "ort@fp32" in raised.value.hint
    with pytest.raises(OptionError, match="cannot `dance`"):
        worker.ask("dance")
    with pytest.raises(OptionError, match="has to `open`"):
        worker.ask("turn", runs=1, settle=0)


def test_the_workers_memory_is_its_own_and_not_that_of_its_parent(worker: EngineProcess) -> None:
    ballast = bytearray(os.urandom(1 << 20)) * 300  # 315 MB in this process
    peak = worker.ask("usage")["peak_rss_mb"]
    assert len(ballast) > 3e8
    assert 10.0 < peak < 200.0


def test_a_fault_of_the_engine_is_told_in_its_words(worker: EngineProcess, tmp_path: Path) -> None:
    missing = tmp_path / "missing.onnx"
    with pytest.raises(DeviceError, match=r"engine `real`: .*missing\.onnx"):
        worker.ask("open", engine="ort", precision="fp32", model=str(missing), threads=1)


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


def test_medians_and_spread_of_what_took_turns() -> None:
    records = [
        {"model": "m", "engine": engine, "turn": turn, "ms": ms}
        for turn, pair in enumerate([(3.0, 30.0), (1.0, 10.0), (8.0, 20.0)])
        for engine, ms in zip(("ours", "theirs"), pair, strict=True)
    ]
    lines = [line.split() for line in rows(records, ("model", "engine"), ("ms",))]
    assert lines == [
        ["m", "ours", "3.0", "(1.0–8.0)"],
        ["m", "theirs", "20.0", "(10.0–30.0)"],
    ]
    assert head(("model", "engine"), ("ms",)).split() == ["model", "engine", "ms"]


def test_a_turn_that_fails_ends_the_bench(tmp_path: Path) -> None:
    script = tmp_path / "child.py"
    script.write_text(
        "import sys\n"
        "print('{\"ms\": ' + sys.argv[1] + '}\\nand more')\n"
        "sys.exit('it broke' if sys.argv[1] == '3' else 0)"
    )
    assert in_turns(str(script), [["1"], ["2"]], 2) == [
        {"ms": 1, "turn": 0},
        {"ms": 1, "turn": 1},
        {"ms": 2, "turn": 0},
        {"ms": 2, "turn": 1},
    ]
    with pytest.raises(DeviceError, match="it broke") as caught:
        in_turns(str(script), [["1"], ["3"]], 1)
    assert "child.py 3`" in caught.value.where


def test_a_command_that_prints_no_record_has_failed() -> None:
    with pytest.raises(DeviceError, match="ended with code 0"):
        printed_record([sys.executable, "-c", "print('done')"])


def test_a_file_is_whole_or_what_it_was(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    save_json(file, {"results": [1]})
    with pytest.raises(TypeError):
        save_json(file, {"results": [object()]})
    assert json.loads(file.read_text("utf-8")) == {"results": [1]}
