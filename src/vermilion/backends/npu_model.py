"""A Ryzen AI or Versal NPU where there is none: placed by the documented rules, run on the CPU.

What this backend says about *where* nodes go follows the vendor's documentation. What it computes
is computed by ONNX Runtime on the CPU, and what it says about time comes from a model fitted to
published latencies. All of it is marked modelled wherever it is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from vermilion.backends import npu_rules
from vermilion.backends.base import (
    Array,
    Availability,
    Claim,
    CompileOptions,
    Executable,
    ModelFacts,
    Part,
    PartFiles,
    Program,
    Tensors,
)
from vermilion.backends.npu_cost import predict
from vermilion.backends.npu_rules import column_of
from vermilion.backends.ort import OrtBackend
from vermilion.errors import Refusal
from vermilion.hardware.targets.target import Target

__all__ = ["NpuModelBackend", "column_of", "predict_ms"]


def predict_ms(
    target: Target, number_format: str, nodes: Sequence[ir.Node], *, parts: int
) -> float | None:
    """Give the modelled latency of `nodes` in `parts` regions, None where nothing was fitted."""
    latency = predict(target, number_format, nodes, parts=parts)
    return None if latency is None else latency.total_ms


class NpuModelBackend:
    """The contract of `backends.base` for an NPU that is not in this machine."""

    name = "npu_model"

    def __init__(self) -> None:
        self._cpu = OrtBackend()

    def available(self, target: Target) -> Availability:
        """Always usable: it is a model."""
        return Availability(
            usable=True,
            reason=f"no {target.title} is driven here; placement is by the documented rules and "
            "arithmetic runs on the CPU",
            hint="run the artifact on a machine with the device and the vendor's provider",
        )

    def claim(self, node: ir.Node, facts: ModelFacts, target: Target) -> Claim | Refusal:
        """Say whether the vendor documents this node as supported."""
        return npu_rules.claim(node, facts, target)

    def compile(self, part: Part, target: Target, options: CompileOptions, folder: Path) -> Program:
        """Write what the CPU needs to stand in for the device."""
        program = self._cpu.compile(part, target, options, folder)
        return replace(program, modelled=True)

    def load(
        self, program: Program, files: PartFiles, target: Target, options: CompileOptions
    ) -> Executable:
        """Load the stand-in."""
        return _Modelled(self._cpu.load(program, files, target, options), target)


@dataclass(frozen=True)
class _Modelled:
    inner: Executable
    target: Target

    @property
    def runs_on(self) -> str:
        return f"{self.target.name} (modelled: computed by {self.inner.runs_on})"

    def run(self, inputs: Tensors) -> dict[str, Array]:
        return self.inner.run(inputs)
