"""Answers of OpenAI's API: calls of tools in what a model wrote, whole and in pieces."""

from __future__ import annotations

import json

import pytest

from vermilion.serve.openai_answers import Answer, Choice, tool_calls

CALL = '{"name": "weather", "arguments": {"city": "Köln"}}'


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        (f"<tool_call>\n{CALL}\n</tool_call>", ""),
        (f"Let me see. <tool_call>{CALL}</tool_call>", "Let me see."),
        (CALL, ""),
        ('<|python_tag|>{"name": "weather", "parameters": {"city": "Köln"}}', ""),
    ],
)
def test_calls_in_a_text(text: str, rest: str) -> None:
    found, calls = tool_calls(text)
    assert found == rest
    assert calls[0]["type"] == "function"
    assert calls[0]["function"]["name"] == "weather"
    assert json.loads(calls[0]["function"]["arguments"]) == {"city": "Köln"}


@pytest.mark.parametrize(
    "text",
    ["plain", "{", '{"a": 1}', "<tool_call>no</tool_call>", '{"name": 3, "arguments": {}}', "[1]"],
)
def test_what_is_no_call(text: str) -> None:
    assert tool_calls(text) == (text, [])


def event(text: str, finish: str | None = None) -> dict[str, object]:
    return {"text": text, "finish": finish, "token": 1, "choice": 0}


def test_a_call_is_told_at_the_end() -> None:
    answer = Answer("m", is_chat=True, logprobs=False, has_tools=True, choices=[Choice()])
    pieces = []
    for one in (event("<tool_call>"), event(CALL), event("</tool_call>", "stop")):
        answer.choices[0].add(one)
        pieces.append(answer.piece(0, one))
    assert pieces[:2] == [None, None]
    assert pieces[2] is not None
    (choice,) = pieces[2]["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["delta"]["tool_calls"][0]["index"] == 0
    (whole,) = answer.whole()["choices"]
    assert (whole["finish_reason"], whole["message"]["content"]) == ("tool_calls", None)
    assert answer.usage()["completion_tokens"] == 3


def test_a_text_beside_tools_is_a_text() -> None:
    answer = Answer("m", is_chat=True, logprobs=False, has_tools=True, choices=[Choice()])
    answer.choices[0].add(event("Hello", "length"))
    piece = answer.piece(0, event("Hello", "length"))
    assert piece is not None
    assert piece["choices"][0]["delta"] == {"content": "Hello"}
    assert piece["choices"][0]["finish_reason"] == "length"
