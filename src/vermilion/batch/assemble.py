"""The one output of a job, from the files of its ranges, in the order of the inputs.

Written aside and renamed. The same rows give the same bytes, however they were split into ranges.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.lib import format as npy

from vermilion.backends.base import Array
from vermilion.batch.job import Job, Range, filler
from vermilion.batch.journal import Computed, range_shapes, read_range
from vermilion.batch.source import input_name
from vermilion.errors import OptionError, UnsupportedError

Form = Literal["npz", "folder", "parquet"]

# Lies in the job's folder once the output may be in its place.
ASSEMBLING = "assembling"

# Rows of a row group: fixed, so that the bytes do not depend on how the job was handed out.
_GROUP_ROWS = 1024


@dataclass(frozen=True)
class Failed:
    """An input without outputs, and why."""

    index: int
    name: str
    reason: str

    def as_json(self) -> dict[str, object]:
        """Return the keys of the report."""
        return {"index": self.index, "name": self.name, "reason": self.reason}


@dataclass(frozen=True)
class _Column:
    """One output over the whole job."""

    name: str
    dtype: np.dtype[Any]
    row: tuple[int, ...]


def output_form(path: Path) -> Form:
    """Return what to write: by the ending, a folder where there is none.

    Raises: OptionError for another ending, or where Parquet cannot be written.
    """
    if path.suffix == ".npz":
        return "npz"
    if path.suffix == ".parquet":
        if find_spec("pyarrow") is None:
            raise OptionError(
                "writing Parquet files needs pyarrow, which is not installed",
                where=f"--output {path}",
                hint="pip install 'vermilion[scale]', or write NAME.npz",
            )
        return "parquet"
    if path.suffix:
        raise OptionError(
            f"the output `{path}` is neither NAME.npz, NAME.parquet nor a folder",
            where="--output",
            hint="name a folder without a dot in its name",
        )
    return "folder"


def assemble(job: Job, folder: Path, done: Sequence[Range], output: Path) -> tuple[Failed, ...]:
    """Write the output of a finished job and give the inputs that have none.

    Raises: UnsupportedError where rows of different shapes are to go into one array.
    """
    form = output_form(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    ordered = sorted(done)
    failed = _failed(job, folder, ordered)
    if len(failed) < job.total:
        if form == "folder":
            _write_folder(job, folder, ordered, output)
        else:
            columns = _columns(job, folder, ordered)
            aside = folder / f"output{output.suffix}"
            write = _write_npz if form == "npz" else _write_parquet
            write(job, folder, ordered, columns, aside)
            aside.replace(output)
    _note_failures(failed, failures_path(output))
    return failed


def failures_path(output: Path) -> Path:
    """Return the file beside the output that lists the inputs which failed, where any did."""
    return output.with_name(output.name + ".failed.json")


def _note_failures(failed: Sequence[Failed], path: Path) -> None:
    if not failed:
        path.unlink(missing_ok=True)
        return
    text = json.dumps([one.as_json() for one in failed], indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def _failed(job: Job, folder: Path, done: Sequence[Range]) -> tuple[Failed, ...]:
    return tuple(
        Failed(at, input_name(job.source, at), why)
        for one in done
        for at, why in sorted(read_range(folder, one, outputs=()).failed.items())
    )


def _columns(job: Job, folder: Path, done: Sequence[Range]) -> tuple[_Column, ...]:
    """Return type and row shape of each output, which all ranges must agree on."""
    found: list[_Column | None] = [None] * len(job.outputs)
    for one in done:
        for at, segments in enumerate(range_shapes(folder, one)):
            for kind, shape in segments:
                column = _Column(job.outputs[at], kind, shape[1:])
                known = found[at] or column
                if known.row != column.row:
                    raise UnsupportedError(
                        f"output `{column.name}` has rows of several shapes, {known.row} and "
                        f"{column.row} among them, which no single array holds",
                        hint="write a file for each input: `--output FOLDER`",
                    )
                # Texts of several lengths are several types; the longest holds all.
                dtype = np.promote_types(known.dtype, column.dtype)
                found[at] = _Column(column.name, dtype, column.row)
    return tuple(column for column in found if column is not None)


def _blocks(
    folder: Path, done: Sequence[Range], at: int, column: _Column
) -> Iterator[tuple[Array, Computed]]:
    """Yield one output range by range, with filler for inputs that failed."""
    for one in done:
        computed = read_range(folder, one, outputs=(at,))
        rows = [array.astype(column.dtype, copy=False) for array in _segments(computed, at)]
        if not computed.failed:
            yield (rows[0] if len(rows) == 1 else np.concatenate(rows)), computed
            continue
        block = np.empty((len(one), *column.row), column.dtype)
        block[...] = filler(column.dtype, ())
        if rows:
            block[[number - one.start for number in computed.live]] = np.concatenate(rows)
        yield block, computed


def _segments(computed: Computed, at: int) -> tuple[Array, ...]:
    return computed.segments[at] if computed.segments else ()


def _write_npz(
    job: Job, folder: Path, done: Sequence[Range], columns: Sequence[_Column], path: Path
) -> None:
    """Write what `numpy.savez` would, a range at a time."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for at, column in enumerate(columns):
            with archive.open(f"{column.name}.npy", "w", force_zip64=True) as member:
                header = {
                    "descr": npy.dtype_to_descr(column.dtype),
                    "fortran_order": False,
                    "shape": (job.total, *column.row),
                }
                npy.write_array_header_1_0(member, header)
                for block, _ in _blocks(folder, done, at, column):
                    member.write(np.ascontiguousarray(block).tobytes())


