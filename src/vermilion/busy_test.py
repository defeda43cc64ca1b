from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vermilion.busy import (
    Neighbours,
    Usage,
    disturbance,
    own_seconds,
    share_of_others,
    usage,
)  # fmt: skip

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
    # One of `cpu_count` processors; a part of it if it had to share that.
    assert found > 0.2 / (os.cpu_count() or 1)


def test_what_children_use_is_ones_own() -> None:
    code = "import time\nwhile time.process_time() < 0.3: pass"
    before = own_seconds()
    subprocess.run([sys.executable, "-c", code], check=True)
    assert own_seconds() - before > 0.29


def test_a_short_measurement_is_watched_for_long_enough() -> None:
    begin = time.perf_counter()
    share = Neighbours().share()
    if share is not None:
        assert time.perf_counter() - begin >= 0.25
        assert 0.0 <= share <= 1.1


def test_only_a_disturbed_figure_is_warned_of() -> None:
    assert disturbance("m.onnx", None) == disturbance("m.onnx", 0.05) == ""
    assert disturbance("m.onnx", 0.31).startswith("m.onnx: other programs used 31% of")
