"""The inputs of a job: which there are, what they are called, and the reading of a few of them."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vermilion.backends.base import Array
from vermilion.batch.job import Range, Slot, Source
from vermilion.errors import OptionError
from vermilion.files import resolved
from vermilion.ir.pictures import SUFFIXES as PICTURE_SUFFIXES
from vermilion.ir.pictures import PictureOptions, read_picture

if TYPE_CHECKING:
    from vermilion.batch.row_files import RowFile


def read_pictures(
    paths: Mapping[int, Path], slot: Slot, options: PictureOptions
) -> tuple[dict[int, Array], dict[int, str]]:
    """Return a row for each image that can be read, by number, and why the rest cannot.

    `slot` has an open first dimension.
    """
    rows: dict[int, Array] = {}
    failed: dict[int, str] = {}
    for at, path in paths.items():
        try:
            rows[at] = read_picture(path, slot, options)
        except OptionError as error:
            failed[at] = error.message
    return rows, failed


ROW_SUFFIXES = frozenset({".npy", ".npz", ".parquet"})


@dataclass(frozen=True)
class Read:
    """Inputs that were read: (rows, …) by name, for the numbers in `live`, and why not the rest."""

    arrays: Mapping[str, Array]
    live: tuple[int, ...]
    failed: Mapping[int, str] = field(default_factory=dict)


def find_source(path: Path, slots: Sequence[Slot], pictures: PictureOptions) -> Source:
    """List the inputs below `path`: a folder of pictures or of row files, or one such file.

    Raises: OptionError where there is nothing of use.
    """
    folder, files = (path, _listed(path)) if path.is_dir() else (path.parent, [path.name])
    images = [file for file in files if _ending(file) in PICTURE_SUFFIXES]
    rows = [file for file in files if _ending(file) in ROW_SUFFIXES]
    if not path.exists() or not (images or rows):
        wrong = "holds no inputs" if path.exists() else "does not exist"
        known = ", ".join(sorted(PICTURE_SUFFIXES | ROW_SUFFIXES))
        raise OptionError(f"`{path}` {wrong}", where="--input", hint=f"read are {known}")
    if images and rows:
        raise OptionError(
            f"`{path}` holds both images and arrays",
            where="--input",
            hint="keep one kind in the folder",
        )
    place = str(resolved(folder))
    if images:
        return Source("pictures", place, tuple(images), tuple(range(len(images))), pictures)
    counts = [_open_rows(folder / file, slots).count for file in rows]
    starts = [0, *np.cumsum(counts).tolist()][:-1]
    return Source("rows", place, tuple(rows), tuple(starts))


def count_inputs(source: Source, slots: Sequence[Slot]) -> int:
    """Return the number of inputs."""
    if source.kind == "pictures":
        return len(source.files)
    last = _open_rows(Path(source.folder) / source.files[-1], slots)
    return source.starts[-1] + last.count


def input_name(source: Source, at: int) -> str:
    """Return what an input is called: its file, and its row where the file holds several."""
    if source.kind == "pictures":
        return source.files[at]
    file = bisect_right(source.starts, at) - 1
    return f"{source.files[file]}[{at - source.starts[file]}]"


class Reader:
    """Reads a job's inputs; keeps the last file of rows open."""

    def __init__(self, source: Source, slots: Sequence[Slot]) -> None:
        self._source = source
        self._folder = Path(source.folder)
        # One input is one row, whatever batch the model takes.
        self._slots = tuple(
            slot if slot.shape is None else replace(slot, shape=(None, *slot.shape[1:]))
            for slot in slots
        )
        self._open: tuple[int, RowFile] | None = None

    def read(self, wanted: Range) -> Read:
        """Return the inputs of a range.

        Raises: OptionError where a file of rows cannot be read; a picture that cannot be is
        among the failed.
        """
        if self._source.kind == "pictures":
            return self._pictures(wanted)
        pieces = []
        at = wanted.start
        while at < wanted.stop:
            file, first = self._row_file(at)
            stop = min(wanted.stop, first + file.count)
            pieces.append(file.read(at - first, stop - first))
            at = stop
        names = [slot.name for slot in self._slots]
        arrays = {name: _joined([piece[name] for piece in pieces], name) for name in names}
        return Read(arrays, tuple(range(wanted.start, wanted.stop)))

    def _pictures(self, wanted: Range) -> Read:

        files = {at: self._source.files[at] for at in range(wanted.start, wanted.stop)}
        paths = {at: self._folder / name for at, name in files.items()}
        rows, failed = read_pictures(paths, self._slots[0], self._source.pictures)
        name = self._slots[0].name
        arrays = {name: np.concatenate(list(rows.values()))} if rows else {}
        return Read(arrays, tuple(rows), failed)

    def _row_file(self, at: int) -> tuple[RowFile, int]:
        file = bisect_right(self._source.starts, at) - 1
        if self._open is None or self._open[0] != file:
            self._open = file, _open_rows(self._folder / self._source.files[file], self._slots)
        return self._open[1], self._source.starts[file]


def _open_rows(path: Path, slots: Sequence[Slot]) -> RowFile:
    # A folder of pictures needs none of it.
    from vermilion.batch.row_files import open_rows

    return open_rows(path, slots)


def _joined(arrays: Sequence[Array], name: str) -> Array:
    if len(arrays) == 1:
        return arrays[0]
    if len({array.shape[1:] for array in arrays}) > 1:
        raise OptionError(
            f"the rows of input `{name}` have several shapes",
            hint="a batch needs one shape: give such inputs with `--batch 1`",
        )
    return np.concatenate(arrays)


def _listed(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_file())


def _ending(name: str) -> str:
    """Return what `Path(name).suffix.lower()` would, without a `Path` for each of many files."""
    stem, dot, ending = name.rpartition(".")
    return dot + ending.lower() if stem else ""
