"""Values on their way between two processes: arrays in files, what else there is as JSON.

Several values of any kind lie in one file (`write_values`); a tensor of a known shape, which both
sides map from one run to the next, in a file of its own (`TensorFile`).

Nothing that crosses can make the reader run code: the process that wrote it may have been broken
by the model that it ran.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Row = dict[str, Any]

_ALIGNED = 64
# What comes of a sequence or map besides arrays.
_PLAIN = (str, int, float, bool)


class TooLargeError(Exception):
    """The values need more room than they may take."""


@dataclass(frozen=True)
class TensorFile:
    """One tensor that crosses: its name in the model, its file, numpy's type and its shape."""

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """The size of the file; an empty tensor has a file of one element, or nothing maps it."""
        return max(1, math.prod(self.shape)) * np.dtype(self.dtype).itemsize

    def create(self, folder: Path) -> OpenTensor:
        """Make the file, with room on the disk for all of it. Raises: OSError where there is none.

        A sparse file on a full disk would end whoever writes into its map (SIGBUS).
        """
        with (folder / self.file).open("wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, self.size_bytes)
            else:
                file.truncate(self.size_bytes)
        return OpenTensor(self, folder)

    def map(self, folder: Path) -> Array:
        """Map the file; what one process writes the other reads."""
        count = max(1, math.prod(self.shape))
        flat = np.memmap(folder / self.file, dtype=self.dtype, mode="r+", shape=(count,))
        mapped: Array = np.asarray(flat)[: math.prod(self.shape)].reshape(self.shape)
        return mapped


class OpenTensor:
    """The parent's side of a tensor file: read and written, not mapped.

    The worker may cut the file short; who has mapped it then dies on access. On Windows nobody can
    cut a file that is mapped, and what is written to one beside its map may not be seen: there it
    is mapped.
    """

    def __init__(self, tensor: TensorFile, folder: Path) -> None:
        self._tensor = tensor
        self._mapped = tensor.map(folder) if sys.platform == "win32" else None
        self._file = (folder / tensor.file).open("r+b", buffering=0)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return numpy's type."""
        return np.dtype(self._tensor.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that both sides have agreed on."""
        return self._tensor.shape

    def write(self, array: Array) -> None:
        """Write all of it. Raises: ValueError for another shape; OSError."""
        if array.shape != self.shape:
            raise ValueError(f"{list(array.shape)} instead of {list(self.shape)}")
        if self._mapped is not None:
            self._mapped[...] = array
            return
        left = np.ascontiguousarray(array, self.dtype).reshape(-1).view(np.uint8)
        self._file.seek(0)
        while left.size:
            left = left[self._file.write(left.data) :]

    def read(self) -> Array:
        """Return a copy. Raises: EOFError where the file was cut short; OSError."""
        if self._mapped is not None:
            return self._mapped.copy()
        found = np.empty(self.shape, self.dtype)
        left = found.reshape(-1).view(np.uint8)
        self._file.seek(0)
        while left.size:
            count = self._file.readinto(left.data)
            if not count:
                raise EOFError(f"{left.size} of {found.nbytes} bytes are missing")
            left = left[count:]
        return found

    def close(self) -> None:
        """Let go of the file."""
        self._mapped = None
        self._file.close()


def write_values(
    values: Mapping[str, object], path: Path, most_bytes: int | None = None
) -> dict[str, Row]:
    """Write values to a file; return where each lies in it. Raises: TooLargeError, OSError."""
    with path.open("wb") as file:
        return {name: _write(value, file, most_bytes) for name, value in values.items()}


def read_values(rows: Mapping[str, Row], path: Path, *, mapped: bool = False) -> dict[str, Any]:
    """Return the values, `mapped` where they may stay in the file.

    Raises: ValueError, KeyError, TypeError or OSError where rows and file do not fit.
    """
    data: Array
    if mapped and path.stat().st_size:
        data = np.memmap(path, dtype=np.uint8, mode="r")
    else:
        data = np.fromfile(path, dtype=np.uint8)
    return {name: _read(row, data, mapped) for name, row in rows.items()}


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the type of arrays that a row names. Raises: ValueError for what is none."""
    import ml_dtypes  # not by those who only map tensors

    found = getattr(ml_dtypes, name, None)
    dtype = np.dtype(found if found is not None else name)
    if dtype.hasobject:
        raise ValueError(f"{name} cannot cross")
    return dtype


def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a type of arrays, for `dtype_of`."""
    import ml_dtypes

    return dtype.name if dtype.kind == "V" or hasattr(ml_dtypes, dtype.name) else dtype.str


def _write(value: object, file: IO[bytes], most_bytes: int | None) -> Row:
    if value is None:
        return {"kind": "none"}
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.kind in "OUS":
            return {"kind": "texts", "shape": array.shape, "texts": _texts(array)}
        name = name_of(array.dtype)
        if not array.size:  # it takes no place: where it would begin the file may end
            return {"kind": "array", "type": name, "shape": array.shape, "at": 0}
        start = -(-file.tell() // _ALIGNED) * _ALIGNED
        if most_bytes is not None and start + array.nbytes > most_bytes:
            raise TooLargeError
        file.seek(start)
        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return {"kind": "array", "type": name, "shape": array.shape, "at": start}
    if isinstance(value, list | tuple):
        return {"kind": "list", "items": [_write(item, file, most_bytes) for item in value]}
    if isinstance(value, Mapping):
        rows = [[key, _write(item, file, most_bytes)] for key, item in value.items()]
        return {"kind": "map", "items": rows}
    if isinstance(value, _PLAIN):
        return {"kind": "plain", "value": value}
    raise TypeError(f"a {type(value).__name__} cannot cross")


def _texts(array: Array) -> list[str]:
    return [
        item.decode("utf-8", "surrogateescape") if isinstance(item, bytes) else str(item)
        for item in array.reshape(-1).tolist()
    ]


def _read(row: Row, data: Array, mapped: bool) -> Any:
    kind = row["kind"]
    if kind == "array":
        dtype, shape, start = dtype_of(row["type"]), tuple(row["shape"]), int(row["at"])
        size = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if start < 0 or size < 0 or start + size > len(data):
            raise ValueError("an array lies outside its file")
        found = data[start : start + size].view(dtype).reshape(shape)
        return np.asarray(found) if mapped else found.copy()
    if kind == "texts":
        texts = np.empty(len(row["texts"]), dtype=object)
        texts[:] = row["texts"]
        return texts.reshape(tuple(row["shape"]))
    if kind == "list":
        return [_read(item, data, mapped) for item in row["items"]]
    if kind == "map":
        return {key: _read(item, data, mapped) for key, item in row["items"]}
    return row["value"] if kind == "plain" else None
