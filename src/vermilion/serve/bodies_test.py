"""JSON in and out: how deep, with which letters."""

from __future__ import annotations

import json
import math

import pytest

from vermilion.serve.bodies import json_bytes, json_of, object_of
from vermilion.serve.refusals import WrongRequestError


def test_how_deep_json_is() -> None:
    for deep in ("[" * 65 + "]" * 65, '{"a":' * 70 + "1" + "}" * 70, "[" * 30_000 + "]" * 30_000):
        with pytest.raises(WrongRequestError, match="the body is nested too deeply"):
            json_of(deep, "the body")
    assert json_of("[" * 64 + "]" * 64, "it")
    colours = {"content": "\x1b[31m" * 500 + "{" * 500}  # brackets of texts are none
    assert object_of(json.dumps(colours).encode()) == colours
    for wrong, words in ((b"[]", "no JSON object"), (b"{", "no JSON"), (b"\xff", "no JSON")):
        with pytest.raises(WrongRequestError, match=words):
            object_of(wrong)


def test_what_is_written_is_json_in_utf8() -> None:
    given = {"a": "ü", "b": "\ud800", "c": [1, None, "\udc80x"]}
    text = json_bytes(given)
    assert json.loads(text.decode("utf-8")) == given
    assert "ü".encode() in text
    for wrong in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="JSON"):
            json_bytes([wrong])
