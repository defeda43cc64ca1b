"""The export itself: load → run → convert → check → write."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from vermilion.errors import OptionError, UnsupportedError
from vermilion.export.call import (
    Call,
    flat_module,
    match_inputs,
    parse_inputs,
    run_eagerly,
)
from vermilion.export.convert import TORCH_EXPORT, Converted, Job, conversions, convert_by
from vermilion.export.module import load_module, require_torch
from vermilion.files import check_writable, writing
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.measure import Agreement, agreement
from vermilion.progress import Progress, no_progress

if TYPE_CHECKING:
    import onnxruntime as ort

DEFAULT_OPSET = 17  # what the Ryzen AI documentation recommends
# The first that the exporter on `torch.export` writes without converting back.
_LATER_OPSET = 18
OPSETS = range(13, 24)

# Half precision keeps 11 bits, some 66 dB a rounding; a network of it agrees to above 40 dB, and
# a wrong operator is far below.
AGREES_DB = 40.0

# A protobuf message ends at 2 GiB; the rest of the graph needs room beside the weights.
EXTERNAL_DATA_BYTES = 1_800_000_000

# The check runs on numbers that the tracer has not seen, so that a frozen branch shows.
_TRACE_SEED, _CHECK_SEED = 0, 1_000

_STEPS = 4  # import, run in PyTorch, convert, check

_MAY_BE_FROZEN = (
    "the file is not right at other sizes than it was traced at: a size with a name may be a "
    "number in it; `--opset 18` goes by another exporter first"
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TensorFacts:
    """An input or output of the exported graph."""

    name: str
    data_type: str
    shape: tuple[int | str, ...]

    def as_json(self) -> dict[str, object]:
        """Return the keys that reports use for one tensor."""
        return {"name": self.name, "dtype": self.data_type, "shape": list(self.shape)}


@dataclass(frozen=True)
class ExportReport:
    """What was written, and how far it agrees with PyTorch on numbers it has not seen.

    `agreements` has a row an output that was compared; `notes` say what went another way: branches
    that tracing froze, inputs without influence, why an output was not compared.
    """

    output: Path
    opset: int
    exporter: str  # `torchscript` or `torch.export`
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]
    agreements: tuple[Agreement, ...]
    notes: tuple[str, ...]
    seconds: float

    @property
    def agrees(self) -> bool:
        """Whether every output was compared and is as PyTorch's, up to rounding."""
        return _agree(self.agreements, len(self.outputs))

    def as_json(self) -> dict[str, object]:
        """Return the keys of `vermilion export --json`."""
        return {
            "output": str(self.output),
            "opset": self.opset,
            "exporter": self.exporter,
            "inputs": [tensor.as_json() for tensor in self.inputs],
            "outputs": [tensor.as_json() for tensor in self.outputs],
            "agrees": self.agrees,
            "verification": {"outputs": [a.as_json() for a in self.agreements]},
            "notes": list(self.notes),
            "seconds": self.seconds,
        }


def export_model(
    spec: str,
    inputs: Sequence[str],
    output: str | Path,
    *,
    opset: int | None = None,
    progress: Progress = no_progress,
) -> ExportReport:
    """Export a PyTorch module, and check the result against PyTorch.

    Shapes are fixed but for sizes with names, which stay open: the result is then checked at two
    sizes.

    The file is written aside and renamed; weights over 1.8 GB go to `NAME.onnx.data` beside it.

    Args:
        spec: `package.module:factory` or `path/to/file.py:factory`; this imports and runs that
            code. The factory is a module, its class, or a function that returns one.
        inputs: a text for each input: `1x3x224x224`, `ids:1x128` or `ids:1x128:int64`; a size
            with a name stays open, and its number is an example: `ids:batch=2xlength=16:int64`.
        output: the ONNX file to write.
        opset: of the file, from 13 to 23; by default 17, or 18 where PyTorch gives a right file
            of that alone.
        progress: told of each step.

    Raises: OptionError, ModelError, UnsupportedError; DeviceError where PyTorch is missing.
    """
    start = time.perf_counter()
    path = _checked_output(Path(output), opset or DEFAULT_OPSET)
    specs = parse_inputs(inputs)
    require_torch()
    progress("export", 0, _STEPS)
    call = match_inputs(load_module(spec), specs)
    progress("export", 1, _STEPS)
    expected_names = tuple(run_eagerly(call, _TRACE_SEED))
    with _folder_beside(path) as folder:
        progress("export", 2, _STEPS)
        job = _job(call, expected_names, opset or DEFAULT_OPSET)
        later = None if opset else replace(job, opset=_LATER_OPSET)
        converted, agreements, notes = _right_one(call, job, later, Path(folder), progress)
        with writing(path, "the model"):
            _write(converted.model, path, Path(folder))
    progress("export", _STEPS, _STEPS)
    return ExportReport(
        output=path,
        opset=converted.model.opset_imports[""],
        exporter=converted.exporter,
        inputs=tuple(_facts(value) for value in converted.model.graph.inputs),
        outputs=tuple(_facts(value) for value in converted.model.graph.outputs),
        agreements=agreements,
        notes=(*converted.notes, *notes),
        seconds=time.perf_counter() - start,
    )


