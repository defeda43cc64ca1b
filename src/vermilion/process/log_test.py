from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from vermilion.process.log import bound_log, exit_words, last_words, shorten_log, tail


def test_the_end_of_a_long_log_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.truncate(20 << 20)
        file.seek(0, 2)
        file.write(b"\n[Vitis AI EP] No. of Operators : NPU 3\n")
    bound_log(log)
    assert log.stat().st_size < 1 << 17
    assert tail(log).endswith("No. of Operators : NPU 3\n")
    shorten_log(log)
    assert log.stat().st_size > 0, "it is not long"
    bound_log(tmp_path / "missing")


def test_last_words_are_words(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_words(log) == ""
    log.write_bytes(b"one\n\x1b[0;93mtwo\x1b[m\n\n\xff three\n" + b"x" * 1000)
    assert last_words(log) == "two | \ufffd three | " + "x" * 400


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no pipes in folders")
def test_what_stands_in_a_log_s_place_is_not_waited_for(tmp_path: Path) -> None:
    log = tmp_path / "log"
    os.mkfifo(log)
    assert tail(log) == last_words(log) == ""
    bound_log(log)
    log.unlink()
    log.symlink_to("/dev/zero")
    assert tail(log) == ""


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-11, "SIGSEGV (access violation)"),
        (139, "SIGSEGV (access violation)"),
        (-6, "SIGABRT"),
        (3221225477, "0xC0000005, access violation"),
        (-1073741819, "0xC0000005, access violation"),
        (0xC0000409, "0xC0000409, fail-fast exception"),
        (3, "exit code 3"),
    ],
)
def test_exit_codes_in_words(code: int, words: str) -> None:
    assert exit_words(code) == words
