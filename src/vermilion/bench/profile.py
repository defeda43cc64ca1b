"""Operator by operator: what a model's time is spent on, in our engine and in others.

Each engine runs alone, in a process of its own. What an engine tells of its steps is brought to
one form, an `Event` a step, from which tables and a trace are made.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vermilion.bench.bandwidth import read_bandwidth_gb_per_s
from vermilion.bench.cases import Case
from vermilion.bench.engines import Engine, check_installed, parse_engine
from vermilion.bench.harness import EngineProcess
from vermilion.bench.machine import this_machine
from vermilion.bench.measure import Plan, all_sizes, engines_for, open_case, plan_case
from vermilion.bench.peak import Peak, measure_peak
from vermilion.errors import Refusal, VermilionError
from vermilion.ir.load import load_model
from vermilion.progress import Progress, no_progress


@dataclass(frozen=True)
class Event:
    """One step of one run. `kind` is the operator, or for generated code the kernel family.

    Units: `begin_us` from the beginning of the run. `operations` None where nobody can count them.
    """

    name: str
    kind: str
    device: str
    begin_us: float
    duration_us: float
    operations: int | None
    detail: str = ""  # what a step is called where several make one operator


Run = tuple[Event, ...]


@dataclass(frozen=True)
class Line:
    """One row of a profile: a step, or all that belong together."""

    name: str
    kind: str
    device: str
    ms: float  # the median over runs
    share: float  # of the sum of all steps
    gops_per_s: float | None  # None where nobody counted its operations
    steps: int = 1

    def as_json(self) -> dict[str, object]:
        """Return the keys of the report."""
        return asdict(self)


@dataclass(frozen=True)
class Profile:
    """What one engine did with one model.

    `run_ms` is the median of whole runs without any measuring inside. `shown` is the run whose sum
    of steps is the middle one, for a trace.
    """

    engine: str
    precision: str
    version: str
    run_ms: float
    runs: int
    steps_ms: float
    by_step: tuple[Line, ...]
    by_kind: tuple[Line, ...]
    by_device: tuple[Line, ...]
    shown: Run

    def as_json(self) -> dict[str, object]:
        """Return the keys of the report."""
        return {
            "engine": self.engine,
            "precision": self.precision,
            "version": self.version,
            "run_ms": self.run_ms,
            "runs": self.runs,
            "steps_ms": self.steps_ms,
            "by_step": [line.as_json() for line in self.by_step],
            "by_kind": [line.as_json() for line in self.by_kind],
            "by_device": [line.as_json() for line in self.by_device],
            "timeline": [
                {
                    "name": event.name,
                    "kind": event.kind,
                    "device": event.device,
                    "begin_us": event.begin_us,
                    "duration_us": event.duration_us,
                }
                for event in self.shown
            ],
        }


def summed(
    engine: str, precision: str, version: str, run_ms: Sequence[float], runs: Sequence[Run]
) -> Profile:
    """Make tables of the runs of an engine: every step with its median, slowest first."""
    medians = _medians(runs)
    whole = sum(event.duration_us for event in medians)
    middle = sorted(runs, key=lambda run: sum(event.duration_us for event in run))[len(runs) // 2]
    return Profile(
        engine=engine,
        precision=precision,
        version=version,
        run_ms=statistics.median(run_ms),
        runs=len(runs),
        steps_ms=whole / 1e3,
        by_step=_lines(medians, whole, lambda event: (event.name, event.kind, event.device)),
        by_kind=_lines(medians, whole, lambda event: ("", event.kind, event.device)),
        by_device=_lines(medians, whole, lambda event: ("", "", event.device)),
        shown=middle,
    )


def _medians(runs: Sequence[Run]) -> list[Event]:
    """Return each step with the median of its durations. All runs have the same steps, in order."""
    length = min(len(run) for run in runs)
    found = []
    for same in zip(*(run[:length] for run in runs), strict=True):
        middle = statistics.median(event.duration_us for event in same)
        found.append(replace(same[0], duration_us=middle))
    return found


Key = tuple[str, str, str]


def _lines(
    events: Iterable[Event], whole_us: float, key: Callable[[Event], Key]
) -> tuple[Line, ...]:
    groups: dict[Key, list[Event]] = {}
    for event in events:
        groups.setdefault(key(event), []).append(event)
    lines = [_line(names, group, whole_us) for names, group in groups.items()]
    return tuple(sorted(lines, key=lambda line: -line.ms))


def _line(names: Key, group: Sequence[Event], whole_us: float) -> Line:
    us = sum(event.duration_us for event in group)
    operations = sum(event.operations or 0 for event in group)
    rate = operations / us / 1e3 if operations and us else None
    share = us / whole_us if whole_us else 0.0
    return Line(*names, ms=us / 1e3, share=share, gops_per_s=rate, steps=len(group))


def trace(profiles: Mapping[str, Sequence[Profile]]) -> dict[str, object]:
    """Return a trace for Perfetto or chrome://tracing: a process an engine, a thread a device.

    `profiles` by model. Source: "Trace Event Format", the complete (`X`) and metadata (`M`) events.
    """
    events: list[dict[str, object]] = []
    pid = 0
    for model, found in profiles.items():
        for profile in found:
            pid += 1
            title = f"{model}: {profile.engine}@{profile.precision} {profile.version}"
            events.append(_metadata("process_name", pid, 0, title))
            events += _complete(profile.shown, pid)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _complete(run: Run, pid: int) -> list[dict[str, object]]:
    devices = {name: at for at, name in enumerate(dict.fromkeys(e.device for e in run), start=1)}
    found = [_metadata("thread_name", pid, at, name) for name, at in devices.items()]
    found += [_slice(event, pid, devices[event.device]) for event in run]
    return found


def _slice(event: Event, pid: int, tid: int) -> dict[str, object]:
    about = {"kind": event.kind, "detail": event.detail, "operations": event.operations}
    return {
        "name": event.name or event.kind,
        "cat": event.kind,
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "ts": event.begin_us,
        "dur": event.duration_us,
        "args": {key: value for key, value in about.items() if value},
    }


def _metadata(name: str, pid: int, tid: int, title: str) -> dict[str, object]:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": {"name": title}}


# What AMD's profiler is asked for: every kernel and copy on the GPU, with sums, and a trace that
# Perfetto reads. Source: rocm.docs.amd.com, ROCprofiler-SDK, "Using rocprofv3".
GPU_LINE = (
    "rocprofv3 --runtime-trace --stats --output-format csv pftrace -d rocprof -- "
    "vermilion run MODEL.rai"
)


@dataclass(frozen=True)
class Roof:
    """What the machine allows, measured behind the engines: arithmetic, and reading memory."""

    peak: Peak
    gb_per_s: float

    def as_json(self) -> dict[str, object]:
        """Return the keys of the report."""
        return {**self.peak.as_json(), "gb_per_s": self.gb_per_s}


def measure_roof(precision: str, threads: int) -> Roof | None:
    """Measure both, in half a second; None where the processor has no such instruction."""
    peak = measure_peak(precision, threads)
    return None if isinstance(peak, Refusal) else Roof(peak, read_bandwidth_gb_per_s(threads))


@dataclass(frozen=True)
class CaseProfiles:
    """One model at one size: the profiles of those engines that gave one, and why others did not.

    `unlike` are engines whose outputs are not the right answers.
    """

    case: Case
    profiles: tuple[Profile, ...]
    refused: tuple[tuple[Engine, VermilionError], ...]
    unlike: tuple[str, ...]
    roof: Roof | None = None

    @property
    def title(self) -> str:
        """Name and sizes, as people read them."""
        case = self.case
        sizes = [f"batch {case.batch}"] if case.batch is not None else []
        sizes += [f"sequence {case.sequence}"] if case.sequence is not None else []
        return ", ".join([case.label, *sizes])

    def as_json(self) -> dict[str, object]:
        """Return the keys of the report."""
        case = self.case
        return {
            "model": case.label,
            "batch": case.batch,
            "sequence": case.sequence,
            "threads": case.threads,
            "gops": case.gops,
            "machine": this_machine().as_json(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "roof": self.roof.as_json() if self.roof is not None else None,
            "engines": [profile.as_json() for profile in self.profiles],
            "refused": [
                {"engine": engine.label, "message": error.message, "hint": error.hint}
                for engine, error in self.refused
            ],
        }


def profile_models(
    models: Sequence[str | os.PathLike[str]], plan: Plan, *, progress: Progress = no_progress
) -> Iterator[CaseProfiles]:
    """Profile every model at every size; `plan.pairs` is how many runs are measured.

    A peer that cannot is part of the result, with its reason; our own engine has to.
    Raises: VermilionError of the kind that says who can fix it.
    """
    for peer in plan.against:
        check_installed(parse_engine(peer, "fp32"))
    for path in (Path(model) for model in models):
        model = load_model(path)
        for sizes in all_sizes(plan):
            with tempfile.TemporaryDirectory(
                prefix="vermilion-profile-", ignore_cleanup_errors=True
            ) as folder:
                case = plan_case(path, model, sizes, plan, Path(folder))
                yield _profiles(case, plan, Path(folder), progress)


def _profiles(case: Case, plan: Plan, folder: Path, progress: Progress) -> CaseProfiles:
    engines = engines_for(case, plan)
    profiles: list[Profile] = []
    refused: list[tuple[Engine, VermilionError]] = []
    unlike: list[str] = []
    for index, engine in enumerate(engines):
        progress("profile engines", index, len(engines))
        try:
            profile, agrees = _profile(engine, case, plan, folder)
        except VermilionError as error:
            if index == 0:
                raise
            refused.append((engine, error))
            continue
        profiles.append(profile)
        unlike += [] if agrees else [engine.label]
    progress("profile engines", len(engines), len(engines))
    roof = measure_roof(engines[0].precision, case.threads)
    return CaseProfiles(case, tuple(profiles), tuple(refused), tuple(unlike), roof)


def _profile(engine: Engine, case: Case, plan: Plan, folder: Path) -> tuple[Profile, bool]:
    """Run the engine as it is for the time of a whole run, then with its steps measured."""
    with EngineProcess(engine.label, folder, timeout_s=plan.timeout_s) as process:
        opened = open_case(engine, process, case, folder, plan.timeout_s)
        whole = process.ask("turn", runs=plan.pairs, settle=1)["ms"]
        told = process.ask("profile", runs=plan.pairs)["runs"]
    runs = [tuple(_event(words) for words in run) for run in told]
    found = summed(engine.name, engine.precision, opened.version, whole, runs)
    return found, opened.agrees


def _event(words: dict[str, Any]) -> Event:
    return Event(**words)
