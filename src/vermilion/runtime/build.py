"""The path from a graph to a written bundle: bind → simplify → place → compile → prove → write."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

import onnx_ir as ir

from vermilion.backends import MACHINE_CODE, backend
from vermilion.backends.base import (
    Availability,
    Backend,
    CompileOptions,
    TakesProviderOptions,
    Tensors,
)
from vermilion.backends.npu_cost import Latency, predict
from vermilion.errors import OptionError, Refusal, UnsupportedError
from vermilion.hardware.targets.find import find_target
from vermilion.hardware.targets.npu import TARGETS as NPUS
from vermilion.hardware.targets.target import Target
from vermilion.ir.literal.types import complete_types
from vermilion.ir.numbers import number_format
from vermilion.ir.passes.bind_dimensions import Dimensions, bind_dimensions
from vermilion.ir.passes.fixes import fix_simplified
from vermilion.ir.passes.pipeline import simplify
from vermilion.ir.passes.rewrite import PassStep
from vermilion.partition.place import Placement, Plan, not_seen, settle
from vermilion.progress import Progress
from vermilion.runtime.failing import Compiler
from vermilion.runtime.open_shapes import open_shape_note
from vermilion.runtime.prove import REPORT_IT, Proof, WrongNumbersError, prove
from vermilion.runtime.prove_part import WrongPart
from vermilion.runtime.report import Report
from vermilion.runtime.stored_options import options_to_store
from vermilion.runtime.summarize import summarize
from vermilion.runtime.write import ArtifactContent, CompiledPart, write_artifact
from vermilion.store.digest import cache_digest

# Which backend compiles for a kind of target, best first; the first that is usable is taken.
_BACKENDS = {"cpu": ("native", "ort"), "npu": ("vitisai", "npu_model"), "gpu": ("iree",)}
# Taken only where they are asked for by name: they compile on the device itself.
_BY_NAME = {"gpu": ("migraphx",)}
CPU_BACKEND = "ort"
# Keep no part that was not seen to run on the device.
SEEN_TO_RUN = frozenset({"vitisai", "migraphx"})
# Compiled for the device, then by ONNX Runtime with its optimizations, then without them.
_MOST_ATTEMPTS = 4


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
    wanted_backend: str = ""  # where it was asked for by name
    given: Tensors | None = None  # a sample of the user's own for the proof
    # The processor that machine code is for in the end, where `target` is only what runs here.
    elsewhere: Target | None = None


def build_artifact(request: BuildRequest, folder: Path, progress: Progress) -> None:
    """Walk the path: bind → simplify → place → compile → prove → write."""
    # What rewrites graphs is loaded by who compiles.
    from vermilion.runtime.block_numbers import settled_numbers

    bound = bind_dimensions(request.source, request.dims)
    simplified = simplify(bound, progress=progress)
    if request.fix:
        simplified = fix_simplified(simplified, request.target.limits.max_batch, progress)
    complete_types(simplified.model)
    placed, precision, told = settled_numbers(
        simplified.model, request.target, request.options.precision
    )
    request = replace(request, options=replace(request.options, precision=precision))
    with tempfile.TemporaryDirectory(prefix="vermilion-", ignore_cleanup_errors=True) as scratch:
        attempt, proof = _compile_and_prove(request, bound, placed, Path(scratch), progress)
        placement, parts = attempt.placement, attempt.parts
        target = request.elsewhere or request.target
        if request.elsewhere is not None:
            parts = _compiled_for(request.elsewhere, parts, request.options, Path(scratch))
            told += (
                f"code for {target.title} was not run here: the proof is of the same model, "
                "compiled for this machine",
            )
        digest = cache_digest(request.cache_parts)
        shapes = open_shape_note(placed, placement.nodes, request.backends[0].name)
        report = Report(
            summary=summarize(placed, placement, request.label, digest),
            nodes=tuple(node.as_json() for node in placement.nodes),
            verification=proof.rows,
            passes=tuple(_pass_row(step) for step in simplified.steps),
            **_predicted(predicted_latency(placed, placement)),
            notes=(
                *shapes,
                *told,
                *attempt.notes,
                *_told(proof),
                *(note for part in parts for note in part.program.notes),
            ),
            machine_code=tuple(
                {"part": part.part.name, **row}
                for part in parts
                for row in part.program.machine_code
            ),
        )
        content = ArtifactContent(
            model=simplified.model,
            parts=parts,
            target=target.name,
            options=options_to_store(
                request.options,
                fix=request.fix,
                backend=request.wanted_backend,
                dims=request.dims,
            ),
            features=_features(parts, target),
            cache_parts=request.cache_parts,
            summary=report.summary,
            nodes=report.nodes,
            extra=report.extra(),
        )
        write_artifact(folder, content)


def _compiled_for(
    target: Target, parts: Sequence[CompiledPart], options: CompileOptions, folder: Path
) -> tuple[CompiledPart, ...]:
    """Return the parts with the machine code among them compiled for another processor."""
    found = []
    for compiled in parts:
        part, place = compiled.part, folder / "elsewhere" / compiled.part.name
        if part.backend in MACHINE_CODE:
            program = backend(part.backend).compile(part, target, options, place)
            compiled = CompiledPart(part, program, place)
        found.append(compiled)
    return tuple(found)


def _compile_and_prove(
    request: BuildRequest, bound: ir.Model, model: ir.Model, scratch: Path, progress: Progress
) -> tuple[_Attempt, Proof]:
    """Compile and prove; parts that are wrong go to ONNX Runtime, and notes say which and why.

    A part that ONNX Runtime's optimizations compute wrong is run without them. Nothing is handed
    out whose numbers are known not to be the model's.
    """
    work = _Work(model, request, progress)
    attempt = work.first(scratch / "first")
    for number in range(_MOST_ATTEMPTS):
        proof = prove(bound, attempt.parts, request.target, progress, given=request.given)
        if not proof.wrong:
            return attempt, proof
        place = scratch / f"again_{number}"
        fewer = work.without_nodes(attempt, proof.wrong, place) if number == 0 else None
        attempt = fewer or work.without(attempt, proof.wrong, place)
    name, wrong = next(iter(proof.wrong.items()))
    raise WrongNumbersError(
        wrong.refusal.reason, where=f"{name} for {request.target.name}", hint=REPORT_IT
    )


@dataclass(frozen=True)
class _Attempt:
    """A model, compiled; `failed` are the parts that the CPU had to take over, with the reason."""

    plan: Plan
    placement: Placement
    parts: tuple[CompiledPart, ...]
    failed: Mapping[str, Refusal]
    notes: tuple[str, ...] = ()
    literal: bool = False  # the parts of ONNX Runtime run without its optimizations

    @property
    def device_parts(self) -> tuple[str, ...]:
        """The names of the parts that are the device backend's."""
        return tuple(p.part.name for p in self.parts if p.part.backend == self.plan.backend)


