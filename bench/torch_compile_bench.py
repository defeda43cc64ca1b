"""`torch.compile(backend="vermilion")` beside inductor and PyTorch as it is, two threads each.

    python bench/torch_compile_bench.py [--networks resnet,vgg] [--rounds 20] [--sizes 20]
                                        [--json OUT.json]

Networks as torchvision builds them, at about their usual sizes, with random weights: what they
compute does not depend on them. Each engine has a process and caches of its own, which are empty at
first; they take turns. `inductor, frozen` has its `freezing` on, which makes constants of weights
as ours does. Inductor needs a C++ compiler: without one it is left out, and a line says so.

Printed are milliseconds a run, how many times as fast ours is within rounds (median and
quartiles), the seconds of the first call, and the SQNR against PyTorch.

`--sizes` compiles each network again, with `dynamic=True`, and calls it at so many sizes that it
has not seen: batches, and lengths of texts. Printed are how often it was compiled, the seconds of
the first call, the longest and the total of all others, and the least SQNR.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

import numpy as np  # noqa: E402

from vermilion.bench.figures import pair_ratios, ratio  # noqa: E402
from vermilion.bench.harness import (  # noqa: E402
    EngineProcess,
    Timed,
    open_engines,
    save_json,
    take_turns,
)
from vermilion.bench.machine import wait_until_quiet  # noqa: E402
from vermilion.errors import VermilionError  # noqa: E402

SIDE, TOKENS = 224, 128
TIMEOUT_S = 900.0

# How wide and deep each is; behind it the network of that size, where there is one.
SIZES: Mapping[str, Mapping[str, Any]] = {
    "resnet": {"width": 64, "blocks": (2, 2, 2, 2)},  # ResNet-18
    "mobilenet_v2": {"width": 24, "blocks": (2, 3, 3, 2)},
    "vgg": {"width": 64, "blocks": (1, 1, 2, 2)},
    "densenet": {"width": 32, "blocks": (6, 12, 8)},
    "efficientnet": {"width": 24, "blocks": (2, 2, 3, 3)},
    "transformer": {"width": 384, "layers": 6, "heads": 12, "words": 30522},  # MiniLM-L6
}

OURS, EAGER, INDUCTOR, FROZEN = "vermilion", "eager", "inductor", "inductor, frozen"
BACKENDS: Mapping[str, Mapping[str, Any] | None] = {
    OURS: {"backend": "vermilion"},
    EAGER: None,
    INDUCTOR: {"backend": "inductor"},
    FROZEN: {"backend": "inductor", "options": {"freezing": True}},
}


class Worker:
    """One network in one engine, in this process."""

    def __init__(self) -> None:
        self._run: Callable[[], Any] | None = None
        self._model: Any = None

    def open(self, network: str, engine: str, threads: int) -> dict[str, Any]:
        """Build the network and call it once; return the seconds and the SQNR against PyTorch."""
        import torch

        import torch_networks as networks
        from vermilion.ir.measure import agreement

        torch.set_num_threads(threads)
        torch.manual_seed(0)
        if network == "transformer":
            model = networks.settled(networks.transformer(**SIZES[network]))
            inputs = networks.tokens(TOKENS, words=30522)
        else:
            model = networks.settled(networks.PICTURES[network](**SIZES[network]))
            inputs = (networks.picture(SIDE),)
        with torch.inference_mode():
            expected = _first(model(*inputs))
        how = _settings(engine)
        self.network, self.engine, self._model = network, engine, model
        call = model if how is None else torch.compile(model, **how)

        def run() -> Any:
            with torch.inference_mode():
                return call(*inputs)

        begin = time.perf_counter()
        found = _first(run())
        seconds = time.perf_counter() - begin
        self._run = run
        wait_until_quiet()
        row = {"first_call_s": seconds, "sqnr_db": agreement(engine, expected, found).sqnr_db}
        if engine == OURS:
            from vermilion.export import torch_backend

            graphs = torch_backend.graphs()
            row["native"] = sum(graph.native for graph in graphs)
            row["operators"] = sum(graph.operators for graph in graphs)
        return row

    def turn(self, runs: int, settle: int) -> dict[str, Any]:
        """Run in a burst; the first `settle` runs are not timed."""
        assert self._run is not None, "a worker has to `open` before this"
        for _ in range(settle):
            self._run()
        taken = []
        for _ in range(runs):
            begin = time.perf_counter_ns()
            self._run()
            taken.append((time.perf_counter_ns() - begin) / 1e6)
        return {"ms": taken, "quiet_after_ms": wait_until_quiet()}

    def sizes(self, count: int) -> dict[str, Any]:
        """Call the network, compiled for any size, at so many sizes; return what that took."""
        import torch

        import torch_networks as networks
        from vermilion.ir.measure import agreement

        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        how = _settings(self.engine)
        call = self._model if how is None else torch.compile(self._model, dynamic=True, **how)
        random, taken, least = np.random.default_rng(0), [], np.inf
        for number in range(count):
            batch, length = 2 + number % 7, int(random.integers(8, 200))
            if self.network == "transformer":
                inputs = networks.tokens(length, batch, words=30522)
            else:
                inputs = (networks.picture(SIDE, batch),)
            with torch.inference_mode():
                begin = time.perf_counter()
                found = _first(call(*inputs))
                taken.append(time.perf_counter() - begin)
                expected = _first(self._model(*inputs))
            least = min(least, agreement(self.engine, expected, found).sqnr_db)
        programs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        if self.engine == OURS:
            from vermilion.export import torch_backend

            programs = len(torch_backend.graphs())
        return {
            "programs": programs, "first_s": taken[0], "longest_s": max(taken[1:]),
            "others_s": sum(taken[1:]), "sqnr_db": float(least),
        }  # fmt: skip


def _settings(engine: str) -> dict[str, Any] | None:
    """Return what `torch.compile` is called with; None for PyTorch as it is."""
    how = BACKENDS[engine]
    if how is None:
        return None
    if engine == OURS:  # a checkout is not announced to PyTorch
        from vermilion.export import torch_backend

        return {"backend": torch_backend}
    return dict(how)


def _first(result: Any) -> Any:
    return (result[0] if isinstance(result, tuple) else result).numpy()


def engines_here() -> Sequence[str]:
    """Return the engines that can run on this machine."""
    compilers = [os.environ.get("CXX", ""), "g++", "clang++"]
    if any(name and shutil.which(name) for name in compilers):
        return tuple(BACKENDS)
    print("no C++ compiler (CXX, g++, clang++): inductor is left out")
    return (OURS, EAGER)


def measure(
    network: str, engines: Sequence[str], threads: int, rounds: int, sizes: int
) -> list[dict[str, Any]]:
    """Open a network in every engine, let them take turns; return a row an engine."""

    def opening(index: int, process: EngineProcess) -> dict[str, Any]:
        return process.ask("open", network=network, engine=engines[index], threads=threads)

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="torch-compile-"))
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder, "inductor"))
        os.environ["VERMILION_CACHE"] = str(Path(folder, "vermilion"))
        opened = open_engines(
            stack, engines, Path(folder), opening,
            timeout_s=TIMEOUT_S, worker=("torch_compile_bench",),
        )  # fmt: skip
        processes, rows = [], []
        for engine, one in zip(engines, opened, strict=True):
            if isinstance(one, VermilionError):
                print(f"{network}, {engine}: {one}")
                continue
            processes.append(one[0])
            rows.append({"network": network, "engine": engine, **one[1]})
        times = take_turns(processes, rounds)
        for row, process in zip(rows, processes, strict=True):
            if sizes:
                row["sizes"] = process.ask("sizes", count=sizes)
    for row, timed in zip(rows, times, strict=True):
        row.update(_figures(timed, times[0]))
    return rows


def _figures(timed: Timed, ours: Timed) -> dict[str, Any]:
    found = ratio(pair_ratios(ours.turn_ms, timed.turn_ms))
    return {"ms": statistics.median(timed.run_ms), "ratio": found.as_json()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default=",".join(SIZES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sizes", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    engines = engines_here()
    print(f"{'network':<14}{'engine':<18}{'ms':>8}  {'× as fast':<20}{'first call':>11}{'dB':>7}")
    rows = []
    for network in options.networks.split(","):
        found = measure(network, engines, options.threads, options.rounds, options.sizes)
        for row in found:
            pairs = row["ratio"]
            said = f"{1 / pairs['median']:.2f} ({1 / pairs['q3']:.2f}–{1 / pairs['q1']:.2f})"
            print(
                f"{network:<14}{row['engine']:<18}{row['ms']:>8.2f}  {said:<20}"
                f"{row['first_call_s']:>9.1f} s{row['sqnr_db']:>7.1f}",
                flush=True,
            )
        for row in found if options.sizes else []:
            at = row["sizes"]
            print(
                f"{network:<14}{row['engine']:<18}{options.sizes} sizes: compiled "
                f"{at['programs']} times, first {at['first_s']:.1f} s, longest of the others "
                f"{at['longest_s']:.2f} s, in all {at['others_s']:.1f} s, {at['sqnr_db']:.1f} dB"
            )
        print(f"{'':<14}native: {found[0]['native']} of {found[0]['operators']} operators")
        rows += found
    if options.json is not None:
        save_json(options.json, {"threads": options.threads, "results": rows})


if __name__ == "__main__":
    main()
