"""The whole of `bench --profile`: every model, every engine alone, operator by operator."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vermilion.bench.cases import Case
from vermilion.bench.engines import Engine, check_installed, parse_engine
from vermilion.bench.measure import Plan, all_sizes, engines_for, open_case, plan_case
from vermilion.bench.process import EngineProcess
from vermilion.bench.profile import Event, Profile, summed
from vermilion.errors import VermilionError
from vermilion.ir.load import load_model
from vermilion.progress import Progress, no_progress

# What AMD's profiler is asked for: every kernel and copy on the GPU, with sums, and a trace that
# Perfetto reads. Source: rocm.docs.amd.com, ROCprofiler-SDK, "Using rocprofv3".
GPU_LINE = (
    "rocprofv3 --runtime-trace --stats --output-format csv pftrace -d rocprof -- "
    "vermilion run MODEL.rai"
)


@dataclass(frozen=True)
class CaseProfiles:
    """One model at one size: the profiles of those engines that gave one, and why others did not.

    `unlike` are engines whose outputs are not the right answers.
    """

    case: Case
    profiles: tuple[Profile, ...]
    refused: tuple[tuple[Engine, VermilionError], ...]
    unlike: tuple[str, ...]

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
    return CaseProfiles(case, tuple(profiles), tuple(refused), tuple(unlike))


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