def _told(proof: Proof) -> tuple[str, ...]:
    """Return what a user should know of the proof."""
    not_shown = tuple(
        f"`{row['name']}` is not proven: {row['reason']}"
        for row in proof.rows
        if row.get("status") == "not proven" and row.get("samples")
    )
    return (*proof.notes, *filter(None, map(_not_numbers, proof.rows)), *not_shown)


def _not_numbers(row: Mapping[str, object]) -> str:
    """Return what a user should know of an output that is not all numbers; empty where it is."""
    if not row.get("unlike_places"):
        return ""
    return (
        f"`{row['name']}` is NaN or infinite where the model as it came is not, or the other way"
        f" round, at {row['unlike_places']} places: rounding does that here"
    )


def _features(parts: tuple[CompiledPart, ...], target: Target) -> tuple[str, ...]:
    """Return what a machine must have to run the parts.

    Machine code needs its target's features.
    """
    needed: set[str] = set()
    for compiled in parts:
        if compiled.program.details.get("engine") == "native":  # a device, modelled by this machine
            needed |= find_target("cpu").features
        elif compiled.part.backend in MACHINE_CODE:
            needed |= target.features
    return tuple(sorted(needed))


def backends_for(target: Target, wanted: str = "") -> tuple[Backend, Backend, Availability]:
    """Return what compiles for a target, what takes the rest on the CPU, and what to know of it.

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
    npus = ", ".join(target.name for target in NPUS)
    reasons, hint = [], f"compile for `cpu`, or for an NPU: {npus}"
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


@dataclass(frozen=True)
class _Work:
    """Placing and compiling one simplified model, once or again with fewer parts."""

    model: ir.Model
    request: BuildRequest
    progress: Progress

    def first(self, folder: Path) -> _Attempt:
        """Place by rule, compile the device's parts, give the failed ones to the CPU."""
        decided, compiled, failed = self._compiler().compiled(folder)
        device_backend, cpu_backend = self.request.backends
        if device_backend is cpu_backend:
            for name, refusal in failed.items():
                raise UnsupportedError(refusal.reason, where=name, hint=refusal.hint)
        return self._settled(decided, compiled, failed, folder)

    def _compiler(self) -> Compiler:
        request = self.request
        return Compiler(
            self.model, request.backends, request.target, request.options, self.progress
        )

    def without_nodes(
        self, before: _Attempt, wrong: Mapping[str, WrongPart], folder: Path
    ) -> _Attempt | None:
        """Return the same with wrong nodes on the CPU; None where a device takes parts as a whole.

        The rest is placed and compiled again.
        """
        is_cpu = before.plan.backend == self.request.backends[1].name
        if self.request.target.kind != "cpu" or is_cpu:
            return None
        if any(name not in before.device_parts or not w.results for name, w in wrong.items()):
            return None
        found = {
            position: part.refusal
            for part in wrong.values()
            for position, node in enumerate(self.model.graph)
            if any(value.name in part.results for value in node.outputs)
        }
        decided, compiled, failed = self._compiler().compiled(folder, found)
        notes = tuple(
            f"nodes of {name} were left out, and ONNX Runtime computes them: {part.refusal.reason}"
            for name, part in wrong.items()
        )
        settled = self._settled(decided, compiled, failed, folder)
        return replace(settled, notes=(*before.notes, *notes))

    def without(self, before: _Attempt, wrong: Mapping[str, WrongPart], folder: Path) -> _Attempt:
        """Return the same with wrong parts on the CPU, those of the CPU not optimized.

        The other parts of the device stay as they are compiled.
        """
        device = before.plan.backend
        is_cpu = device == self.request.backends[1].name
        kept = {
            p.part.name: p
            for p in before.parts
            if p.part.name not in wrong and p.part.backend == device
        }
        mine = {p.part.name for p in before.parts if p.part.backend == device}
        notes = tuple(
            f"{name} was left out, and ONNX Runtime computes it: {part.refusal.reason}"
            if name in mine and not is_cpu
            else f"{name} runs in ONNX Runtime without its optimizations: {part.refusal.reason}"
            for name, part in wrong.items()
        )
        failed = {**before.failed, **{n: w.refusal for n, w in wrong.items() if n in mine}}
        literal = before.literal or is_cpu or not wrong.keys() <= mine
        settled = self._settled(before.plan, kept, failed, folder, literal=literal)
        return replace(settled, notes=(*before.notes, *notes))

    def _settled(
        self,
        decided: Plan,
        compiled: Mapping[str, CompiledPart],
        failed: Mapping[str, Refusal],
        folder: Path,
        *,
        literal: bool = False,
    ) -> _Attempt:
        """Return what is not compiled to the CPU, and compile that, literally if asked for."""
        cpu_backend = self.request.backends[1]
        placement = settle(decided, failed)
        names = frozenset(part.name for part in placement.parts) if literal else frozenset()
        options = replace(self.request.options, literal_parts=names)
        ordered = []
        for part in placement.parts:
            known = compiled.get(part.name)
            if known is None:
                place = folder / part.name
                program = cpu_backend.compile(part, self.request.target, options, place)
                known = CompiledPart(part, program, place)
            ordered.append(known)
        seen = not_seen(placement, {p.part.name: p.program.elsewhere for p in ordered})
        return _Attempt(decided, seen, tuple(ordered), failed, literal=literal)


def predicted_latency(
    model: ir.Model, placement: Placement, numbers: str = ""
) -> Latency | Refusal | None:
    """Return the modelled latency of the parts on an NPU, or why there is none; None without parts.

    `numbers` is the format that they are in, the model's own by default.
    """
    mine = [part for part in placement.parts if part.device == "npu"]
    if not mine:
        return None
    nodes = [node for part in mine for node in part.model.graph]
    return predict(placement.target, numbers or number_format(model), nodes, parts=len(mine))


class _Predicted(TypedDict, total=False):
    predicted_ms: float
    predicted_interval_ms: tuple[float, float]
    predicted_reason: str


def _predicted(found: Latency | Refusal | None) -> _Predicted:
    """Return what a report says of a prediction."""
    if isinstance(found, Latency):
        interval = (found.low_ms, found.high_ms)
        return {"predicted_ms": found.total_ms, "predicted_interval_ms": interval}
    return {"predicted_reason": found.reason} if found is not None else {}


def _pass_row(step: PassStep) -> dict[str, object]:
    refusals = [{"where": where, "reason": r.reason, "hint": r.hint} for where, r in step.refusals]
    return {"name": step.name, "fired": step.fired, "refusals": refusals}
