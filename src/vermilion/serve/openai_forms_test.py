"""Requests to OpenAI's API: every field with every kind of value is read or refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vermilion.serve.encoder import read_embeddings, read_rerank
from vermilion.serve.openai_forms import read_chat, read_completion
from vermilion.serve.refusals import WrongRequestError

DEEP: Any = []
for _ in range(60):
    DEEP = [DEEP]
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 10**400, -(10**400), 1 << 64, 1e308, -0.0, float("nan"),
    float("inf"), float("-inf"), "", "a", "\ud800", "\0", "1" * 5000, [], [[]], [[[]]], [None], [1],
    [10**400], ["a"], [["a"]], ["a", 1], {}, {"a": 1}, {"type": []}, {"": {}}, [{}], [[1], [2]],
    DEEP, {"type": "json_schema"}, {"role": ["user"]}, {"function": {"name": []}}, "[" * 3000,
)  # fmt: skip
CALL = {"function": {"name": "f", "arguments": "{}"}}
CHAT = {
    "model": "m", "n": 1, "temperature": 1, "top_p": 1, "top_k": 1, "min_p": 0.1, "seed": 1,
    "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "stop": ["a"],
    "logit_bias": {"1": 1}, "logprobs": True, "top_logprobs": 1, "max_tokens": 1, "stream": True,
    "max_completion_tokens": 1, "ignore_eos": False, "stream_options": {"include_usage": True},
    "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
    "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "auto",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "x"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "tool_call_id": "1"},
    ],
}  # fmt: skip
COMPLETION = {
    **{name: value for name, value in CHAT.items() if name not in ("messages", "logprobs")},
    "prompt": ["a", "b"], "logprobs": None, "echo": True, "best_of": 1, "suffix": None,
}  # fmt: skip
EMBEDDINGS = {"model": "m", "input": ["a"], "encoding_format": "float", "dimensions": 4}
RERANK = {
    "model": "m", "query": "a", "documents": ["a", {"text": "b"}], "top_n": 1,
    "return_documents": True,
}  # fmt: skip


def places(body: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the way to everything in a body."""
    pairs = body.items() if isinstance(body, dict) else enumerate(body)
    for key, value in pairs:
        yield (key,)
        if isinstance(value, dict | list):
            yield from ((key, *rest) for rest in places(value))


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
    for way in places(body):
        for value in VALUES:
            changed = copy.deepcopy(body)
            inner: Any = changed
            for key in way[:-1]:
                inner = inner[key]
            inner[way[-1]] = value
            try:
                found = read(changed)
            except WrongRequestError as error:
                error.message.encode("utf-8", "backslashreplace")
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
