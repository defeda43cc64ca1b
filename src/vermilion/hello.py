"""The tour: the whole path on a small network, each step measured and explained."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from vermilion.api import Compiled, compile_model
from vermilion.export import export_model
from vermilion.hardware.devices import Machine, detect_machine
from vermilion.hello_network import INPUT_SHAPE, hello_network
from vermilion.ir.measure import Agreement, agreement
from vermilion.progress import Progress, no_progress
from vermilion.quantization import QuantizedFile, quantize_file, save_model
from vermilion.rounds import in_rounds
from vermilion.runtime.cache import Cache
from vermilion.runtime.session import Session
from vermilion.sides import Array, Tensors

# What is modelled where the machine has no NPU: the most common one that takes every format.
_MODELLED_TARGET = "strix"
_CALIBRATION_SAMPLES = 8
_RUNS = 5
_CACHE_KEY = "hello"
_TORCH_MODULE = "vermilion.hello_network:hello_torch_module"


@dataclass(frozen=True)
class Stage:
    """One step of the tour and how long it took."""

    name: str
    seconds: float


@dataclass
class Clock:
    """Times the steps of the tour as they happen."""

    progress: Progress
    stages: list[Stage] = field(default_factory=list)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time one step."""
        self.progress(name, 0, 0)
        begin = time.perf_counter()
        yield
        self.stages.append(Stage(name, time.perf_counter() - begin))


@dataclass(frozen=True)
class HelloReport:
    """What the tour found. Latencies are medians of a few runs on this machine, in milliseconds.

    `device_ms` is measured where `device_is` says so; where it says `modelled` it comes from a
    model fitted to published latencies, with the interval that it has, and was not measured by
    anyone here.
    """

    stages: tuple[Stage, ...]
    machine: Machine
    exported_from: str
    float_file: Path
    quantized: QuantizedFile
    cpu_ms: float
    cpu_int8_ms: float
    first: Compiled
    cached: Compiled
    device: str
    device_ms: float | None
    device_is: str
    device_interval_ms: tuple[float, float] | None
    cpu_accuracy: Agreement
    accuracy: Agreement
    device_agreement: Agreement

    def as_json(self) -> dict[str, object]:
        """Return the keys of `hello --json`."""
        return {
            "stages": [{"name": s.name, "seconds": s.seconds} for s in self.stages],
            "exported_from": self.exported_from,
            "machine": self.machine.as_json(),
            "cpu_ms": self.cpu_ms,
            "cpu_int8_ms": self.cpu_int8_ms,
            "device": self.device,
            "device_ms": self.device_ms,
            "device_is": self.device_is,
            "device_interval_ms": (
                None if self.device_interval_ms is None else list(self.device_interval_ms)
            ),
            "device_reason": self.first.report.predicted_reason,
            "first_compile_s": self.first.seconds,
            "cached_compile_s": self.cached.seconds,
            "cpu_sqnr_db": self.cpu_accuracy.sqnr_db,
            "sqnr_db": self.accuracy.sqnr_db,
            "cosine": self.accuracy.cosine,
            "device_sqnr_db": self.device_agreement.sqnr_db,
            "calibration": "random",
            "summary": self.first.report.summary.as_json(),
            "summary_path": str(self.first.summary_path),
            "files": {
                "float": str(self.float_file),
                "quantized": str(self.quantized.output),
                "compiled": str(self.first.summary_path.parent),
                "single_file": str(self.first.artifact),
            },
        }


