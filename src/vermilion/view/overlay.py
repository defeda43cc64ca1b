"""Saved results of other verbs, read again for the page: time, error, places."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vermilion.errors import OptionError

Rows = Mapping[str, Any]

KINDS = ("inspect", "compile", "compare", "quantize", "bench")
# A report is a few megabytes; what is far larger is none.
_MOST_BYTES = 256 << 20


@dataclass(frozen=True)
class Saved:
    """What a file holds: `kind` is the verb that wrote it, or `trace`."""

    path: Path
    kind: str
    data: Rows


def is_saved(path: Path) -> bool:
    """Say whether a file may hold a saved result: it begins as JSON does, and is no model."""
    if not path.is_file() or path.suffix.lower() in (".onnx", ".rai", ".gguf"):
        return False
    with path.open("rb") as file:
        return file.read(64).lstrip()[:1] == b"{"


def read_saved(path: Path) -> Saved:
    """Read what a verb printed with `--json`, or what `bench --trace` wrote.

    Raises: OptionError where it is neither.
    """
    if path.stat().st_size > _MOST_BYTES:
        raise OptionError("this is too large for a saved result", where=str(path), hint=_HINT)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise OptionError(f"this is not JSON: {error}", where=str(path), hint=_HINT) from error
    if isinstance(data, dict) and isinstance(data.get("traceEvents"), list):
        return Saved(path, "trace", data)
    verb = data.get("verb") if isinstance(data, dict) else None
    if verb not in KINDS:
        raise OptionError("this is no saved result of a verb", where=str(path), hint=_HINT)
    if not data.get("ok") and "error" in data:
        raise OptionError("what was saved is an error, no result", where=str(path), hint=_HINT)
    if verb == "bench" and "profiles" not in data:
        raise OptionError(
            "this bench has no profile",
            where=str(path),
            hint="save one: `vermilion bench MODEL --profile --json > profile.json`",
        )
    return Saved(path, str(verb), data)


_HINT = (
    "give what `inspect`, `compile`, `compare`, `quantize` or `bench --profile` print with "
    "`--json`, or the file of `bench --trace`"
)


def model_of(saved: Saved) -> Path | None:
    """Return the model file that a result names, where it is still there."""
    for key in ("model", "output"):
        named = saved.data.get(key)
        if isinstance(named, str) and named.endswith(".onnx") and Path(named).is_file():
            return Path(named)
    return None


def rows_of(value: object) -> list[Rows]:
    """Return the objects of a list, none where it is no list: the file may be anybody's."""
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def texts(row: Rows, *keys: str) -> list[str]:
    """Return what stands at keys as text, empty where nothing does."""
    return [str(row.get(key) or "") for key in keys]


def number(row: Rows, key: str) -> float | None:
    """Return what stands at a key where it is a number."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
