"""Small files that people hand over: JSON read within bounds, text written whole or not at all."""

from __future__ import annotations

import json
import math
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EISDIR
from pathlib import Path
from typing import Any

from vermilion.errors import DeviceError, ModelError, OptionError, VermilionError

MAX_BYTES = 8 << 20
"""A configuration has kilobytes; a larger file is another kind of file."""


def read_object(
    path: Path,
    damaged: type[VermilionError] = ModelError,
    hint: str = "download the file again",
) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises: OptionError if it cannot be read; `damaged` with `hint` if it holds no JSON object, or
    a number that JSON does not have or that float64 does not hold.
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
        raise damaged(
            f"the file has more than {MAX_BYTES >> 20} MiB, too much for a configuration",
            where=str(path),
            hint="check that this is the right file",
        )
    try:
        parsed = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise damaged(f"this is no JSON: {reason}", where=str(path), hint=hint) from error
    if not isinstance(parsed, dict):
        raise damaged("this JSON file holds no object", where=str(path), hint=hint)
    return parsed


def shown(value: object) -> str:
    """Return a value of a JSON file as messages show it: what is nested, by its kind alone."""
    if isinstance(value, dict):
        return f"an object of {len(value)}"
    if isinstance(value, list | tuple):
        flat = not any(isinstance(one, dict | list | tuple) for one in value)
        return f"[{', '.join(map(shown, value))}]" if flat and len(value) < 5 else "a list"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 64:
        return f"a number of {math.ceil(value.bit_length() * math.log10(2))} digits"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    words = repr(value)
    return words if len(words) <= 40 else f"{words[:36]}…"


def write_file(place: Path, content: str | bytes) -> None:
    """Write a file whole or not at all: aside, then renamed over one that was there.

    Raises: DeviceError where it cannot be written; what was there is as it was.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    with _to_be_written(place) as aside:
        if aside is None:
            place.write_bytes(data)
            return
        aside.write_bytes(data)
        there = place.resolve()  # of a link, what it leads to
        if there.exists():
            aside.chmod(there.stat().st_mode)
        aside.replace(there)


def check_writable(place: Path) -> None:
    """Find out before long work whether `write_file` will be able to write there.

    Raises: as `write_file`.
    """
    with _to_be_written(place) as aside:
        if aside is not None:
            aside.touch()


@contextmanager
def aside_of(place: Path, ending: str = "") -> Iterator[Path]:
    """Lend a hidden name beside a file or folder; what is left there at the end is removed."""
    aside = place.with_name(f".{place.name}.{uuid.uuid4().hex[:12]}{ending}")
    try:
        yield aside
    finally:
        if aside.is_dir():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.unlink(missing_ok=True)


@contextmanager
def _to_be_written(place: Path) -> Iterator[Path | None]:
    """Lend a name beside a file that is to be written; None where that is a device or a pipe."""
    try:
        if place.is_dir():
            raise IsADirectoryError(EISDIR, "there is a folder of that name")
        is_device = place.exists() and not place.is_file()
        if is_device or Path("/dev") in place.absolute().parents:
            yield None
            return
        there = place.resolve()
        there.parent.mkdir(parents=True, exist_ok=True)
        with aside_of(there) as aside:
            yield aside
    except OSError as error:
        raise DeviceError(
            f"the file cannot be written: {error.strerror or error}",
            where=str(place),
            hint="check that its folder can be written to and has room",
        ) from error
