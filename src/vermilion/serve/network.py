"""A network that is served: its queue, and a thread and a process for each of its instances."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from vermilion.cores import allowed_cores, usable_cores
from vermilion.errors import DeviceError, VermilionError
from vermilion.process.arrays import read_values, write_values
from vermilion.process.child import Child, ChildError
from vermilion.serve.jobs import Job, JobQueue, Outputs
from vermilion.serve.metrics import Metrics
from vermilion.serve.refusals import (
    NotReadyError,
    TooLateError,
    WorkerLostError,
    WrongRequestError,
)
from vermilion.serve.settings import Settings
from vermilion.serve.tensors import Array, Tensor, tensor_of

_WORKER = ("vermilion.serve.network_worker",)
# Compiling a large model takes minutes.
OPEN_LIMIT_S = 1800.0
# So often a process may end without having computed anything before no other is started.
_MOST_DEATHS = 5
_LEAST_MEMORY = 1 << 30
# A request is computed so often more where its process ended; then it is to blame.
_MOST_TRIES = 3


@dataclass(frozen=True)
class About:
    """What a model is."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    runs_on: str
    placement: str
    note: str
    fallback: int  # operators that are not ours
    is_batched: bool


def about_of(said: Mapping[str, Any]) -> About:
    """Return what a worker says of its model. Raises: UnsupportedError."""
    return About(
        inputs=tuple(map(tensor_of, said["inputs"])),
        outputs=tuple(map(tensor_of, said["outputs"])),
        runs_on=str(said["runs_on"]),
        placement=str(said["placement"]),
        note=str(said["note"]),
        fallback=int(said["fallback"]),
        is_batched=bool(said["batched"]),
    )


