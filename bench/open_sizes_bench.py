"""One program for all sizes, beside a program for each size, ONNX Runtime and OpenVINO.

    python bench/open_sizes_bench.py [--networks resnet,encoder] [--rounds 10] [--stream 1000]
                                     [--small] [--json OUT.json]

Networks are exported by PyTorch with open dimensions. `open` is the program that is compiled once;
`fixed` is ours, compiled for the size at hand; ONNX Runtime and OpenVINO open the model with its
open dimensions. Each engine has a process of its own, and they take turns. Printed are milliseconds
a run and ratios within rounds (open ÷ theirs, below 1 is faster; median and quartiles).

`--stream` sends so many requests of random sizes to each engine, the same ones, and prints the
total, the longest, and the largest memory. One request of five is sent twice: what the first takes
more than the second is what a new size costs. That is printed as time that passed, in which the
machine and other programs have a share, and apart from it what the engine alone answers for: the
time that the system worked for its threads, which is mostly that of new pages of memory, and of
ours the processor time in which the table of a size is made and taken.
`--small` takes networks that are tried in seconds.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

import numpy as np  # noqa: E402

from vermilion.bench.figures import pair_ratios, ratio  # noqa: E402
from vermilion.bench.harness import (  # noqa: E402
    EngineProcess,
    open_engines,
    save_json,
    take_turns,
)
from vermilion.bench.machine import wait_until_quiet  # noqa: E402
from vermilion.errors import VermilionError  # noqa: E402

TIMEOUT_S = 900.0
TURN = 25  # requests of one engine before the next has its turn
AGAIN_EVERY = 5  # of so many requests one is sent twice, to see what a new size costs
ENGINES = ("open", "fixed", "onnxruntime", "openvino")
WORDS = 30522
NEW_SIZE = {
    "new_size_ms": "time that passes:",
    "new_size_system_ms": "time of the system:",
    "table_ms": "our table of it:",
}

# Open dimensions of each network, and the sizes at which engines take turns.
NETWORKS: Mapping[str, Sequence[Mapping[str, int]]] = {
    "resnet": [{"batch": 1}, {"batch": 8}],
    "encoder": [
        {"batch": 1, "length": 32}, {"batch": 1, "length": 128}, {"batch": 1, "length": 512},
        {"batch": 8, "length": 32}, {"batch": 8, "length": 128},
    ],
    "mobilenet": [
        {"batch": 1, "height": 224, "width": 224}, {"batch": 1, "height": 320, "width": 192},
    ],
}  # fmt: skip


# What each network is built with, and its small form.
BUILT: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "resnet": ({"width": 64, "blocks": (3, 4, 6, 3)}, {}),  # twice the blocks of ResNet-18
    "encoder": (  # MiniLM-L6's size
        {"width": 384, "layers": 6, "heads": 12, "words": WORDS}, {"words": WORDS},
    ),
    "mobilenet": ({"width": 24, "blocks": (2, 3, 3, 2)}, {}),
}  # fmt: skip


def exported(network: str, folder: Path, *, small: bool) -> Path:
    """Write a network with open dimensions; return the file."""
    import torch

    import torch_networks as networks

    torch.manual_seed(0)
    path = folder / f"{network}.onnx"
    if path.exists():
        return path
    built = BUILT[network][small]
    if network == "encoder":
        model = networks.transformer(**built)
        inputs: Any = networks.tokens(12, 2, WORDS)
        axes = {name: {0: "batch", 1: "length"} for name in ("ids", "mask")}
    elif network == "resnet":
        model = networks.resnet(**built)
        inputs, axes = (networks.picture(224, 2),), {"x": {0: "batch"}}
    else:
        model = networks.mobilenet_v2(**built)
        inputs, axes = (networks.picture(96, 2),), {"x": {0: "batch", 2: "height", 3: "width"}}
    torch.onnx.export(
        networks.settled(model), inputs, str(path), dynamo=False, dynamic_axes=axes,
        input_names=list(axes), opset_version=17,
    )  # fmt: skip
    return path


def request(network: str, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return inputs of these sizes."""
    random = np.random.default_rng(0)
    if network == "encoder":
        shape = (sizes["batch"], sizes["length"])
        return {"ids": random.integers(0, WORDS, shape), "mask": np.ones(shape, np.int64)}
    side = sizes.get("height", 224), sizes.get("width", 224)
    return {"x": random.standard_normal((sizes["batch"], 3, *side)).astype(np.float32)}


