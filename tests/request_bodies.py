"""Bodies of requests, and what becomes of them when any field is any value."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

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


INFER = {
    "id": "1", "parameters": {"binary_data_output": False},
    "inputs": [
        {"name": "x", "shape": [2, 4], "datatype": "FP32", "data": [[1, 2, 3, 4], [5, 6, 7, 8]],
         "parameters": {}}
    ],
    "outputs": [{"name": "y", "parameters": {"classification": 2, "binary_data": False}}],
}  # fmt: skip
TEXTS = {
    "inputs": [
        {"name": "a", "shape": [1], "datatype": "INT64", "data": [1]},
        {"name": "b", "shape": [1], "datatype": "BOOL", "data": [True]},
        {"name": "c", "shape": [1], "datatype": "BYTES", "data": ["a"]},
    ]
}  # fmt: skip


def places(body: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the way to everything in a body."""
    pairs = body.items() if isinstance(body, dict) else enumerate(body)
    for key, value in pairs:
        yield (key,)
        if isinstance(value, dict | list):
            yield from ((key, *rest) for rest in places(value))


def changed_bodies(body: Any) -> Iterator[Any]:
    """Yield a body with everything in it, one after the other, as every value."""
    for way in places(body):
        for value in VALUES:
            changed = copy.deepcopy(body)
            inner: Any = changed
            for key in way[:-1]:
                inner = inner[key]
            inner[way[-1]] = value
            yield changed
