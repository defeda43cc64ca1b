from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import fake_worker
from vermilion.bench.process import EngineProcess
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
