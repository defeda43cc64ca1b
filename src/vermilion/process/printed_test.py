from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest

from vermilion.process.printed import printed

FLOOD = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
LEAVES = """import subprocess, sys, time
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({place!r}, "w").write(str(left.pid))
time.sleep(600)
"""


def python(code: str, limit_s: float = 60.0, most_bytes: int = 1 << 20) -> str:
    return printed((sys.executable, "-c", code), limit_s, most_bytes)


def test_what_is_printed_is_text() -> None:
    assert python("import os; os.write(1, b'a\\xff\\n')") == "a\ufffd\n"


@pytest.mark.parametrize(
    "code", [FLOOD, "raise SystemExit(3)", "import os, signal; os.kill(os.getpid(), 9)"]
)
def test_too_much_and_failures(code: str) -> None:
    with pytest.raises(ValueError, match="ended with"):
        python(code)


def test_a_hang_is_ended() -> None:
    begin = time.monotonic()
    with pytest.raises(ValueError, match="ended with"):
        python("import time; time.sleep(600)", limit_s=1.0)
    assert time.monotonic() - begin < 300


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no process groups")
def test_what_a_hanging_program_started_is_ended_with_it(tmp_path: Path) -> None:
    place = tmp_path / "number"
    with pytest.raises(ValueError, match="ended with"):
        python(LEAVES.format(place=str(place)), limit_s=5.0)
    number = int(place.read_text())
    until = time.monotonic() + 60.0
    while _runs(number) and time.monotonic() < until:  # a signal takes its time on a busy machine
        time.sleep(0.02)
    assert not _runs(number)


def _runs(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(OSError, match="nowhere"):
        printed(("/nowhere",), 5.0)