def _right_one(
    call: Call, job: Job, later: Job | None, folder: Path, progress: Progress
) -> tuple[Converted, tuple[Agreement, ...], tuple[str, ...]]:
    """Return what an exporter gave that agrees with PyTorch, else what the first one gave.

    `later` is the same at an opset that is gone to where the wanted one gives nothing right.
    """
    found = []
    for converted in _all_conversions(job, later, folder):
        progress("export", 3, _STEPS)
        agreements, notes = _check(call, converted.model)
        if _agree(agreements, len(converted.model.graph.outputs)):
            reached = converted.model.opset_imports[""]
            if reached != job.opset:
                notes = (*notes, f"opset {reached}: PyTorch gives nothing right of {job.opset}")
            return converted, agreements, notes
        found.append((converted, agreements, notes))
    converted, agreements, notes = found[0]
    return converted, agreements, (*notes, *([_MAY_BE_FROZEN] if call.open_sizes else []))


def _all_conversions(job: Job, later: Job | None, folder: Path) -> Iterator[Converted]:
    refused = None
    try:
        yield from conversions(job, folder)
    except UnsupportedError as error:
        refused = error
    if later is not None:
        try:
            yield convert_by([(TORCH_EXPORT, later.opset)], later, folder)
            refused = None
        except UnsupportedError:
            pass  # what is said of the wanted opset names both exporters
    if refused is not None:
        raise refused


def _agree(agreements: Sequence[Agreement], outputs: int) -> bool:
    compared = len(agreements) == outputs
    return compared and all(a.sqnr_db >= AGREES_DB and not a.has_nan for a in agreements)


def _checked_output(path: Path, opset: int) -> Path:
    if opset not in OPSETS:
        raise OptionError(
            f"opset {opset} is not from {OPSETS[0]} to {OPSETS[-1]}",
            where="--opset",
            hint=f"{DEFAULT_OPSET} is what NPUs are documented for",
        )
    if path.suffix != ".onnx":
        raise OptionError(f"the output `{path}` does not end in .onnx", hint="name it NAME.onnx")
    check_writable(path)
    return path


def _folder_beside(path: Path) -> tempfile.TemporaryDirectory[str]:
    """Make a folder on the same file system, so that a rename puts the result in its place."""
    return tempfile.TemporaryDirectory(
        dir=path.parent, prefix=f".{path.name}.", ignore_cleanup_errors=True
    )


def _job(call: Call, output_names: tuple[str, ...], opset: int) -> Job:
    import torch

    call = _no_ones(call)
    tensors = call.tensors(_TRACE_SEED)
    with torch.no_grad():
        module = flat_module(call, call(tensors))
    names = tuple(spec.name for spec in call.inputs)
    axes = tuple(spec.open_axes for spec in call.inputs)
    return Job(module, tensors, names, output_names, opset, axes)


def _no_ones(call: Call) -> Call:
    """Return the call with open sizes of 2 for 1, which `torch.export` would make a number."""
    sizes = {name: max(2, size) for name, size in call.open_sizes.items()}
    if sizes == call.open_sizes:
        return call
    wider = call.at(sizes)
    try:
        run_eagerly(wider, _TRACE_SEED)
    except OptionError:
        return call
    return wider


