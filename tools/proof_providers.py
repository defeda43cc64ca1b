"""A stand-in for a vendor's provider whose outputs are wrong, for `mutate_proof.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from proof_fault import Fault
from proof_models import Array, model_of

ROOT = Path(__file__).resolve().parent.parent
Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]


def open_provider(fault: Fault, folder: Path, *, is_right: bool) -> tuple[list[str], Run, str]:
    """Compile a part for the stand-in with `fault` in it; return notes, a run and the model."""
    from vermilion.backends.base import CompileOptions, Part
    from vermilion.hardware.targets.find import find_target

    text = (ROOT / fault.file).read_text(encoding="utf-8")
    count = text.count(fault.old)
    if count != 1:
        raise LookupError(f"the line is there {count} times")
    # A worker is a module by name, which its process finds where this one does.
    module = folder / "faulty_provider.py"
    module.write_text(text if is_right else text.replace(fault.old, fault.new), encoding="utf-8")
    model = model_of(fault.model)
    is_gpu = fault.model.startswith("gpu")
    target = find_target("gfx1100" if is_gpu else "strix")
    chosen = _backend((module.stem, "good"), is_gpu=is_gpu)
    numbers = tuple(str(at) for at in range(len(list(model.graph))))
    name = "migraphx" if is_gpu else "vitisai"
    part = Part("vaiml_par_0", target.kind, name, model, numbers, 0.0)
    place = folder / "part"
    place.mkdir()
    sys.path[:0] = [str(folder), str(ROOT / "tests")]
    try:
        program = chosen.compile(part, target, CompileOptions(), place)
        loaded = chosen.load(program, _Files(place, model), target, CompileOptions())
    finally:
        del sys.path[:2]
    return list(program.notes), loaded.run, fault.model


def _backend(worker: tuple[str, ...], *, is_gpu: bool) -> Any:
    if is_gpu:
        from vermilion.backends.migraphx.backend import MigraphxBackend
        from vermilion.backends.migraphx.found import Stack as GpuStack
        from vermilion.hardware.options.gpu import BUILT_IN_WHEEL, MIGRAPHX

        found = GpuStack(
            MIGRAPHX, BUILT_IN_WHEEL, "1.27.1", "", "gfx1100", 0, hip="70051831",
            migraphx="3.0.70000",
        )  # fmt: skip
        return MigraphxBackend(worker=worker, find=lambda _: found)
    from vermilion.backends.vitisai.backend import VitisAiBackend
    from vermilion.backends.vitisai.found import Stack

    stack = Stack("1.7.1", "1.23.0", "", "32.0.203.280", "1.0.20.0", "strix")
    return VitisAiBackend(worker=worker, find=lambda _: stack)


class _Files:
    def __init__(self, folder: Path, model: ir.Model) -> None:
        self.folder = folder
        self.model = model

    def read(self, name: str) -> memoryview:
        return memoryview((self.folder / name).read_bytes())

    def weights(self) -> Mapping[str, np.ndarray[Any, Any]]:
        from vermilion.ir.execute import split_weights

        return split_weights(self.model)[1]
