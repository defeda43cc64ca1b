"""Workers on a Ray cluster: actors that compute ranges and send their outputs back.

Model and inputs are read by the workers themselves, under the same paths on every machine.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib.metadata import Distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vermilion import errors
from vermilion.batch.devices import ALL, KINDS, BatchDevice, Kind
from vermilion.batch.job import (
    OPEN_LIMIT_S,
    BatchError,
    Job,
    Range,
    RangeFailed,
    Report,
    WorkerDied,
)
from vermilion.batch.journal import Computed, write_range
from vermilion.cores import usable_cores
from vermilion.errors import DeviceError, OptionError, VermilionError, first_line
from vermilion.process.child import environment

_CONNECT_LIMIT_S = 10.0


@dataclass(frozen=True)
class Failure:
    """Why there is nothing, as a value: an exception may not travel well."""

    reason: str
    fatal: bool  # no other range, or no other worker, will fare better


class Actor:
    """What runs on the cluster."""

    def open(self, job: Job, threads: int, device: int) -> tuple[str, tuple[str, ...]] | Failure:
        """Open the job's program and say where it runs."""
        from vermilion.batch.compute import Computer, open_program

        try:
            opened = open_program(job.program, job.outputs, threads, device)
        except Exception as error:  # a backend may raise anything; the scheduler decides
            hopeless = isinstance(error, VermilionError) and not isinstance(error, DeviceError)
            return Failure(first_line(error), hopeless)
        self._computer = Computer(job, opened)
        return opened.runs_on, opened.notes

    def compute(self, start: int, stop: int) -> tuple[Computed, Report] | Failure:
        """Return a range's outputs, or why there are none."""
        from vermilion.memory import peak_rss_mb

        try:
            computed, spent = self._computer.compute(Range(start, stop))
        except Exception as error:  # as above
            return Failure(first_line(error), isinstance(error, BatchError))
        return computed, Report(computed.failed, spent.read_s, spent.run_s, peak_rss_mb())


class RayWorker:
    """One actor, as the scheduler sees it."""

    def __init__(self, folder: Path, device: BatchDevice, *, limit_s: float) -> None:
        """Start it and wait until its model is open. Raises: WorkerDied, RangeFailed."""
        import ray

        self._folder, self._limit_s = folder, limit_s
        self._asked: deque[tuple[Any, bool]] = deque()
        options = {"num_cpus": device.threads, "max_restarts": 0}
        if device.kind == "gpu":
            options["num_gpus"] = 1
        self._actor = ray.remote(Actor).options(**options).remote()
        # Ray shows an actor its own GPU alone: there it is number 0.
        opened = self._actor.open.remote(Job.read(folder), device.threads, 0)
        found = self._wait(opened, OPEN_LIMIT_S)
        if isinstance(found, Failure):
            self.close()
            words = f"the model could not be opened: {found.reason}"
            raise RangeFailed(words, fatal=True) if found.fatal else WorkerDied(words)
        self.runs_on, self.notes = found

    def begin(self, wanted: Range, *, keep: bool = True) -> None:
        """Ask for a range: the actor has it before it is done with the one before."""
        self._asked.append((self._actor.compute.remote(wanted.start, wanted.stop), keep))

    def finish(self) -> Report:
        """Return what became of the first range; its file is written here.

        Raises: WorkerDied, RangeFailed.
        """
        asked, keep = self._asked.popleft()
        found = self._wait(asked, self._limit_s)
        if isinstance(found, Failure):
            raise RangeFailed(found.reason, fatal=found.fatal)
        computed, report = found
        if keep:
            write_range(self._folder, computed)
        kept: Report = report
        return kept

    def close(self) -> None:
        """End the actor."""
        import ray

        ray.kill(self._actor)

    def _wait(self, asked: Any, limit_s: float) -> Any:
        import ray

        try:
            return ray.get(asked, timeout=limit_s)
        except ray.exceptions.GetTimeoutError as error:
            self.close()
            raise WorkerDied(f"it took more than {limit_s:g} s and was ended") from error
        except ray.exceptions.RayError as error:
            self.close()
            raise WorkerDied(first_line(error)) from error


