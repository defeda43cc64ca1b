"""What parent and worker say of a session (`vermilion.process`: how), and what its profile says.

The worker is made with a folder, in which the model lies, and one file a tensor, which both map:
inputs are written by the parent, outputs by the worker. It has three methods:

    open   request → providers, assigned (nodes by provider), assigned_nodes (their names)
    run
    close  → events (node runs by provider), nodes (names of the nodes that ran, by provider)

What a worker says is read with `of_message`, which believes no type unseen.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from vermilion.errors import ArtifactError
from vermilion.process.arrays import TensorFile

MODEL_FILE = "part.onnx"


@dataclass(frozen=True)
class Request:
    """What the worker is to open: the file `model` below its folder.

    `library` is a plugin's; empty where the provider is built in.
    """

    provider: str
    options: Mapping[str, str]
    inputs: Sequence[TensorFile]
    outputs: Sequence[TensorFile]
    library: str = ""
    model: str = MODEL_FILE
    environment: Mapping[str, str] = field(default_factory=dict)
    session_entries: Mapping[str, str] = field(default_factory=dict)
    profile: bool = False

    @classmethod
    def of_message(cls, message: Mapping[str, Any]) -> Self:
        """Read what `dataclasses.asdict` made of a request."""
        tensors = {
            key: tuple(
                TensorFile(t["name"], t["file"], t["dtype"], tuple(t["shape"]))
                for t in message[key]
            )
            for key in ("inputs", "outputs")
        }
        return cls(**{**message, **tensors})


Names = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Opened:
    """What the worker says once its session is there."""

    providers: tuple[str, ...]
    assigned: Mapping[str, int]
    assigned_nodes: Names = field(default_factory=dict)

    @classmethod
    def of_message(cls, said: Mapping[str, Any]) -> Self:
        """Read an answer. Raises: ValueError for one of other types."""
        return cls(
            tuple(_text(name) for name in _list(said.get("providers"))),
            _counts(said.get("assigned")),
            _names(said.get("assigned_nodes", {})),
        )


@dataclass(frozen=True)
class Closed:
    """What the worker says when it ends: how many node runs each provider had, and of which."""

    events: Mapping[str, int]
    nodes: Names = field(default_factory=dict)

    @classmethod
    def of_message(cls, said: Mapping[str, Any]) -> Self:
        """Read an answer. Raises: ValueError for one of other types."""
        return cls(_counts(said.get("events")), _names(said.get("nodes", {})))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"`{str(value)[:80]}` is no text")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"`{str(value)[:80]}` is no list")
    return value


def _map(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"`{str(value)[:80]}` is no object")
    return value


def _counts(value: object) -> dict[str, int]:
    counts = _map(value)
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ValueError(f"{name} `{str(count)[:80]}` is no count")
    return counts


def _names(value: object) -> dict[str, tuple[str, ...]]:
    return {key: tuple(map(_text, _list(names))) for key, names in _map(value).items()}


CPU = "CPUExecutionProvider"


_KERNEL_TIME = "_kernel_time"


def count_events(profile: str) -> dict[str, int]:
    """Count node runs by provider in an ONNX Runtime profile.

    Raises: ArtifactError where the text is no profile.
    """
    return dict(Counter(provider for provider, _ in _node_runs(profile)))


def nodes_that_ran(profile: str) -> dict[str, list[str]]:
    """Return the names of the nodes that ran, by provider, each once.

    Raises: ArtifactError where the text is no profile.
    """
    found: dict[str, dict[str, None]] = {}
    for provider, node in _node_runs(profile):
        found.setdefault(provider, {})[node] = None
    return {provider: list(nodes) for provider, nodes in found.items()}


def _node_runs(profile: str) -> Iterator[tuple[str, str]]:
    try:
        events = json.loads(profile)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"this is no profile: {error}") from error
    for event in events if isinstance(events, list) else []:
        arguments = event.get("args") if isinstance(event, dict) else None
        if not isinstance(arguments, dict) or event.get("cat") != "Node":
            continue
        provider, name = arguments.get("provider"), str(event.get("name", ""))
        if isinstance(provider, str) and name.endswith(_KERNEL_TIME):
            yield provider, name.removesuffix(_KERNEL_TIME)