def _check(call: Call, model: ir.Model) -> tuple[tuple[Agreement, ...], tuple[str, ...]]:
    """Compare with PyTorch; where ONNX Runtime cannot run it, say so in a note.

    With open sizes at two of each: what is said of an output is the worse.
    """
    kept = {value.name for value in model.graph.inputs}
    notes = [
        f"input `{spec.name}` has no influence and is not in the graph"
        for spec in call.inputs
        if spec.name not in kept
    ]
    found: dict[str, Agreement] = {}
    calls = (call, *_at_other_sizes(call, notes))
    shapes: dict[str, list[tuple[int, ...]]] = {}
    try:
        session = open_session(model, quiet=True)
        for one in calls:
            for name, said in _compared(one, session, kept, shapes).items():
                if isinstance(said, str):
                    notes.append(said)
                    found.pop(name, None)
                elif name not in found or said.sqnr_db < found[name].sqnr_db:
                    found[name] = said
    except UnsupportedError as error:
        return (), (*notes, f"not compared with PyTorch: {error.message}")
    _open_what_differs(model, [one.open_sizes for one in calls], shapes)
    return tuple(found.values()), tuple(dict.fromkeys(notes))


def _at_other_sizes(call: Call, notes: list[str]) -> list[Call]:
    """Return the call at other open sizes that PyTorch runs: one more of each, else twice."""
    if not call.open_sizes:
        return []
    given = call.open_sizes
    for sizes in ({n: size + 1 for n, size in given.items()}, {n: 2 * given[n] for n in given}):
        other = call.at(sizes)
        try:
            run_eagerly(other, _CHECK_SEED)
        except OptionError:
            continue
        return [other]
    notes.append("compared at the given sizes alone: PyTorch runs neither one more nor twice")
    return []


def _open_what_differs(
    model: ir.Model,
    sizes: Sequence[Mapping[str, int]],
    shapes: Mapping[str, Sequence[tuple[int, ...]]],
) -> None:
    """Open sizes of outputs that are declared as numbers and differ from run to run.

    PyTorch's exporters declare the traced length for what follows an LSTM, inside the graph too:
    nothing that they say of inner shapes is kept then.
    """
    is_wrong = False
    for value in model.graph.outputs:
        seen = shapes.get(str(value.name), ())
        if value.shape is None or any(len(one) != len(value.shape) for one in seen):
            continue
        for axis, declared in enumerate(value.shape):
            own = [one[axis] for one in seen]
            if isinstance(declared, int) and any(size != declared for size in own):
                same = [n for n in sizes[0] if [each[n] for each in sizes] == own]
                name = same[0] if same else f"{value.name}_{axis}"
                value.shape[axis] = ir.SymbolicDim(name)
                is_wrong = True
    for inner in (value for node in model.graph for value in node.outputs) if is_wrong else ():
        if not inner.is_graph_output():
            inner.shape = None


def _compared(
    call: Call,
    session: ort.InferenceSession,
    kept: Set[str | None],
    shapes: dict[str, list[tuple[int, ...]]],
) -> dict[str, Agreement | str]:
    """Return how each output agrees, or why it cannot be compared; its shape goes to `shapes`."""
    specs_and_tensors = zip(call.inputs, call.tensors(_CHECK_SEED), strict=True)
    feeds = {spec.name: tensor.numpy() for spec, tensor in specs_and_tensors if spec.name in kept}
    expected = run_eagerly(call, _CHECK_SEED)
    got = run_session(session, feeds)
    found: dict[str, Agreement | str] = {}
    for name, tensor in expected.items():
        reference, other = tensor.numpy(), got[name]
        shapes.setdefault(name, []).append(other.shape)
        if reference.shape != other.shape:
            found[name] = f"output `{name}` is {other.shape}, PyTorch's is {reference.shape}"
            continue
        found[name] = agreement(name, reference, other)
    return found


def _write(model: ir.Model, path: Path, folder: Path) -> None:
    staged = folder / path.name
    weights_bytes = sum(
        value.const_value.nbytes
        for value in model.graph.initializers.values()
        if value.const_value is not None
    )
    if weights_bytes <= EXTERNAL_DATA_BYTES:
        ir.save(model, staged)
    else:
        data = f"{path.name}.data"
        ir.save(model, staged, external_data=data)
        (folder / data).replace(path.parent / data)
    staged.replace(path)
    _log.debug("wrote %s with %d bytes of weights", path, weights_bytes)


def _facts(value: ir.Value) -> TensorFacts:
    shape = () if value.shape is None else value.shape
    data_type = "" if value.dtype is None else value.dtype.numpy().name
    sizes = tuple(size if isinstance(size, int) else str(size) for size in shape)
    return TensorFacts(value.name or "", data_type, sizes)
