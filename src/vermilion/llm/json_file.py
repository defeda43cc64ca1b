"""Reading a JSON file that somebody else wrote: bounded, and one clear error."""

from __future__ import annotations

import json
from pathlib import Path

from vermilion.errors import ModelError, OptionError

MAX_BYTES = 8 << 20
"""A model's configuration has kilobytes; a larger file is another kind of file."""


def read_object(path: Path) -> dict[str, object]:
    """Return the object in a JSON file.

    Raises: OptionError if it cannot be read; ModelError if it holds no JSON object.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise OptionError(
            f"the file cannot be read: {error.strerror or error}",
            where=str(path),
            hint="check the path",
        ) from error
    if len(data) > MAX_BYTES:
        raise ModelError(
            f"the file has more than {MAX_BYTES >> 20} MiB, too much for a configuration",
            where=str(path),
            hint="check that this is the right file",
        )
    try:
        parsed = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ModelError(
            f"this is no JSON: {reason}", where=str(path), hint="download the file again"
        ) from error
    if not isinstance(parsed, dict):
        raise ModelError(
            "this JSON file holds no object", where=str(path), hint="download the file again"
        )
    return parsed
