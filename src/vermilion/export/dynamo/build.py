"""From a graph of `torch.compile` and its first arguments to a program, compiled or found.

Which compiled model belongs to a graph is kept in the cache, so that a second process neither
exports nor proves anything. What is compiled anew is held against PyTorch on the first arguments.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vermilion.api import compile_model
from vermilion.errors import Refusal, VermilionError
from vermilion.export.dynamo.cut import (
    cut,
    number_positions,
    with_tensors_for_numbers,
)
from vermilion.export.dynamo.facts import GraphFacts, graph_facts
from vermilion.export.dynamo.graph_digest import graph_digest
from vermilion.export.dynamo.open_sizes import NOTHING_OPEN, OpenSizes, with_sizes_of_tensors
from vermilion.export.dynamo.options import TorchOptions
from vermilion.export.dynamo.program import Built, Constants, Program, to_numpy
from vermilion.export.dynamo.to_onnx import EXPORTERS, Attempts, to_onnx
from vermilion.export.model import AGREES_DB
from vermilion.ir.measure import EXACT_DB, agreement
from vermilion.runtime.artifact import ArtifactReader, open_artifact
from vermilion.runtime.cache import Cache
from vermilion.runtime.placement_line import bundle_line
from vermilion.runtime.report import read_report
from vermilion.runtime.session import Session
from vermilion.store.entry import EntryWriter
from vermilion.store.namespaces import TORCH_GRAPHS

if TYPE_CHECKING:
    import torch

# bfloat16 keeps 8 bits, 45 dB after a few roundings, and a deep network of them less, in PyTorch's
# own kernels too; a wrong operator leaves below 15.
BFLOAT16_DB = 25.0

_KEY_DIGITS = 32  # 128 bits name a folder


@dataclass(frozen=True)
class _Compiled:
    """A compiled model and the outputs of the graph that it computes."""

    facts: GraphFacts
    reader: ArtifactReader | None = None
    sqnr_db: float | None = None
    known: bool = False
    digest: str = ""


@dataclass(frozen=True)
class _Job:
    """A graph at one size, or at all sizes of its open dimensions."""

    module: torch.fx.GraphModule
    arguments: tuple[Any, ...]
    constants: tuple[int, ...]  # positions of tensors that are part of the program
    options: TorchOptions
    sizes: OpenSizes = NOTHING_OPEN

    @property
    def inputs(self) -> dict[str, int]:
        """The positions of the inputs of the program, by name."""
        import torch

        return {
            f"input_{position}": position
            for position, argument in enumerate(self.arguments)
            if isinstance(argument, torch.Tensor) and position not in self.constants
        }

    @property
    def precision(self) -> str:
        """What is computed in: bfloat16 where tensors are, unless the user says otherwise."""
        import torch

        kinds = {one.dtype for one in self.arguments if isinstance(one, torch.Tensor)}
        if self.options.precision == "auto" and torch.bfloat16 in kinds:
            return "bf16"
        return self.options.precision

    def program(self, found: _Compiled) -> Program:
        """Return the program of a compiled model."""
        import torch

        threads = self.options.threads or torch.get_num_threads()
        others = found.facts.others
        return Program(
            found.facts,
            Constants({position: self.arguments[position] for position in self.constants}),
            None if found.reader is None else Session(found.reader, threads=threads),
            self.inputs,
            cut(self.module, {}, others) if others else None,
        )


def build_program(
    module: torch.fx.GraphModule,
    arguments: Sequence[Any],
    constants: Collection[int],
    options: TorchOptions,
    sizes: OpenSizes = NOTHING_OPEN,
    exporters: Sequence[Attempts] = EXPORTERS,
) -> Built | Refusal:
    """Compile a graph for these arguments, or find it compiled; refuse what PyTorch has to run.

    With open `sizes`, for all that are like these arguments but for those sizes.
    """
    begin = time.perf_counter()
    job = _Job(module, tuple(arguments), tuple(sorted(constants)), options, sizes)
    try:
        built = _built(job, exporters)
    except VermilionError as error:
        return Refusal(error.message, hint=error.hint)
    if isinstance(built, Refusal):
        return built
    program, found = built
    seconds = time.perf_counter() - begin
    if found.reader is None:
        return Built(program, seconds=seconds)
    summary = read_report(found.reader).summary
    return Built(
        program,
        operators=summary.operators,
        native=summary.offloaded_operators,
        artifact=found.reader.path,
        cache_hit=found.known,
        sqnr_db=found.sqnr_db,
        seconds=seconds,
        placement=bundle_line(found.reader),
        digest=found.digest,
    )


def differs(
    module: torch.fx.GraphModule, arguments: Sequence[Any], built: Built, options: TorchOptions
) -> Refusal | None:
    """Return why a program's outputs are not PyTorch's at other sizes; forget about it then."""
    job = _Job(module, tuple(arguments), built.program.constants.positions, options)
    try:
        agreed = _agreement(job, built.program)
    except VermilionError as error:
        agreed = Refusal(error.message, hint=error.hint)
    if not isinstance(agreed, Refusal):
        return None
    Cache(options.cache_dir).store.remove(TORCH_GRAPHS, built.digest[:_KEY_DIGITS])
    return agreed


def _built(job: _Job, attempts: Sequence[Attempts]) -> tuple[Program, _Compiled] | Refusal:
    cache = Cache(job.options.cache_dir)
    numbers = [job.arguments[position].item() for position in number_positions(job.module)]
    settings = {**job.options.key(), "precision": job.precision, "numbers": numbers}
    digest = graph_digest(job.module, job.arguments, job.constants, settings, job.sizes)
    if digest and (known := _known(cache, digest)) is not None:
        return job.program(known), known
    module = with_tensors_for_numbers(job.module, job.arguments)
    found = graph_facts(module, job.arguments)
    if isinstance(found, Refusal):
        return found
    if not found.computed:
        made = _Compiled(found)
        return job.program(made), made
    agreed: float | Refusal = 0.0
    for number, exporters in enumerate(attempts):  # each has faults that the other has not
        try:
            with tempfile.TemporaryDirectory(prefix="vermilion-") as folder:
                reader = _compile(job, module, found, cache, Path(folder), exporters)
        except VermilionError:
            if number == len(attempts) - 1 or not job.sizes:
                raise
            continue
        program = job.program(_Compiled(found, reader))
        agreed = _agreement(job, program)
        if not isinstance(agreed, Refusal):
            made = _Compiled(found, reader, agreed, digest=digest)
            if digest:
                _keep(cache, digest, made, reader)
            return program, made
    assert isinstance(agreed, Refusal), "no program agrees"
    return agreed


def _compile(
    job: _Job,
    module: torch.fx.GraphModule,
    facts: GraphFacts,
    cache: Cache,
    folder: Path,
    exporters: Attempts,
) -> ArtifactReader:
    import torch

    inputs = job.inputs
    fixed = {
        position: argument.detach() if isinstance(argument, torch.Tensor) else argument
        for position, argument in enumerate(job.arguments)
        if position not in inputs.values()
    }
    needed = cut(with_sizes_of_tensors(module, job.sizes), fixed, facts.computed)
    tensors = [job.arguments[position] for position in inputs.values()]
    axes = [job.sizes.axes.get(position, {}) for position in inputs.values()] if job.sizes else []
    model = to_onnx(needed, tensors, list(inputs), len(facts.computed), folder, exporters, axes)
    compiled = compile_model(
        model, precision=job.precision, winograd=job.options.winograd, cache_dir=cache.root
    )
    return open_artifact(compiled.artifact, verify=False)


def _agreement(job: _Job, program: Program) -> float | Refusal:
    """Hold a program against PyTorch on the first arguments; return the worst output's SQNR."""
    import torch

    with torch.no_grad():
        expected = list(job.module(*job.arguments))
        found = program(job.arguments)
    worst = EXACT_DB
    for number, (one, other) in enumerate(zip(expected, found, strict=True)):
        if not isinstance(one, torch.Tensor) or not one.numel():
            continue
        if one.shape != other.shape or one.dtype != other.dtype:
            words = f"{tuple(other.shape)} {other.dtype}, not {tuple(one.shape)} {one.dtype}"
            return Refusal(f"output {number} of the compiled graph is {words}")
        close = agreement(str(number), to_numpy(one), to_numpy(other))
        bound = _bound(one.dtype, job.precision)
        if close.sqnr_db < bound or close.has_nan:
            return Refusal(
                f"output {number} of the compiled graph is {close.sqnr_db:.1f} dB from PyTorch's "
                f"on the first inputs, below {bound:g}",
            )
        worst = min(worst, close.sqnr_db)
    return worst