class Worker:
    """One network in one engine, in this process."""

    def __init__(self) -> None:
        self._call: Callable[[dict[str, Any]], Any] | None = None
        self._inputs: dict[str, Any] = {}
        self._fixed: Callable[[Mapping[str, int]], Callable[[dict[str, Any]], Any]] | None = None
        self._tables: list[float] = []
        self._is_new, self._begun = False, 0.0

    def open(
        self, network: str, engine: str, model: str, cache: str, threads: int
    ) -> dict[str, Any]:
        """Open the model in the engine; return the seconds, and how much is native."""
        self.network = network
        begin = time.perf_counter()
        row: dict[str, Any] = {}
        if engine in ("open", "fixed"):
            from vermilion.api import compile_model

            self._time_tables()

            def ours(dims: Mapping[str, int] | None) -> Callable[[dict[str, Any]], Any]:
                compiled = compile_model(model, dims=dict(dims or {}), cache_dir=cache)
                session = compiled.session(threads=threads)
                row["placement"] = compiled.placement
                return lambda inputs: session.run(None, inputs)

            if engine == "fixed":
                self._fixed = ours
            else:
                self._call = ours(None)
        elif engine == "onnxruntime":
            import onnxruntime as ort

            options = ort.SessionOptions()
            options.intra_op_num_threads = threads
            session = ort.InferenceSession(model, options)
            self._call = lambda inputs: session.run(None, inputs)
        else:
            import openvino

            core = openvino.Core()
            core.set_property("CPU", {"INFERENCE_PRECISION_HINT": "f32"})
            program = core.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": threads})
            asked = program.create_infer_request()
            self._call = lambda inputs: [np.array(v) for v in asked.infer(inputs).values()]
        return {"seconds": time.perf_counter() - begin, **row}

    def settle(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Take these sizes for what follows."""
        self._inputs = request(self.network, sizes)
        if self._fixed is not None:
            self._call = self._fixed(sizes)
        self._run()
        return {}

    def turn(self, runs: int, settle: int) -> dict[str, Any]:
        """Run in a burst; the first `settle` runs are not timed."""
        for _ in range(settle):
            self._run()
        taken = []
        for _ in range(runs):
            begin = time.perf_counter_ns()
            self._run()
            taken.append((time.perf_counter_ns() - begin) / 1e6)
        return {"ms": taken, "quiet_after_ms": wait_until_quiet()}

    def stream(self, first: int, count: int) -> dict[str, Any]:
        """Answer requests of random sizes; return seconds, and what a new size costs in ms.

        That cost is the time of a size's first request less that of the same one again.
        """
        assert self._call is not None, "a worker has to `open` before this"
        taken: list[float] = []
        passed: list[float] = []
        system: list[float] = []
        if first == 0:
            self._call(request(self.network, {"batch": 1, "length": 8}))
            self._tables.clear()
        for index in range(first, first + count):
            random = np.random.default_rng((1, index))
            one = {"batch": int(random.integers(1, 17)), "length": int(random.integers(8, 513))}
            inputs = request(self.network, one)
            new = timed(self._call, inputs)
            taken.append(new.passed_ms / 1e3)
            if index % AGAIN_EVERY == 0:
                again = timed(self._call, inputs)
                passed.append(new.passed_ms - again.passed_ms)
                system.append(new.system_ms - again.system_ms)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        wait_until_quiet()
        tables, self._tables[:] = list(self._tables), []
        return {
            "taken_s": taken, "passed_ms": passed, "system_ms": system, "table_ms": tables,
            "peak_mb": peak,
        }  # fmt: skip

    def _time_tables(self) -> None:
        """Keep the processor time in which the table of every size is made and taken."""
        from vermilion.backends.native_open import OpenExecutable

        find, take = OpenExecutable._sized, OpenExecutable._settled

        def found(program: OpenExecutable, shapes: tuple[tuple[int, ...], ...]) -> Any:
            self._is_new, self._begun = shapes not in program._tables, time.thread_time()
            return find(program, shapes)

        def taken(program: OpenExecutable, sized: Any) -> Any:
            settled = take(program, sized)
            if self._is_new:
                self._tables.append((time.thread_time() - self._begun) * 1e3)
            return settled

        OpenExecutable._sized, OpenExecutable._settled = found, taken  # type: ignore[method-assign]

    def _run(self) -> None:
        assert self._call is not None, "a worker has to `open` before this"
        self._call(self._inputs)


def opened(
    stack: ExitStack, model: Path, engines: Sequence[str], folder: Path, threads: int
) -> list[tuple[EngineProcess, dict[str, Any]]]:
    """Open a network in every engine that is here."""

    def opening(index: int, process: EngineProcess) -> dict[str, Any]:
        return process.ask(
            "open", network=model.stem, engine=engines[index], model=str(model),
            cache=str(folder / "cache"), threads=threads,
        )  # fmt: skip

    found = open_engines(
        stack, engines, folder, opening, timeout_s=TIMEOUT_S, worker=("open_sizes_bench",)
    )
    for engine, one in zip(engines, found, strict=True):
        if isinstance(one, VermilionError):
            print(f"{model.stem}, {engine}: {one}")
    return [one for one in found if not isinstance(one, VermilionError)]


def measure(model: Path, folder: Path, threads: int, rounds: int) -> list[dict[str, Any]]:
    """Let the engines take turns at every size; return a row an engine and size."""
    rows, network = [], model.stem
    with ExitStack() as stack:
        processes = opened(stack, model, ENGINES, folder, threads)
        print(f"{network}: {processes[0][1]['placement']}; opened in", end=" ")
        print(", ".join(f"{p.label} {row['seconds']:.1f} s" for p, row in processes))
        for sizes in NETWORKS[network]:
            for process, _ in processes:
                process.ask("settle", sizes=dict(sizes))
            times = take_turns([process for process, _ in processes], rounds)
            for (process, _), timed in zip(processes, times, strict=True):
                found = ratio(pair_ratios(times[0].turn_ms, timed.turn_ms)).as_json()
                row = {"network": network, **sizes, "engine": process.label,
                       "ms": statistics.median(timed.run_ms), "ratio": found}  # fmt: skip
                said = f"{found['median']:.2f} ({found['q1']:.2f}–{found['q3']:.2f})"
                size = " × ".join(str(size) for size in sizes.values())
                print(f"{network:<10} {size:<16} {process.label:<12}{row['ms']:>9.2f} ms  {said}")
                rows.append(row)
    return rows


@dataclass(frozen=True)
class Timed:
    """How long a call took, and how long the system worked for all threads of this process."""

    passed_ms: float
    system_ms: float


def timed(call: Callable[[Any], object], inputs: object) -> Timed:
    """Call, and return what it took."""
    before, begin = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    call(inputs)
    passed, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF)
    return Timed(passed * 1e3, (after.ru_stime - before.ru_stime) * 1e3)


def percentiles(numbers: Sequence[float]) -> dict[str, float]:
    """Return how numbers are spread."""
    found = np.percentile(numbers, (50, 90, 99, 100)).tolist() if numbers else [0.0] * 4
    return dict(zip(("p50", "p90", "p99", "most"), found, strict=True))


def stream_row(
    engine: str, parts: Sequence[dict[str, Any]], ours: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return the figures of one engine over all its turns, and how ours compare with it."""
    taken, passed, system, tables = (
        [number for part in parts for number in part[key]]
        for key in ("taken_s", "passed_ms", "system_ms", "table_ms")
    )
    turns = [[sum(part["taken_s"]) for part in one] for one in (ours, parts)]
    return {
        "engine": engine,
        "requests": len(taken),
        "total_s": sum(taken),
        "longest_s": max(taken),
        "new_size_ms": percentiles(passed),
        "new_size_system_ms": percentiles(system),
        "table_ms": percentiles(tables),
        "peak_mb": max(part["peak_mb"] for part in parts),
        "ratio": asdict(ratio(pair_ratios(*turns))),
    }


def stream(model: Path, folder: Path, threads: int, count: int) -> list[dict[str, Any]]:
    """Send requests of random sizes to each engine; engines take turns of some requests."""
    engines = [engine for engine in ENGINES if engine != "fixed"]
    with ExitStack() as stack:
        processes = [process for process, _ in opened(stack, model, engines, folder, threads)]
        found: list[list[dict[str, Any]]] = [[] for _ in processes]
        for first in range(0, count, TURN):
            for index, process in enumerate(processes):
                part = process.ask("stream", first=first, count=min(TURN, count - first))
                found[index].append(part)
        rows = [
            stream_row(process.label, parts, found[0])
            for process, parts in zip(processes, found, strict=True)
        ]
    for row in rows:
        print(
            f"{count} requests, {row['engine']:<12} {row['total_s']:>8.1f} s "
            f"({row['ratio']['median']:.2f} of it for us, {row['ratio']['q1']:.2f}–"
            f"{row['ratio']['q3']:.2f} by turns), longest {row['longest_s'] * 1e3:.0f} ms, "
            f"{row['peak_mb']:.0f} MB"
        )
        for key, words in NEW_SIZE.items():
            figures = ", ".join(f"{name} {ms:.1f}" for name, ms in row[key].items())
            if any(row[key].values()):
                print(f"  a new size, {words:<20} {figures} ms")
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--stream", type=int, default=0)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="open-sizes-") as name:
        folder, rows = Path(name), []
        for network in filter(None, options.networks.split(",")):
            model = exported(network, folder, small=options.small)
            rows += measure(model, folder, options.threads, options.rounds)
        requests = []
        if options.stream:
            model = exported("encoder", folder, small=options.small)
            requests = stream(model, folder, options.threads, options.stream)
    if options.json is not None:
        save_json(options.json, {"sizes": rows, "stream": requests})


if __name__ == "__main__":
    main()