@dataclass(frozen=True)
class RayFleet:
    """The cluster's places for workers, once it answers."""

    folder: Path
    limit_s: float
    joining: Joining

    def places(self, devices: str, kind: Kind) -> tuple[BatchDevice, ...]:
        """Return them: `all` is a worker for each machine with all of its cores, or for each GPU.

        Names such as `cpu:0,cpu:1` share out the cluster's cores.

        Raises: DeviceError where no cluster answers, or it has too few devices.
        """
        self.joining.wait()
        return _places(devices, kind)

    def start(self, device: BatchDevice) -> RayWorker:
        """Start a worker. Raises: WorkerDied, RangeFailed."""
        return RayWorker(self.folder, device, limit_s=self.limit_s)


@contextmanager
def cluster(address: str | None, folder: Path, limit_s: float) -> Iterator[RayFleet]:
    """Begin to join a cluster, or to start one on this machine; leave or end it at last.

    Raises: DeviceError where Ray is not installed.
    """
    if find_spec("ray") is None:
        raise DeviceError(
            "Ray is not installed", where="--engine ray", hint="pip install 'vermilion[scale]'"
        )
    with joining(address) as membership:
        yield RayFleet(folder, limit_s, membership)


@contextmanager
def joining(address: str | None) -> Iterator[Joining]:
    """Begin to join a cluster: its `wait` returns, or raises, when that is done.

    Without an `address` it is the one that `RAY_ADDRESS` names, as for Ray's own commands; without
    that, one is started on this machine.
    """
    # Ray reports its use over the network unless told not to.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    membership = Joining(address or os.environ.get("RAY_ADDRESS") or None)
    try:
        # Ray tells of actors that died on stdout, where results belong.
        with redirect_stdout(sys.stderr):
            yield membership
    finally:
        membership.end()


class Joining:
    """A thread that joins: it takes a second, or several where a cluster is started.

    It lives as long as the membership. Ray ties the processes that it starts to the life of what
    starts them, and to Linux (`PR_SET_PDEATHSIG`) that is a thread.
    """

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._error: Exception | None = None
        self._is_own = False
        self._joined, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._live, name="ray", daemon=True)
        self._thread.start()

    @property
    def is_own_cluster(self) -> bool:
        """Whether the cluster was started here, and ends with the membership."""
        return self._is_own and self._address is None

    def wait(self) -> None:
        """Wait until it has joined. Raises: DeviceError."""
        self._joined.wait()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Leave the cluster, unless this process was in it before."""
        self._joined.wait()
        if self._is_own:
            import ray

            ray.shutdown()
        self._over.set()
        self._thread.join()

    def _live(self) -> None:
        try:
            import ray

            if not ray.is_initialized():
                _join(self._address)
                self._is_own = True
        except Exception as error:  # raised where somebody waits for it
            self._error = error
        finally:
            self._joined.set()
        self._over.wait()


def _join(address: str | None) -> None:
    import ray

    # What is started here inherits this process's environment.
    local = {"num_cpus": usable_cores(), "include_dashboard": False}
    if address is not None:
        _check_answers(address)
    try:
        with _environment_set(environment() if address is None else {}):
            ray.init(
                address=address or "local",
                runtime_env=_runtime_environment() if address is not None else None,
                log_to_driver=False,
                logging_level="ERROR",
                **(local if address is None else {}),
            )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _no_answer(error, address) from error


@contextmanager
def _environment_set(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


def _runtime_environment() -> dict[str, Any] | None:
    """Return what lets workers find this package, where it is not installed.

    Only where they need it: such workers are none of those that Ray keeps ready, and start
    seconds later.
    """
    root = Path(errors.__file__).parent.parent
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    beside = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    # Found also where it was installed in place.
    installed = any(Distribution.discover(name="vermilion", path=beside))
    if installed and str(root) not in named:
        return None
    return {"env_vars": {"PYTHONPATH": environment()["PYTHONPATH"]}}


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
        raise _no_answer(error, address) from error


def _no_answer(error: Exception, address: str | None) -> DeviceError:
    return DeviceError(
        f"no Ray cluster answers: {first_line(error)}",
        where=f"--address {address}" if address else "",
        hint="`ray status --address ADDRESS` says whether one runs there; one that asks for a "
        "token is joined with RAY_AUTH_MODE=token",
    )


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
