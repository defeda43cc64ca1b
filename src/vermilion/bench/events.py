"""What engines tell of their steps, brought to one form. Runs inside a worker.

- Ours: generated parts run step by step (`codegen.profile`); parts that ONNX Runtime executes are
  profiled by it.
- ONNX Runtime: its own profiler, one event for each kernel that ran.
- OpenVINO: its performance counters, which have durations but no times of day.
"""

from __future__ import annotations

import itertools
import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from vermilion.backends import backend
from vermilion.backends.base import (
    Array,
    Availability,
    Backend,
    Claim,
    CompileOptions,
    Executable,
    ModelFacts,
    Part,
    PartFiles,
    Program,
    Tensors,
)
from vermilion.backends.native_run import NativeExecutable
from vermilion.backends.ort import PART_FILE, OrtExecutable
from vermilion.bench.engines import (
    OPENVINO_FLOATS,
    OURS,
    PROVIDERS,
    Request,
    ort_session,
)
from vermilion.bench.profile import Event, Run
from vermilion.codegen.profile import StepTime
from vermilion.errors import Refusal, UnsupportedError
from vermilion.hardware.targets.target import Target
from vermilion.runtime.artifact import open_artifact
from vermilion.runtime.recompile import runnable
from vermilion.runtime.session import Session

Inputs = Mapping[str, np.ndarray]
Computed = Callable[[Tensors], tuple[dict[str, Array], Run]]

# Runs before those that count: caches fill, workers wake.
_WARM_UP_RUNS = 2

# The end of the names that ONNX Runtime gives to events of kernels.
_KERNEL = "_kernel_time"


def profile_engine(request: Request, inputs: Inputs, runs: int) -> list[Run]:
    """Run a model with its steps measured.

    Raises: UnsupportedError for an engine that tells nothing of its steps.
    """
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


def profile_ours(request: Request, inputs: Mapping[str, np.ndarray], runs: int) -> list[Run]:
    """Run a bundle with the steps of its parts measured; all parts' steps on one clock."""
    reader, _ = runnable(open_artifact(request.model))
    with tempfile.TemporaryDirectory(
        prefix="vermilion-profile-", ignore_cleanup_errors=True
    ) as folder:
        opened: list[TimedPart] = []
        timed = {
            name: TimedBackend(backend(name), Path(folder), opened)
            for name in {part.backend for part in reader.manifest.parts}
        }
        session = Session(reader, threads=request.threads, backends=timed)
        begins_ns = []
        for _ in range(runs):
            begins_ns.append(time.perf_counter_ns())
            session.run(None, inputs)
        told = [part.told() for part in opened]
        return [
            tuple(event for part in told for event in _since(part[at], begin_ns))
            for at, begin_ns in enumerate(begins_ns)
        ]


def _since(part: tuple[int, Run], begin_ns: int) -> Run:
    """Move the events of a part to where it began in the run."""
    part_begin_ns, events = part
    shift = (part_begin_ns - begin_ns) / 1e3
    return tuple(replace(event, begin_us=event.begin_us + shift) for event in events)


@dataclass
class TimedPart:
    """A part whose runs are kept. `read` gives the events of runs that only told them at the end.

    Events begin with their part.
    """

    runs_on: str
    compute: Computed
    read: Callable[[], list[Run]] | None = None
    kept: list[tuple[int, Run]] = field(default_factory=list)

    def run(self, inputs: Tensors) -> dict[str, Array]:
        """Compute every output of the part."""
        begin_ns = time.perf_counter_ns()
        outputs, events = self.compute(inputs)
        self.kept.append((begin_ns, events))
        return outputs

    def told(self) -> list[tuple[int, Run]]:
        """Return when each run began, and its events."""
        if self.read is None:
            return self.kept
        return [(begin, run) for (begin, _), run in zip(self.kept, self.read(), strict=True)]


