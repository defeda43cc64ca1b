"""The path: load → simplify → place → compile → prove → save, one line a stage."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from vermilion.backends import backend
from vermilion.backends.base import Availability, Backend, CompileOptions, Part
from vermilion.backends.npu_model import predict_ms
from vermilion.backends.vitisai.backend import device_versions
from vermilion.codegen.isa import isa_of
from vermilion.errors import OptionError, Refusal, UnsupportedError, VermilionError
from vermilion.hardware.targets.find import find_target
from vermilion.hardware.targets.target import Target
from vermilion.ir.execute import complete_types
from vermilion.ir.load import load_model
from vermilion.ir.numbers import number_format
from vermilion.ir.passes.bind_dimensions import Dimensions, bind_dimensions
from vermilion.ir.passes.fixes import fix_simplified
from vermilion.ir.passes.pipeline import simplify
from vermilion.ir.passes.report import PassStep
from vermilion.partition.place import Placement, plan, settle
from vermilion.progress import Progress, no_progress
from vermilion.runtime.artifact import SUMMARY_TEXT_FILE
from vermilion.runtime.cache import Cache, cache_digest, model_digest
from vermilion.runtime.gate import OffloadGate
from vermilion.runtime.manifest import tool_versions
from vermilion.runtime.prove import WrongNumbersError, prove
from vermilion.runtime.report import Report, read_report
from vermilion.runtime.session import Session
from vermilion.runtime.summarize import summarize
from vermilion.runtime.write import ArtifactContent, CompiledPart, pack, write_artifact
from vermilion.version import code_digest

# Which backend compiles for a kind of target, best first; the first that is usable is taken.
_BACKENDS = {"cpu": ("native", "ort"), "npu": ("vitisai", "npu_model")}
_CPU_BACKEND = "ort"
# Keeps no part that was not seen to run on the device.
_SEEN_TO_RUN = "vitisai"

PRECISIONS = ("fp32", "bf16", "int8")


@dataclass(frozen=True)
class Compiled:
    """A compiled model: where it lies and what became of every node."""

    artifact: Path
    cache_dir: Path
    cache_key: str
    digest: str
    cache_hit: bool
    cache_reason: str
    seconds: float
    target: Target
    availability: Availability
    report: Report

    @property
    def offload_is(self) -> str:
        """What `offloaded` means here: `ran` on the device, `modelled`, or `compiled`."""
        if self.target.kind == "cpu":
            return "compiled"
        return "modelled" if self.availability.reason else "ran"

    @property
    def summary_path(self) -> Path:
        """The summary in the vendor's text form, in the cache folder."""
        return self.cache_dir / self.cache_key / SUMMARY_TEXT_FILE

    def session(self, *, threads: int = 0) -> Session:
        """Open it for running."""
        return Session(self.artifact, threads=threads)


def compile_model(
    model: str | os.PathLike[str] | ir.Model,
    *,
    target: str = "cpu",
    precision: str = "auto",
    dims: Dimensions | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_key: str | None = None,
    output: str | os.PathLike[str] | None = None,
    min_offload: str | None = None,
    fix: bool = False,
    winograd: bool = True,
    dump: str | os.PathLike[str] | None = None,
    progress: Progress = no_progress,
) -> Compiled:
    """Compile a model for a target, or find it compiled in the cache.

    Args:
        model: an ONNX file, or a graph in memory.
        target: what to compile for; `vermilion devices --targets` lists them.
        precision: `fp32`, `bf16` or `int8` on a CPU target; `auto` computes in the model's own
            number format.
        dims: values for symbolic dimensions (`{"batch": 1}`) or whole inputs.
        cache_dir: folder of compiled models; the user's cache folder by default.
        cache_key: name of the folder in it; the digest of all that matters by default.
        output: also write everything as one file, NAME.rai.
        min_offload: a gate, `gops=95%` or `operators=90%`.
        fix: for an NPU, also rewrite what it does not take, where the outputs stay the same.
        winograd: compute 3×3 convolutions with fewer multiplications where that is faster.
        dump: a folder for kernels, IR and assembly of generated parts; compiles anew.
        progress: told of each step.

    Raises: VermilionError of the kind that says who can mend it.
    """
    begin = time.perf_counter()
    gate = OffloadGate.parse(min_offload) if min_offload else None
    chosen = find_target(target)
    device_backend, cpu_backend, availability = backends_for(chosen)
    options = CompileOptions(
        precision=checked_precision(precision, chosen),
        winograd=winograd,
        dump=None if dump is None else Path(dump),
    )
    fix = fix and chosen.kind == "npu"
    rai = _rai_path(output)
    source = load_model(model) if not isinstance(model, ir.Model) else model
    label = str(Path(model).resolve()) if not isinstance(model, ir.Model) else "(in memory)"
    parts = _cache_parts(source, chosen, device_backend, dims, options)
    parts["fix"] = str(fix)
    digest = cache_digest(parts)
    cache = Cache(cache_dir)

    request = _Request(
        source, label, chosen, (device_backend, cpu_backend), options, dims or {}, fix, parts
    )

    def build(folder: Path) -> None:
        _build(request, folder, progress)

    if options.dump is not None:
        cache.forget(cache_key or digest)
    entry = cache.get_or_build(digest, cache_key, build, parts=parts)
    report = read_report(entry.open())
    if gate is not None:
        gate.check(report.summary, ran=device_backend.name == _SEEN_TO_RUN)
    if rai is not None:
        pack(entry.path, rai)
    return Compiled(
        artifact=rai or entry.path,
        cache_dir=cache.root,
        cache_key=entry.key,
        digest=digest,
        cache_hit=entry.hit,
        cache_reason=entry.reason,
        seconds=time.perf_counter() - begin,
        target=chosen,
        availability=availability,
        report=report,
    )


