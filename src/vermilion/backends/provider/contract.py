"""What parent and worker say of a session (`vermilion.process`: how), and what its profile says.

The worker is made with a folder, in which the model lies, and one file a tensor, which both map:
inputs are written by the parent, outputs by the worker. It has three methods:

    open   request → providers, assigned (nodes by provider)
    run
    close  → events (node runs by provider)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True)
class Opened:
    """What the worker says once its session is there."""

    providers: tuple[str, ...]
    assigned: Mapping[str, int]


@dataclass(frozen=True)
class Closed:
    """What the worker says when it ends: how many node runs each provider had."""

    events: Mapping[str, int]


CPU = "CPUExecutionProvider"


def count_events(profile: str) -> dict[str, int]:
    """Count node runs by provider in an ONNX Runtime profile.

    Raises: ArtifactError where the text is no profile.
    """
    try:
        events = json.loads(profile)
    except ValueError as error:
        raise ArtifactError(f"this is no profile: {error}") from error
    counts: Counter[str] = Counter()
    for event in events if isinstance(events, list) else []:
        arguments = event.get("args") if isinstance(event, dict) else None
        if not isinstance(arguments, dict) or event.get("cat") != "Node":
            continue
        provider = arguments.get("provider")
        if isinstance(provider, str) and str(event.get("name", "")).endswith("_kernel_time"):
            counts[provider] += 1
    return dict(counts)