@dataclass(frozen=True)
class TimedBackend:
    """A backend whose parts are opened so that they tell of their steps."""

    inner: Backend
    folder: Path
    opened: list[TimedPart]

    @property
    def name(self) -> str:
        """The backend's own."""
        return self.inner.name

    def available(self, target: Target) -> Availability:
        """Say what the backend says."""
        return self.inner.available(target)

    def claim(self, node: ir.Node, facts: ModelFacts, target: Target) -> Claim | Refusal:
        """Take what the backend takes."""
        return self.inner.claim(node, facts, target)

    def compile(self, part: Part, target: Target, options: CompileOptions, folder: Path) -> Program:
        """Write what the backend writes."""
        return self.inner.compile(part, target, options, folder)

    def load(
        self, program: Program, files: PartFiles, target: Target, options: CompileOptions
    ) -> Executable:
        """Make a part ready to run with its steps measured, and keep it in `opened`."""
        part = self.inner.load(program, files, target, options)
        timed = _whole_part(part)
        if isinstance(part, NativeExecutable):
            timed = _native_part(part)
        elif isinstance(part, OrtExecutable):
            timed = _ort_part(part, files, options.threads, self.folder / f"part{len(self.opened)}")
        self.opened.append(timed)
        return timed


def _native_part(part: NativeExecutable) -> TimedPart:
    timer = part.step_timer()

    def compute(inputs: Tensors) -> tuple[dict[str, Array], Run]:
        begin_ns = time.perf_counter_ns()
        outputs = part.run_timed(inputs, timer)
        return outputs, native_events(timer.times, begin_ns)

    return TimedPart(part.runs_on, compute)


def native_events(steps: Sequence[StepTime], begin_ns: int) -> Run:
    """Return an event a step. All steps of a convolution by Winograd have its one name.

    They are three for each band of the image. The two of a product by Strassen have one, too: the
    second counts the operations of both.
    """
    strassen = _strassen_steps(steps)
    events = []
    for at, step in enumerate(steps):
        name, kind = step.label, step.family
        # Patches, their products, and back: `codegen.lower.winograd` writes them in a row.
        ends = [one for one in steps[at : at + 3] if one.family == "winograd_output"]
        if ends and (kind.startswith("winograd") or name.endswith(" products")):
            name, kind = ends[0].label, "winograd"
        elif at in strassen:
            name, kind = steps[strassen[at]].label, "strassen"
        events.append(
            Event(
                name=name,
                kind=kind,
                device="CPU (generated code)",
                begin_us=(step.begin_ns - begin_ns) / 1e3,
                duration_us=step.duration_ns / 1e3,
                operations=step.operations or None,
                detail=step.family if kind != step.family else "",
            )
        )
    return tuple(events)


def _strassen_steps(steps: Sequence[StepTime]) -> dict[int, int]:
    """Return the steps of products by Strassen, each with the last of its own.

    `codegen.lower.strassen` writes two in a row: products of quarters, and sums of them.
    """
    found: dict[int, int] = {}
    for at, (one, following) in enumerate(itertools.pairwise(steps)):
        is_product = one.label.endswith(" products") and not one.operations
        if is_product and following.family == "map" and following.operations:
            found |= {at: at + 1, at + 1: at + 1}
    return found


def _ort_part(part: OrtExecutable, files: PartFiles, threads: int, folder: Path) -> TimedPart:
    """Open the part's model once more, with ONNX Runtime's own profiler in the session."""
    folder.mkdir()
    model = ir.from_proto(onnx.load_from_string(bytes(files.read(PART_FILE))))
    for name, array in files.weights().items():
        if name in model.graph.initializers:
            model.graph.initializers[name].const_value = ir.Tensor(array, name=name)
    path = folder / "part.onnx"
    ir.save(model, path)
    session = ort_session(Request("ort", "fp32", str(path), threads), folder / "profile")
    names = [output.name for output in session.get_outputs()]

    def compute(inputs: Tensors) -> tuple[dict[str, Array], Run]:
        return dict(zip(names, session.run(names, dict(inputs)), strict=True)), ()

    return TimedPart(part.runs_on, compute, lambda: read_ort_profile(Path(session.end_profiling())))


def _whole_part(part: Executable) -> TimedPart:
    def compute(inputs: Tensors) -> tuple[dict[str, Array], Run]:
        begin_ns = time.perf_counter_ns()
        outputs = part.run(inputs)
        took_us = (time.perf_counter_ns() - begin_ns) / 1e3
        return outputs, (Event("whole part", "part", part.runs_on, 0.0, took_us, None),)

    return TimedPart(part.runs_on, compute)