def _bound(data_type: torch.dtype, precision: str) -> float:
    if not data_type.is_floating_point:
        return EXACT_DB
    return BFLOAT16_DB if precision == "bf16" else AGREES_DB


def _known(cache: Cache, digest: str) -> _Compiled | None:
    """Return the compiled model that belonged to a graph before, None where it is not there."""
    entry = cache.store.find(TORCH_GRAPHS, digest[:_KEY_DIGITS])
    if entry is None or entry.about["digest"] != digest:
        return None
    bundle = cache.find(entry.about["bundle"])
    if bundle is None:  # it was pruned: what is kept of it is made again
        cache.store.remove(TORCH_GRAPHS, digest[:_KEY_DIGITS])
        return None
    rows = entry.about["outputs"]
    facts = GraphFacts(tuple(rows["places"]), tuple(rows["computed"]), tuple(rows["data_types"]))
    reader = open_artifact(bundle, verify=False)
    return _Compiled(facts, reader, entry.about["sqnr_db"], known=True, digest=digest)


def _keep(cache: Cache, digest: str, made: _Compiled, reader: ArtifactReader) -> None:
    def about(_: EntryWriter) -> Mapping[str, Any]:
        return {
            "digest": digest,
            "bundle": reader.manifest.cache_digest,
            "sqnr_db": made.sqnr_db,
            "outputs": {
                "places": made.facts.places,
                "computed": made.facts.computed,
                "data_types": made.facts.data_types,
            },
        }

    cache.store.get_or_make(TORCH_GRAPHS, digest[:_KEY_DIGITS], about)
