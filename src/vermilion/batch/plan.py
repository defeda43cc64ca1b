"""From a request to a job: the model compiled, the inputs listed, the batch settled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from errno import ENOENT
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vermilion.batch.devices import Kind
from vermilion.batch.job import (
    Job,
    Program,
    Range,
    Slot,
    Source,
    fingerprint,
    range_length,
    seen,
)
from vermilion.batch.source import Reader, count_inputs, find_source
from vermilion.errors import OptionError, UnsupportedError
from vermilion.files import not_there, resolved
from vermilion.hardware.targets.find import find_target
from vermilion.ir.element_types import numpy_type
from vermilion.ir.pictures import PictureOptions
from vermilion.progress import Progress, no_progress
from vermilion.runtime.artifact import open_artifact
from vermilion.runtime.manifest import TensorRecord
from vermilion.runtime.placement_line import bundle_line

if TYPE_CHECKING:
    import onnx_ir as ir

# Taken where the model leaves its batch open and the user names none.
BATCH = 8

# What the outputs of a range may take in a worker's memory.
_RANGE_BYTES = 64 << 20

Dims = Mapping[str, int | tuple[int, ...]]


@dataclass(frozen=True)
class Request:
    """What is to be computed. `as_it_is` runs an ONNX file in ONNX Runtime without compiling it."""

    model: Path
    input: Path
    output: Path
    target: str = "cpu"
    precision: str = "auto"
    as_it_is: bool = False
    dims: Dims = field(default_factory=dict)
    batch: int | None = None
    pictures: PictureOptions = field(default_factory=PictureOptions)
    cache_dir: Path | None = None


@dataclass(frozen=True)
class Planned:
    """A job that can be handed out, and the kind of device that its program runs on."""

    job: Job
    kind: Kind
    placement: str = ""  # how many operators are native

    def for_devices(self, count: int) -> Job:
        """Return the job in ranges that suit so many devices."""
        most = min(self.job.range_length, range_length(self.job.total, self.job.batch, count))
        return replace(self.job, range_length=most, devices=count)


def plan(request: Request, *, progress: Progress = no_progress) -> Planned:
    """Plan a job; compiles the model where it is an ONNX file.

    Raises: VermilionError of the kind that says who can fix it.
    """
    if not request.model.exists():
        raise not_there(request.model, FileNotFoundError(ENOENT, ""))
    if request.batch is not None and request.batch < 1:
        raise OptionError(f"a batch of {request.batch} holds nothing", where="--batch")
    if request.model.is_dir() or request.model.suffix == ".rai":
        return _plan_bundle(request)
    return _plan_model(request, progress)


def _plan_bundle(request: Request) -> Planned:
    if request.dims or request.as_it_is:
        raise OptionError(
            "the model is compiled already: its sizes and its engine are settled",
            where="--dim" if request.dims else "--ort",
            hint="give the ONNX file instead",
        )
    # Only what describes it is read here; workers compare the rest with the digests.
    reader = open_artifact(request.model, verify="as read")
    manifest = reader.manifest
    slots = tuple(_slot(record) for record in manifest.inputs)
    batch = _settled_batch(slots, request.batch)
    program = Program("bundle", str(resolved(request.model)))
    source = find_source(request.input, slots, request.pictures)
    job = _planned_job(request, program, source, slots, manifest.outputs, batch, manifest.digest)
    return Planned(job, find_target(manifest.target).kind, bundle_line(reader))


def _plan_model(request: Request, progress: Progress) -> Planned:
    # The compiler's libraries take as long to load as a small job takes to compute.
    from vermilion.api import compile_model
    from vermilion.ir.load import load_model
    from vermilion.ir.passes.bind_dimensions import bind_dimensions
    from vermilion.runtime.digest import model_digest

    model = load_model(request.model)
    named = {name: size for name, size in request.dims.items() if isinstance(size, int)}
    whole = {name: size for name, size in request.dims.items() if not isinstance(size, int)}
    slots = _model_slots(bind_dimensions(model, {**named, **whole}))
    batch = _settled_batch(slots, request.batch)
    source = find_source(request.input, slots, request.pictures)
    shapes = _row_shapes(source, slots)
    # Every size is bound: what is compiled then has no open dimension left.
    dims: Dims = {**named, **{name: (batch, *row) for name, row in shapes.items()}}
    bound = bind_dimensions(model, dims)
    slots = _model_slots(bound)
    if request.as_it_is:
        program = Program("onnx", str(resolved(request.model)), dims)
        outputs, digest = _session_outputs(bound), model_digest(model)
        kind: Kind = "cpu"
        placement = ""
    else:
        compiled = compile_model(
            request.model,
            target=request.target,
            precision=request.precision,
            dims=dims,
            cache_dir=request.cache_dir,
            progress=progress,
        )
        program = Program("bundle", str(resolved(compiled.artifact)))
        outputs = open_artifact(compiled.artifact).manifest.outputs
        digest, kind = compiled.digest, compiled.target.kind
        placement = compiled.placement
    job = _planned_job(request, program, source, slots, outputs, batch, digest)
    return Planned(job, kind, placement)


def _session_outputs(model: ir.Model) -> tuple[TensorRecord, ...]:
    """Return the outputs as the model declares them; fails where ONNX Runtime does not run it."""
    from vermilion.ir.execute import open_session
    from vermilion.runtime.write import tensor_record

    open_session(model, quiet=True)
    return tuple(tensor_record(value) for value in model.graph.outputs)


def _model_slots(model: ir.Model) -> tuple[Slot, ...]:
    from vermilion.quantize.feeds import input_slots

    return tuple(Slot(slot.name, slot.dtype, slot.shape) for slot in input_slots(model))


def _row_shapes(source: Source, slots: Sequence[Slot]) -> dict[str, tuple[int, ...]]:
    """Return the shape of one input by name, as the first one that can be read has it."""
    reader = Reader(source, slots)
    reason = ""
    for at in range(count_inputs(source, slots)):
        read = reader.read(Range(at, at + 1))
        if read.live:
            return {name: array.shape[1:] for name, array in read.arrays.items()}
        reason = reason or read.failed[at]
    raise OptionError("no input can be read", where=source.folder, hint=reason)


def _planned_job(
    request: Request,
    program: Program,
    source: Source,
    slots: tuple[Slot, ...],
    outputs: Sequence[TensorRecord],
    batch: int,
    digest: str,
) -> Job:
    """Return the job of a request whose model is settled; `digest` stands for the model.

    Raises: OptionError where there are no inputs, UnsupportedError for outputs without rows.
    """
    total = count_inputs(source, slots)
    if not total:
        raise OptionError(f"`{request.input}` holds no inputs", where="--input")
    for record in outputs:
        _check_output(record, batch)
    files = seen(Path(source.folder), source.files)
    return Job(
        program=program,
        source=source,
        slots=slots,
        outputs=tuple(record.name for record in outputs),
        batch=batch,
        total=total,
        range_length=_longest_range(outputs, batch),
        devices=1,
        fingerprint=fingerprint(
            digest, program.kind, sorted(program.dims.items()), batch, files, repr(source.pictures)
        ),
    )


def _slot(record: TensorRecord) -> Slot:
    dtype = numpy_type(record.type)
    if dtype is None:
        raise UnsupportedError(
            f"input `{record.name}` is {record.type}, which no array file holds",
            hint="give the model inputs of a plain number type",
        )
    if record.shape is None:
        return Slot(record.name, dtype, None)
    lengths = tuple(size if isinstance(size, int) else None for size in record.shape)
    return Slot(record.name, dtype, lengths)


def _settled_batch(slots: Sequence[Slot], wanted: int | None) -> int:
    """Return the batch: the model's own where it is fixed.

    Raises: OptionError where the model's inputs have no batch axis, or another one.
    """
    if not slots:
        raise OptionError("the model has no inputs: there is nothing to compute it for")
    fixed: dict[int, str] = {}
    for slot in slots:
        if slot.shape == ():
            raise OptionError(
                f"input `{slot.name}` is a single number: it has no axis for a batch",
                hint="give the model inputs whose first axis is the batch",
            )
        if slot.shape is not None and slot.shape[0] is not None:
            fixed[slot.shape[0]] = slot.name
    if len(fixed) > 1:
        listed = ", ".join(f"`{name}` {size}" for size, name in fixed.items())
        raise OptionError(
            f"the inputs have first axes of different sizes: {listed}",
            hint="the first axis of every input is taken for the batch",
        )
    if not fixed:
        return wanted or BATCH
    (own,) = fixed
    if wanted not in (None, own):
        raise OptionError(
            f"the model's batch is {own}, not {wanted}",
            where="--batch",
            hint="leave the option out, or export the model with a dynamic batch",
        )
    return own


def _check_output(record: TensorRecord, batch: int) -> None:
    """Refuse an output that is known to have no row for each input."""
    if batch == 1 or record.shape is None:
        return
    first = record.shape[0] if record.shape else 0
    if isinstance(first, int) and first != batch:
        raise UnsupportedError(
            f"output `{record.name}` has no row for each input of a batch of {batch}: its shape "
            f"is {'×'.join(map(str, record.shape)) or 'scalar'}",
            hint="compute one at a time: `--batch 1`",
        )


def _longest_range(outputs: Sequence[TensorRecord], batch: int) -> int:
    """Return the inputs whose outputs a worker may hold: whole batches, one at least."""
    row_bytes = 0
    for record in outputs:
        dtype = numpy_type(record.type) or np.dtype(np.float32)
        sizes = [size for size in (record.shape or ())[1:] if isinstance(size, int)]
        row_bytes += dtype.itemsize * int(np.prod(sizes, dtype=np.int64))
    return max(1, _RANGE_BYTES // max(1, row_bytes) // batch) * batch
