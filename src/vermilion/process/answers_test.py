from __future__ import annotations

import io
import json
import queue

import pytest

from vermilion.process.answers import _MOST_WAITING, BROKEN, Answer, Answers, parsed, read_answers

GOOD = b'{"number": 1, "ok": {}}\n'


def read(data: bytes) -> list[Answer]:
    answers: Answers = queue.SimpleQueue()
    read_answers(io.BytesIO(data), answers)
    return [answers.get() for _ in range(answers.qsize())]


def test_answers_and_the_end() -> None:
    error = {"error": {"kinds": ["DeviceError"], "message": "m", "where": "", "hint": ""}}
    assert read(GOOD + json.dumps(error).encode() + b"\n") == [{"number": 1, "ok": {}}, error, None]
    assert read(b"") == [None]


def test_noise_before_the_first_answer_is_none_and_after_it_breaks() -> None:
    assert read(b"a library\n\xff\xfe\n" + GOOD) == [{"number": 1, "ok": {}}, None]
    assert read(GOOD + b"a library\n" + GOOD) == [{"number": 1, "ok": {}}, BROKEN]
    assert read(b"x" * 2000 + b"\n" + b"y\n" * (1 << 20)) == [BROKEN], "a flood"


@pytest.mark.parametrize(
    "rest",
    [b'"ok": []}', b'"ok": {}', b'"ok": ' + b"[" * 100_000, b'"ok": ' + b"9" * 5000, b"\xff"],
)
def test_an_answer_that_cannot_be_read_is_not_waited_out(rest: bytes) -> None:
    assert read(b'{"number": 1, ' + rest + b"\n") == [BROKEN]


def test_a_flood_of_answers_ends() -> None:
    found = read(GOOD * (2 * _MOST_WAITING))
    assert len(found) == _MOST_WAITING + 1
    assert found[-1] == BROKEN


@pytest.mark.parametrize(
    "line",
    [
        b"", b"null", b"[]", b'"ok"', b'{"ok": null}', b'{"ok": []}', b'{"error": "no"}',
        b'{"error": {"kinds": 3}}',
        b'{"error": {"kinds": [[1]], "message": "", "where": "", "hint": ""}}',
        b'{"error": {"kinds": [], "message": 1}}', b"[" * 100_000,
        b'{"ok": {}', b"1" * 5000, b"\xff",
    ],
)  # fmt: skip
def test_what_is_no_answer(line: bytes) -> None:
    assert parsed(line) is None