def _pass_row(step: PassStep) -> dict[str, object]:
    refusals = [{"where": where, "reason": r.reason, "hint": r.hint} for where, r in step.refusals]
    return {"name": step.name, "fired": step.fired, "refusals": refusals}


@dataclass(frozen=True)
class _Request:
    """Everything that a compilation starts from."""

    source: ir.Model
    label: str
    target: Target
    backends: tuple[Backend, Backend]
    options: CompileOptions
    dims: Dimensions
    fix: bool
    cache_parts: Mapping[str, str]


def _build(request: _Request, folder: Path, progress: Progress) -> None:
    """Walk the path: bind → simplify → place → compile → prove → write."""
    bound = bind_dimensions(request.source, request.dims)
    simplified = simplify(bound, progress=progress)
    if request.fix:
        simplified = fix_simplified(simplified, request.target.limits.max_batch, progress)
    complete_types(simplified.model)
    with tempfile.TemporaryDirectory(prefix="vermilion-", ignore_cleanup_errors=True) as scratch:
        placement, parts, verification, notes = _compile_and_prove(
            request, bound, simplified.model, Path(scratch), progress
        )
        digest = cache_digest(request.cache_parts)
        report = Report(
            summary=summarize(simplified.model, placement, request.label, digest),
            nodes=tuple(node.as_json() for node in placement.nodes),
            verification=verification,
            passes=tuple(_pass_row(step) for step in simplified.steps),
            predicted_ms=predicted_ms(simplified.model, placement),
            notes=notes,
        )
        content = ArtifactContent(
            model=simplified.model,
            parts=parts,
            target=request.target.name,
            options={"precision": request.options.precision},
            cache_parts=request.cache_parts,
            summary=report.summary,
            nodes=report.nodes,
            extra=report.extra(),
        )
        write_artifact(folder, content)


def _compile_and_prove(
    request: _Request, bound: ir.Model, model: ir.Model, scratch: Path, progress: Progress
) -> tuple[Placement, tuple[CompiledPart, ...], tuple[Mapping[str, object], ...], tuple[str, ...]]:
    """Compile and prove; where generated code is wrong, ONNX Runtime takes all, and a note says so.

    Nothing is handed out whose numbers are not the model's.
    """
    target, (device_backend, cpu_backend) = request.target, request.backends
    placement, parts = _place_and_compile(
        model, target, request.backends, request.options, scratch, progress
    )
    try:
        return placement, parts, prove(bound, parts, target, progress), ()
    except WrongNumbersError as error:
        if target.kind != "cpu" or device_backend is cpu_backend:
            raise
        note = f"generated code was left out: {error.message}"
    placement, parts = _place_and_compile(
        model, target, (cpu_backend, cpu_backend), request.options, scratch / "again", progress
    )
    return placement, parts, prove(bound, parts, target, progress), (note,)


