"""What parent and child say to each other.

The child is given a folder. In it lies `request.json` (a `Request`), and one file a tensor, which
both map: inputs are written by the parent, outputs by the child. The child answers on its standard
output, one JSON object a line, each with `event`:

    opened   the session is there: `providers`, `assigned` (nodes by provider), `seconds`
    ran      after the line `run` on its standard input: `seconds`
    closed   after the line `close`: `events` (node runs by provider)
    failed   instead of any of these: `reason`

Everything else that it or a native library prints goes to `log.txt`: the provider hangs where its
stderr is a pipe (https://github.com/microsoft/winml-cli/issues/1265).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

REQUEST_FILE = "request.json"
LOG_FILE = "log.txt"
MODEL_FILE = "part.onnx"

Array = NDArray[Any]


@dataclass(frozen=True)
class TensorFile:
    """One tensor that crosses: its name in the model, its file, numpy's type and its shape."""

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]

    def create(self, folder: Path) -> Array:
        """Make the file, and map it for writing."""
        size_bytes = max(1, math.prod(self.shape)) * np.dtype(self.dtype).itemsize
        with (folder / self.file).open("wb") as file:
            file.truncate(size_bytes)
        return self.map(folder)

    def map(self, folder: Path) -> Array:
        """Map the file; what one process writes the other reads."""
        count = max(1, math.prod(self.shape))
        flat = np.memmap(folder / self.file, dtype=self.dtype, mode="r+", shape=(count,))
        mapped: Array = np.asarray(flat)[: math.prod(self.shape)].reshape(self.shape)
        return mapped


@dataclass(frozen=True)
class Request:
    """What the child is to open: the file `model` below its folder.

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

    def write(self, folder: Path) -> None:
        """Put the request where the child looks for it."""
        (folder / REQUEST_FILE).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Request:
        """Read what the parent wrote."""
        data = json.loads((folder / REQUEST_FILE).read_text(encoding="utf-8"))
        tensors = {
            key: tuple(
                TensorFile(t["name"], t["file"], t["dtype"], tuple(t["shape"])) for t in data[key]
            )
            for key in ("inputs", "outputs")
        }
        return cls(**{**data, **tensors})


@dataclass(frozen=True)
class Opened:
    """What the child says once its session is there."""

    providers: tuple[str, ...]
    assigned: Mapping[str, int]
    seconds: float


@dataclass(frozen=True)
class Closed:
    """What the child says when it ends: how many node runs each provider had."""

    events: Mapping[str, int]
