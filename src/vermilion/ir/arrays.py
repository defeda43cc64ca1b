"""Arrays from `.npy` and `.npz` files, of which nothing is believed before it is checked.

numpy asks for as much memory as a header says, and a few megabytes of ZIP unpack into gigabytes:
here a header must agree with the file, and what unpacks a hundredfold is refused where it is large.
"""

from __future__ import annotations

import json
import math
import tokenize
import zipfile
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from vermilion.errors import OptionError
from vermilion.ir.limits import memory_limit_bytes

Array = NDArray[Any]

MAX_UNPACKING = 100
"""Weights and pictures shrink to a half at best; a hundredth is zeros."""

HARMLESS_BYTES = 256 << 20
"""Up to here anything may unpack as it likes: masks are often all zeros."""

INDEX_MEMBER = "index.json"
"""What `value_files` puts beside the arrays of a `.npz` file, where they alone do not say all."""

_MOST_INDEX_BYTES = 256 << 20

_SAVE = "save plain arrays with `numpy.save` or, by name, with `numpy.savez`"
_AGAIN = "write the file again"

# What numpy, zipfile and zlib raise for damaged files, deep nesting in a header among it.
_UNREADABLE = (
    ValueError,
    OSError,
    EOFError,
    KeyError,
    SyntaxError,
    RecursionError,
    MemoryError,
    RuntimeError,
    NotImplementedError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True)
class _Header:
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    header_bytes: int

    @property
    def file_bytes(self) -> int:
        return self.header_bytes + math.prod(self.shape) * self.dtype.itemsize


def read_npy(path: Path, *, mapped: bool = False) -> Array:
    """Return the array in a `.npy` file; `mapped` leaves it on disk.

    Raises: OptionError where the file is missing, damaged, or holds Python objects.
    """
    check_file(path)
    try:
        with path.open("rb") as file:
            header = _read_header(file, path)
            stored = path.stat().st_size
            if header.file_bytes != stored:
                raise _lies(path, path.name, header.file_bytes, stored)
        loaded: Array = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error
    return loaded


def read_npz(path: Path, names: Collection[str] | None = None) -> dict[str, Array]:
    """Return the arrays of a `.npz` file by name: all, or those in `names` that are there.

    Raises: OptionError where the file is missing, damaged, holds Python objects, or unpacks into
    far more than it is.
    """
    check_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return {
                info.filename.removesuffix(".npy"): _read_member(archive, info, path)
                for info in archive.infolist()
                if info.filename != INDEX_MEMBER
                if names is None or info.filename.removesuffix(".npy") in names
            }
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error


def npz_names(path: Path) -> list[str]:
    """Return the names of the arrays in a `.npz` file, sorted.

    Raises: OptionError where the file is missing or damaged.
    """
    check_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return sorted(
                name.removesuffix(".npy") for name in archive.namelist() if name != INDEX_MEMBER
            )
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error


def npz_index(path: Path) -> Any:
    """Return what `INDEX_MEMBER` holds, None where there is none.

    Raises: OptionError where it is damaged.
    """
    check_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            if INDEX_MEMBER not in archive.namelist():
                return None
            if archive.getinfo(INDEX_MEMBER).file_size > _MOST_INDEX_BYTES:
                raise ValueError("its index is far too large")
            return json.loads(archive.read(INDEX_MEMBER))
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error


def check_file(path: Path) -> None:
    """Raise OptionError where there is no file; a pipe or a device would be waited for."""
    if path.is_dir():
        raise OptionError("this is a folder, an array was expected", where=str(path), hint=_SAVE)
    if not path.is_file():
        raise OptionError("no such file", where=str(path), hint="check the path")


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> Array:
    packed = min(info.compress_size, path.stat().st_size)
    if info.file_size > HARMLESS_BYTES and info.file_size > MAX_UNPACKING * packed:
        raise OptionError(
            f"`{info.filename}` would unpack {packed / 1e6:,.1f} MB into "
            f"{info.file_size / 1e9:,.1f} GB",
            where=str(path),
            hint="if that is meant, store it with `numpy.savez`, which does not compress",
        )
    if info.file_size > memory_limit_bytes():
        raise OptionError(
            f"`{info.filename}` has {info.file_size / 1e9:,.1f} GB, more than half of this "
            "machine's memory",
            where=str(path),
            hint="give it in several files",
        )
    with archive.open(info) as file:
        header = _read_header(file, path)
    if header.file_bytes != info.file_size:
        raise _lies(path, info.filename, header.file_bytes, info.file_size)
    with archive.open(info) as file:
        loaded: Array = npy.read_array(file, allow_pickle=False)
    return loaded


def _read_header(file: IO[bytes], path: Path) -> _Header:
    version = npy.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = npy.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, _, dtype = npy.read_array_header_2_0(file)
    else:
        raise ValueError(f"version {version[0]}.{version[1]} of the format is for records")
    if dtype.hasobject:
        raise OptionError(
            "this file holds pickled Python objects, and opening those runs their code",
            where=str(path),
            hint=_SAVE,
        )
    if dtype.names is not None or any(size < 0 for size in shape):
        raise ValueError("it holds records, or less than nothing")
    return _Header(shape, dtype, file.tell())


def _lies(path: Path, name: str, said_bytes: int, stored_bytes: int) -> OptionError:
    return OptionError(
        f"`{name}` cannot be read: it says that it has {said_bytes:,} bytes and has "
        f"{stored_bytes:,}",
        where=str(path),
        hint=_AGAIN,
    )


def _unreadable(path: Path, error: Exception) -> OptionError:
    with path.open("rb") as file:
        start = file.read(6)
    if start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        problem = "this is a Python pickle, not an array; opening it would run its code"
    elif start[:4] == b"PK\x03\x04" and path.suffix.lower() == ".npy":
        problem = "this is a .npz archive with the name of a .npy file"
    elif start == b"\x93NUMPY" and path.suffix.lower() == ".npz":
        problem = "this is a .npy file with the name of a .npz archive"
    elif start != b"\x93NUMPY" and start[:2] != b"PK":
        problem = "this file cannot be read: it is no numpy file"
    else:
        words = str(error).splitlines() or [type(error).__name__]
        problem = f"this file cannot be read: {words[0]}"
    return OptionError(problem, where=str(path), hint=_SAVE)
