"""A batch job from request to output: plan, hand out, compute, assemble."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from vermilion.batch.assemble import ASSEMBLING, Failed, assemble, output_form
from vermilion.batch.cluster import RayWorker, cluster
from vermilion.batch.devices import ALL, BatchDevice, parse_devices
from vermilion.batch.job import JOB_FILE, Job, Range
from vermilion.batch.journal import (
    RANGES_FOLDER,
    Computed,
    finished_ranges,
    missing_ranges,
    read_range,
    write_range,
)
from vermilion.batch.plan import Planned, Request, plan
from vermilion.batch.process import LOGS_FOLDER, LocalWorker
from vermilion.batch.schedule import DeviceRecord, Start, Watch, run_devices
from vermilion.batch.work import Status, Work
from vermilion.errors import DeviceError, OptionError, UnsupportedError
from vermilion.progress import Progress, no_progress

Engine = Literal["local", "ray"]

# What one range may take, from the request to its file: a worker that takes longer hangs.
RANGE_LIMIT_S = 600.0


@dataclass(frozen=True)
class Result:
    """What became of a job. `resumed` counts inputs that an earlier run had computed."""

    output: Path
    total: int
    failed: tuple[Failed, ...]
    resumed: int
    batch: int
    seconds: float  # from the first worker's start to the last range's end
    rate: float  # inputs a second, in these seconds
    devices: tuple[DeviceRecord, ...]


def run_batch(
    request: Request,
    *,
    devices: str = ALL,
    engine: Engine = "local",
    address: str | None = None,
    resume: bool = False,
    limit_s: float = RANGE_LIMIT_S,
    progress: Progress = no_progress,
    watch: Watch | None = None,
) -> Result:
    """Compute a model's outputs for many inputs, in their order.

    What is done so far lies in the folder `OUTPUT.job` beside the output until all is; `resume`
    continues from there. Inputs that cannot be read, or that end every worker which tries them,
    are in `failed`: their rows hold NaN or the lowest integer, null in Parquet, and no file in a
    folder.

    Raises: VermilionError; DeviceError where no device is left, and `resume` can go on later.
    """
    form = output_form(request.output)
    folder = request.output.with_name(request.output.name + ".job")
    _check_place(request.output, folder, is_folder=form == "folder", resume=resume)
    planned = plan(request, progress=progress)
    with (
        _engine(engine, planned, devices, address, folder, limit_s) as (start, places),
        _alone_in(folder),
    ):
        job = _prepared(planned.for_devices(len(places)), folder)
        result = _computed(job, request.output, folder, places, start, watch)
    # Renamed first: half a folder must not look like a job to resume.
    done = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:12]}.done")
    folder.rename(done)
    shutil.rmtree(done, ignore_errors=True)
    return result


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


@contextmanager
def _engine(
    engine: Engine,
    planned: Planned,
    devices: str,
    address: str | None,
    folder: Path,
    limit_s: float,
) -> Iterator[tuple[Start, tuple[BatchDevice, ...]]]:
    """Give what starts a worker, and the places for workers."""
    if engine == "local":
        if address is not None:
            raise OptionError("only Ray has an address", where="--address", hint="`--engine ray`")
        places = parse_devices(devices, planned.kind)
        yield lambda device: LocalWorker(folder, device, limit_s=limit_s), places
        return
    with cluster(address, devices, planned.kind) as places:
        yield lambda device: RayWorker(folder, device, limit_s=limit_s), places


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
        work = Work(left, job.total, report_failed, proof=_proof(folder, done))
        records = run_devices(places, work, start, watch or _nobody)
        if not work.is_finished:
            raise _unfinished(work, records)
    seconds = time.perf_counter() - begin
    # All of them were verified above, or written since.
    failed = assemble(job, folder, finished_ranges(folder, verify=False), output)
    rate = (job.total - resumed) / seconds if left else 0.0
    return Result(output, job.total, failed, resumed, job.batch, seconds, rate, records)


def _proof(folder: Path, done: Sequence[Range]) -> Range | None:
    """Give a range of an earlier run that has outputs."""
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
