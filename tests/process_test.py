"""A session with signals, threads and forks: right numbers, and nobody's memory touched."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import vermilion
from models import Array, Net, conv

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="this system has no alarms and no forks"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
SIZE, CHANNELS = 40, 32
# ONNX Runtime computes what our generator has no rule for; the fork must be survived by both.
KINDS = ("native", "ort")


class Late(Exception):
    """What the handler of an alarm raises."""


@pytest.fixture(scope="module", params=KINDS)
def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    net = Net("process", 3)
    last = net.input("x", (1, 3, SIZE, SIZE))
    for at in range(4):
        last = conv(net, last, f"conv{at}", (CHANNELS if at else 3, CHANNELS), 3)
        last = net.op("Relu", last, name=f"relu{at}")
    if request.param == "ort":
        last = net.op("Det", last, name="det")
    net.output(last, "y", (1, CHANNELS) if request.param == "ort" else (1, CHANNELS, SIZE, SIZE))
    cache = tmp_path_factory.mktemp(request.param)
    compiled = vermilion.compile_model(net.model(), cache_dir=cache)
    backends = {row["backend"] for row in compiled.report.nodes}
    assert request.param in backends
    return compiled.artifact


@pytest.fixture
def session(artifact: Path) -> Iterator[vermilion.InferenceSession]:
    with vermilion.InferenceSession(artifact, threads=2) as opened:
        yield opened


def picture(seed: int) -> dict[str, Array]:
    return {"x": np.random.default_rng(seed).standard_normal((1, 3, SIZE, SIZE), np.float32)}


@contextmanager
def alarms(every_s: float) -> Iterator[None]:
    """Raise `Late` in the main thread after a while, again and again."""

    def late(signum: int, frame: object) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, every_s, every_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_run_that_an_alarm_ends_writes_nothing_afterwards(
    session: vermilion.InferenceSession,
) -> None:
    feeds = picture(1)
    expected = session.run(None, feeds)[0]
    interrupted = 0
    for round_ in range(40):
        # Another time each round, so that it comes before, within and after the native call.
        try:
            with alarms(0.0004 + 0.00011 * round_):
                session.run(None, {"x": feeds["x"].copy()})
                time.sleep(0.001)
        except Late:
            interrupted += 1
        # What was freed is what is allocated next: a worker that goes on writes here.
        others = [np.full(expected.shape, 5, np.float32) for _ in range(4)]
        time.sleep(0.002)
        assert all((other == 5).all() for other in others)
        assert np.array_equal(session.run(None, feeds)[0], expected)
    assert interrupted >= 3  # a busy machine is late with alarms, or with runs


def test_closing_while_another_thread_runs_ends_its_run_rightly(artifact: Path) -> None:
    feeds = picture(2)
    for _ in range(5):
        session = vermilion.InferenceSession(artifact, threads=2)
        expected, wrong = session.run(None, feeds)[0], []

        def work(
            session: vermilion.InferenceSession = session,
            expected: Array = expected,
            wrong: list[str] = wrong,
        ) -> None:
            while True:
                try:
                    found = session.run(None, feeds)[0]
                except vermilion.VermilionError:
                    return
                if not np.array_equal(found, expected):
                    wrong.append("other numbers")

        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.02)
        session.close()
        thread.join(timeout=20)
        assert not thread.is_alive()
        assert not wrong


def test_a_session_that_another_thread_collects_takes_its_memory_along(artifact: Path) -> None:
    feeds = picture(3)
    expected = vermilion.InferenceSession(artifact, threads=2).run(None, feeds)[0]
    for _ in range(10):
        held = [vermilion.InferenceSession(artifact, threads=2)]
        assert np.array_equal(held[0].run(None, feeds)[0], expected)
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
    time.sleep(0.05)  # who is late would end the process


def exit_codes(children: list[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def test_forked_while_another_thread_runs(session: vermilion.InferenceSession) -> None:
    feeds, other = picture(4), picture(5)
    expected, stop = session.run(None, feeds)[0], threading.Event()

    def work() -> None:
        while not stop.is_set():
            session.run(None, other)

    thread = threading.Thread(target=work)
    thread.start()
    children = []
    for _ in range(10):
        time.sleep(0.013)
        child = os.fork()
        if child == 0:
            signal.alarm(30)  # rather than wait for ever
            right = all(np.array_equal(session.run(None, feeds)[0], expected) for _ in range(3))
            os._exit(0 if right else 1)
        children.append(child)
    stop.set()
    thread.join()
    assert exit_codes(children) == [0] * 10
    assert np.array_equal(session.run(None, feeds)[0], expected)


def test_forked_by_the_thread_that_is_in_a_run(session: vermilion.InferenceSession) -> None:
    """A handler that forks, as servers have them that begin anew on a signal."""
    feeds, children = picture(6), []
    expected = session.run(None, feeds)[0]

    def fork(signum: int, frame: object) -> None:
        children.append(os.fork())

    before = signal.signal(signal.SIGALRM, fork)
    signal.setitimer(signal.ITIMER_REAL, 0.0015)
    try:
        until = time.monotonic() + 10
        while not children and time.monotonic() < until:
            found = session.run(None, feeds)[0]
    finally:
        signal.signal(signal.SIGALRM, before)
    if children == [0]:
        signal.alarm(30)
        right = np.array_equal(found, expected)
        right = right and np.array_equal(session.run(None, feeds)[0], expected)
        os._exit(0 if right else 1)
    assert exit_codes(children) == [0]


_shared: dict[str, vermilion.InferenceSession] = {}


def _answer(seed: int) -> float:
    return float(_shared["session"].run(None, picture(seed))[0].sum())


def test_a_pool_of_forked_processes_answers(session: vermilion.InferenceSession) -> None:
    """A model that is opened before the workers are forked, as `gunicorn --preload` does."""
    _shared["session"] = session
    expected = [_answer(seed) for seed in range(6)]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map_async(_answer, range(6)).get(timeout=60) == expected


def test_a_forked_process_ends_by_itself(artifact: Path) -> None:
    """Interpreters end by destroying what is left; sessions of the parent must not wait there."""
    session = vermilion.InferenceSession(artifact, threads=2)
    session.run(None, picture(7))
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            session.run(None, picture(7))
            del session
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert exit_codes([child]) == [0]
