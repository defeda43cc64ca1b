from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from vermilion.bench.machine import (
    WINDOW_S,
    WINDOWS_IN_A_ROW,
    Usage,
    share_of_others,
    usage,
    wait_until_quiet,
)

STAT = "cpu  100 20 30 900 50 5 6 7 11 12\ncpu0 1 2 3 4 5 6 7 8 9 10\n"


@pytest.mark.skipif(not hasattr(os, "sysconf"), reason="this system has no sysconf")
def test_idle_waiting_and_guests_are_not_counted(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text(STAT)
    found = usage(lambda: 0.5, stat)
    assert found is not None
    assert found.all_s == 168 / os.sysconf("SC_CLK_TCK")
    assert found.own_s == 0.5


def test_a_system_that_does_not_tell_is_unknown_not_idle(tmp_path: Path) -> None:
    assert usage(lambda: 0.0, tmp_path / "none") is None
    assert share_of_others(None, Usage(1.0, 1.0, 1.0)) is None


def test_what_is_not_ours_is_theirs() -> None:
    before, after = Usage(10.0, 100.0, 50.0), Usage(20.0, 108.0, 55.0)
    assert share_of_others(before, after) == pytest.approx(3.0 / (10.0 * (os.cpu_count() or 1)))
    assert share_of_others(before, Usage(20.0, 104.0, 55.0)) == 0.0


@pytest.mark.skipif(not Path("/proc/stat").is_file(), reason="this system has no /proc/stat")
def test_a_busy_neighbour_is_seen() -> None:
    code = "import time\nend = time.monotonic() + 10\nwhile time.monotonic() < end: pass"
    neighbour = subprocess.Popen([sys.executable, "-c", code])
    try:
        time.sleep(0.2)
        before = usage(time.process_time)
        time.sleep(0.5)
        found = share_of_others(before, usage(time.process_time))
    finally:
        neighbour.kill()
        neighbour.wait()
    assert found is not None
    # One of `cpu_count` processors; half of it if it had to share that.
    assert found > 0.5 / (os.cpu_count() or 1)


class Spinner:
    """A thread that uses a core until it is told to stop, or for `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds
        self._thread = threading.Thread(target=self._spin)
        self._thread.start()

    def _spin(self) -> None:
        while time.perf_counter() < self._end:
            pass

    @property
    def is_spinning(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> None:
        self._thread.join()


def test_an_idle_process_is_quiet_after_the_windows_that_prove_it() -> None:
    begin = time.perf_counter()
    assert wait_until_quiet() is not None
    assert time.perf_counter() - begin >= WINDOW_S * WINDOWS_IN_A_ROW


def test_a_spinning_thread_is_waited_for() -> None:
    spinner = Spinner(0.15)
    quiet_after_ms = wait_until_quiet()
    assert quiet_after_ms is not None
    assert quiet_after_ms > 0.0
    assert not spinner.is_spinning
    spinner.join()


def test_one_that_never_stops_is_given_up_on() -> None:
    spinner = Spinner(0.5)
    assert wait_until_quiet(give_up_s=0.1) is None
    spinner.join()
