"""What a request to OpenAI's API asks for, checked.

Source: OpenAI's API reference, as published. Fields that are not known are left alone, as clients
send those of their own.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vermilion.serve.bodies import json_of
from vermilion.serve.refusals import WrongRequestError

MOST_CHOICES = 128
_MOST_STOPS = 4
_MOST_LOGPROBS = 20
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


@dataclass(frozen=True)
class Asked:
    """A request for text: what each prompt's message to the process is, and how it is answered."""

    model: str
    prompts: tuple[Mapping[str, Any], ...]
    echoes: tuple[str, ...]
    count: int  # texts for each prompt
    logprobs: bool
    is_stream: bool
    has_usage: bool
    has_tools: bool


class Given:
    """The fields of a body, each read with its limits."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._body = body

    def get(self, name: str) -> Any:
        """Return a field as it is; None where it is not there."""
        return self._body.get(name)

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """Return a number within limits."""
        value = self._body.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise WrongRequestError(f"`{name}` is a number")
        if not low <= value <= high:  # neither is NaN, nor what no float can hold
            raise WrongRequestError(f"`{name}` is a number from {low:g} to {high:g}")
        return float(value)

    def whole(self, name: str, default: int | None, low: int, high: int) -> int | None:
        """Return a whole number within limits."""
        value = self._body.get(name)
        if value is None:
            return default
        if type(value) is not int or not low <= value <= high:
            raise WrongRequestError(f"`{name}` is a whole number from {low} to {high}")
        return value

    def flag(self, name: str) -> bool:
        """Return whether something is wanted."""
        value = self._body.get(name)
        if value is not None and not isinstance(value, bool):
            raise WrongRequestError(f"`{name}` is true or false")
        return bool(value)

    def text(self, name: str) -> str:
        """Return a text that has to be there."""
        value = self._body.get(name)
        if not isinstance(value, str) or not value:
            raise WrongRequestError(f"`{name}` is a text")
        return value


def read_chat(body: Mapping[str, Any]) -> Asked:
    """Read a body for `/v1/chat/completions`. Raises: WrongRequestError."""
    given = Given(body)
    messages = _messages(body.get("messages"))
    tools = _tools(given)
    wanted = given.flag("logprobs")
    most = given.whole("top_logprobs", 0, 0, _MOST_LOGPROBS)
    new = given.whole("max_completion_tokens", None, 1, 1 << 31)
    new = given.whole("max_tokens", new, 1, 1 << 31) if new is None else new
    wish = _wish(given, new, most if wanted else None)
    form = _form(given.get("response_format"))
    if form is not None:
        wish["guidance"] = form
    prompt: dict[str, Any] = {"messages": messages, "wish": wish}
    if tools:
        prompt["tools"] = tools
    return Asked(
        model=given.text("model"), prompts=(prompt,), echoes=("",), count=wish["count"],
        logprobs=wanted, is_stream=given.flag("stream"), has_usage=_has_usage(given),
        has_tools=bool(tools),
    )  # fmt: skip


def read_completion(body: Mapping[str, Any]) -> Asked:
    """Read a body for `/v1/completions`. Raises: WrongRequestError."""
    given = Given(body)
    prompts = _prompts(body.get("prompt"))
    logprobs = given.whole("logprobs", None, 0, _MOST_LOGPROBS)
    wish = _wish(given, given.whole("max_tokens", 16, 1, 1 << 31), logprobs)
    is_echo = given.flag("echo")
    if is_echo and (logprobs is not None or not all(isinstance(one, str) for one in prompts)):
        raise WrongRequestError("`echo` goes with prompts that are texts, without `logprobs`")
    best_of = given.whole("best_of", wish["count"], 1, MOST_CHOICES)
    if best_of != wish["count"]:
        raise WrongRequestError("`best_of` is not known beside `n`", hint="leave it out")
    if body.get("suffix"):
        raise WrongRequestError("`suffix` is not known", hint="leave it out")
    if len(prompts) * wish["count"] > MOST_CHOICES:
        raise WrongRequestError(f"at most {MOST_CHOICES} texts are written for a request")
    return Asked(
        model=given.text("model"),
        prompts=tuple({"prompt": prompt, "wish": wish} for prompt in prompts),
        echoes=tuple(prompt if is_echo and isinstance(prompt, str) else "" for prompt in prompts),
        count=wish["count"], logprobs=logprobs is not None, is_stream=given.flag("stream"),
        has_usage=_has_usage(given), has_tools=False,
    )  # fmt: skip


def _wish(given: Given, new: int | None, logprobs: int | None) -> dict[str, Any]:
    """Return what `sequence.Wish` is made of."""
    seed = given.whole("seed", None, -(1 << 63), (1 << 63) - 1)
    return {
        "new": new,
        "count": given.whole("n", 1, 1, MOST_CHOICES),
        "temperature": given.number("temperature", 1.0, 0, 2),
        "top_p": _above_zero(given, "top_p"),
        "top_k": given.whole("top_k", 0, 0, 1 << 31),
        "min_p": given.number("min_p", 0.0, 0, 1),
        "presence_penalty": given.number("presence_penalty", 0.0, -2, 2),
        "frequency_penalty": given.number("frequency_penalty", 0.0, -2, 2),
        "repetition_penalty": given.number("repetition_penalty", 1.0, 0.01, 100),
        "seed": secrets.randbits(63) if seed is None else seed % (1 << 63),
        "stop": _stops(given.get("stop")),
        "bias": _bias(given.get("logit_bias")),
        "logprobs": logprobs,
        "ignore_end": given.flag("ignore_eos"),
    }


def _above_zero(given: Given, name: str) -> float:
    found = given.number(name, 1.0, 0, 1)
    # 0 means what it does elsewhere: the likeliest token alone.
    return found or 1e-9


def _stops(value: Any) -> list[str]:
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or not all(isinstance(one, str) and one for one in stops):
        raise WrongRequestError("`stop` is a text or a list of texts")
    if len(stops) > _MOST_STOPS:
        raise WrongRequestError(f"`stop` names at most {_MOST_STOPS} texts")
    return stops


def _bias(value: Any) -> list[tuple[int, float]]:
    if value is None:
        return []
    if not isinstance(value, dict):
        raise WrongRequestError("`logit_bias` is an object of tokens and numbers")
    found = []
    for token, bias in value.items():
        is_number = isinstance(bias, int | float) and not isinstance(bias, bool)
        is_token = token.isascii() and token.isdigit() and len(token) < 10
        if not (is_number and is_token and -100 <= bias <= 100):
            raise WrongRequestError("`logit_bias` has tokens, and numbers from -100 to 100")
        found.append((int(token), float(bias)))
    return found


def _has_usage(given: Given) -> bool:
    options = given.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise WrongRequestError("`stream_options` is an object")
    return Given(options).flag("include_usage")


def _messages(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise WrongRequestError("`messages` is a list with at least one message")
    return [_message(one) for one in value]


def _message(value: Any) -> dict[str, Any]:
    role = value.get("role") if isinstance(value, dict) else None
    if not isinstance(role, str) or role not in _ROLES:
        roles = ", ".join(sorted(_ROLES))
        raise WrongRequestError(f"a message is an object with a `role`: {roles}")
    role = "system" if role == "developer" else role
    found: dict[str, Any] = {"role": role, "content": _content(value.get("content"))}
    for name in ("name", "tool_call_id"):
        if isinstance(value.get(name), str):
            found[name] = value[name]
    calls = value.get("tool_calls")
    if calls is not None:
        found["tool_calls"] = [_call(one) for one in _list(calls, "tool_calls")]
    return found


def _call(value: Any) -> dict[str, Any]:
    """Return a call as templates read it: its arguments are an object, not its text."""
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise WrongRequestError("a call in `tool_calls` has a `function` with a `name`")
    arguments = function.get("arguments", "{}")
    if isinstance(arguments, str):
        arguments = json_of(arguments or "{}", "`arguments` of a call")
    return {"type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _content(value: Any) -> str:
    """Return a message's text; parts of it are joined."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    texts = []
    for part in _list(value, "content"):
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            raise WrongRequestError("the parts of a `content` are texts: models here read no other")
        texts.append(part["text"])
    return "".join(texts)


