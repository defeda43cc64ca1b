"""Running calibration samples through a float model: our own kernels beside ONNX Runtime.

    python bench/calibration_bench.py [--models r50,rec] [--samples 100] [--turns 5] [--json OUT]

Every way is a process of its own on one core; they take turns. Each fetches the tensors that XINT8
looks at, and counts them in the same histograms:

    onnxruntime   every sample through one optimized session, all tensors as extra outputs
    own kernels   every sample through our kernels in bfloat16, each tensor counted as it is made
    quantize      what `vermilion quantize` does: the first samples in ONNX Runtime, to hold the
                  rest to them, which go through our kernels

Units: CPU milliseconds. `first` is one sample with all that comes before it: opening the session,
or packing the weights. `next` is the median of the others, `all` the whole; what a machine compiles
only once is not in it. Medians of the turns, with the least and the most. The data are
those of `quantize_bench.py`.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from quantize_cases import CALIBRATION_SEED, CASES, Sample, drawn, in_ways

from vermilion.bench.harness import Record, on_one_core

if TYPE_CHECKING:
    import onnx_ir as ir

    from vermilion.quantize.calibrate import TensorFacts
    from vermilion.quantize.observe import Histogram

MEASURED = ("first_ms", "next_ms", "all_ms")

Add = Callable[[int, Sample], None]


def measure(options: argparse.Namespace) -> Record:
    """Calibrate one model in one way in this process."""
    import onnx_ir as ir

    from vermilion.quantize.calibrate import tensor_facts, types_of
    from vermilion.quantize.formats import scheme_named
    from vermilion.quantize.look import COUNTED_EVERY
    from vermilion.quantize.observe import Histogram
    from vermilion.quantize.one_thread import one_thread
    from vermilion.quantize.plan import make_plan

    on_one_core()
    samples = list(drawn(CASES[options.models], CALIBRATION_SEED, options.samples, options))
    model = ir.load(Path(options.folder) / "float.onnx")
    facts = tensor_facts(model, samples[0])
    observed = make_plan(model, types_of(facts), (), scheme_named("xint8")).observed
    counts = {name: Histogram(COUNTED_EVERY) for name in observed}
    with one_thread():
        times = [_cpu_ms()]
        add = ENGINES[options.engine](model, facts, counts, len(samples))
        for number, sample in enumerate(samples):
            add(number, sample)
            times.append(_cpu_ms())
    each = [after - before for before, after in itertools.pairwise(times)]
    return {
        "model": options.models,
        "engine": options.engine,
        "samples": len(samples),
        "first_ms": each[0],
        "next_ms": statistics.median(each[1:]),
        "all_ms": sum(each),
    }


def onnxruntime(
    model: ir.Model, facts: Mapping[str, TensorFacts], counts: Mapping[str, Histogram], total: int
) -> Add:
    """Return what takes each sample; for one sample alone our kernels are never laid out."""
    return quantize(model, facts, counts, 1)


def own_kernels(
    model: ir.Model, facts: Mapping[str, TensorFacts], counts: Mapping[str, Histogram], total: int
) -> Add:
    """Return what takes each sample, the first one too."""
    from vermilion.errors import Refusal
    from vermilion.quantize.native_run.run import network_of

    inputs = [name for value in model.graph.inputs if (name := str(value.name)) in counts]
    shapes = {name: fact.shape for name, fact in facts.items() if fact.shape is not None}
    network = network_of(model, frozenset(counts).difference(inputs), shapes)
    if isinstance(network, Refusal):
        raise SystemExit(f"our kernels cannot run this: {network.reason}")
    run = network.laid_out(threads=1)

    def add(number: int, sample: Sample) -> None:
        for name in inputs:
            counts[name].add(sample[name])
        run.run(sample, lambda name, array: counts[name].add(array))

    return add


def quantize(
    model: ir.Model, facts: Mapping[str, TensorFacts], counts: Mapping[str, Histogram], total: int
) -> Add:
    """Return what takes each of `total` samples."""
    from vermilion.quantize.calibrate import Calibrator

    calibrator = Calibrator(model, counts, facts)
    calibrator.expect(total)
    return calibrator.add


ENGINES = {"onnxruntime": onnxruntime, "own kernels": own_kernels, "quantize": quantize}


def _cpu_ms() -> float:
    return 1e3 * time.process_time()


if __name__ == "__main__":
    settings: dict[str, int | str] = {"samples": 100, "photos": "", "font": ""}
    in_ways(__file__, str(__doc__), "engine", ENGINES, measure, MEASURED, settings)
