"""Small files that people hand over: JSON read within bounds, text written whole or not at all."""

from __future__ import annotations

import json
import math
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from errno import EACCES, EEXIST, EISDIR, ENOENT, ENOTDIR, EPERM, EROFS
from pathlib import Path
from typing import Any

from vermilion.errors import DeviceError, ModelError, OptionError, VermilionError, is_full

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
            hint=CHECK_PATH,
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
        there = resolved(place)  # of a link, what it leads to
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


def resolved(path: str | os.PathLike[str]) -> Path:
    """Return where a path leads. Links in a circle stay: who opens them is told of it."""
    return Path(os.path.realpath(path))


def check_not_source(place: Path, source: object) -> None:
    """Refuse an output that is the file it is made from, under whatever name.

    Raises: OptionError.
    """
    if isinstance(source, str | os.PathLike) and resolved(source) == resolved(place):
        raise OptionError(
            "the output would replace the model that it is made from",
            where=str(place),
            hint="choose another name for the output",
        )


@contextmanager
def aside_of(place: Path, ending: str = "") -> Iterator[Path]:
    """Lend a hidden name beside a file or folder; what is left there at the end is removed.

    Raises: FileExistsError where a device, a pipe or a socket has the place, which a file that is
    renamed over it would take away.
    """
    if place.exists() and not (place.is_file() or place.is_dir()):
        raise FileExistsError(EEXIST, "there is something of that name that is no file", place)
    # The name of the place may be as long as a name can be: 255 bytes, a character up to 4.
    aside = place.with_name(f".{place.name[:48]}.{uuid.uuid4().hex[:12]}{ending}")
    try:
        yield aside
    finally:
        if aside.is_dir():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.unlink(missing_ok=True)


CHECK_PATH = "check the path"
_NOT_ALLOWED = (EACCES, EPERM, EROFS)


def hint_of(error: OSError) -> str:
    """Return what to do about an error of the file system."""
    if is_full(error):
        return "make room on that disk, or name a place on another one"
    if error.errno in _NOT_ALLOWED:
        return "name a place that you may write to, or change its permissions"
    if str(error.strerror).startswith("No usable temporary directory"):  # of `tempfile`
        return "make room in one of them, or name another folder in the variable TMPDIR"
    if error.errno in (ENOENT, ENOTDIR):
        return CHECK_PATH
    return "check that its folder can be written to and has room"


def near_name(file: Path) -> str:
    """Return a hint for a path that leads nowhere: the file beside it with nearly its name."""
    beside: list[str] = []
    with suppress(OSError, ValueError):
        beside = [one.name for one in file.parent.iterdir()]
    near = get_close_matches(file.name, beside, 1, 0.7)
    return f"did you mean `{file.parent / near[0]}`?" if near else CHECK_PATH


def not_there(file: Path, error: OSError | ValueError) -> OptionError:
    """Return what to say of a model's file that cannot be reached."""
    where = str(file)
    if isinstance(error, ValueError):
        return OptionError(f"no file can have this name: {error}", where=where, hint=CHECK_PATH)
    if file.is_symlink():
        missing = f"this link leads to a file that is not there, `{file.readlink()}`"
        return OptionError(missing, where=where, hint="make the link again, or name the file")
    if error.errno in (ENOENT, ENOTDIR):
        return OptionError("no such model", where=where, hint=near_name(file))
    reason = error.strerror or error
    return OptionError(f"the model cannot be read: {reason}", where=where, hint=hint_of(error))


@contextmanager
def writing(place: Path, what: str = "the file") -> Iterator[None]:
    """Say of what fails to be written where it was to go, not under which name aside.

    Raises: DeviceError.
    """
    try:
        yield
    except OSError as error:
        reason = "no space left on the disk" if is_full(error) else error.strerror or error
        raise DeviceError(
            f"{what} cannot be written: {reason}", where=str(place), hint=hint_of(error)
        ) from error


@contextmanager
def _to_be_written(place: Path) -> Iterator[Path | None]:
    """Lend a name beside a file that is to be written; None where that is a device or a pipe."""
    with writing(place):
        if place.is_dir():
            raise IsADirectoryError(EISDIR, "there is a folder of that name")
        is_device = place.exists() and not place.is_file()
        if is_device or Path("/dev") in place.absolute().parents:
            yield None
            return
        there = resolved(place)
        there.parent.mkdir(parents=True, exist_ok=True)
        with aside_of(there) as aside:
            yield aside