def _list(value: Any, name: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise WrongRequestError(f"`{name}` is a list")
    return value


def _tools(given: Given) -> list[dict[str, Any]]:
    tools, choice = given.get("tools"), given.get("tool_choice")
    if tools is None or choice == "none":
        return []
    for tool in _list(tools, "tools"):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise WrongRequestError("a tool in `tools` has a `function` with a `name`")
    if choice not in (None, "auto"):
        raise WrongRequestError("`tool_choice` is `auto` or `none`: no call is made certain")
    return list(tools)


def _form(value: Any) -> tuple[str, str] | None:
    """Return the schema that a text is to follow."""
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return "json_schema", '{"type": "object"}'
    if kind == "json_schema":
        about = value.get("json_schema")
        schema = about.get("schema") if isinstance(about, dict) else None
        if isinstance(schema, dict):
            return "json_schema", json.dumps(schema)
        raise WrongRequestError("`response_format.json_schema` has a `schema`, an object")
    raise WrongRequestError("`response_format` is `text`, `json_object` or `json_schema`")


def _prompts(value: Any) -> list[str | list[int]]:
    """Return prompts: texts, or tokens."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value and all(type(one) is int for one in value):
        return [value]
    if isinstance(value, list) and value and all(_is_prompt(one) for one in value):
        return value
    raise WrongRequestError("`prompt` is a text, a list of tokens, or a list of such")


def _is_prompt(value: Any) -> bool:
    if isinstance(value, str):
        return True
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)
