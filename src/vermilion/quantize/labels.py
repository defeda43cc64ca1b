"""Labels of samples: from a table, an array, lines of text, or the folders that samples lie in."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vermilion.errors import OptionError
from vermilion.ir.arrays import npz_names, read_npy, read_npz

_LABEL_WORDS = ("label", "labels", "class", "target", "text", "truth")
_FILE_WORDS = ("file", "filename", "name", "path", "image", "picture", "sample")


@dataclass(frozen=True)
class Labels:
    """Labels by the number of the sample, or by the name of its file."""

    source: str
    by_index: Sequence[Any] = ()
    by_file: Mapping[str, Any] = field(default_factory=dict)

    def of(self, index: int, file: Path | None) -> Any:
        """Return the label of a sample.

        Raises: OptionError where there is none.
        """
        if not self.by_file:
            if index < len(self.by_index):
                return self.by_index[index]
            raise OptionError(
                f"there are {len(self.by_index)} labels, and sample {index} is used",
                where=self.source,
                hint="give one label for each sample, in their order",
            )
        keys = () if file is None else (str(file), file.name, file.stem)
        for key in keys:
            if key in self.by_file:
                return self.by_file[key]
        what = f"`{file.name}`" if file is not None else "samples that come from no file"
        raise OptionError(
            f"there is no label for {what}",
            where=self.source,
            hint="name the files as they are called, or give labels alone, in the samples' order",
        )


def read_labels(place: Path) -> Labels:
    """Read labels: `.csv`, `.txt`, `.npy`, `.npz`, or a folder whose folders are classes.

    Raises: OptionError where there is nothing of use.
    """
    if place.is_dir():
        return _from_folders(place)
    if not place.is_file():
        raise OptionError(f"there are no labels at `{place}`", hint="give a .csv or .npz file")
    suffix = place.suffix.lower()
    if suffix == ".npy":
        return Labels(str(place), list(read_npy(place)))
    if suffix == ".npz":
        return _from_arrays(place)
    if suffix == ".txt":
        return Labels(str(place), place.read_text(encoding="utf-8").splitlines())
    if suffix == ".csv":
        return _from_table(place)
    raise OptionError(
        f"`{place.name}` is not a kind of labels that is read",
        hint="they come as .csv, .txt, .npy or .npz, or as a folder whose folders are classes",
    )


def _from_folders(place: Path) -> Labels:
    folders = sorted(path for path in place.iterdir() if path.is_dir())
    if not folders:
        raise OptionError(f"`{place}` holds no folders", hint="put each class into one of its own")
    numbered = all(folder.name.isdigit() for folder in folders)
    found = {
        str(file): int(folder.name) if numbered else number
        for number, folder in enumerate(folders)
        for file in folder.iterdir()
    }
    return Labels(str(place), by_file=found)


def _from_arrays(place: Path) -> Labels:
    arrays = read_npz(place, npz_names(place))
    if len(arrays) == 1:
        return Labels(str(place), list(next(iter(arrays.values()))))
    named = next((arrays[word] for word in _LABEL_WORDS if word in arrays), None)
    if named is not None:
        return Labels(str(place), list(named))
    lengths = {len(array) for array in arrays.values()}
    if len(lengths) != 1:
        raise OptionError(
            f"the arrays of `{place.name}` hold different numbers of labels",
            where=str(place),
            hint="call the one that holds labels `labels`",
        )
    rows = [{n: a[i] for n, a in arrays.items()} for i in range(lengths.pop())]
    return Labels(str(place), rows)


def _from_table(place: Path) -> Labels:
    with place.open(encoding="utf-8-sig", newline="") as stream:
        rows = [row for row in csv.reader(stream) if row]
    if not rows:
        raise OptionError(f"`{place.name}` holds no labels", where=str(place))
    head = [word.strip().lower() for word in rows[0]]
    has_head = any(word in _LABEL_WORDS + _FILE_WORDS for word in head)
    body = rows[1:] if has_head else rows
    width = len(rows[0])
    wrong = next((number for number, row in enumerate(rows, 1) if len(row) != width), 0)
    if wrong:
        raise OptionError(f"line {wrong} has another number of columns", where=str(place))
    file_column = next((i for i, word in enumerate(head) if word in _FILE_WORDS), None)
    if not has_head and width > 1 and not _is_number(rows[0][0]):
        file_column = 0
    own = [i for i, word in enumerate(head) if word in _LABEL_WORDS] if has_head else []
    boxes = {"x1", "y1", "x2", "y2"} <= set(head)
    columns = own if own and not boxes else [i for i in range(width) if i != file_column]
    read = _reader([row[i] for row in body for i in columns])
    values = [tuple(read(row[i]) for i in columns) for row in body]
    if file_column is None:
        return Labels(str(place), [v[0] if len(v) == 1 else list(v) for v in values])
    by_file: dict[str, Any] = {}
    for row, value in zip(body, values, strict=True):
        name = row[file_column].strip()
        if len(value) == 1:
            by_file[name] = value[0]
        else:
            by_file.setdefault(name, []).append(value)  # a line for each box
    return Labels(str(place), by_file=by_file)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _reader(words: Sequence[str]) -> type[int] | type[float] | type[str]:
    """Return what reads all of the words: whole numbers, numbers, or text as it stands."""
    for kind in (int, float):
        try:
            for word in words:
                kind(word)
        except ValueError:
            continue
        return kind
    return str


def as_labels(given: object) -> Labels | None:
    """Return labels from what a caller gave: a file's place, a sequence, or nothing."""
    if given is None or isinstance(given, Labels):
        return given
    if isinstance(given, str | Path):
        return read_labels(Path(given))
    if isinstance(given, Sequence | np.ndarray):
        return Labels("given labels", list(given))
    raise OptionError(
        f"labels cannot be a {type(given).__name__}", hint="give a file, or one for each sample"
    )
