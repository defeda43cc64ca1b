from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vermilion.bench.process import EngineProcess
from vermilion.errors import DeviceError, OptionError, UnsupportedError

ANSWERS = """
import sys, json
for line in sys.stdin:
    message = json.loads(line)
    print(json.dumps({"ok": True, "echo": message}), flush=True)
"""
DIES = "import os, sys; sys.stderr.write('free(): invalid pointer\\n'); sys.stderr.flush(); "
DIES += "sys.stdin.readline(); os._exit(3)"
HANGS = "import time; time.sleep(60)"


def process(code: str, folder: Path, timeout_s: float = 30.0) -> EngineProcess:
    return EngineProcess("peer@fp32", folder, timeout_s=timeout_s, command=("-c", code))


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[EngineProcess]:
    with EngineProcess("real", tmp_path, timeout_s=60.0) as started:
        yield started


def test_a_question_reaches_the_worker_and_its_answer_comes_back(tmp_path: Path) -> None:
    with process(ANSWERS, tmp_path) as engine:
        assert engine.ask("turn", runs=3) == {"echo": {"do": "turn", "runs": 3}}


def test_a_worker_that_dies_is_one_clear_error(tmp_path: Path) -> None:
    with (
        process(DIES, tmp_path) as engine,
        pytest.raises(DeviceError) as raised,
    ):
        engine.ask("turn", runs=3)
    assert raised.value.message == "the process of the engine `peer@fp32` ended with code 3"
    assert raised.value.where == "turn: free(): invalid pointer"
    assert "--against" in raised.value.hint


def test_a_dead_worker_stays_an_error_when_asked_again(tmp_path: Path) -> None:
    with process(DIES, tmp_path) as engine:
        for _ in range(2):
            with pytest.raises(DeviceError, match="ended with code"):
                engine.ask("turn", runs=3)


def test_a_worker_that_hangs_is_ended_in_time(tmp_path: Path) -> None:
    begin = time.perf_counter()
    with (
        process(HANGS, tmp_path, timeout_s=0.3) as engine,
        pytest.raises(DeviceError, match=r"did not answer within 0\.3 s"),
    ):
        engine.ask("open")
    assert time.perf_counter() - begin < 10.0
    assert engine._process.poll() is not None


def test_leaving_ends_the_process(tmp_path: Path) -> None:
    with process(HANGS, tmp_path) as engine:
        number = engine._process.pid
    assert engine._process.poll() is not None
    if os.name == "posix":
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


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
