"""Compiling parts; where one fails, which of its nodes fail, and the smallest model that does."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from vermilion.backends.base import Backend, ChecksParts, CompileOptions, Part
from vermilion.errors import Refusal, VermilionError, is_full
from vermilion.hardware.targets.target import Target
from vermilion.partition.bisect import bisect
from vermilion.partition.place import Plan, plan
from vermilion.progress import Progress, no_progress
from vermilion.runtime.write import CompiledPart

# Nodes that fail for different reasons, one after the other; tries for each, and time for all.
# Past these the region goes to ONNX Runtime whole, as it does on a device.
_MOST_ROUNDS = 8
_MOST_TRIES = 40
_MOST_SECONDS = 60.0


@dataclass(frozen=True)
class Compiler:
    """What compiles parts of one model for one target."""

    model: ir.Model
    backends: tuple[Backend, Backend]
    target: Target
    options: CompileOptions
    progress: Progress

    def compiled(
        self, folder: Path, wrong: Mapping[int, Refusal] | None = None
    ) -> tuple[Plan, dict[str, CompiledPart], dict[str, Refusal]]:
        """Place by rule and compile; give the plan, its parts by name, and those that failed.

        On a CPU nothing is gained by leaving a whole region to ONNX Runtime: the nodes that fail
        are looked for and left out, and what is left is placed and compiled again. `wrong` nodes,
        by position, are left out from the start.
        """
        deadline = time.monotonic() + _MOST_SECONDS
        failing: dict[int, Refusal] = dict(wrong or {})
        known: dict[tuple[int, ...], CompiledPart] = {}
        for number in range(_MOST_ROUNDS):
            decided = plan(self.model, self.target, *self.backends, failing)
            done, failed = self._round(decided, known, folder / str(number))
            if not failed or self.target.kind != "cpu" or self.backends[0] is self.backends[1]:
                break
            if number == _MOST_ROUNDS - 1:
                break
            more = self._failing(decided, failed, deadline)
            if not more:
                break
            failing |= more
        return decided, done, failed

    def _round(
        self, decided: Plan, known: dict[tuple[int, ...], CompiledPart], folder: Path
    ) -> tuple[dict[str, CompiledPart], dict[str, Refusal]]:
        """Compile what was not compiled in an earlier round."""
        done: dict[str, CompiledPart] = {}
        failed: dict[str, Refusal] = {}
        parts = decided.device_parts()
        for number, part in enumerate(parts):
            self.progress("compile", number, len(parts))
            positions = decided.positions(part.name)
            if positions in known:
                done[part.name] = replace(known[positions], part=part)
                continue
            result = self._one(part, folder)
            if isinstance(result, Refusal):
                failed[part.name] = result
            else:
                done[part.name] = known[positions] = result
        self.progress("compile", len(parts), len(parts))
        return done, failed

    def _one(self, part: Part, folder: Path) -> CompiledPart | Refusal:
        place = folder / part.name
        try:
            program = self.backends[0].compile(part, self.target, self.options, place)
        except Exception as error:  # a compiler may fail in any way on a graph it did not expect
            if is_full(error):  # the disk's fault: a cache must not keep it as the graph's
                raise
            words, hint = _words(error)
            return Refusal(f"its region failed to compile: {words}", hint)
        return CompiledPart(part, program, place)

    def _failing(
        self, decided: Plan, failed: Mapping[str, Refusal], deadline: float
    ) -> dict[int, Refusal]:
        """Find in each failed part the fewest nodes that still fail; give them by position."""
        found: dict[int, Refusal] = {}
        for part in decided.device_parts():
            if part.name not in failed or time.monotonic() > deadline:
                continue
            tried = _Tried(self, part, deadline)
            culprit = bisect(part.model, tried.why_not, max_tries=_MOST_TRIES)
            if culprit is None:
                continue
            positions = decided.positions(part.name)
            refusal = Refusal(f"it failed to compile: {culprit.reason}", tried.hint)
            found |= {positions[at]: refusal for at in culprit.positions}
        return found


class _Tried:
    """Pieces of one part that are tried: only lowered, where that is enough to see it fail."""

    def __init__(self, compiler: Compiler, part: Part, deadline: float) -> None:
        self.hint = ""
        self._compiler = compiler
        self._part = part
        self._deadline = deadline
        backend = compiler.backends[0]
        self._checks = backend if isinstance(backend, ChecksParts) else None
        if self._checks is not None and not self._raised(part):
            self._checks = None

    def why_not(self, model: ir.Model) -> str:
        """Return the reason why a piece fails, empty where it does not, or where time is up."""
        if time.monotonic() > self._deadline:
            return ""
        return self._raised(replace(self._part, model=model))

    def _raised(self, part: Part) -> str:
        compiler = self._compiler
        try:
            if self._checks is not None:
                self._checks.check(part, compiler.target, compiler.options)
            else:
                options = replace(compiler.options, dump=None)
                with tempfile.TemporaryDirectory(
                    prefix="vermilion-", ignore_cleanup_errors=True
                ) as work:
                    compiler.backends[0].compile(part, compiler.target, options, Path(work) / "p")
        except Exception as error:  # as above
            if is_full(error):
                raise
            words, self.hint = _words(error)
            return words
        return ""


def _words(error: Exception) -> tuple[str, str]:
    """Return what to say of a failure, and what to do."""
    if isinstance(error, VermilionError):
        return error.message, error.hint
    return (
        f"{type(error).__name__}: {error}",
        "ONNX Runtime runs it instead; please report this with the model",
    )


@dataclass(frozen=True)
class CulpritFile:
    """One failing part, its reason, and the file with the smallest model that shows it."""

    part: str
    reason: str
    path: Path
    node_names: tuple[str, ...]
    tries: int

    def as_json(self) -> dict[str, object]:
        """Return the keys that `compile --bisect --json` prints."""
        return {
            "part": self.part,
            "reason": self.reason,
            "path": self.path,
            "nodes": list(self.node_names),
            "tries": self.tries,
        }


def find_culprits(
    model: ir.Model,
    target: Target,
    backends: tuple[Backend, Backend],
    folder: Path,
    *,
    progress: Progress = no_progress,
) -> tuple[CulpritFile, ...]:
    """Compile every device part of a simplified model; bisect those that fail.

    Writes `PART-culprit.onnx` into `folder` for each. Empty where every part compiles.
    """
    device_backend, cpu_backend = backends
    found = []
    for part in plan(model, target, device_backend, cpu_backend).device_parts():
        culprit = bisect(
            part.model, _Compiles(part, device_backend, target).why_not, progress=progress
        )
        if culprit is None:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{part.name}-culprit.onnx"
        ir.save(culprit.model, path)
        found.append(
            CulpritFile(part.name, culprit.reason, path, culprit.node_names, culprit.tries)
        )
    return tuple(found)


@dataclass(frozen=True)
class _Compiles:
    part: Part
    backend: Backend
    target: Target

    def why_not(self, model: ir.Model) -> str:
        """Compile one piece; give the reason where that fails, empty where it does not."""
        names = tuple(node.name or "" for node in model.graph)
        piece = Part(self.part.name, self.part.device, self.part.backend, model, names, 0.0)
        with tempfile.TemporaryDirectory(prefix="vermilion-", ignore_cleanup_errors=True) as work:
            try:
                self.backend.compile(piece, self.target, CompileOptions(), Path(work) / piece.name)
            except VermilionError as error:
                return error.message
            except Exception as error:  # as in `build`: a compiler may fail in any way
                return f"{type(error).__name__}: {error}"
        return ""
