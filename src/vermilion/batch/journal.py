"""What is done of a job: one file a range, renamed into place when it is whole.

A range file is a ZIP of `.npy` members, `OUTPUT.SEGMENT.npy`, and `failed.json`. A segment holds
the outputs of consecutive inputs that have one shape; inputs that failed have no row in any.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from vermilion.backends.base import Array
from vermilion.batch.job import Range

RANGES_FOLDER = "ranges"

_NAME = re.compile(r"([0-9]+)-([0-9]+)\.npz")
_FAILED = "failed.json"


@dataclass(frozen=True)
class Computed:
    """What became of a range.

    `segments` holds, for each output, arrays of (rows, …): all rows of the range but those in
    `failed`, which gives a reason by the input's number.
    """

    range: Range
    segments: tuple[tuple[Array, ...], ...]
    failed: Mapping[int, str] = field(default_factory=dict)

    @property
    def live(self) -> list[int]:
        """The numbers of the inputs that have rows, in the rows' order."""
        return [at for at in range(self.range.start, self.range.stop) if at not in self.failed]

    def rows(self, output: int) -> Iterator[Array]:
        """Yield one output's row of each input that has one."""
        for segment in self.segments[output] if self.segments else ():
            yield from segment


def write_range(folder: Path, computed: Computed) -> None:
    """Write the file of a range; it is there whole, or not at all."""
    ranges = folder / RANGES_FOLDER
    name = f"{computed.range.start:09d}-{computed.range.stop:09d}.npz"
    aside = ranges / f".{name}.{os.getpid()}"
    with zipfile.ZipFile(aside, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for output, segments in enumerate(computed.segments):
            for number, array in enumerate(segments):
                with archive.open(f"{output}.{number}.npy", "w", force_zip64=True) as member:
                    npy.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
        archive.writestr(_FAILED, json.dumps({str(at): why for at, why in computed.failed.items()}))
    aside.replace(ranges / name)


def read_range(folder: Path, done: Range, outputs: Sequence[int] | None = None) -> Computed:
    """Read the file of a range: of all outputs, or of those that are asked for."""
    path = _path(folder, done)
    with zipfile.ZipFile(path) as archive:
        failed = {int(at): str(why) for at, why in json.loads(archive.read(_FAILED)).items()}
        names = sorted(
            (int(words[0]), int(words[1]), name)
            for name in archive.namelist()
            if name != _FAILED and (words := name.split("."))
        )
        count = 1 + max((output for output, _, _ in names), default=-1)
        segments: list[list[Array]] = [[] for _ in range(count)]
        for output, _, name in names:
            if outputs is None or output in outputs:
                with archive.open(name) as member:
                    segments[output].append(npy.read_array(member, allow_pickle=False))
    return Computed(done, tuple(tuple(arrays) for arrays in segments), failed)


def range_shapes(folder: Path, done: Range) -> list[list[tuple[np.dtype[Any], tuple[int, ...]]]]:
    """Return type and shape of each output's segments, without reading them."""
    found: dict[int, list[tuple[np.dtype[Any], tuple[int, ...]]]] = {}
    with zipfile.ZipFile(_path(folder, done)) as archive:
        for name in archive.namelist():
            if name == _FAILED:
                continue
            with archive.open(name) as member:
                version = npy.read_magic(member)
                read = npy.read_array_header_1_0 if version[0] == 1 else npy.read_array_header_2_0
                shape, _, dtype = read(member)
            found.setdefault(int(name.partition(".")[0]), []).append((dtype, shape))
    return [found[output] for output in sorted(found)]


def finished_ranges(folder: Path, *, verify: bool = True) -> tuple[Range, ...]:
    """Return the ranges whose files are there, in order, none overlapping another.

    With `verify`, files that are not whole (a crash of the machine can leave such) are removed,
    to be made again.
    """
    found = []
    for path in (folder / RANGES_FOLDER).iterdir():
        named = _NAME.fullmatch(path.name)
        if named is None or (verify and not _is_whole(path)):
            path.unlink(missing_ok=True)
            continue
        found.append(Range(int(named[1]), int(named[2])))
    kept: list[Range] = []
    # A worker that outlived its job may have finished a range of which the half is there too.
    for one in sorted(found, key=lambda r: (r.start, -r.stop)):
        if not kept or one.start >= kept[-1].stop:
            kept.append(one)
        else:
            _path(folder, one).unlink(missing_ok=True)
    return tuple(kept)


def missing_ranges(wanted: Sequence[Range], done: Sequence[Range]) -> tuple[Range, ...]:
    """Return what is left of the `wanted` ranges; `done` is as `finished_ranges` gives it."""
    left: list[Range] = []
    for one in wanted:
        start = one.start
        for other in done:
            if other.stop <= start or other.start >= one.stop:
                continue
            if other.start > start:
                left.append(Range(start, other.start))
            start = max(start, other.stop)
        if start < one.stop:
            left.append(Range(start, one.stop))
    return tuple(left)


def _path(folder: Path, done: Range) -> Path:
    return folder / RANGES_FOLDER / f"{done.start:09d}-{done.stop:09d}.npz"


def _is_whole(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None and _FAILED in archive.namelist()
    except (zipfile.BadZipFile, OSError, EOFError):
        return False