def hello(folder: Path, *, progress: Progress = no_progress) -> HelloReport:
    """Take the network of the tour along the whole path; all that is made of it is in `folder`.

    What calibrating any network compiles is kept in the user's cache.

    Compiled models that an earlier tour left there are compiled again, to show the difference
    that the cache makes.

    Raises: VermilionError of the kind that says who can fix it.
    """
    clock = Clock(progress)
    folder.mkdir(parents=True, exist_ok=True)
    with clock.stage("look for devices"):
        machine = detect_machine(probe_providers=False)
    with clock.stage("export the network"):
        exported_from, float_file = _make_network(folder)
    with clock.stage("quantize to XINT8"):
        quantized = quantize_file(
            float_file,
            folder / "hello_xint8.onnx",
            calib="random",
            samples=_CALIBRATION_SAMPLES,
            progress=progress,
        )
    target = next((npu.target for npu in machine.npus if npu.target), None) or _MODELLED_TARGET
    cache = Cache(folder / "cache")
    cache.store.prune(everything=True)
    with clock.stage("compile for the CPU"):
        on_cpu = compile_model(float_file, cache_dir=cache.root, progress=progress)
        int8_on_cpu = compile_model(quantized.output, cache_dir=cache.root, progress=progress)
    with clock.stage(f"compile for {target}"):
        first = _compile(quantized.output, target, cache, folder, progress)
    with clock.stage("compile again, from the cache"):
        cached = _compile(quantized.output, target, cache, folder, progress)
    with clock.stage("run on the CPU and compare"):
        feed = {"input": np.random.default_rng(7).random(INPUT_SHAPE, dtype=np.float32)}
        with on_cpu.session() as float_session, int8_on_cpu.session() as int8_session:
            float_ms, int8_ms = _median_ms((float_session, int8_session), feed)
            expected, found_on_cpu = _run(float_session, feed), _run(int8_session, feed)
        with first.session() as device_session:
            is_modelled = any(part.modelled for part in device_session.manifest.parts)
            if is_modelled:
                device_ms = first.report.predicted_ms
            else:
                [device_ms] = _median_ms((device_session,), feed)
            found = _run(device_session, feed)
        reference = _quantized_reference(quantized.output, feed)
    return HelloReport(
        stages=tuple(clock.stages),
        machine=machine,
        exported_from=exported_from,
        float_file=float_file,
        quantized=quantized,
        cpu_ms=float_ms,
        cpu_int8_ms=int8_ms,
        first=first,
        cached=cached,
        device=target,
        device_ms=device_ms,
        device_is="modelled" if is_modelled else "measured",
        device_interval_ms=first.report.predicted_interval_ms if is_modelled else None,
        cpu_accuracy=agreement("output", expected, found_on_cpu),
        accuracy=agreement("output", expected, found),
        device_agreement=agreement("output", reference, found),
    )


def _make_network(folder: Path) -> tuple[str, Path]:
    """Export the network from PyTorch where that is installed, else write the same one directly."""
    file = folder / "hello.onnx"
    if find_spec("torch") is not None:
        shape = "x".join(map(str, INPUT_SHAPE))
        export_model(_TORCH_MODULE, [f"input:{shape}"], file)
        return "PyTorch", file
    save_model(hello_network(), file)
    return "written directly, PyTorch is not installed", file


def _compile(model: Path, target: str, cache: Cache, folder: Path, progress: Progress) -> Compiled:
    return compile_model(
        model,
        target=target,
        cache_dir=cache.root,
        cache_key=_CACHE_KEY,
        output=folder / "hello.rai",
        progress=progress,
    )


def _run(session: Session, feed: Tensors) -> Array:
    return session.run(None, feed)[0]


def _median_ms(sessions: Sequence[Session], feed: Tensors) -> list[float]:
    """Return the median milliseconds of each; they run in turn, the first turn does not count."""

    def turn(session: Session, _: int) -> float:
        begin = time.perf_counter()
        session.run(None, feed)
        return (time.perf_counter() - begin) * 1e3

    return [statistics.median(ms) for ms in in_rounds(sessions, turn, _RUNS, warm_up=1)]


def _quantized_reference(model: Path, feed: Tensors) -> Array:
    """Run the quantized model as it is, to hold the compiled one against."""
    from vermilion.ir.execute import open_session, run_session
    from vermilion.ir.load import load_model

    return next(iter(run_session(open_session(load_model(model)), feed).values()))