def _write_folder(job: Job, folder: Path, done: Sequence[Range], output: Path) -> None:
    """Write an `.npz` for each input that has outputs, named after it."""
    aside = folder / "output"
    if aside.exists():
        shutil.rmtree(aside)
    aside.mkdir()
    for one in done:
        computed = read_range(folder, one)
        rows = [computed.rows(at) for at in range(len(job.outputs))]
        for number in computed.live:
            name = f"{file_name(job, number)}.npz"
            arrays = {output: next(rows[at]) for at, output in enumerate(job.outputs)}
            with zipfile.ZipFile(aside / name, "w", zipfile.ZIP_STORED) as archive:
                for key, array in arrays.items():
                    with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
                        npy.write_array(member, np.asarray(array), allow_pickle=False)
    if output.exists():
        shutil.rmtree(output)  # empty, or left by this job when it was killed right here
    (folder / ASSEMBLING).touch()
    aside.rename(output)


def file_name(job: Job, at: int) -> str:
    """Return the name of an input's file in an output folder, without its ending."""
    if job.source.kind == "pictures":
        return job.source.files[at]
    return f"{at:0{max(6, len(str(job.total)))}d}"


def _write_parquet(
    job: Job, folder: Path, done: Sequence[Range], columns: Sequence[_Column], path: Path
) -> None:
    """Write the inputs' names and one column an output; null where an input failed."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    schema = arrow.schema([("input", arrow.string()), *((c.name, _arrow_type(c)) for c in columns)])
    streams = [_Stream(_blocks(folder, done, at, column)) for at, column in enumerate(columns)]
    with parquet.ParquetWriter(path, schema) as writer:
        for start in range(0, job.total, _GROUP_ROWS):
            stop = min(start + _GROUP_ROWS, job.total)
            names = [input_name(job.source, at) for at in range(start, stop)]
            arrays = [arrow.array(names, arrow.string())]
            for stream, column in zip(streams, columns, strict=True):
                block, absent = stream.take(stop - start)
                arrays.append(_arrow_column(block, absent, column))
            writer.write_table(
                arrow.Table.from_arrays(arrays, schema=schema), row_group_size=_GROUP_ROWS
            )


class _Stream:
    """Blocks of whatever length in, blocks of the length that is asked for out."""

    def __init__(self, blocks: Iterator[tuple[Array, Computed]]) -> None:
        self._blocks = blocks
        self._rows: list[tuple[Array, Array]] = []

    def take(self, count: int) -> tuple[Array, Array]:
        """Return so many rows, and which of them are absent."""
        have = sum(len(rows) for rows, _ in self._rows)
        while have < count:
            block, computed = next(self._blocks)
            absent = np.zeros(len(block), np.bool_)
            absent[[at - computed.range.start for at in computed.failed]] = True
            self._rows.append((block, absent))
            have += len(block)
        rows = np.concatenate([rows for rows, _ in self._rows])
        absent = np.concatenate([absent for _, absent in self._rows])
        self._rows = [(rows[count:], absent[count:])]
        return rows[:count], absent[:count]


def _arrow_type(column: _Column) -> Any:
    import pyarrow as arrow

    kind = arrow.string() if column.dtype.kind == "U" else arrow.from_numpy_dtype(column.dtype)
    elements = int(np.prod(column.row, dtype=np.int64))
    # A row of more than one axis lies flat; its shape is the model's.
    return arrow.list_(kind, elements) if column.row else kind


def _arrow_column(block: Array, absent: Array, column: _Column) -> Any:
    import pyarrow as arrow

    kind = _arrow_type(column)
    if not column.row:
        return arrow.array(block, kind, mask=absent)
    values = arrow.array(block.reshape(-1), kind.value_type)
    mask = arrow.array(absent) if absent.any() else None
    return arrow.FixedSizeListArray.from_arrays(values, type=kind, mask=mask)
