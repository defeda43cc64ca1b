"""Workers on a Ray cluster: actors that compute ranges and send their outputs back.

Model and inputs are read by the workers themselves, under the same paths on every machine.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vermilion.batch.devices import ALL, KINDS, BatchDevice, Kind, own_cores
from vermilion.batch.job import Job, Range
from vermilion.batch.journal import Computed, write_range
from vermilion.batch.process import OPEN_LIMIT_S, RangeFailed, Report, WorkerDied, environment
from vermilion.errors import DeviceError, OptionError

_CONNECT_LIMIT_S = 10.0


class Actor:
    """What runs on the cluster. Gives failures as values: an exception may not travel well."""

    def __init__(self, job: Job, threads: int, device: int) -> None:
        """Open the job's program."""
        from vermilion.batch.compute import Computer, open_program

        opened = open_program(job.program, job.outputs, threads, device)
        self._computer = Computer(job, opened)
        self._said = opened.runs_on, opened.notes

    def opened(self) -> tuple[str, tuple[str, ...]]:
        """Say where it runs, once it can."""
        return self._said

    def compute(self, start: int, stop: int) -> tuple[Computed, Report] | tuple[str, bool]:
        """Give a range's outputs, or why there are none and whether no other will have any."""
        from vermilion.batch.compute import BatchError
        from vermilion.memory import peak_rss_mb

        try:
            computed, spent = self._computer.compute(Range(start, stop))
        except Exception as error:  # a backend may raise anything; the scheduler decides
            lines = str(error).splitlines() or [type(error).__name__]
            return lines[0], isinstance(error, BatchError)
        return computed, Report(computed.failed, spent.read_s, spent.run_s, peak_rss_mb())


class RayWorker:
    """One actor, as the scheduler sees it."""

    def __init__(self, folder: Path, device: BatchDevice, *, limit_s: float) -> None:
        """Start it and wait until its model is open. Raises: WorkerDied."""
        import ray

        self._folder, self._limit_s = folder, limit_s
        options = {"num_cpus": device.threads, "max_restarts": 0}
        if device.kind == "gpu":
            options["num_gpus"] = 1
        # Ray shows an actor its own GPU alone: there it is number 0.
        actor = ray.remote(Actor).options(**options)
        self._actor = actor.remote(Job.read(folder), device.threads, 0)
        self.runs_on, self.notes = self._ask(self._actor.opened.remote(), OPEN_LIMIT_S)

    def compute(self, wanted: Range, *, keep: bool = True) -> Report:
        """Compute a range; its file is written here. Raises: WorkerDied, RangeFailed."""
        found = self._ask(self._actor.compute.remote(wanted.start, wanted.stop), self._limit_s)
        computed, report = found
        if isinstance(computed, str):
            raise RangeFailed(computed, fatal=bool(report))
        if keep:
            write_range(self._folder, computed)
        kept: Report = report
        return kept

    def close(self) -> None:
        """End the actor."""
        import ray

        ray.kill(self._actor)

    def _ask(self, asked: Any, limit_s: float) -> Any:
        import ray

        try:
            return ray.get(asked, timeout=limit_s)
        except ray.exceptions.GetTimeoutError as error:
            self.close()
            raise WorkerDied(f"it took more than {limit_s:g} s and was ended") from error
        except ray.exceptions.RayError as error:
            self.close()
            raise WorkerDied(_words(error)) from error


@contextmanager
def cluster(address: str | None, devices: str, kind: Kind) -> Iterator[tuple[BatchDevice, ...]]:
    """Join a cluster, or start one on this machine, and give the places for workers on it.

    `all` is a worker for each machine with all of its cores, or for each GPU; names such as
    `cpu:0,cpu:1` share out the cluster's cores.

    Raises: DeviceError where Ray is not installed or no cluster answers.
    """
    if find_spec("ray") is None:
        raise DeviceError(
            "Ray is not installed", where="--engine ray", hint="pip install 'vermilion[scale]'"
        )
    # Ray reports its use over the network unless told not to.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    own = not ray.is_initialized()
    if own:
        _join(address)
    try:
        # Ray tells of actors that died on stdout, where results belong.
        with redirect_stdout(sys.stderr):
            yield _places(devices, kind)
    finally:
        if own:
            ray.shutdown()


def _join(address: str | None) -> None:
    import ray

    if address is not None:
        _check_answers(address)
    here = {"num_cpus": len(own_cores()), "include_dashboard": False} if address is None else {}
    try:
        ray.init(
            address=address or "local",
            runtime_env={"env_vars": {"PYTHONPATH": environment()["PYTHONPATH"]}},
            log_to_driver=False,
            logging_level="ERROR",
            **here,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise DeviceError(
            f"no Ray cluster answers: {_words(error)}",
            where=f"--address {address}" if address else "",
            hint="`ray status --address ADDRESS` says whether one runs there",
        ) from error


def _check_answers(address: str) -> None:
    """Look whether anything listens there: Ray itself keeps trying for many minutes.

    Raises: DeviceError where nothing does.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():  # `auto`, which Ray looks up
        return
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_LIMIT_S).close()
    except (OSError, OverflowError) as error:
        raise DeviceError(
            f"no Ray cluster answers: {_words(error)}",
            where=f"--address {address}",
            hint="`ray status --address ADDRESS` says whether one runs there",
        ) from error


def _places(devices: str, kind: Kind) -> tuple[BatchDevice, ...]:
    import ray

    if kind == "npu":
        raise OptionError(
            "Ray hands out CPUs and GPUs, and the program is for an NPU",
            where="--engine ray",
            hint="use the local engine, or compile for a CPU",
        )
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cores = [int(machine.get("CPU", 0)) for machine in machines]
    gpus = sum(int(machine.get("GPU", 0)) for machine in machines)
    if kind == "gpu":
        count = gpus if devices == ALL else len(_names(devices, kind))
        if not 0 < count <= gpus:
            raise DeviceError(f"the Ray cluster has {gpus} GPUs", where=f"--devices {devices}")
        return tuple(BatchDevice(f"gpu:{at}", kind, at, (), 1) for at in range(count))
    if devices == ALL:
        shares = [count for count in cores if count]
    else:
        names = _names(devices, kind)
        shares = [max(1, sum(cores) // len(names))] * len(names)
    if not shares or sum(shares) > sum(cores):
        raise DeviceError(f"the Ray cluster has {sum(cores)} cores", where=f"--devices {devices}")
    return tuple(BatchDevice(f"cpu:{at}", kind, at, (), n) for at, n in enumerate(shares))


def _names(devices: str, kind: Kind) -> list[str]:
    names = [word.strip() for word in devices.split(",")]
    kinds = {name.partition(":")[0] for name in names}
    if kinds != {kind} or kind not in KINDS or len(set(names)) < len(names):
        raise OptionError(
            f"`{devices}` names no devices for this program",
            where="--devices",
            hint=f"write `all`, or `{kind}:0,{kind}:1`",
        )
    return names


def _words(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