def shares(instances: int, threads: int) -> list[tuple[tuple[int, ...], int]]:
    """Return the processors and the number of threads of each instance."""
    cores = allowed_cores()
    most = threads or max(1, usable_cores() // instances)
    if instances == 1 or instances > len(cores):
        return [((), most)] * instances
    bounds = [len(cores) * at // instances for at in range(instances + 1)]
    return [(tuple(cores[a:b]), threads or min(most, b - a)) for a, b in pairwise(bounds)]


class Network:
    """A network that is open in as many processes as it has instances."""

    kind = "network"

    def __init__(
        self, name: str, path: Path, place: str, settings: Settings, metrics: Metrics
    ) -> None:
        """Open it. Raises: VermilionError of the kind that says why it cannot be."""
        self.name, self._settings, self._metrics = name, settings, metrics
        self._path, self._place = path, place
        self._folder = Path(tempfile.mkdtemp(prefix="vermilion-serve-", dir=_memory_folder()))
        self._queue = JobQueue(
            most_waiting=settings.max_queue,
            most_rows=settings.max_batch,
            delay_s=settings.max_delay_s,
            on_length=lambda length: metrics.queue_length(name, length),
        )
        self._threads: list[threading.Thread] = []
        self._children: dict[int, Child] = {}
        self._closing = threading.Event()
        self.failure = ""
        self.about: About
        try:
            children = self._started()
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        for number, child in enumerate(children):
            thread = threading.Thread(
                target=self._serve, args=(number, child), name=f"{name} {number}", daemon=True
            )
            thread.start()
            self._threads.append(thread)
        metrics.fallback(name, self.about.fallback)

    @property
    def is_ready(self) -> bool:
        """Whether requests are computed."""
        return not self.failure and not self._closing.is_set()

    @property
    def processes(self) -> tuple[int, ...]:
        """The numbers of the processes that it runs in."""
        return tuple(child.process for child in list(self._children.values()))

    async def infer(self, inputs: Mapping[str, Array]) -> Outputs:
        """Compute the outputs for a request's inputs.

        Raises: RequestRefused, or what the model raises.
        """
        if not self.is_ready:
            raise NotReadyError(self.failure or "the model is being unloaded")
        job = self._job(inputs)
        self._queue.put(job)
        try:
            return await asyncio.wait_for(
                asyncio.wrap_future(job.done), self._settings.time_limit_s
            )
        except TimeoutError as error:
            limit = self._settings.time_limit_s
            raise TooLateError(f"the request took more than {limit:g} s") from error

    def close(self) -> None:
        """End the processes; what waits is refused."""
        self._closing.set()
        for job in self._queue.close():
            job.refuse(NotReadyError("the model was unloaded"))
        for thread in self._threads:
            thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _job(self, inputs: Mapping[str, Array]) -> Job:
        until = time.monotonic() + self._settings.time_limit_s
        if not self.about.is_batched:
            return Job(inputs, 1, None, until)
        rows = {array.shape[0] for array in inputs.values()}
        if len(rows) > 1:
            sizes = ", ".join(map(str, sorted(rows)))
            raise WrongRequestError(f"the first axis of all inputs is the batch: {sizes}")
        form = tuple((name, array.shape[1:]) for name, array in sorted(inputs.items()))
        count = rows.pop()
        return Job(inputs, count, form if count else None, until)

    def _started(self) -> list[Child]:
        """Start all processes; the first compiles, so that the others find it done."""
        places = shares(self._settings.instances, self._settings.threads)
        children: list[Child] = []
        try:
            for number, (cores, threads) in enumerate(places):
                child, said = self._open(number, cores, threads)
                children.append(child)
                if number == 0:
                    self.about = about_of(said)
        except BaseException:
            for child in children:
                child.stop()
            raise
        return children

    def _open(
        self, number: int, cores: Sequence[int], threads: int
    ) -> tuple[Child, Mapping[str, Any]]:
        cache = self._settings.cache_dir
        child = Child(_WORKER, self._folder / f"log{number}", who=self.name, cores=cores)
        details = {
            "path": str(self._path), "place": self._place, "dims": self._settings.dims,
            "threads": threads, "cache_dir": None if cache is None else str(cache),
            "values": str(self._folder),
        }  # fmt: skip
        try:
            said = child.ask("open", details, limit_s=OPEN_LIMIT_S, stage="opening")
            self._children[number] = child
            return child, said
        except ChildError as error:
            child.stop()
            raise (error.raised or error) from error

    def _serve(self, number: int, child: Child | None) -> None:
        """Carry out batches, until the queue is closed."""
        deaths = 0
        while jobs := self._queue.take():
            # One that opens has run the model: it is no process that ends at once.
            while child is None and deaths < _MOST_DEATHS and not self._closing.is_set():
                child = self._again(number)
                deaths = 0 if child is not None else deaths + 1
                self._closing.wait(0.0 if child is not None else 0.1 * 2**deaths)
            if child is None:
                self._give_up(jobs)
                return
            try:
                self._run(number, child, jobs)
            except ChildError as error:
                if error.raised is not None:
                    self._refuse(jobs, error.raised)
                    continue
                child.stop()
                child = None
                self._metrics.restarted(self.name)
                self._try_again(jobs, error)
            except OSError as error:  # no room for the values
                for job in jobs:
                    job.refuse(
                        DeviceError(f"the values could not be handed over: {error.strerror}")
                    )
        if child is not None:
            child.stop()

    def _again(self, number: int) -> Child | None:
        cores, threads = shares(self._settings.instances, self._settings.threads)[number]
        try:
            return self._open(number, cores, threads)[0]
        except VermilionError as error:
            self._metrics.note(f"{self.name}: a process could not be started: {error.message}")
            return None

    def _run(self, number: int, child: Child, jobs: Sequence[Job]) -> None:
        begin = time.monotonic()
        if len(jobs) == 1:
            inputs = jobs[0].inputs
        else:
            names = jobs[0].inputs
            inputs = {name: np.concatenate([job.inputs[name] for job in jobs]) for name in names}
        rows = write_values(inputs, self._folder / f"in{number}")
        said = child.ask(
            "run", {"rows": rows, "number": number}, limit_s=self._settings.time_limit_s,
            stage="running",
        )  # fmt: skip
        found: dict[str, Array] = read_values(said["rows"], self._folder / f"out{number}")
        seconds = time.monotonic() - begin
        self._queue.note_run(seconds)
        self._metrics.ran(self.name, sum(job.rows for job in jobs), seconds, [
            begin - job.entered for job in jobs
        ])  # fmt: skip
        at = 0
        for job in jobs:
            own = found
            if len(jobs) > 1:
                own = {name: array[at : at + job.rows] for name, array in found.items()}
            at += job.rows
            job.answer(own)

    def _refuse(self, jobs: Sequence[Job], error: VermilionError) -> None:
        """Tell of an error; of a batch, each is tried alone, for it may be one of them only."""
        if len(jobs) == 1:
            jobs[0].refuse(error)
        else:
            self._queue.put_back(jobs)

    def _try_again(self, jobs: Sequence[Job], error: ChildError) -> None:
        """Let each be computed alone by another process; who was alone twice has failed."""
        self._metrics.note(f"{self.name}: {error.message}")
        late = error.kind == "hung"
        kept = [job for job in jobs if job.tries < _MOST_TRIES and not (late and len(jobs) == 1)]
        for job in jobs:
            if job not in kept:
                words = "the model took too long" if late else "the process ended while computing"
                job.refuse(TooLateError(words) if late else WorkerLostError(words))
        self._queue.put_back(kept)

    def _give_up(self, jobs: Sequence[Job]) -> None:
        self.failure = self.failure or "its processes end as soon as they are started"
        for job in (*jobs, *self._queue.close()):
            job.refuse(NotReadyError(self.failure))


def _memory_folder() -> str | None:
    """Return where files are memory, where there is enough of it for large values."""
    folder = Path("/dev/shm")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return None
    return str(folder) if shutil.disk_usage(folder).free > _LEAST_MEMORY else None
