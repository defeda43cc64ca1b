"""Workers that start processes, hold on to Python's lock, or answer what they were not asked."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from vermilion.process.child import Child, ChildError

FAKE = ("fake_worker",)
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="this system has no such groups")


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    with Child(FAKE, tmp_path / "log", who="a fake", native=True) as started:
        yield started


def gone(numbers: Sequence[int], within_s: float = 10.0) -> bool:
    """Whether none of the processes runs any more; a zombie of nobody's is for `init` to bury."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if not any(_runs(number) for number in numbers):
            return True
        time.sleep(0.02)
    return False


def _runs(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def test_what_a_worker_started_ends_with_it(child: Child) -> None:
    started = child.ask("start_others", limit_s=60)["started"]
    assert all(map(_runs, started))
    child.stop()
    assert gone(started), "also what left the group"


def test_an_end_is_noticed_though_others_hold_the_pipe(child: Child) -> None:
    child.ping(60)
    begin = time.monotonic()
    with pytest.raises(ChildError, match=r"the process ended while doing .*: exit code 7"):
        child.ask("start_others", {"code": 7}, limit_s=600)
    assert time.monotonic() - begin < 30
    marked = [p for p in psutil.process_iter() if p.ppid() == child.process]
    assert gone([p.pid for p in marked])


@pytest.mark.parametrize(
    "line",
    ['{"number": 99, "ok": {}}', '{"ok": []}', '{"error": 5}', "\\xff", "[" * 5000],
)
def test_answers_that_are_none_are_one_clear_error(child: Child, line: str) -> None:
    child.ping(60)
    with pytest.raises(ChildError, match="nobody can read what it answers"):
        child.ask("answer_anything", {"line": line}, limit_s=60)
    assert not child.is_alive
    with pytest.raises(ChildError, match=r"it broke|nobody can read"):
        child.ask("echo", limit_s=60)


def test_a_log_without_end_is_cut_while_the_worker_talks(child: Child) -> None:
    child.ping(60)
    with pytest.raises(ChildError, match="took more than"):
        child.ask("flood", {"megabytes": 60}, limit_s=2.0)
    assert child.log.stat().st_size < 40 << 20


PARENT = """
import sys
from pathlib import Path
from vermilion.process.child import Child
scratch = Path(sys.argv[1])
scratch.mkdir()
child = Child(("fake_worker",), scratch / "log", who="a fake", scratch=scratch, native=True)
started = child.ask("start_others", limit_s=60)["started"]
print(child.process, *started[:1], flush=True)
child.ask("hold_python", {"seconds": 600}, limit_s=600)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="this system has no /proc")
def test_a_worker_that_holds_the_lock_ends_with_a_killed_parent(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(scratch)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as parent:
        assert parent.stdout is not None
        numbers = [int(word) for word in parent.stdout.readline().split()]
        time.sleep(0.3)
        parent.kill()
    assert len(numbers) == 2
    assert gone(numbers, 20)
    until = time.monotonic() + 10
    while scratch.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not scratch.exists()
