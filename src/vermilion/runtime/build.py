"""The path from a graph to a written bundle: bind → simplify → place → compile → prove → write."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from vermilion.backends import MACHINE_CODE, backend
from vermilion.backends.base import (
    Availability,
    Backend,
    CompileOptions,
    Part,
    TakesProviderOptions,
)
from vermilion.backends.npu_model import predict_ms
from vermilion.errors import OptionError, Refusal, UnsupportedError, VermilionError
from vermilion.hardware.targets.find import find_target
from vermilion.hardware.targets.target import Target
from vermilion.ir.execute import complete_types
from vermilion.ir.numbers import number_format
from vermilion.ir.passes.bind_dimensions import Dimensions, bind_dimensions
from vermilion.ir.passes.fixes import fix_simplified
from vermilion.ir.passes.pipeline import simplify
from vermilion.ir.passes.report import PassStep
from vermilion.partition.place import Placement, plan, settle
from vermilion.progress import Progress
from vermilion.runtime.cache import cache_digest
from vermilion.runtime.prove import WrongNumbersError, prove
from vermilion.runtime.report import Report
from vermilion.runtime.summarize import summarize
from vermilion.runtime.write import ArtifactContent, CompiledPart, write_artifact

# Which backend compiles for a kind of target, best first; the first that is usable is taken.
_BACKENDS = {"cpu": ("native", "ort"), "npu": ("vitisai", "npu_model"), "gpu": ("iree",)}
# Taken only where they are asked for by name: they compile on the device itself.
_BY_NAME = {"gpu": ("migraphx",)}
CPU_BACKEND = "ort"
# Keep no part that was not seen to run on the device.
SEEN_TO_RUN = frozenset({"vitisai", "migraphx"})


@dataclass(frozen=True)
class BuildRequest:
    """Everything that a compilation starts from."""

    source: ir.Model
    label: str
    target: Target
    backends: tuple[Backend, Backend]
    options: CompileOptions
    dims: Dimensions
    fix: bool
    cache_parts: Mapping[str, str]


def build_artifact(request: BuildRequest, folder: Path, progress: Progress) -> None:
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
            notes=(*notes, *(note for part in parts for note in part.program.notes)),
            machine_code=tuple(
                {"part": part.part.name, **row}
                for part in parts
                for row in part.program.machine_code
            ),
        )
        content = ArtifactContent(
            model=simplified.model,
            parts=parts,
            target=request.target.name,
            options={"precision": request.options.precision},
            features=_features(parts, request.target),
            cache_parts=request.cache_parts,
            summary=report.summary,
            nodes=report.nodes,
            extra=report.extra(),
        )
        write_artifact(folder, content)


def _compile_and_prove(
    request: BuildRequest, bound: ir.Model, model: ir.Model, scratch: Path, progress: Progress
) -> tuple[Placement, tuple[CompiledPart, ...], tuple[Mapping[str, object], ...], tuple[str, ...]]:
    """Compile and prove; where generated code is wrong, ONNX Runtime takes all, and a note says so.

    Nothing is handed out whose numbers are not the model's.
    """
    target, (device_backend, cpu_backend) = request.target, request.backends
    placement, parts = _place_and_compile(
        model, target, request.backends, request.options, scratch, progress
    )
    try:
        return (
            placement,
            parts,
            prove(bound, parts, target, progress, request.options.precision),
            (),
        )
    except WrongNumbersError as error:
        if target.kind != "cpu" or device_backend is cpu_backend:
            raise
        note = f"generated code was left out: {error.message}"
    placement, parts = _place_and_compile(
        model, target, (cpu_backend, cpu_backend), request.options, scratch / "again", progress
    )
    return placement, parts, prove(bound, parts, target, progress), (note,)


def _features(parts: tuple[CompiledPart, ...], target: Target) -> tuple[str, ...]:
    """Give what a machine must have to run the parts: machine code needs its target's features."""
    needed: set[str] = set()
    for compiled in parts:
        if compiled.program.details.get("engine") == "native":  # a device, modelled by this machine
            needed |= find_target("cpu").features
        elif compiled.part.backend in MACHINE_CODE:
            needed |= target.features
    return tuple(sorted(needed))


def backends_for(target: Target, wanted: str = "") -> tuple[Backend, Backend, Availability]:
    """Give what compiles for a target, what takes the rest on the CPU, and what to know of it.

    `wanted` is the one backend to take, by its name.

    Raises: UnsupportedError where nothing here compiles for the target; OptionError where the one
    that is wanted is not for such targets.
    """
    known = _BACKENDS.get(target.kind, ())
    by_name = (*known, *_BY_NAME.get(target.kind, ()))
    if wanted and wanted not in by_name:
        raise OptionError(
            f"`{wanted}` does not compile for {target.name}",
            where="--backend",
            hint=f"it is one of {', '.join(f'`{name}`' for name in by_name)}",
        )
    reasons, hint = [], "compile for `cpu`, or for an NPU: strix, krackan, phoenix, ve2"
    for name in (wanted,) if wanted else known:
        chosen = backend(name)
        availability = chosen.available(target)
        if availability.usable:
            return chosen, backend(CPU_BACKEND), availability
        reasons.append(f"{name}: {availability.reason}")
        hint = availability.hint or hint
    what = f"`{wanted}` cannot compile" if wanted else "nothing here compiles"
    raise UnsupportedError(
        f"{what} for {target.name} ({target.title}) yet",
        where="; ".join(reasons),
        hint=hint,
    )


def check_provider_options(backend: Backend, target: Target, options: CompileOptions) -> None:
    """Refuse provider options that this backend does not take. Raises: OptionError."""
    if isinstance(backend, TakesProviderOptions):
        backend.check_options(target, options)
    elif options.provider_options:
        raise OptionError(
            f"`{backend.name}` is no provider and takes no options of one",
            where="--provider-option",
            hint="for AMD's provider on a GPU: `--backend migraphx`",
        )


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
    mine = [part for part in placement.parts if part.backend != CPU_BACKEND]
    if not mine:
        return None
    nodes = [node for part in mine for node in part.model.graph]
    return predict_ms(placement.target, number_format(model), nodes, parts=len(mine))


def _pass_row(step: PassStep) -> dict[str, object]:
    refusals = [{"where": where, "reason": r.reason, "hint": r.hint} for where, r in step.refusals]
    return {"name": step.name, "fired": step.fired, "refusals": refusals}
