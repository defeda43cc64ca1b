"""The whole of `bench`: every model at every size, every engine in turn, one report."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.bench.cases import Case, Sizes, prepare_case
from vermilion.bench.engines import OURS, Engine, Precision, check_installed, parse_engine
from vermilion.bench.figures import Latency, Ratio, latency, pair_ratios, ratio
from vermilion.bench.harness import EngineProcess, Timed, open_engines, take_turns
from vermilion.bench.machine import this_machine
from vermilion.bench.peak import Peak, measure_peak
from vermilion.busy import share_of_others, usage
from vermilion.cores import usable_cores
from vermilion.errors import ModelError, OptionError, Refusal, VermilionError
from vermilion.ir.load import load_model
from vermilion.ir.measure import Agreement, agreement
from vermilion.ir.passes.bind_dimensions import Dimensions
from vermilion.progress import Progress, no_progress

Array = NDArray[Any]
Peaks = dict[tuple[str, int], Peak | Refusal]

# The least cosine between an engine's outputs and the right answers at which a time counts as the
# time of the same work: float32 differs in its last bits; bf16 has 8 bits of precision, int8 fewer,
# and engines round halves of an int8 step differently.
LEAST_COSINE: Mapping[Precision, float] = {"fp32": 0.9999, "bf16": 0.99, "int8": 0.95}


@dataclass(frozen=True)
class Plan:
    """What to measure. `precision` None is what each model is made for."""

    precision: Precision | None = None
    batches: tuple[int | None, ...] = (None,)
    sequences: tuple[int | None, ...] = (None,)
    threads: tuple[int, ...] = ()
    against: tuple[str, ...] = ("ort",)
    dims: Dimensions = field(default_factory=dict)
    inputs: Mapping[str, Array] = field(default_factory=dict)
    pairs: int = 30
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        """Check what the parsers of single options cannot see."""
        if self.pairs < 1:
            raise OptionError("`--pairs` has to be at least 1")
        if not self.timeout_s > 0:
            raise OptionError("`--timeout` has to be above zero")
        if any(count < 1 for count in (*self.threads, *self._sizes())):
            raise OptionError("batches, sequences and threads have to be at least 1")

    def _sizes(self) -> Iterator[int]:
        return (size for size in (*self.batches, *self.sequences) if size is not None)


@dataclass(frozen=True)
class EngineResult:
    """What one engine did with one case; `error` says why there is nothing else."""

    engine: Engine
    error: VermilionError | None = None
    version: str = ""
    runs_on: str = ""
    placement: str = ""  # how many operators are native, of our own engine
    timed: Timed | None = None
    outputs: tuple[Agreement, ...] = ()
    import_s: float | None = None
    load_s: float | None = None
    first_run_ms: float | None = None
    compile_s: float | None = None
    peak_rss_mb: float | None = None
    compile_peak_rss_mb: float | None = None
    file_bytes: int | None = None

    @property
    def latency(self) -> Latency | None:
        """The figures over all timed runs."""
        return latency(self.timed.run_ms) if self.timed is not None else None

    @property
    def agrees(self) -> bool:
        """Whether its outputs are near enough to the right answers for its time to count."""
        least = LEAST_COSINE[self.engine.precision]
        return all(output.cosine >= least for output in self.outputs)


@dataclass(frozen=True)
class CaseResult:
    """All engines on one case, ours first."""

    case: Case
    engines: tuple[EngineResult, ...]
    peak: Peak | Refusal
    other_load: float | None  # share of all processors that other programs used meanwhile

    @property
    def ours(self) -> EngineResult:
        """Our own engine."""
        return self.engines[0]

    @property
    def pairs(self) -> Mapping[str, tuple[float, ...]]:
        """Ours ÷ peer for each round, by peer."""
        ours = self.ours.timed
        if ours is None:
            return {}
        return {
            peer.engine.label: pair_ratios(ours.turn_ms, peer.timed.turn_ms)
            for peer in self.engines[1:]
            if peer.timed is not None
        }

    @property
    def ratios(self) -> Mapping[str, Ratio]:
        """Ours ÷ peer, by peer."""
        return {label: ratio(values) for label, values in self.pairs.items()}

    @property
    def best_peer(self) -> str | None:
        """The peer at our own precision that we are slowest against."""
        precision = self.ours.engine.precision
        equal = {p.engine.label for p in self.engines[1:] if p.engine.precision == precision}
        ratios = {label: r.median for label, r in self.ratios.items() if label in equal}
        return max(ratios, key=ratios.__getitem__) if ratios else None


def bench_models(
    models: Sequence[str | os.PathLike[str]], plan: Plan, *, progress: Progress = no_progress
) -> Iterator[CaseResult]:
    """Measure every model at every size; give each result as soon as it is there.

    A peer that cannot run a case is part of the result, with its reason; our own engine has to.
    Raises: VermilionError of the kind that says who can fix it.
    """
    peaks: Peaks = {}
    for path in (Path(model) for model in models):
        yield from bench_graph(path, load_model(path), plan, peaks=peaks, progress=progress)


def bench_graph(
    path: Path,
    model: ir.Model,
    plan: Plan,
    *,
    peaks: Peaks | None = None,
    progress: Progress = no_progress,
) -> Iterator[CaseResult]:
    """Measure a graph in memory at every size; `path` is what it is called.

    `peaks` keeps the machine's peaks from one call to the next. Raises as `bench_models`.
    """
    known: Peaks = {} if peaks is None else peaks
    for peer in plan.against:
        check_installed(parse_engine(peer, "fp32"))
    for sizes in all_sizes(plan):
        with tempfile.TemporaryDirectory(
            prefix="vermilion-bench-", ignore_cleanup_errors=True
        ) as folder:
            case = plan_case(path, model, sizes, plan, Path(folder))
            limit = (case.precision, case.threads)
            if limit not in known:
                known[limit] = measure_peak(*limit)
            engines, other_load = _measure(case, plan, Path(folder), progress)
            yield CaseResult(case, engines, known[limit], other_load)


def all_sizes(plan: Plan) -> Iterator[Sizes]:
    """Yield every combination of sizes that a plan asks for."""
    # A core's second thread adds nothing to dense arithmetic: cores are counted, not threads.
    threads = plan.threads or (min(this_machine().cores or 1, usable_cores()),)
    for batch in plan.batches:
        for sequence in plan.sequences:
            yield from (Sizes(batch, sequence, count) for count in threads)


def plan_case(path: Path, model: ir.Model, sizes: Sizes, plan: Plan, folder: Path) -> Case:
    """Write out one size of a model, with its inputs and right answers."""
    return prepare_case(
        path,
        model,
        sizes,
        precision=plan.precision,
        dims=plan.dims,
        inputs=plan.inputs,
        folder=folder,
    )


def _measure(
    case: Case, plan: Plan, folder: Path, progress: Progress
) -> tuple[tuple[EngineResult, ...], float | None]:
    """Open all engines, let them take turns; give their results and what others used meanwhile."""
    engines = engines_for(case, plan)

    def opening(index: int, process: EngineProcess) -> EngineResult:
        return open_case(engines[index], process, case, folder, plan.timeout_s)

    with ExitStack() as stack:
        opened = open_engines(
            stack, [engine.label for engine in engines], folder, opening,
            timeout_s=plan.timeout_s, progress=progress,
        )  # fmt: skip
        results = [
            EngineResult(engine, error=found) if isinstance(found, VermilionError) else found[1]
            for engine, found in zip(engines, opened, strict=True)
        ]
        running = [
            (index, found[0])
            for index, found in enumerate(opened)
            if not isinstance(found, VermilionError)
        ]
        processes = [process for _, process in running]
        before = usage(lambda: _cpu_seconds(processes))
        timed = take_turns(processes, plan.pairs, progress=progress)
        other_load = share_of_others(before, usage(lambda: _cpu_seconds(processes)))
        for (index, process), times in zip(running, timed, strict=True):
            peak = process.ask("usage")["peak_rss_mb"]
            results[index] = replace(results[index], timed=times, peak_rss_mb=peak)
    return tuple(results), other_load


def _cpu_seconds(engines: Sequence[EngineProcess]) -> float:
    """Return what this process and the engines' have used of the processors."""
    used: list[float] = [engine.ask("usage")["cpu_s"] for engine in engines]
    return time.process_time() + sum(used)


