"""Opening an ONNX Runtime session for a few runs: weights that are fed, lent, or in the message.

    python bench/open_bench.py [--models r50,rec] [--turns 7] [--json OUT.json]

From the graph in memory to a session that can run, then one run. Every opening is a process of its
own on one core; they take turns. Nothing is optimized by ONNX Runtime but in the last way:

    fed          large weights are inputs, handed over with each run where they lie
    lent         large weights are lent to the session, which copies them
    serialized   the whole model is one message that ONNX Runtime reads
    optimized    lent, and the graph optimized

Units: CPU milliseconds, medians of the turns with the least and the most; `memory_mb` is by how
much the process grew while it opened.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from quantize_cases import CASES, in_ways

from vermilion.bench.harness import Record, on_one_core

if TYPE_CHECKING:
    import onnx_ir as ir

Run = Callable[[Mapping[str, Any]], Mapping[str, Any]]

MEASURED = ("open_ms", "run_ms", "memory_mb")


def fed(model: ir.Model) -> Run:
    """Open as calibration does for its first samples."""
    from vermilion.ir.execute import open_fed_session

    return open_fed_session(model).run


def lent(model: ir.Model) -> Run:
    """Open without optimizing."""
    from vermilion.ir.execute import open_session, run_session

    session = open_session(model, optimize=False)
    return lambda inputs: run_session(session, inputs)


def serialized(model: ir.Model) -> Run:
    """Open from one message that holds everything."""
    import onnx_ir as ir

    from vermilion.ir.execute import run_session, session_from_bytes

    session = session_from_bytes(ir.to_proto(model).SerializeToString(), {}, optimize=False)
    return lambda inputs: run_session(session, inputs)


def optimized(model: ir.Model) -> Run:
    """Open as for many runs."""
    from vermilion.ir.execute import open_session, run_session

    session = open_session(model)
    return lambda inputs: run_session(session, inputs)


WAYS = {"fed": fed, "lent": lent, "serialized": serialized, "optimized": optimized}


def measure(options: argparse.Namespace) -> Record:
    """Open one model in one way in this process, and run it once."""
    import onnx_ir as ir

    import vermilion.ir.execute  # noqa: F401  so that no way has to import it

    on_one_core()
    case = CASES[options.models]
    rng = np.random.default_rng(0)
    inputs = {case.input_name: rng.standard_normal(case.shape).astype(np.float32)}
    model = ir.load(Path(options.folder) / "float.onnx")
    for value in model.graph.initializers.values():
        # Read out of the file's message, as they are once a graph is worked on.
        value.const_value = ir.Tensor(np.array(value.const_value.numpy()), name=value.name)
    process = psutil.Process()
    resident, begin = process.memory_info().rss, time.process_time()
    run = WAYS[options.way](model)
    opened, resident = time.process_time(), process.memory_info().rss - resident
    results = run(inputs)
    done = time.process_time()
    return {
        "model": options.models,
        "way": options.way,
        "open_ms": 1e3 * (opened - begin),
        "run_ms": 1e3 * (done - opened),
        "memory_mb": resident / 1e6,
        "outputs": [float(np.abs(array).sum()) for array in results.values()],
    }


if __name__ == "__main__":
    in_ways(__file__, str(__doc__), "way", WAYS, measure, MEASURED, {}, turns=7)
