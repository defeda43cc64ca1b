"""How OpenAI's API says what was written: whole, or piece by piece.

Source: OpenAI's API reference, as published.
"""

from __future__ import annotations

import json
import math
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vermilion.serve.bodies import json_of
from vermilion.serve.refusals import WrongRequestError

Event = Mapping[str, Any]

# How models that were trained to call tools write a call: in tags, or as an object by itself.
_TAGGED = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
_NAMES = ("name", "function")
# As OpenAI's reference has it for a token that is very unlikely.
_UNLIKELY = -9999.0
_ARGUMENTS = ("arguments", "parameters")


@dataclass
class Choice:
    """One text of an answer."""

    text: list[str] = field(default_factory=list)
    chances: list[Event] = field(default_factory=list)
    finish: str | None = None
    tokens: int = 0

    def add(self, event: Event) -> None:
        """Append what an event tells."""
        self.text.append(event["text"])
        self.tokens += 1
        if "chance" in event:
            self.chances.append(event["chance"])
        self.finish = event["finish"] or self.finish


@dataclass
class Answer:
    """What has come for a request so far."""

    model: str
    is_chat: bool
    logprobs: bool
    has_tools: bool
    choices: list[Choice]
    prompt_tokens: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kind = "chatcmpl" if self.is_chat else "cmpl"
        self._about = {
            "id": f"{kind}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": self.model,
        }

    def usage(self) -> dict[str, Any]:
        """Return how many tokens were read and written."""
        read = sum(self.prompt_tokens.values())
        written = sum(choice.tokens for choice in self.choices)
        return {
            "prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written
        }  # fmt: skip

    def whole(self) -> dict[str, Any]:
        """Return the answer, once all of it is there."""
        row = self._chat_choice if self.is_chat else self._plain_choice
        return {
            **self._about,
            "object": "chat.completion" if self.is_chat else "text_completion",
            "choices": [row(at, choice) for at, choice in enumerate(self.choices)],
            "usage": self.usage(),
        }

    def piece(self, at: int, event: Event) -> dict[str, Any] | None:
        """Return what is sent of an event at once, if anything."""
        finish, text = event["finish"], event["text"]
        chances = [event["chance"]] if "chance" in event else []
        if self.has_tools:  # whether it is a call is known at the end
            if not finish:
                return None
            message, finish = self._message(self.choices[at])
            return self._chunk(at, _as_delta(message), None, finish)
        if not (text or finish or chances):
            return None
        if self.is_chat:
            logprobs = _chat_logprobs(chances) if self.logprobs else None
            return self._chunk(at, {"content": text} if text else {}, logprobs, finish)
        offset = len("".join(self.choices[at].text)) - len(text)
        logprobs = _plain_logprobs(chances, offset) if self.logprobs else None
        row = {"index": at, "text": text, "logprobs": logprobs, "finish_reason": finish}
        return {**self._about, "object": "text_completion", "choices": [row]}

    def opening(self, at: int) -> dict[str, Any]:
        """Return the first piece of a chat's text."""
        return self._chunk(at, {"role": "assistant", "content": ""}, None, None)

    def closing(self) -> dict[str, Any]:
        """Return the last piece: the usage."""
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        return {**self._about, "object": kind, "choices": [], "usage": self.usage()}

    def _chunk(
        self, at: int, delta: Mapping[str, Any], logprobs: Any, finish: str | None
    ) -> dict[str, Any]:
        row = {"index": at, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return {**self._about, "object": "chat.completion.chunk", "choices": [row]}

    def _chat_choice(self, at: int, choice: Choice) -> dict[str, Any]:
        message, finish = self._message(choice)
        return {
            "index": at,
            "message": message,
            "logprobs": _chat_logprobs(choice.chances) if self.logprobs else None,
            "finish_reason": finish,
        }

    def _plain_choice(self, at: int, choice: Choice) -> dict[str, Any]:
        return {
            "index": at,
            "text": "".join(choice.text),
            "logprobs": _plain_logprobs(choice.chances, 0) if self.logprobs else None,
            "finish_reason": choice.finish,
        }

    def _message(self, choice: Choice) -> tuple[dict[str, Any], str | None]:
        text = "".join(choice.text)
        rest, calls = tool_calls(text) if self.has_tools else (text, [])
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if not calls:
            return message, choice.finish
        return {**message, "content": rest or None, "tool_calls": calls}, "tool_calls"


def _as_delta(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls", [])
    delta: dict[str, Any] = {"content": message["content"]} if message["content"] else {}
    if calls:
        delta["tool_calls"] = [{"index": at, **call} for at, call in enumerate(calls)]
    return delta


def tool_calls(text: str) -> tuple[str, list[dict[str, Any]]]:
    """Return what of a text is none, and the calls in it.

    Forms: `<tool_call>{"name": …, "arguments": …}</tool_call>`, as Qwen and Hermes write it, and
    the object alone, with `parameters`, as Llama does.
    """
    found = [_call(match) for match in _TAGGED.findall(text)]
    if any(found):
        return _TAGGED.sub("", text).strip(), [call for call in found if call]
    whole = text.strip().removeprefix("<|python_tag|>").strip()
    call = _call(whole) if whole.startswith("{") else None
    return ("", [call]) if call else (text, [])


def _call(text: str) -> dict[str, Any] | None:
    try:
        given = json_of(text, "a call")
    except WrongRequestError:
        return None
    if not isinstance(given, dict):
        return None
    name = next((given[key] for key in _NAMES if isinstance(given.get(key), str)), None)
    arguments = next((given[key] for key in _ARGUMENTS if key in given), None)
    if name is None or not isinstance(arguments, dict | str):
        return None
    words = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    function = {"name": name, "arguments": words}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def _chat_logprobs(chances: Sequence[Event]) -> dict[str, Any]:
    return {
        "content": [
            {**_token(chance["token"]), "top_logprobs": list(map(_token, chance["likeliest"]))}
            for chance in chances
        ],
        "refusal": None,
    }


def _token(row: Sequence[Any]) -> dict[str, Any]:
    _, text, logprob = row
    letters = list(text.encode("utf-8", "replace"))
    return {"token": text, "logprob": _likelihood(logprob), "bytes": letters}


def _likelihood(logprob: float) -> float | None:
    """Return the logarithm of a likelihood: OpenAI's number for none at all, null for NaN."""
    if math.isfinite(logprob):
        return logprob
    return _UNLIKELY if logprob < 0 else None


def _plain_logprobs(chances: Sequence[Event], offset: int) -> dict[str, Any]:
    tokens = [chance["token"][1] for chance in chances]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [_likelihood(chance["token"][2]) for chance in chances],
        "top_logprobs": [
            {text: _likelihood(logprob) for _, text, logprob in chance["likeliest"]}
            for chance in chances
        ],
        "text_offset": offsets,
    }