def backends_for(target: Target) -> tuple[Backend, Backend, Availability]:
    """Give what compiles for a target, what takes the rest on the CPU, and what to know of it.

    Raises: UnsupportedError where nothing here compiles for the target.
    """
    reasons = []
    for name in _BACKENDS.get(target.kind, ()):
        chosen = backend(name)
        availability = chosen.available(target)
        if availability.usable:
            return chosen, backend(_CPU_BACKEND), availability
        reasons.append(f"{name}: {availability.reason}")
    raise UnsupportedError(
        f"nothing here compiles for {target.name} ({target.title}) yet",
        where="; ".join(reasons),
        hint="compile for `cpu`, or for an NPU: strix, krackan, phoenix, ve2",
    )


def checked_precision(precision: str, target: Target) -> str:
    """Give `precision` if the target computes in it.

    Raises: OptionError for a word that is none, or where the target has no choice.
    """
    if precision == "auto":
        return precision
    if precision not in PRECISIONS:
        raise OptionError(
            f"unknown precision `{precision}`", hint=f"it is one of {', '.join(PRECISIONS)}"
        )
    if target.kind != "cpu":
        raise OptionError(
            f"{target.name} computes in the model's own number format",
            where="--precision",
            hint="quantize the model first, or leave the option out",
        )
    if precision == "bf16" and not isa_of(target).has_bf16:
        raise OptionError(
            f"{target.name} has no bfloat16 products", where="--precision", hint="use `fp32`"
        )
    return precision


def _rai_path(output: str | os.PathLike[str] | None) -> Path | None:
    if output is None:
        return None
    path = Path(output)
    if path.suffix != ".rai":
        raise OptionError(
            f"the output `{path}` does not end in .rai",
            hint="name a single file `NAME.rai`, or use `--cache-dir` for a folder",
        )
    return path


def _cache_parts(
    model: ir.Model,
    target: Target,
    device_backend: Backend,
    dims: Dimensions | None,
    options: CompileOptions,
) -> dict[str, str]:
    """Give everything that can change the bytes of what is compiled, by name."""
    return {
        "model": model_digest(model),
        "dims": repr(sorted((dims or {}).items(), key=lambda item: item[0])),
        "target": target.name,
        "precision": options.precision,
        "winograd": str(options.winograd),
        "backend": f"{device_backend.name}, {_CPU_BACKEND}",
        "device": repr(sorted(device_versions(device_backend, target).items())),
        "tools": repr(sorted(tool_versions().items())),
        "compiler": code_digest(),
    }


def _place_and_compile(
    model: ir.Model,
    target: Target,
    backends: tuple[Backend, Backend],
    options: CompileOptions,
    folder: Path,
    progress: Progress,
) -> tuple[Placement, tuple[CompiledPart, ...]]:
    """Place by rule, compile the device's parts, give the failed ones to the CPU, compile those."""
    device_backend, cpu_backend = backends
    decided = plan(model, target, device_backend, cpu_backend)
    compiled: dict[str, CompiledPart] = {}
    failed: dict[str, Refusal] = {}
    candidates = decided.device_parts()
    for done, part in enumerate(candidates):
        progress("compile", done, len(candidates))
        result = _try_compile(part, device_backend, target, options, folder)
        if isinstance(result, Refusal):
            if device_backend is cpu_backend:
                raise UnsupportedError(result.reason, where=part.name, hint=result.hint)
            failed[part.name] = result
        else:
            compiled[part.name] = result
    placement = settle(decided, failed)
    ordered = []
    for part in placement.parts:
        if part.name not in compiled:
            program = cpu_backend.compile(part, target, options, folder / part.name)
            compiled[part.name] = CompiledPart(part, program, folder / part.name)
        ordered.append(compiled[part.name])
    progress("compile", len(candidates), len(candidates))
    return placement, tuple(ordered)


def _try_compile(
    part: Part, device_backend: Backend, target: Target, options: CompileOptions, folder: Path
) -> CompiledPart | Refusal:
    try:
        program = device_backend.compile(part, target, options, folder / part.name)
    except VermilionError as error:
        return Refusal(f"its region failed to compile: {error.message}", error.hint)
    except Exception as error:  # a compiler may fail in any way on a graph it did not expect
        return Refusal(
            f"its region failed to compile: {type(error).__name__}: {error}",
            "run with `--target cpu` to see whether the model itself is sound, and report this",
        )
    return CompiledPart(part, program, folder / part.name)


def predicted_ms(model: ir.Model, placement: Placement) -> float | None:
    """Give the modelled latency of the parts on the device, None where no model exists."""
    mine = [part for part in placement.parts if part.backend != _CPU_BACKEND]
    if not mine:
        return None
    nodes = [node for part in mine for node in part.model.graph]
    return predict_ms(placement.target, number_format(model), nodes, parts=len(mine))
