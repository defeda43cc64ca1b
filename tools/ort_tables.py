"""The tables of docs/onnxruntime.md: what becomes of every name of ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vermilion.ort.facts import (
    CONFIG_ENTRIES,
    KEYWORDS,
    RUN_CONFIG_ENTRIES,
    RUN_OPTIONS,
    SESSION_OPTIONS,
    Fact,
)
from vermilion.ort.surface import INFERENCE_SESSION, IO_BINDING, MODULE, THE_SAME

_TITLES: Mapping[str, Mapping[str, Fact]] = {
    "`onnxruntime`": {**MODULE, "all others": THE_SAME},
    "`InferenceSession`": INFERENCE_SESSION,
    "Keywords of `InferenceSession`": KEYWORDS,
    "`SessionOptions`": SESSION_OPTIONS,
    "Entries of a session's configuration": CONFIG_ENTRIES,
    "`RunOptions`": RUN_OPTIONS,
    "Entries of a run's configuration": RUN_CONFIG_ENTRIES,
    "`IOBinding`": IO_BINDING,
}


def surface_tables(table: Callable[[list[str], list[list[str]]], str]) -> str:
    """Return a table for each class, and for what has names of its own in it."""
    parts = []
    for title, facts in _TITLES.items():
        rows = [[_shown(name), fact.kind, fact.words] for name, fact in facts.items()]
        parts += [f"### {title}", table(["name", "here", "how"], rows)]
    return "\n\n".join(parts)


def _shown(name: str) -> str:
    if name == "all others":
        return name
    return f"`{name}…`" if name.endswith((".", "_")) else f"`{name}`"
