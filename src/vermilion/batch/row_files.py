"""Rows of arrays in `.npz`, `.npy` and `.parquet` files, of which a few are read at a time."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.lib import format as npy

from vermilion.backends.base import Array
from vermilion.batch.job import Slot
from vermilion.errors import OptionError
from vermilion.ir.arrays import check_file, npz_names, read_npy, read_npz
from vermilion.ir.pictures import described

# A local file header of a ZIP: its length, and where the lengths of what follows stand.
# Source: PKWARE's APPNOTE, section 4.3.7.
_LOCAL_BYTES = 30
_LOCAL_LENGTHS = struct.Struct("<26xHH")


class RowFile(Protocol):
    """A file with a number of inputs in it."""

    @property
    def count(self) -> int:
        """The number of inputs."""

    def read(self, start: int, stop: int) -> dict[str, Array]:
        """Return inputs `start` to `stop`: arrays of (rows, …) by name of the input."""


def open_rows(path: Path, slots: Sequence[Slot]) -> RowFile:
    """Open a file of rows.

    Raises: OptionError where it does not hold what the model takes.
    """
    if path.suffix.lower() == ".parquet":
        check_file(path)
        return ParquetRows(path, slots)
    if path.suffix.lower() == ".npy":
        return _array_rows({_only(slots, path).name: read_npy(path, mapped=True)}, slots, path)
    return _array_rows(_open_npz(path, slots), slots, path)


@dataclass(frozen=True)
class ArrayRows:
    """Arrays whose first axis counts the inputs; on disk where they can be mapped."""

    arrays: Mapping[str, Array]

    count: int

    def read(self, start: int, stop: int) -> dict[str, Array]:
        """Return inputs `start` to `stop`."""
        return {name: np.array(array[start:stop]) for name, array in self.arrays.items()}


def _array_rows(arrays: Mapping[str, Array], slots: Sequence[Slot], path: Path) -> ArrayRows:
    cut = {slot.name: _as_rows(slot, arrays[slot.name], path) for slot in slots}
    counts = {name: len(array) for name, array in cut.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"`{name}` {count}" for name, count in counts.items())
        raise OptionError(
            f"the arrays hold different numbers of inputs: {listed}",
            where=str(path),
            hint="give as many of each",
        )
    return ArrayRows(cut, next(iter(counts.values())))


def _as_rows(slot: Slot, array: Array, path: Path) -> Array:
    """Return the array with one input a row: it may be one input, or hold batches of one each."""
    if array.dtype != slot.dtype and not (slot.dtype.kind == "O" and array.dtype.kind == "U"):
        raise OptionError(
            f"input `{slot.name}` got {array.dtype} and expected {slot.dtype}",
            where=str(path),
            hint=f"convert it first: `array.astype(numpy.{slot.dtype})`",
        )
    if slot.shape is None:
        return array
    row = slot.shape[1:]
    for candidate in _views(array, len(slot.shape)):
        if all(
            wanted is None or wanted == given
            for wanted, given in zip(row, candidate.shape[1:], strict=True)
        ):
            return candidate
    raise OptionError(
        f"input `{slot.name}` got {described(array.dtype, array.shape)} and expected rows of "
        f"{described(slot.dtype, row)} along a first axis",
        where=str(path),
        hint="write the arrays as the model takes them, or bind other sizes with `--dim`",
    )


def _views(array: Array, rank: int) -> list[Array]:
    if array.ndim == rank:
        return [array]
    if array.ndim == rank - 1:
        return [array[None]]
    if array.ndim == rank + 1 and array.shape[1] == 1:
        return [array[:, 0]]
    return []


def _open_npz(path: Path, slots: Sequence[Slot]) -> dict[str, Array]:
    found = npz_names(path)
    names = {slot.name: slot.name for slot in slots}
    if len(slots) == len(found) == 1:
        names = {slots[0].name: found[0]}  # one array, one input
    missing = [name for name in names.values() if name not in found]
    if missing:
        raise OptionError(
            f"there is no array for input {', '.join(f'`{name}`' for name in missing)}",
            where=str(path),
            hint=f"it holds {', '.join(f'`{name}`' for name in found) or 'nothing'}",
        )
    with zipfile.ZipFile(path) as archive:
        infos = {name: archive.getinfo(f"{name}.npy") for name in names.values()}
    packed = [name for name, info in infos.items() if info.compress_type != zipfile.ZIP_STORED]
    unpacked = read_npz(path, packed) if packed else {}
    return {
        slot: unpacked[name] if name in unpacked else _map_member(path, infos[name])
        for slot, name in names.items()
    }


def _map_member(path: Path, info: zipfile.ZipInfo) -> Array:
    """Map a member that is stored as it is, so that no worker holds more than the rows it reads.

    Raises: OptionError where the member is not what its header says.
    """
    damaged = OptionError(
        f"`{info.filename}` cannot be read: it is damaged, or holds Python objects",
        where=str(path),
        hint="save plain arrays with `numpy.savez`",
    )
    with path.open("rb") as file:
        file.seek(info.header_offset)
        head = file.read(_LOCAL_BYTES)
        if len(head) != _LOCAL_BYTES:
            raise damaged
        name_bytes, extra_bytes = _LOCAL_LENGTHS.unpack(head)
        start = info.header_offset + _LOCAL_BYTES + name_bytes + extra_bytes
        file.seek(start)
        try:
            version = npy.read_magic(file)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read(file)
        except ValueError as error:
            raise damaged from error
        offset = file.tell()
    data_bytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if dtype.hasobject or offset - start + data_bytes != info.file_size:
        raise damaged
    if not data_bytes:
        return np.zeros(shape, dtype)
    flat: Array = np.memmap(path, dtype, "r", offset, (int(np.prod(shape)),))
    return flat.reshape(shape, order="F" if fortran else "C")


class ParquetRows:
    """A Parquet file with a column of numbers, or of lists of numbers, for each input."""

    def __init__(self, path: Path, slots: Sequence[Slot]) -> None:
        if find_spec("pyarrow") is None:
            raise OptionError(
                "reading Parquet files needs pyarrow, which is not installed",
                where=str(path),
                hint="pip install 'vermilion[scale]'",
            )
        import pyarrow as arrow
        import pyarrow.parquet as parquet

        self._path, self._slots = path, tuple(slots)
        try:
            self._file = parquet.ParquetFile(path)
        except (arrow.ArrowException, OSError) as error:
            raise OptionError(
                f"this is no Parquet file that can be read: {str(error).splitlines()[0]}",
                where=str(path),
            ) from error
        columns = self._file.schema_arrow.names
        missing = [slot.name for slot in slots if slot.name not in columns]
        if missing:
            raise OptionError(
                f"there is no column for input {', '.join(f'`{name}`' for name in missing)}",
                where=str(path),
                hint=f"it has {', '.join(f'`{name}`' for name in columns) or 'none'}",
            )
        meta = self._file.metadata
        self.count = int(meta.num_rows)
        sizes = [meta.row_group(group).num_rows for group in range(meta.num_row_groups)]
        self._ends = np.cumsum(sizes, dtype=np.int64)
        self._open: tuple[tuple[int, int], Any] | None = None

    def read(self, start: int, stop: int) -> dict[str, Array]:
        """Return inputs `start` to `stop`.

        The row groups that they lie in are kept for the next.
        """
        first = int(np.searchsorted(self._ends, start, side="right"))
        last = int(np.searchsorted(self._ends, stop - 1, side="right"))
        if self._open is None or self._open[0] != (first, last):
            names = [slot.name for slot in self._slots]
            table = self._file.read_row_groups(list(range(first, last + 1)), columns=names)
            self._open = (first, last), table
        begin = start - (int(self._ends[first - 1]) if first else 0)
        rows = self._open[1].slice(begin, stop - start)
        return {slot.name: self._column(rows.column(slot.name), slot) for slot in self._slots}

    def _column(self, column: Any, slot: Slot) -> Array:
        import pyarrow as arrow

        values, count = column.combine_chunks(), len(column)
        if isinstance(values, arrow.ChunkedArray):
            values = values.chunk(0)
        shape: tuple[int, ...] = ()
        if isinstance(values.type, arrow.FixedShapeTensorType):
            shape = tuple(values.type.shape)
            values = values.storage
        while _is_list(values.type):
            values = values.flatten()
        array = np.asarray(values.to_numpy(zero_copy_only=False))
        row = shape or _row_shape(slot, len(array) // max(1, count))
        wrong = values.null_count or (array.dtype != slot.dtype and slot.dtype.kind != "O")
        if wrong or len(array) != count * int(np.prod(row)):
            raise OptionError(
                f"column `{slot.name}` is {column.type} and input `{slot.name}` takes rows of "
                f"{described(slot.dtype, (slot.shape or ())[1:])}, without gaps",
                where=str(self._path),
                hint="write lists of one length, of the model's number type",
            )
        return array.reshape(count, *row)


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _row_shape(slot: Slot, elements: int) -> tuple[int, ...]:
    """Return the sizes of a row that is stored flat; one that is open is what is left."""
    row = (slot.shape or (None, None))[1:]
    known = int(np.prod([size for size in row if size is not None], dtype=np.int64))
    return tuple(elements // max(1, known) if size is None else size for size in row)


def _only(slots: Sequence[Slot], path: Path) -> Slot:
    if len(slots) != 1:
        names = ", ".join(f"`{slot.name}`" for slot in slots)
        raise OptionError(
            f"the file holds one array and the model has {len(slots)} inputs: {names}",
            where=str(path),
            hint="give an .npz file with one array for each input, under the input's name",
        )
    return slots[0]
