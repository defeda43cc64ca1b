"""What engines tell of their steps, brought to one form. Runs inside a worker.

- Ours: generated parts run step by step (`codegen.profile`); parts that ONNX Runtime executes are
  profiled by it.
- ONNX Runtime: its own profiler, one event for each kernel that ran.
- OpenVINO: its performance counters, which have durations but no times of day.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from vermilion.bench.engines import (
    OPENVINO_FLOATS,
    OURS,
    PROVIDERS,
    Request,
    ort_session,
)
from vermilion.bench.profile import Event, Run
from vermilion.errors import UnsupportedError

Inputs = Mapping[str, np.ndarray]

# Runs before those that count: caches fill, workers wake.
_WARM_UP_RUNS = 2

# The end of the names that ONNX Runtime gives to events of kernels.
_KERNEL = "_kernel_time"


def profile_engine(request: Request, inputs: Inputs, runs: int) -> list[Run]:
    """Run a model with its steps measured.

    Raises: UnsupportedError for an engine that tells nothing of its steps.
    """
    from vermilion.bench.events_ours import profile_ours

    ways: dict[str, Callable[[Request, Inputs, int], list[Run]]] = {
        OURS: profile_ours,
        **dict.fromkeys(PROVIDERS, _ort),
        "openvino": _openvino,
    }
    if request.engine not in ways:
        raise UnsupportedError(f"`{request.engine}` does not say what its operators take")
    return ways[request.engine](request, inputs, runs + _WARM_UP_RUNS)[_WARM_UP_RUNS:]


def _ort(request: Request, inputs: Inputs, runs: int) -> list[Run]:
    with tempfile.TemporaryDirectory(prefix="vermilion-profile-") as folder:
        session = ort_session(request, Path(folder) / "ort")
        for _ in range(runs):
            session.run(None, dict(inputs))
        return read_ort_profile(Path(session.end_profiling()))


def read_ort_profile(file: Path) -> list[Run]:
    """Read what ONNX Runtime's profiler wrote: the kernels of each run, in order.

    Source: microsoft/onnxruntime, onnxruntime/core/common/profiler.cc: Chrome's format, with the
    categories `Session` and `Node`; a node's event has operator, provider and shapes.
    """
    events: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    whole = sorted(
        (e for e in events if e.get("cat") == "Session" and e["name"] == "model_run"),
        key=lambda event: event["ts"],
    )
    kernels = [e for e in events if e.get("cat") == "Node" and e["name"].endswith(_KERNEL)]
    kernels.sort(key=lambda event: event["ts"])
    return [
        tuple(
            _ort_event(event, run["ts"])
            for event in kernels
            if run["ts"] <= event["ts"] <= run["ts"] + run["dur"]
        )
        for run in whole
    ]


def _ort_event(event: Mapping[str, Any], begin_us: float) -> Event:
    about = event["args"]
    return Event(
        name=event["name"].removesuffix(_KERNEL),
        kind=about["op_name"],
        device=f"{about['provider'].removesuffix('ExecutionProvider')} (ONNX Runtime)",
        begin_us=event["ts"] - begin_us,
        duration_us=event["dur"],
        operations=_operations(about),
    )


# Operators that multiply matrices, as ONNX Runtime's optimizer names them.
_PRODUCTS = frozenset(
    ("Gemm", "FusedGemm", "MatMul", "FusedMatMul", "MatMulInteger", "QLinearMatMul", "QGemm")
)
# Convolutions, and where their weights stand among the inputs.
_CONVOLUTIONS = {"Conv": 1, "FusedConv": 1, "NhwcFusedConv": 1, "ConvInteger": 1, "QLinearConv": 3}


def _operations(about: Mapping[str, Any]) -> int | None:
    """Count a product's operations by its shapes, a multiply-add as two; None for other operators.

    Weights that were packed when the session was opened are missing among the inputs.
    """
    inputs, outputs = _shapes(about["input_type_shape"]), _shapes(about["output_type_shape"])
    kind = about["op_name"]
    if not inputs or not outputs:
        return None
    if kind in _PRODUCTS and inputs[0]:
        return 2 * math.prod(outputs[0]) * inputs[0][-1]
    weights = _CONVOLUTIONS.get(kind)
    if weights is not None and len(inputs) > weights and len(inputs[weights]) > 2:
        return 2 * math.prod(outputs[0]) * math.prod(inputs[weights][1:])
    return None


def _shapes(typed: Sequence[Mapping[str, Sequence[int]]]) -> list[Sequence[int]]:
    return [shape for one in typed for shape in one.values()]


def _openvino(request: Request, inputs: Inputs, runs: int) -> list[Run]:
    openvino = import_module("openvino")
    compiled = openvino.Core().compile_model(
        request.model,
        "CPU",
        {
            "PERF_COUNT": True,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": OPENVINO_FLOATS[request.precision],
            "INFERENCE_NUM_THREADS": request.threads,
        },
    )
    infer = compiled.create_infer_request()
    found = []
    for _ in range(runs):
        infer.infer(dict(inputs), share_inputs=True, share_outputs=True)
        found.append(_openvino_run(infer.get_profiling_info()))
    return found


def _openvino_run(counters: Sequence[Any]) -> Run:
    """Lay the steps end to end: OpenVINO tells how long each took, and not when it began."""
    begin_us, events = 0.0, []
    for counter in counters:
        duration_us = counter.real_time.total_seconds() * 1e6
        if duration_us > 0.0:  # others were folded away, or run inside another
            name, kind = counter.node_name, counter.node_type
            events.append(Event(name, kind, "CPU (OpenVINO)", begin_us, duration_us, None))
            begin_us += duration_us
    return tuple(events)
