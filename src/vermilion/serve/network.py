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
from vermilion.runtime.feeds import shape_text
from vermilion.serve.jobs import Job, JobQueue, Outputs
from vermilion.serve.metrics import Metrics
from vermilion.serve.refusals import (
    FaultError,
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
# So often in a row a process may fail to open, or end unasked while it is young, before no other
# is started.
MOST_DEATHS = 5
YOUNG_S = 10.0
# How often a thread that has nothing to do looks whether its process is still there.
LOOK_S = 0.25
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
        self._starting: dict[int, Child] = {}
        self._left = settings.instances  # threads that have not given up
        self._counting = threading.Lock()
        self._closing = threading.Event()
        self.failure = self._why = ""
        self.is_batched = False
        self.about: About
        try:
            children = self._started()
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        for number, child in enumerate(children):
            thread = threading.Thread(
                target=self._live, args=(number, child), name=f"{name} {number}", daemon=True
            )
            thread.start()
            self._threads.append(thread)
        metrics.fallback(name, self.about.fallback)

    @property
    def is_open(self) -> bool:
        """Whether it takes requests; while no process of it lives, they wait for the next one."""
        return not self.failure and not self._closing.is_set()

    @property
    def is_ready(self) -> bool:
        """Whether a process is there that computes requests."""
        return self.is_open and any(child.is_alive for child in list(self._children.values()))

    @property
    def reason(self) -> str:
        """Why it is not ready; nothing where it is."""
        if self._closing.is_set():
            return "the model is being unloaded"
        return self.failure or ("" if self.is_ready else "its process ended, and is started again")

    @property
    def processes(self) -> tuple[int, ...]:
        """The numbers of the processes that it runs in."""
        return tuple(child.process for child in list(self._children.values()))

    async def infer(self, inputs: Mapping[str, Array]) -> Outputs:
        """Compute the outputs for a request's inputs.

        Raises: RequestRefused, or what the model raises.
        """
        if not self.is_open:
            raise NotReadyError(self.reason)
        job = self._job(inputs)
        self._queue.put(job)
        try:
            return await asyncio.wait_for(
                asyncio.wrap_future(job.done), self._settings.time_limit_s
            )
        except TimeoutError as error:
            limit = self._settings.time_limit_s
            raise TooLateError(f"the request took more than {limit:g} s") from error

    def close(self, *, now: bool = False) -> None:
        """End the processes, when what they compute is finished or `now`; what waits is refused."""
        self._closing.set()
        self._refuse_all(self._queue.close(), "the model was unloaded")
        for child in (*self._starting.values(), *(self._children.values() if now else ())):
            child.stop()
        for thread in self._threads:
            thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _job(self, inputs: Mapping[str, Array]) -> Job:
        until = time.monotonic() + self._settings.time_limit_s
        if not self.is_batched:
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
                    self.is_batched = self.about.is_batched
        except BaseException:
            for child in children:
                child.stop()
            raise
        return children

    def _open(
        self, number: int, cores: Sequence[int], threads: int
    ) -> tuple[Child, Mapping[str, Any]]:
        cache = self._settings.cache_dir
        try:
            child = Child(
                _WORKER, self._folder / f"log{number}", who=self.name, cores=cores,
                scratch=self._folder,
            )  # fmt: skip
        except OSError as error:
            raise DeviceError(f"no process can be started: {error.strerror}") from error
        details = {
            "path": str(self._path), "place": self._place, "dims": self._settings.dims,
            "threads": threads, "cache_dir": None if cache is None else str(cache),
            "values": str(self._folder),
        }  # fmt: skip
        self._starting[number] = child
        if self._closing.is_set():
            child.stop()
        try:
            said = child.ask("open", details, limit_s=OPEN_LIMIT_S, stage="opening")
            self._children[number] = child
            return child, said
        except ChildError as error:
            child.stop()
            raise (error.raised or error) from error
        finally:
            del self._starting[number]

    def _live(self, number: int, child: Child) -> None:
        """Serve to the end; whatever ends it, the model says so."""
        try:
            self._serve(number, child)
        except Exception:
            self._metrics.fault(self.name)
            self._why = "a fault of the server"
            self._children[number].stop()
            self._give_up([])

    def _serve(self, number: int, child: Child) -> None:
        """Carry out batches until the queue is closed; start the process again when it ends."""
        own: Child | None = child
        opened, deaths = time.monotonic(), 0
        while (jobs := self._queue.take(LOOK_S)) is not None:
            try:
                if own is not None and not own.is_alive:
                    is_young = time.monotonic() - opened < YOUNG_S
                    deaths = deaths + 1 if is_young else 0
                    self._ended(own, "its process ended while it had nothing to do")
                    own = None
                if own is None:
                    own, opened = self._again(number, deaths), time.monotonic()
                if own is None:
                    break
                if jobs and self._carried_out(number, own, jobs):
                    deaths = 0
                elif jobs:
                    own = None
            except Exception:  # the last door: no thread ends while the model says it is ready
                self._metrics.fault(self.name)
                self._refuse(jobs, FaultError("this is a fault of the server"))
        if own is not None:
            own.stop()
        if jobs is not None:
            self._give_up(jobs)

    def _carried_out(self, number: int, child: Child, jobs: Sequence[Job]) -> bool:
        """Compute jobs, or say why not; a process that broke is stopped."""
        try:
            self._run(number, child, jobs)
        except ChildError as error:
            if error.raised is not None:
                self._refuse(jobs, error.raised)
                return True
            self._ended(child, error.message)
            self._try_again(jobs, error)
            return False
        except OSError as error:  # no room for the values
            for job in jobs:
                job.refuse(DeviceError(f"the values could not be handed over: {error.strerror}"))
        return True

    def _ended(self, child: Child, words: str) -> None:
        child.stop()
        self._why = words
        self._metrics.restarted(self.name)
        self._metrics.note(f"{self.name}: {words}")

    def _again(self, number: int, deaths: int) -> Child | None:
        """Start a process again, later the more often it ended; None where there is none to be."""
        cores, threads = shares(self._settings.instances, self._settings.threads)[number]
        while deaths < MOST_DEATHS and not self._closing.wait(0.1 * 2**deaths * bool(deaths)):
            try:
                return self._open(number, cores, threads)[0]
            except VermilionError as error:
                deaths += 1
                self._why = error.message
                self._metrics.note(f"{self.name}: a process could not be started: {error.message}")
        return None

    def _run(self, number: int, child: Child, jobs: Sequence[Job]) -> None:
        begin = time.monotonic()
        if len(jobs) > 1 and not self.is_batched:  # they came before that was known
            self._queue.put_back(jobs)
            return
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
        seconds, count = time.monotonic() - begin, sum(job.rows for job in jobs)
        if len(jobs) > 1 and any(array.shape[:1] != (count,) for array in found.values()):
            self._share_no_more(jobs, found)
            return
        self._queue.note_run(seconds)
        self._metrics.ran(self.name, count, seconds, [begin - job.entered for job in jobs])
        at = 0
        for job in jobs:
            own = found
            if len(jobs) > 1:
                own = {name: array[at : at + job.rows] for name, array in found.items()}
            at += job.rows
            job.answer(own)

    def _share_no_more(self, jobs: Sequence[Job], found: Mapping[str, Array]) -> None:
        """Compute each alone from now on: the outputs of a batch have not one row for each row."""
        shapes = ", ".join(f"{name} {shape_text(array.shape)}" for name, array in found.items())
        self._metrics.note(f"{self.name}: its requests share no batch any more: it made {shapes}")
        self.is_batched = False
        self._queue.put_back(jobs)

    def _refuse(self, jobs: Sequence[Job], error: VermilionError) -> None:
        """Tell of an error; of a batch, each is tried alone, for it may be one of them only."""
        if len(jobs) == 1:
            jobs[0].refuse(error)
        else:
            self._queue.put_back(jobs)

    def _try_again(self, jobs: Sequence[Job], error: ChildError) -> None:
        """Let each be computed alone by another process; who was alone twice has failed."""
        late = error.kind == "hung"
        kept = [job for job in jobs if job.tries < _MOST_TRIES and not (late and len(jobs) == 1)]
        for job in jobs:
            if job not in kept:
                words = "the model took too long" if late else "the process ended while computing"
                job.refuse(TooLateError(words) if late else WorkerLostError(words))
        self._queue.put_back(kept)

    def _give_up(self, jobs: Sequence[Job]) -> None:
        """Leave the jobs to the other processes, if there are any; else the model has failed."""
        with self._counting:
            self._left -= 1
        if self._closing.is_set():
            self._refuse_all(jobs, "the model was unloaded")
        elif self._left:
            self._queue.put_back(jobs)
        else:
            self.failure = f"none of its processes is left: {self._why}"
            self._refuse_all((*jobs, *self._queue.close()), self.failure)

    def _refuse_all(self, jobs: Sequence[Job], words: str) -> None:
        for job in jobs:
            job.refuse(NotReadyError(words))


def _memory_folder() -> str | None:
    """Return where files are memory, where there is enough of it for large values."""
    folder = Path("/dev/shm")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return None
    return str(folder) if shutil.disk_usage(folder).free > _LEAST_MEMORY else None
