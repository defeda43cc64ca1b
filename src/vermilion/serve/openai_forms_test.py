"""Requests to OpenAI's API: every field with every kind of value is read or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from request_bodies import CHAT, COMPLETION, EMBEDDINGS, RERANK, changed_bodies
from vermilion.serve.encoder import read_embeddings, read_rerank
from vermilion.serve.openai_forms import read_chat, read_completion
from vermilion.serve.refusals import WrongRequestError


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (read_chat, CHAT),
        (read_completion, COMPLETION),
        (read_embeddings, EMBEDDINGS),
        (read_rerank, RERANK),
    ],
)
def test_every_field_with_every_value(read: Callable[[Any], Any], body: dict[str, Any]) -> None:
    read(body)
    taken = refused = 0
    for changed in changed_bodies(body):
        try:
            found = read(changed)
        except WrongRequestError:
            refused += 1
            continue
        taken += 1
        json.dumps(getattr(found, "prompts", None))  # as the process is told it
    assert taken > 20
    assert refused > 50


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "presence_penalty"])
def test_numbers_that_no_float_can_hold(name: str) -> None:
    for value in (10**400, -(10**400), float("nan"), float("inf")):
        with pytest.raises(WrongRequestError, match=f"`{name}` is a number from"):
            read_chat({**CHAT, name: value})


def test_roles_and_arguments_of_calls() -> None:
    for role in (["user"], {"user": 1}, None, 1):
        with pytest.raises(WrongRequestError, match="`role`"):
            read_chat({**CHAT, "messages": [{"role": role, "content": "a"}]})
    for depth in (65, 300, 900, 5000):  # deeper than can be written again
        call = {"function": {"name": "f", "arguments": "[" * depth + "]" * depth}}
        with pytest.raises(WrongRequestError, match="nested too deeply"):
            read_chat({**CHAT, "messages": [{"role": "assistant", "tool_calls": [call]}]})
