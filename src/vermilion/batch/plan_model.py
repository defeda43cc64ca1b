"""The part of planning that needs the compiler: an ONNX file, compiled or opened as it is."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from vermilion.api import compile_model
from vermilion.batch.devices import Kind
from vermilion.batch.job import Program, Range, Slot, Source
from vermilion.batch.plan import Dims, Planned, Request, planned_job, settled_batch
from vermilion.batch.source import Reader, count_inputs, find_source
from vermilion.errors import OptionError
from vermilion.ir.execute import open_session
from vermilion.ir.load import load_model
from vermilion.ir.passes.bind_dimensions import bind_dimensions
from vermilion.progress import Progress
from vermilion.quantize.feeds import input_slots
from vermilion.runtime.artifact import open_artifact
from vermilion.runtime.cache import model_digest
from vermilion.runtime.manifest import TensorRecord
from vermilion.runtime.write import tensor_record


def plan_model(request: Request, progress: Progress) -> Planned:
    """Plan a job for an ONNX file.

    Raises: VermilionError of the kind that says who can fix it.
    """
    model = load_model(request.model)
    named = {name: size for name, size in request.dims.items() if isinstance(size, int)}
    whole = {name: size for name, size in request.dims.items() if not isinstance(size, int)}
    slots = _slots(bind_dimensions(model, {**named, **whole}))
    batch = settled_batch(slots, request.batch)
    source = find_source(request.input, slots, request.pictures)
    shapes = _row_shapes(source, slots)
    # Every size is bound: what is compiled then has no open dimension left.
    dims: Dims = {**named, **{name: (batch, *row) for name, row in shapes.items()}}
    bound = bind_dimensions(model, dims)
    slots = _slots(bound)
    if request.as_it_is:
        program = Program("onnx", str(request.model.resolve()), dims)
        outputs, digest = _session_outputs(bound), model_digest(model)
        kind: Kind = "cpu"
    else:
        compiled = compile_model(
            request.model,
            target=request.target,
            precision=request.precision,
            dims=dims,
            cache_dir=request.cache_dir,
            progress=progress,
        )
        program = Program("bundle", str(compiled.artifact.resolve()))
        outputs = open_artifact(compiled.artifact).manifest.outputs
        digest, kind = compiled.digest, compiled.target.kind
    return Planned(planned_job(request, program, source, slots, outputs, batch, digest), kind)


def _session_outputs(model: ir.Model) -> tuple[TensorRecord, ...]:
    """Return the outputs as the model declares them; fails where ONNX Runtime does not run it."""
    open_session(model, quiet=True)
    return tuple(tensor_record(value) for value in model.graph.outputs)


def _slots(model: ir.Model) -> tuple[Slot, ...]:
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
