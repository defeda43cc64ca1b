"""A batch job from request to output: plan, hand out, compute, assemble."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from filelock import FileLock, Timeout

from vermilion.batch.assemble import ASSEMBLING, Failed, assemble, output_form
from vermilion.batch.devices import ALL, BatchDevice, Kind, parse_devices, with_threads
from vermilion.batch.job import JOB_FILE, Job, Range, Worker
from vermilion.batch.journal import (
    RANGES_FOLDER,
    Computed,
    finished_ranges,
    missing_ranges,
    read_range,
    write_range,
)
from vermilion.batch.local_worker import LOGS_FOLDER, LocalWorker, Standby
from vermilion.batch.plan import Request, plan
from vermilion.batch.schedule import (
    DeviceRecord,
    Start,
    Status,
    Watch,
    Work,
    run_devices,
)
from vermilion.errors import DeviceError, OptionError, UnsupportedError
from vermilion.progress import Progress, no_progress

Engine = Literal["local", "ray"]

# What one range may take, from the request to its file: a worker that takes longer hangs.
RANGE_LIMIT_S = 600.0


@dataclass(frozen=True)
class Result:
    """What became of a job. `resumed` counts inputs that an earlier run had computed.

    `placement` says in one line how many operators are native; empty where nothing was compiled.
    """

    output: Path
    total: int
    failed: tuple[Failed, ...]
    resumed: int
    batch: int
    seconds: float  # from when the workers get the job to the last range's end
    rate: float  # inputs a second, in these seconds
    devices: tuple[DeviceRecord, ...]
    placement: str = ""


def run_batch(
    request: Request,
    *,
    devices: str = ALL,
    engine: Engine = "local",
    address: str | None = None,
    resume: bool = False,
    limit_s: float = RANGE_LIMIT_S,
    threads: int = 0,
    progress: Progress = no_progress,
    watch: Watch | None = None,
    standby: Standby | None = None,
) -> Result:
    """Compute a model's outputs for many inputs, in their order.

    What is done so far lies in the folder `OUTPUT.job` beside the output until all is; `resume`
    continues from there. Inputs that cannot be read, or that end every worker which tries them,
    are in `failed`: their rows hold NaN or the lowest integer, null in Parquet, and no file in a
    folder. `threads` are those of each process; 0: its share of those that this one may keep
    busy. `standby` holds processes that were started ahead, for the local engine.

    Raises: VermilionError; DeviceError where no device is left, and `resume` can go on later.
    """
    if not limit_s > 0:
        raise OptionError("`--timeout` has to be above zero", hint="write `--timeout 600`")
    form = output_form(request.output)
    folder = request.output.with_name(request.output.name + ".job")
    _check_place(request.output, folder, is_folder=form == "folder", resume=resume)
    with _fleet(engine, address, folder, limit_s, standby) as fleet:
        planned = plan(request, progress=progress)
        places = with_threads(fleet.places(devices, planned.kind), threads)
        with _alone_in(folder):
            job = _prepared(planned.for_devices(len(places)), folder)
            result = _computed(job, request.output, folder, places, fleet.start, watch)
    # Renamed first: half a folder must not look like a job to resume.
    done = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:12]}.done")
    folder.rename(done)
    shutil.rmtree(done, ignore_errors=True)
    return replace(result, placement=planned.placement)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Make the job's folder and keep other processes out of it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise OptionError(
            "another process is at work on this job",
            where=str(folder),
            hint="wait for it, or give another `--output`",
        ) from error
    try:
        yield
    finally:
        lock.release()


def _check_place(output: Path, folder: Path, *, is_folder: bool, resume: bool) -> None:
    if folder.exists() and (folder / JOB_FILE).exists() and not resume:
        raise OptionError(
            "an unfinished job for this output is there",
            where=str(folder),
            hint="`--resume` continues it; to begin again, remove the folder",
        )
    finished = (folder / ASSEMBLING).exists()
    if is_folder and output.is_dir() and any(output.iterdir()) and not finished:
        raise OptionError(
            "the output folder is there and not empty",
            where=str(output),
            hint="name another one, or remove it",
        )


def _prepared(job: Job, folder: Path) -> Job:
    """Write the job to its folder, or give the one that is there where it is the same."""
    (folder / RANGES_FOLDER).mkdir(exist_ok=True)
    (folder / LOGS_FOLDER).mkdir(exist_ok=True)
    if not (folder / JOB_FILE).exists():
        job.write(folder)
        return job
    known = Job.read(folder)
    if known.fingerprint != job.fingerprint:
        raise OptionError(
            "the unfinished job was for another model, other inputs or other options",
            where=str(folder),
            hint="give the same ones, or remove the folder to begin again",
        )
    return known


class Fleet(Protocol):
    """Where workers are started."""

    def places(self, devices: str, kind: Kind) -> tuple[BatchDevice, ...]:
        """Return the places for workers that the words name."""

    def start(self, device: BatchDevice) -> Worker:
        """Start a worker. Raises: WorkerDied, RangeFailed."""


@dataclass(frozen=True)
class LocalFleet:
    """Processes on this machine, of which some may have been started ahead."""

    folder: Path
    limit_s: float
    standby: Standby

    def places(self, devices: str, kind: Kind) -> tuple[BatchDevice, ...]:
        """Return the places for workers that the words name."""
        return parse_devices(devices, kind)

    def start(self, device: BatchDevice) -> LocalWorker:
        """Start a worker. Raises: WorkerDied, RangeFailed."""
        ready = self.standby.take(device)
        return LocalWorker(self.folder, device, limit_s=self.limit_s, process=ready)


@contextmanager
def _fleet(
    engine: Engine, address: str | None, folder: Path, limit_s: float, standby: Standby | None
) -> Iterator[Fleet]:
    if engine == "ray":
        from vermilion.batch.cluster import cluster

        with cluster(address, folder, limit_s) as fleet:
            yield fleet
        return
    if address is not None:
        raise OptionError("only Ray has an address", where="--address", hint="`--engine ray`")
    yield LocalFleet(folder, limit_s, standby or Standby({}))


def _computed(
    job: Job,
    output: Path,
    folder: Path,
    places: Sequence[BatchDevice],
    start: Start,
    watch: Watch | None,
) -> Result:
    done = finished_ranges(folder)
    left = missing_ranges(job.ranges(), done)
    resumed = sum(map(len, done))

    def report_failed(at: int, reason: str) -> None:
        write_range(folder, Computed(Range(at, at + 1), (), {at: reason}))

    begin = time.perf_counter()
    records: tuple[DeviceRecord, ...] = ()
    if left:
        work = Work(left, job.total, report_failed, proof=_proof(folder, done), devices=len(places))
        records = run_devices(places, work, start, watch or _nobody)
        if not work.is_finished:
            raise _unfinished(work, records)
    seconds = time.perf_counter() - begin
    # All of them were verified above, or written since.
    failed = assemble(job, folder, finished_ranges(folder, verify=False), output)
    rate = (job.total - resumed) / seconds if left else 0.0
    return Result(output, job.total, failed, resumed, job.batch, seconds, rate, records)


def _proof(folder: Path, done: Sequence[Range]) -> Range | None:
    """Return a range of an earlier run that has outputs."""
    return next((one for one in done if read_range(folder, one, outputs=()).live), None)


def _unfinished(work: Work, records: Sequence[DeviceRecord]) -> UnsupportedError | DeviceError:
    status = work.status()
    if work.reason:
        return UnsupportedError(work.reason, where=f"{status.done} of {status.total} inputs done")
    words = "; ".join(f"{r.device.name}: {r.left_out}" for r in records if r.left_out)
    return DeviceError(
        f"no device is left: {words}",
        where=f"{status.done} of {status.total} inputs done",
        hint="`--resume` goes on from here; try the model with `vermilion run`",
    )


def _nobody(status: Status) -> None:
    pass
