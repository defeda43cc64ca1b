"""The engines, as a worker opens them: ours and the peers, each as its own users would.

Imported inside workers: an engine's libraries are loaded when it is opened, so that one engine's
memory is not counted as another's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from vermilion.errors import DeviceError, OptionError, UnsupportedError

if TYPE_CHECKING:
    import numpy as np
    import onnxruntime as ort

Precision = Literal["fp32", "bf16", "int8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

OURS = "vermilion"

_CPU_PROVIDER = "CPUExecutionProvider"

# ONNX Runtime by execution provider. Names of AMD's: microsoft/onnxruntime,
# include/onnxruntime/core/graph/constants.h; ROCm's is gone since ONNX Runtime 1.23.
PROVIDERS: Mapping[str, str] = {
    "ort": _CPU_PROVIDER,
    "migraphx": "MIGraphXExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "directml": "DmlExecutionProvider",
}

# The same engine by its whole name, as it stands behind `MODEL.onnx@`.
_OTHER_NAMES = {"onnxruntime": "ort"}

# Where `pip` finds what an engine needs, for the hint of the error.
_PACKAGES = {"ort": "onnxruntime", "openvino": "openvino"}

Run = Callable[[Mapping[str, "np.ndarray"]], "Sequence[np.ndarray]"]


@dataclass(frozen=True)
class Engine:
    """One competitor: who, and at which precision."""

    name: str
    precision: Precision

    @property
    def label(self) -> str:
        """The spelling that `parse_engine` reads."""
        return f"{self.name}@{self.precision}"


@dataclass(frozen=True)
class Request:
    """What a worker is asked to open. `model` is a `.rai` for our own engine, else an ONNX file."""

    engine: str
    precision: str
    model: str
    threads: int


@dataclass(frozen=True)
class Opened:
    """An engine with a model in it, ready to run.

    Units: `load_s` is from the file to ready, libraries already imported. `placement` says in one
    line how many operators are native; empty for peers.
    """

    run: Run
    output_names: tuple[str, ...]
    version: str
    runs_on: str
    import_s: float
    load_s: float
    placement: str = ""


def parse_engine(word: str, precision: Precision) -> Engine:
    """Read `ort` (or `onnxruntime`), `openvino`, or with a precision of its own, `ort@fp32`.

    Raises: OptionError for an engine or a precision that nobody here knows.
    """
    name, at, own = word.strip().partition("@")
    name = _OTHER_NAMES.get(name, name)
    if name not in OPENERS:
        raise OptionError(
            f"no engine is called `{name}`", hint=f"the engines are {', '.join(sorted(OPENERS))}"
        )
    if not at:
        return Engine(name, precision)
    return Engine(name, parse_precision(own))


def parse_precision(word: str) -> Precision:
    """Read a precision.

    Raises: OptionError.
    """
    for known in PRECISIONS:
        if word == known:
            return known
    raise OptionError(f"no precision is called `{word}`", hint=f"write {', '.join(PRECISIONS)}")


def check_installed(engine: Engine) -> None:
    """Raise DeviceError, with the line that fixes it, where the engine's package is missing."""
    package = _PACKAGES.get(engine.name)
    if package is not None and find_spec(package) is None:
        raise DeviceError(
            f"the engine `{engine.name}` is not installed",
            hint="pip install 'vermilion[bench]', or leave it out of `--against`",
        )