def engines_for(case: Case, plan: Plan) -> list[Engine]:
    """Return ours and the peers. Raises OptionError where one is asked for twice."""
    engines = [Engine(OURS, case.precision)]
    engines += [parse_engine(word, case.precision) for word in plan.against]
    labels = [engine.label for engine in engines]
    for label in labels:
        if labels.count(label) > 1:
            raise OptionError(
                f"the engine `{label}` is asked for twice",
                hint=f"`{OURS}` always runs; name each peer once, or with another `@PRECISION`",
            )
    return engines


def open_case(
    engine: Engine, process: EngineProcess, case: Case, folder: Path, timeout_s: float
) -> EngineResult:
    """Open the case in an engine, run it once and compare its outputs."""
    model, result = case.model_path, EngineResult(engine, file_bytes=case.file_bytes)
    if engine.name == OURS:
        model, result = _compile(engine, case, folder, timeout_s)
    opened = process.ask(
        "open",
        engine=engine.name,
        precision=engine.precision,
        model=str(model),
        threads=case.threads,
    )
    answers = folder / f"{engine.label}.npz"
    answered = process.ask(
        "answer",
        inputs=str(case.inputs_path),
        names=list(case.input_names),
        outputs=str(answers),
    )
    return replace(
        result,
        version=opened["version"],
        runs_on=opened["runs_on"],
        placement=opened["placement"],
        import_s=opened["import_s"],
        load_s=opened["load_s"],
        first_run_ms=answered["first_run_ms"],
        outputs=_compare(engine, case, answers, answered["names"]),
    )


def _compile(
    engine: Engine, case: Case, folder: Path, timeout_s: float
) -> tuple[Path, EngineResult]:
    """Compile in a process that ends, so that running is charged with its own memory only."""
    with EngineProcess(f"{engine.label}-compile", folder, timeout_s=timeout_s) as compiler:
        made = compiler.ask(
            "compile",
            model=str(case.model_path),
            precision=engine.precision,
            folder=str(folder),
        )
    return Path(made["artifact"]), EngineResult(
        engine,
        compile_s=made["compile_s"],
        compile_peak_rss_mb=made["peak_rss_mb"],
        file_bytes=made["file_bytes"],
    )


def _compare(
    engine: Engine, case: Case, answers: Path, names: Sequence[str]
) -> tuple[Agreement, ...]:
    """Compare by name; an engine that renames its outputs is taken by position."""
    with np.load(answers, allow_pickle=False) as stored:
        arrays = [stored[f"arr_{index}"] for index in range(len(names))]
    keys = list(names) if set(names) == set(case.reference) else list(case.reference)
    if len(keys) != len(arrays):
        raise ModelError(
            f"the engine `{engine.label}` gives {len(arrays)} outputs, not {len(keys)}"
        )
    found = dict(zip(keys, arrays, strict=True))
    for name, array in case.reference.items():
        if array.shape != found[name].shape:
            raise ModelError(
                f"the engine `{engine.label}` gives `{name}` the shape {found[name].shape}, "
                f"not {array.shape}"
            )
    return tuple(agreement(name, array, found[name]) for name, array in case.reference.items())
