"""The work itself, in whatever process it is done: inputs of a range → its outputs.

An input has its place in a batch by its number alone, and a batch its full size: what shares the
batch with it, which device computes it and after how many kills changes no bit of its outputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vermilion.backends.base import Array
from vermilion.batch.job import BatchError, Job, Program, Range
from vermilion.batch.journal import Computed
from vermilion.batch.source import Read, Reader
from vermilion.ir.value_files import plain_array

Run = Callable[[Mapping[str, Array]], Sequence[Array]]


@dataclass(frozen=True)
class Opened:
    """A model ready to run, and what it says of itself."""

    run: Run
    runs_on: str
    notes: tuple[str, ...] = ()


def open_program(program: Program, outputs: Sequence[str], threads: int, device: int) -> Opened:
    """Open what a job runs. `device` is the number of the GPU, where one is used.

    Raises: VermilionError where it cannot be opened.
    """
    if program.kind == "onnx":
        return _open_onnx(program, outputs, threads)
    from vermilion.batch.devices import backends_on
    from vermilion.runtime.artifact import open_artifact
    from vermilion.runtime.recompile import runnable
    from vermilion.runtime.session import Session

    reader, notes = runnable(open_artifact(Path(program.path), verify="as read"))
    session = Session(reader, threads=threads, backends=backends_on(reader.manifest, device))
    names = list(outputs)
    places = dict.fromkeys(place.partition(": ")[2] for place in session.runs_on)
    return Opened(
        lambda inputs: session.run(names, inputs), "; ".join(places), (*notes, *session.notes)
    )


def _open_onnx(program: Program, outputs: Sequence[str], threads: int) -> Opened:
    import onnxruntime as ort

    from vermilion.ir.execute import open_session, run_session
    from vermilion.ir.load import load_model
    from vermilion.ir.passes.bind_dimensions import bind_dimensions

    session = open_session(
        bind_dimensions(load_model(Path(program.path)), program.dims), threads=threads
    )

    def run(inputs: Mapping[str, Array]) -> Sequence[Array]:
        found = run_session(session, inputs, outputs)
        return [found[name] for name in outputs]

    return Opened(run, f"CPU (ONNX Runtime {ort.__version__})")


@dataclass(frozen=True)
class Spent:
    """Seconds of a range, by what they went into."""

    read_s: float
    run_s: float


class Computer:
    """An open model and the job's inputs."""

    def __init__(self, job: Job, opened: Opened) -> None:
        self._job = job
        self._opened = opened
        self._reader = Reader(job.source, job.slots)

    def compute(self, wanted: Range) -> tuple[Computed, Spent]:
        """Compute the outputs of a range.

        Raises: BatchError where the model does not fit the job; what reading and running raise.
        """
        size = self._job.batch
        segments: list[list[Array]] = [[] for _ in self._job.outputs]
        failed: dict[int, str] = {}
        read_s = run_s = 0.0
        for first in range(wanted.start // size * size, wanted.stop, size):
            begin = time.perf_counter()
            part = Range(max(first, wanted.start), min(first + size, wanted.stop))
            read = self._reader.read(part)
            failed.update(read.failed)
            ready = time.perf_counter()
            read_s += ready - begin
            if not read.live:
                continue
            places = [at - first for at in read.live]
            found = self._opened.run(_in_place(read, places, size))
            for output, array in enumerate(found):
                segments[output].append(self._rows(array, places, output))
            run_s += time.perf_counter() - ready
        joined = tuple(tuple(_merged(arrays)) for arrays in segments)
        return Computed(wanted, joined, failed), Spent(read_s, run_s)

    def _rows(self, array: Array, places: Sequence[int], output: int) -> Array:
        """Return the rows of the inputs at `places`; of a batch of one, the whole is the row."""
        if not isinstance(array, np.ndarray):
            raise BatchError(
                f"output `{self._job.outputs[output]}` is a {type(array).__name__}, and no array"
                " with a row for each input",
                hint="run the inputs one by one: `vermilion run --output FOLDER`",
            )
        array = plain_array(array)
        size = self._job.batch
        if array.ndim == 0 or array.shape[0] != size:
            if size == 1:
                return array[None]
            raise BatchError(
                f"output `{self._job.outputs[output]}` has no row for each input of a batch: its "
                f"shape is {'×'.join(map(str, array.shape)) or 'scalar'}, the batch is {size}",
                hint="compute one at a time: `--batch 1`",
            )
        return array if len(places) == size else array[list(places)]


def _in_place(read: Read, places: Sequence[int], size: int) -> dict[str, Array]:
    """Return full batches; places that no input has are filled with the first that is there."""
    if len(places) == size:
        return dict(read.arrays)
    order = [0] * size
    for row, place in enumerate(places):
        order[place] = row
    return {name: np.ascontiguousarray(array[order]) for name, array in read.arrays.items()}


def _merged(arrays: Sequence[Array]) -> list[Array]:
    """Join neighbours that have one row shape."""
    groups: list[list[Array]] = []
    for array in arrays:
        last = groups[-1][0] if groups else None
        if last is not None and (last.shape[1:], last.dtype) == (array.shape[1:], array.dtype):
            groups[-1].append(array)
        else:
            groups.append([array])
    return [group[0] if len(group) == 1 else np.concatenate(group) for group in groups]
