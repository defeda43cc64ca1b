"""Latency where a process has not the whole machine: beside ONNX Runtime, in turns.

    python bench/busy_machine_bench.py [--models resnet50,mobilenetv2] [--ways half,one,busy]
        [--rounds 6] [--seconds 2] [--json OUT.json]

    all     nothing is limited
    half    every engine is in a cgroup of its own with half a core (10 of 20 ms, by quota)
    one     every engine may run on one core alone
    busy    two other programs spin all the time, at the same priority

Every engine is a process of its own, limited before it opens the model, and takes as many threads
as it likes; `ort told` is ONNX Runtime with as many as this process may keep busy. A turn is runs
without a pause for `--seconds`. Units: milliseconds of one run, medians of the turns' 50th and 90th
percentiles and of their means, with the least and the most turn. `× as fast` is the mean of a
peer's turn by that of ours in the same round: what is throttled shows in means, not always in
medians.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import psutil
from workloads import WORKLOADS, default_cache, model_file

from vermilion.bench.cases import Case, Sizes, prepare_case
from vermilion.bench.engines import OURS, compile_ours
from vermilion.bench.figures import pair_ratios, spread
from vermilion.bench.harness import EngineProcess, Record, save_json
from vermilion.cores import allowed_cores
from vermilion.errors import DeviceError
from vermilion.ir.load import load_model
from vermilion.rounds import in_rounds

WAYS = ("all", "half", "one", "busy")
PERIOD_US = 20_000
SPINNERS = 2
TOLD = "ort told"
# Under it a turn has no 90th percentile to speak of.
LEAST_RUNS = 10
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Competitor:
    """An engine, and how many threads it is told to use; 0: as many as it likes."""

    label: str
    engine: str
    threads: int


def competitors(way: str) -> tuple[Competitor, ...]:
    """Return ours and the peers of a way."""
    cores = 1 if way in ("half", "one") else len(allowed_cores())
    return Competitor(OURS, OURS, 0), Competitor("ort", "ort", 0), Competitor(TOLD, "ort", cores)


@contextmanager
def limited(way: str, process: int) -> Iterator[None]:
    """Limit a process, and all that it starts from now on, until the block ends."""
    if way == "one":
        psutil.Process(process).cpu_affinity(list(allowed_cores()[-1:]))
    with half_a_core(process) if way == "half" else nullcontext():
        yield


@contextmanager
def half_a_core(process: int) -> Iterator[None]:
    """Put a process into a cgroup of its own with a quota of half a core.

    Raises: DeviceError where none can be made: that takes the right to write to the tree.
    """
    first, second = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    tree = first if first.is_dir() else second
    group = tree / f"vermilion-bench-{process}"
    try:
        group.mkdir()
    except OSError as error:
        raise DeviceError(
            f"no cgroup can be made: {error.strerror}",
            where=str(group),
            hint="leave `half` out of `--ways`, or run it as root",
        ) from error
    try:
        if tree == first:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(PERIOD_US // 2))
        else:
            (group / "cpu.max").write_text(f"{PERIOD_US // 2} {PERIOD_US}")
        (group / "cgroup.procs").write_text(str(process))
        yield
    finally:
        # Empty it: a group with processes in it cannot be removed.
        for one in (group / "cgroup.procs").read_text().split():
            (tree / "cgroup.procs").write_text(one)
        group.rmdir()


@contextmanager
def company(way: str) -> Iterator[None]:
    """Let two other programs spin, where that is the way."""
    spinning = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(SPINNERS if way == "busy" else 0)
    ]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def opened(one: Competitor, process: EngineProcess, case: Case, artifact: Path) -> float:
    """Open the model and run it; return the milliseconds of a run."""
    model = artifact if one.engine == OURS else case.model_path
    process.ask("open", engine=one.engine, precision="fp32", model=str(model), threads=one.threads)
    answers = case.inputs_path.with_name(f"{one.label}.npz")
    names = list(case.input_names)
    process.ask("answer", inputs=str(case.inputs_path), outputs=str(answers), names=names)
    taken: list[float] = process.ask("turn", runs=LEAST_RUNS, settle=1)["ms"]
    return statistics.fmean(taken)


def measure(case: Case, artifact: Path, way: str, options: argparse.Namespace) -> Iterator[Record]:
    """Yield a record for each engine: its turns in one way."""
    engines = competitors(way)
    with ExitStack() as stack:
        processes = []
        for one in engines:
            process = EngineProcess(one.label, case.inputs_path.parent, timeout_s=TIMEOUT_S)
            stack.enter_context(process)
            stack.enter_context(limited(way, process.process))
            processes.append(process)
        stack.enter_context(company(way))
        counts = {
            process: max(LEAST_RUNS, math.ceil(1e3 * options.seconds / ms))
            for one, process in zip(engines, processes, strict=True)
            if (ms := opened(one, process, case, artifact))
        }

        def turn(process: EngineProcess, _: int) -> list[float]:
            taken: list[float] = process.ask("turn", runs=counts[process], settle=1)["ms"]
            return taken

        turns = in_rounds(processes, turn, options.rounds)
    ours = [statistics.fmean(ms) for ms in turns[0]]
    for one, taken in zip(engines, turns, strict=True):
        means = [statistics.fmean(ms) for ms in taken]
        yield {
            "model": case.label,
            "way": way,
            "engine": one.label,
            "p50_ms": [statistics.median(ms) for ms in taken],
            "p90_ms": [statistics.quantiles(ms, n=10)[-1] for ms in taken],
            "mean_ms": means,
            "ratio": list(pair_ratios(means, ours)),
        }


def line(record: Record) -> str:
    """Return a record as a line of the table."""
    cells = [f"{record[key]:<14}" for key in ("model", "way", "engine")]
    cells += [f"{spread(record[key]):>24}" for key in ("p50_ms", "p90_ms", "mean_ms")]
    ratio = "" if record["engine"] == OURS else spread(record["ratio"], 2)
    return "".join([*cells, f"{ratio:>24}"])


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="resnet50,mobilenetv2")
    parser.add_argument("--ways", default="half,one,busy")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(words)
    ways = options.ways.split(",")
    if unknown := set(ways) - set(WAYS):
        parser.error(f"no way is called {min(unknown)}: there are {', '.join(WAYS)}")
    records: list[Record] = []
    heads = [f"{word:<14}" for word in ("model", "way", "engine")]
    print(
        "".join([*heads, *(f"{word:>24}" for word in ("p50 ms", "p90 ms", "mean ms", "× as fast"))])
    )
    for name in options.models.split(","):
        with tempfile.TemporaryDirectory(prefix="vermilion-bench-") as folder:
            file = model_file(name, options.cache)
            case = prepare_case(
                file, load_model(file), Sizes(1, None, 1), precision="fp32",
                dims=WORKLOADS[name].dims, inputs=WORKLOADS[name].inputs, folder=Path(folder),
            )  # fmt: skip
            artifact, _ = compile_ours(case.model_path, "fp32", Path(folder))
            for way in ways:
                for record in measure(case, artifact, way, options):
                    records.append(record)
                    print(line(record), flush=True)
    if options.json is not None:
        save_json(options.json, {"cores": os.cpu_count(), "results": records})
    return 0


if __name__ == "__main__":
    sys.exit(main())
