"""What the proof of a compilation costs, part by part: ResNet-50, BERT-base, a large detector.

    python bench/proof_bench.py [--models resnet50,bert_base,detector,detector_qdq] [--turns 5]

Each model is compiled once for this CPU, without the cache; its proof is then made `--turns` times
in the same process, the first of them with all that is loaded for the first time. A line of the
table is one part of the proof without those that it calls. Units: CPU milliseconds of this process
and milliseconds of the clock, medians of the turns with the least and the most. Figures are worth
something on a machine that does nothing else: the load before and after stands below the table.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx_ir as ir

from vermilion.api import compile_model
from vermilion.backends import native
from vermilion.bench.figures import spread
from vermilion.bench.networks import NETWORKS, Net
from vermilion.ir.literal.run import LiteralModel
from vermilion.ir.passes.bind_dimensions import Dimensions
from vermilion.runtime import build, prove, prove_part

UNITS = 625  # of 8 nodes each: 5,000

Spent = dict[str, tuple[float, float]]  # CPU seconds, seconds of the clock


def detector(*, quantized: bool = False) -> ir.Model:
    """Return about 5,000 nodes: small convolutions, concatenations, elementwise functions.

    A unit is a convolution with SiLU, a 3×3 one with ReLU, both joined, projected and added. With
    `quantized`, weights and activations are quantized and dequantized.
    """
    net = Net("detector", seed=3)
    x = net.input("image", (1, 8, 40, 40))
    for number in range(UNITS * 8 // 20 if quantized else UNITS):
        x = _unit(net, x, f"unit{number}", quantized=quantized)
    pooled = net.op("GlobalAveragePool", x, name="pool")
    net.output(net.op("Flatten", pooled, name="flatten", axis=1), "features", (1, 8))
    return net.model()


def _unit(net: Net, x: ir.Value, name: str, *, quantized: bool) -> ir.Value:
    def steps(value: ir.Value, place: str, scale: float, zero: np.generic) -> ir.Value:
        step = net.constant(f"{place}.scale", np.float32(scale))
        point = net.constant(f"{place}.zero", np.asarray(zero))
        q = net.op("QuantizeLinear", value, step, point, name=f"{place}.q")
        return net.op("DequantizeLinear", q, step, point, name=f"{place}.dq")

    def convolution(value: ir.Value, label: str, inputs: int, kernel: int, gain: float) -> ir.Value:
        place, shape = f"{name}.{label}", (8, inputs, kernel, kernel)
        array = net.normal(shape, gain * (inputs * kernel * kernel) ** -0.5)
        weight = net.constant(f"{place}.weight", array)
        bias = net.constant(f"{place}.bias", net.normal((8,), 0.1))
        if quantized:
            value = steps(value, f"{place}.x", 0.05, np.uint8(128))
            weight = steps(weight, f"{place}.w", float(np.abs(array).max()) / 127, np.int8(0))
        pads = {"pads": [kernel // 2] * 4, "kernel_shape": [kernel, kernel]}
        return net.op("Conv", value, weight, bias, name=place, **pads)

    a = convolution(x, "a", 8, 1, 1.4)
    a = net.op("Mul", a, net.op("Sigmoid", a, name=f"{name}.sigmoid"), name=f"{name}.silu")
    b = net.op("Relu", convolution(a, "b", 8, 3, 1.4), name=f"{name}.relu")
    joined = net.op("Concat", a, b, name=f"{name}.concat", axis=1)
    return net.op("Add", x, convolution(joined, "c", 16, 1, 0.05), name=f"{name}.add")


MODELS: dict[str, tuple[Callable[[], ir.Model], Dimensions]] = {
    "resnet50": (NETWORKS["resnet50"], {"batch": 1}),
    "bert_base": (NETWORKS["bert_base"], {"batch": 1, "sequence": 128}),
    "detector": (detector, {}),
    "detector_qdq": (lambda: detector(quantized=True), {}),
}

# What is measured, in the order of the table.
PARTS: tuple[tuple[str, Any, str], ...] = (
    ("open the model", prove, "open_literally"),
    ("draw inputs", prove, "draw_accepted"),
    ("literal runs", LiteralModel, "run"),
    ("load the parts", prove._Prover, "_executable"),
    ("runs", native.NativeExecutable, "run"),
    ("watched run", native.NativeExecutable, "run_watched"),
    ("cut", prove_part, "cut_at"),
    ("open what is cut", prove_part, "open_literally"),
    ("judge", prove_part, "judge"),
    ("compare outputs", prove, "check_output"),
    ("judge the whole", prove, "judge"),
)


class Meter:
    """Adds up what decorated functions cost, each without what it calls of the others."""

    def __init__(self) -> None:
        self.spent: Spent = defaultdict(lambda: (0.0, 0.0))
        self._inner: list[list[float]] = []

    @contextmanager
    def measured(self, label: str) -> Iterator[None]:
        """Measure what is done inside, or in each call of what this decorates."""
        begin = (time.process_time(), time.perf_counter())
        self._inner.append([0.0, 0.0])
        try:
            yield
        finally:
            inner = self._inner.pop()
            cpu, wall = time.process_time() - begin[0], time.perf_counter() - begin[1]
            known = self.spent[label]
            self.spent[label] = (known[0] + cpu - inner[0], known[1] + wall - inner[1])
            if self._inner:
                self._inner[-1][0] += cpu
                self._inner[-1][1] += wall


def measure(name: str, turns: int) -> tuple[int, list[Spent], list[int]]:
    """Compile a model; return its number of nodes, the cost of each proof, the memory in MB."""
    found: list[Spent] = []
    memory: list[int] = []
    real = prove.prove

    def proofs(*args: Any, **kwargs: Any) -> Any:
        memory.append(_peak_mb())
        for _ in range(turns):
            meter = Meter()
            with ExitStack() as stack:
                for label, owner, attribute in PARTS:
                    function = meter.measured(label)(getattr(owner, attribute))
                    stack.enter_context(patch.object(owner, attribute, function))
                with meter.measured("all else"):
                    proof = real(*args, **kwargs)
            found.append(dict(meter.spent))
        memory.append(_peak_mb())
        print(f"{name}: {proof.status} on {', '.join(proof.samples)} {proof.notes}", flush=True)
        return proof

    make, dims = MODELS[name]
    model = make()
    with tempfile.TemporaryDirectory() as folder, patch.object(build, "prove", proofs):
        compile_model(model, dims=dims, cache_dir=folder)
    return len(model.graph), found, memory


def _peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10  # as Linux counts it


def table(name: str, nodes: int, found: list[Spent], memory: list[int]) -> str:
    """Return the table of one model."""

    def cell(values: list[float]) -> str:
        return spread([1e3 * value for value in values], 0)

    lines = [f"| {name}, {nodes} nodes | CPU ms | ms |", "|---|---|---|"]
    for label in (*(part[0] for part in PARTS), "all else", "**together**"):
        cpu, wall = ([_of(spent, label)[i] for spent in found] for i in (0, 1))
        if any(wall):
            lines.append(f"| {label} | {cell(cpu)} | {cell(wall)} |")
    lines.append(f"\nPeak memory of the process: {memory[0]} MB before, {memory[1]} MB after.")
    return "\n".join(lines)


def _of(spent: Spent, label: str) -> tuple[float, float]:
    if label != "**together**":
        return spent.get(label, (0.0, 0.0))
    return sum(cpu for cpu, _ in spent.values()), sum(wall for _, wall in spent.values())


def main() -> int:
    """Print a table for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    for name in options.models.split(","):
        before = os.getloadavg()[0]
        print(table(name, *measure(name, options.turns)))
        print(f"Load of the machine: {before:.1f} before, {os.getloadavg()[0]:.1f} after.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
