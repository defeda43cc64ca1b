"""What a batch job is, as data: written once to its folder, read by every worker.

And a worker as the scheduler sees it: one that computes ranges, or dies of them. The local one, a
process, is in `local_worker`; the one on a Ray cluster in `cluster`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from vermilion.backends.base import Array
from vermilion.errors import ArtifactError, UnsupportedError
from vermilion.ir.pictures import PictureOptions

JOB_FILE = "job.json"

# Ranges that each device gets in a job, at the least: a kill costs what each was computing.
RANGES_PER_DEVICE = 16
# Towards the end ranges become shorter, so that each device still gets this many of what is left:
# none waits long for another's last one.
RANGES_OF_THE_REST = 3
# Inputs in a range, at the most: what a kill can cost, and what a worker holds in memory.
MAX_RANGE = 256

SourceKind = Literal["pictures", "rows"]


@dataclass(frozen=True)
class Slot:
    """An input of the model: None in `shape` takes any length, no shape at all any shape."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True, order=True)
class Range:
    """Inputs `start` to `stop` (without it), numbered through the whole job."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def halves(self) -> tuple[Range, Range]:
        """Return the two halves of a range of two or more."""
        middle = (self.start + self.stop) // 2
        return Range(self.start, middle), Range(middle, self.stop)


@dataclass(frozen=True)
class Source:
    """Where the inputs lie. `starts` holds the number of each file's first input.

    The files are listed once, by who plans the job: a file that comes later changes nothing.
    """

    kind: SourceKind
    folder: str
    files: tuple[str, ...]
    starts: tuple[int, ...]
    pictures: PictureOptions = field(default_factory=PictureOptions)


@dataclass(frozen=True)
class Program:
    """What workers open: a compiled bundle, or an ONNX file that ONNX Runtime runs as it is."""

    kind: Literal["bundle", "onnx"]
    path: str
    dims: Mapping[str, int | tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """The whole of a job but its devices, which may be others when it is resumed.

    `fingerprint` stands for the model's content, the options that change outputs, and the inputs'
    names, sizes and dates.
    """

    program: Program
    source: Source
    slots: tuple[Slot, ...]
    outputs: tuple[str, ...]
    batch: int
    total: int
    range_length: int  # of the longest range
    devices: int
    fingerprint: str

    def ranges(self) -> tuple[Range, ...]:
        """Return the ranges that the job is handed out in: whole batches, but for the last one."""
        found: list[Range] = []
        start = 0
        while start < self.total:
            share = (self.total - start) // (self.devices * RANGES_OF_THE_REST)
            batches = max(1, min(share, self.range_length) // self.batch)
            stop = min(start + batches * self.batch, self.total)
            found.append(Range(start, stop))
            start = stop
        return tuple(found)

    def write(self, folder: Path) -> None:
        """Write it to the job's folder, whole or not at all."""
        aside = folder / f".{JOB_FILE}"
        aside.write_text(json.dumps(_plain(self), indent=1), encoding="utf-8")
        aside.replace(folder / JOB_FILE)

    @classmethod
    def read(cls, folder: Path) -> Job:
        """Read what `write` wrote.

        Raises: ArtifactError where the file is damaged or of another version.
        """
        path = folder / JOB_FILE
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return _from_plain(found)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArtifactError(
                f"the job cannot be read: {error}",
                where=str(path),
                hint=f"remove `{folder}` to begin again",
            ) from error


def range_length(total: int, batch: int, devices: int) -> int:
    """Return the most inputs that are handed out at a time: whole batches, many ranges a device."""
    share = total // max(1, devices * RANGES_PER_DEVICE)
    batches = max(1, min(share, MAX_RANGE) // batch)
    return batches * batch


def fingerprint(*parts: object) -> str:
    """Return a digest of whatever JSON can hold."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def seen(folder: Path, names: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return name, size and date of files: what tells that one was changed meanwhile."""
    place = str(folder)  # a `Path` for each of many files takes longer than asking for its date
    stats = ((name, os.stat(os.path.join(place, name))) for name in names)  # noqa: PTH116, PTH118
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


def filler(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return what stands for outputs of a failed input: NaN, the lowest integer, false, no text."""
    if dtype.kind in "fc" or dtype.kind == "V":
        return np.full(shape, np.nan).astype(dtype)
    if dtype.kind in "iu":
        return np.full(shape, np.iinfo(dtype).min, dtype)
    return np.zeros(shape, dtype)


def _plain(job: Job) -> dict[str, Any]:
    slots = [
        {"name": slot.name, "dtype": slot.dtype.name, "shape": slot.shape} for slot in job.slots
    ]
    return {**asdict(job), "slots": slots}


def _from_plain(found: Mapping[str, Any]) -> Job:
    source, program = found["source"], found["program"]
    pictures = source["pictures"]
    return Job(
        program=Program(
            program["kind"],
            program["path"],
            {
                name: size if isinstance(size, int) else tuple(size)
                for name, size in program["dims"].items()
            },
        ),
        source=Source(
            source["kind"],
            source["folder"],
            tuple(source["files"]),
            tuple(source["starts"]),
            PictureOptions(
                tuple(pictures["mean"]),
                tuple(pictures["std"]),
                pictures["layout"],
                None if pictures["resize"] is None else tuple(pictures["resize"]),
            ),
        ),
        slots=tuple(
            Slot(
                slot["name"],
                np.dtype(slot["dtype"]),
                None if slot["shape"] is None else tuple(slot["shape"]),
            )
            for slot in found["slots"]
        ),
        outputs=tuple(found["outputs"]),
        batch=int(found["batch"]),
        total=int(found["total"]),
        range_length=int(found["range_length"]),
        devices=int(found["devices"]),
        fingerprint=str(found["fingerprint"]),
    )


OPEN_LIMIT_S = 600.0


class BatchError(UnsupportedError):
    """No input is at fault: the model's outputs cannot be taken apart, or written."""


class WorkerDied(Exception):
    """The process is gone, or was ended because it hung. The words say how."""


class RangeFailed(Exception):
    """The worker lives and could not compute the range. `fatal`: nor will any other."""

    def __init__(self, words: str, *, fatal: bool = False) -> None:
        super().__init__(words)
        self.fatal = fatal


@dataclass(frozen=True)
class Report:
    """What a worker says of a range that it finished."""

    failed: Mapping[int, str] = field(default_factory=dict)
    read_s: float = 0.0
    run_s: float = 0.0
    peak_rss_mb: float = 0.0


class Worker(Protocol):
    """Computes ranges; not for several threads at once, but `close` may come from another."""

    runs_on: str
    notes: tuple[str, ...]

    def begin(self, wanted: Range, *, keep: bool = True) -> None:
        """Ask for a range; several may be asked for, and are computed one after the other.

        Raises: WorkerDied.
        """

    def finish(self) -> Report:
        """Wait for the range that was asked for first, of those that are not finished.

        Where it was to be kept, its file is in the journal when this returns.

        Raises: WorkerDied, RangeFailed.
        """

    def close(self) -> None:
        """End it, whatever it is doing."""
