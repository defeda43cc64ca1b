"""The steps of our own engine: each part of a bundle is opened in a form that tells of them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

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
from vermilion.backends.native import NativeExecutable
from vermilion.backends.ort import PART_FILE, OrtExecutable
from vermilion.bench.engines import Request, ort_session
from vermilion.bench.events import read_ort_profile
from vermilion.bench.profile import Event, Run
from vermilion.codegen.profile import StepTime
from vermilion.errors import Refusal
from vermilion.hardware.targets.target import Target
from vermilion.runtime.artifact import open_artifact
from vermilion.runtime.recompile import runnable
from vermilion.runtime.session import Session

Computed = Callable[[Tensors], tuple[dict[str, Array], Run]]


def profile_ours(request: Request, inputs: Mapping[str, np.ndarray], runs: int) -> list[Run]:
    """Run a bundle with the steps of its parts measured; all parts' steps on one clock."""
    reader, _ = runnable(open_artifact(request.model))
    with tempfile.TemporaryDirectory(
        prefix="vermilion-profile-", ignore_cleanup_errors=True
    ) as folder:
        opened: list[_TimedPart] = []
        timed = {
            name: _TimedBackend(backend(name), Path(folder), opened)
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
class _TimedPart:
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
class _TimedBackend:
    """A backend whose parts are opened so that they tell of their steps."""

    inner: Backend
    folder: Path
    opened: list[_TimedPart]

    @property
    def name(self) -> str:
        return self.inner.name

    def available(self, target: Target) -> Availability:
        return self.inner.available(target)

    def claim(self, node: ir.Node, facts: ModelFacts, target: Target) -> Claim | Refusal:
        return self.inner.claim(node, facts, target)

    def compile(self, part: Part, target: Target, options: CompileOptions, folder: Path) -> Program:
        return self.inner.compile(part, target, options, folder)

    def load(
        self, program: Program, files: PartFiles, target: Target, options: CompileOptions
    ) -> Executable:
        part = self.inner.load(program, files, target, options)
        timed = _whole(part)
        if isinstance(part, NativeExecutable):
            timed = _native(part)
        elif isinstance(part, OrtExecutable):
            timed = _ort(part, files, options.threads, self.folder / f"part{len(self.opened)}")
        self.opened.append(timed)
        return timed


def _native(part: NativeExecutable) -> _TimedPart:
    timer = part.step_timer()

    def compute(inputs: Tensors) -> tuple[dict[str, Array], Run]:
        begin_ns = time.perf_counter_ns()
        outputs = part.run_timed(inputs, timer)
        return outputs, native_events(timer.times, begin_ns)

    return _TimedPart(part.runs_on, compute)


def native_events(steps: Sequence[StepTime], begin_ns: int) -> Run:
    """Return an event a step. All steps of a convolution by Winograd have its one name.

    They are three for each band of the image.
    """
    events = []
    for at, step in enumerate(steps):
        name, kind = step.label, step.family
        # Patches, their products, and back: `codegen.lower.winograd` writes them in a row.
        ends = [one for one in steps[at : at + 3] if one.family == "winograd_output"]
        if ends and (kind.startswith("winograd") or name.endswith(" products")):
            name, kind = ends[0].label, "winograd"
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


def _ort(part: OrtExecutable, files: PartFiles, threads: int, folder: Path) -> _TimedPart:
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

    return _TimedPart(
        part.runs_on, compute, lambda: read_ort_profile(Path(session.end_profiling()))
    )


def _whole(part: Executable) -> _TimedPart:
    def compute(inputs: Tensors) -> tuple[dict[str, Array], Run]:
        begin_ns = time.perf_counter_ns()
        outputs = part.run(inputs)
        took_us = (time.perf_counter_ns() - begin_ns) / 1e3
        return outputs, (Event("whole part", "part", part.runs_on, 0.0, took_us, None),)

    return _TimedPart(part.runs_on, compute)