def engines_here() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the peers that can run on this machine, and why AMD's other providers cannot.

    Providers of ONNX Runtime are loaded to find out, each in a child process.
    """
    from vermilion.hardware.providers import find_providers, probe_providers

    built_in = (p for p in probe_providers(find_providers()) if p.kind == "built in")
    probed = {provider.name: provider for provider in built_in}
    names, reasons = ["ort"], []
    for name, provider in PROVIDERS.items():
        found = probed.get(provider)
        if provider == _CPU_PROVIDER or found is None:
            continue
        if found.loads:
            names.append(name)
        else:
            reasons.append(f"{provider} does not load: {found.reason or 'nobody knows why'}")
    if find_spec(_PACKAGES["openvino"]) is not None:
        names.append("openvino")
    return tuple(names), tuple(reasons)


def open_engine(request: Request) -> Opened:
    """Open the engine that the request names. Raises VermilionError where it cannot."""
    return OPENERS[request.engine](request)


def compile_ours(model: Path, precision: str, folder: Path) -> tuple[Path, float]:
    """Compile a model for this CPU with an empty cache; give the `.rai` and the seconds."""
    from vermilion.api import compile_model

    artifact = folder / "model.rai"
    begin = time.perf_counter()
    compile_model(
        model, target="cpu", precision=precision, cache_dir=folder / "cache", output=artifact
    )
    return artifact, time.perf_counter() - begin


def _open_ours(request: Request) -> Opened:
    begin = time.perf_counter()
    from vermilion.runtime.session import Session
    from vermilion.version import VERSION

    imported = time.perf_counter()
    session = Session(request.model, threads=request.threads)
    ready = time.perf_counter()
    places = sorted({place.partition(": ")[2] for place in session.runs_on})
    return Opened(
        run=lambda inputs: session.run(None, inputs),
        output_names=tuple(output.name for output in session.get_outputs()),
        version=VERSION,
        runs_on="; ".join(places),
        import_s=imported - begin,
        load_s=ready - imported,
        placement=session.placement,
    )


def _open_ort(request: Request) -> Opened:
    begin = time.perf_counter()
    import onnxruntime as ort

    imported = time.perf_counter()
    session = ort_session(request)
    ready = time.perf_counter()
    provider = PROVIDERS[request.engine]
    return Opened(
        run=lambda inputs: session.run(None, inputs),
        output_names=tuple(output.name for output in session.get_outputs()),
        version=ort.__version__,
        runs_on="CPU" if provider == _CPU_PROVIDER else provider,
        import_s=imported - begin,
        load_s=ready - imported,
    )


def ort_session(request: Request, profile_prefix: Path | None = None) -> ort.InferenceSession:
    """Open ONNX Runtime as its own users do; with a prefix it writes a profile when it is told to.

    Not through `ir.execute`, which is set up to be a reference: a peer has workers that spin
    between runs.

    Raises: DeviceError where the provider that was asked for is not what runs.
    """
    import onnxruntime as ort

    if request.precision == "bf16":
        raise UnsupportedError(
            f"`{request.engine}` does not compute a float32 model in bf16",
            hint=f"to hold our bf16 against its fp32, write `--against {request.engine}@fp32`",
        )
    provider = PROVIDERS[request.engine]
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = request.threads
    if profile_prefix is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile_prefix)
    # A provider's name in the list of those available only says that the wheel was built with it,
    # and a session whose provider does not load runs on the CPU without a word.
    if provider not in ort.get_available_providers():
        raise DeviceError(
            f"ONNX Runtime {ort.__version__} was built without {provider}",
            hint="`vermilion doctor` says which wheel has it",
        )
    wanted = list(dict.fromkeys((provider, _CPU_PROVIDER)))
    session = ort.InferenceSession(request.model, options, providers=wanted)
    if provider not in session.get_providers():
        raise DeviceError(
            f"{provider} did not load; ONNX Runtime would have used the CPU instead",
            hint="`vermilion doctor` says which libraries are missing",
        )
    return session


# What OpenVINO may compute floats in, by our names; an int8 model keeps the rest in float32, as
# the other engines do.
OPENVINO_FLOATS = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}


def _open_openvino(request: Request) -> Opened:
    # Its package reports its use over the network unless told not to.
    os.environ.setdefault("OPENVINO_TELEMETRY_OPT_OUT", "1")
    begin = time.perf_counter()
    openvino = import_module("openvino")
    imported = time.perf_counter()
    core = openvino.Core()
    compiled = core.compile_model(
        request.model,
        "CPU",
        {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": OPENVINO_FLOATS[request.precision],
            "INFERENCE_NUM_THREADS": request.threads,
        },
    )
    infer = compiled.create_infer_request()
    ready = time.perf_counter()

    def run(inputs: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        # Without copies of inputs and outputs: the fastest way that it offers.
        found = infer.infer(dict(inputs), share_inputs=True, share_outputs=True)
        return [found[output] for output in compiled.outputs]

    return Opened(
        run=run,
        output_names=tuple(output.get_any_name() for output in compiled.outputs),
        version=str(openvino.__version__).partition("-")[0],
        runs_on="CPU",
        import_s=imported - begin,
        load_s=ready - imported,
    )


OPENERS: Mapping[str, Callable[[Request], Opened]] = {
    OURS: _open_ours,
    **dict.fromkeys(PROVIDERS, _open_ort),
    "openvino": _open_openvino,
}
