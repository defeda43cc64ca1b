from __future__ import annotations

import pytest

from vermilion.exits import exit_words


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
