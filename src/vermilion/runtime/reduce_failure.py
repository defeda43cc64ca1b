"""From a model whose part fails to compile to the smallest model that fails the same way."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from vermilion.backends.base import Backend, CompileOptions, Part
from vermilion.errors import VermilionError
from vermilion.hardware.targets.target import Target
from vermilion.partition.bisect import bisect
from vermilion.partition.place import plan
from vermilion.progress import Progress, no_progress


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
