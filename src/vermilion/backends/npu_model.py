"""A Ryzen AI or Versal NPU where there is none: placed by the documented rules, run on the CPU.

What this backend says about *where* nodes go follows the vendor's documentation. What it computes
is what the chip's number format gives (`npu_numbers`), computed on the CPU: by our code generator
where it takes the whole part, else by ONNX Runtime, and a note says so. What it says about time
comes from a model fitted to published latencies. All of it is marked modelled wherever it is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from vermilion.backends import npu_rules
from vermilion.backends.base import (
    Array,
    Availability,
    Backend,
    Claim,
    CompileOptions,
    Executable,
    ModelFacts,
    Numerics,
    Part,
    PartFiles,
    Program,
    Tensors,
)
from vermilion.backends.native import NativeBackend
from vermilion.backends.npu_rules import column_of
from vermilion.backends.ort import OrtBackend
from vermilion.codegen.isa import isa_of
from vermilion.errors import ArtifactError, Refusal, VermilionError
from vermilion.hardware.targets.find import find_target
from vermilion.hardware.targets.target import Target
from vermilion.ir.opset import where

if TYPE_CHECKING:
    from vermilion.backends.npu_numbers import Numbers

__all__ = ["NpuModelBackend", "column_of"]

# The detail of a program that says which of our engines runs it.
ENGINE = "engine"
_WORDS: Mapping[str, str] = {
    "integers": "exact integers",
    "bf16": "bfloat16",
    "bfp16": "bfloat16 with products of BFP16",
    "fp16": "float16 as written",
}


class NpuModelBackend:
    """The contract of `backends.base` for an NPU that is not in this machine."""

    name = "npu_model"

    def __init__(self) -> None:
        self._engines: Mapping[str, Backend] = {"native": NativeBackend(), "ort": OrtBackend()}

    def available(self, target: Target) -> Availability:
        """Always usable: it is a model."""
        return Availability(
            usable=True,
            reason=f"no {target.title} is driven here; placement is by the documented rules and "
            "arithmetic runs on the CPU, in the chip's number format",
            hint="run the artifact on a machine with the device and the vendor's provider",
        )

    def claim(self, node: ir.Node, facts: ModelFacts, target: Target) -> Claim | Refusal:
        """Say whether the vendor documents this node as supported."""
        return npu_rules.claim(node, facts, target)

    def compile(self, part: Part, target: Target, options: CompileOptions, folder: Path) -> Program:
        """Write a program for the CPU that computes in the chip's numbers."""
        # What writes graphs is loaded by who compiles; who opens a bundle does without.
        from vermilion.backends import npu_numbers

        numbers = npu_numbers.numbers_of(part.model, options.precision)
        details = {"numbers": numbers}
        numerics = Numerics("fp32" if numbers == "integers" else numbers)
        refused = _not_generated(part.model, numbers)
        if not refused:
            try:
                program = self._generate(part, numbers, options, folder)
            except VermilionError as error:
                refused = error.message
            else:
                return replace(
                    program,
                    modelled=True,
                    details={**program.details, **details, ENGINE: "native"},
                    numerics=numerics,
                )
        model = npu_numbers.in_standard_operators(part.model, numbers)
        program = self._engines["ort"].compile(
            replace(part, model=model), target, replace(options, precision="auto"), folder
        )
        return replace(
            program,
            modelled=True,
            details={**details, ENGINE: "ort"},
            notes=(f"{part.name}: {_WORDS[numbers]} modelled by ONNX Runtime: {refused}",),
            numerics=numerics,
        )

    def _generate(
        self, part: Part, numbers: Numbers, options: CompileOptions, folder: Path
    ) -> Program:
        from vermilion.backends import npu_numbers

        here = find_target("cpu")
        stores_bf16 = numbers in ("bf16", "bfp16") and isa_of(here).has_bf16
        model = npu_numbers.for_generated_code(part.model, numbers, stores_bf16=stores_bf16)
        # Winograd's products are not those that the chip sums. A model of a chip is there for its
        # numbers, not for its speed: rounding after every operator makes long code, on which all
        # of LLVM's passes take more time than the rest of compiling.
        chosen = replace(
            options,
            precision="bf16" if stores_bf16 else "auto",
            winograd=False,
        )
        return self._engines["native"].compile(replace(part, model=model), here, chosen, folder)

    def load(
        self, program: Program, files: PartFiles, target: Target, options: CompileOptions
    ) -> Executable:
        """Load the stand-in."""
        engine = program.details.get(ENGINE, "ort")
        numbers = program.details.get("numbers", "")
        if engine not in self._engines or numbers not in _WORDS:
            raise ArtifactError(
                f"the part is computed by `{engine}` in `{numbers}`: not known here",
                hint="compile the model again with this version",
            )
        place = find_target("cpu") if engine == "native" else target
        inner = self._engines[engine].load(program, files, place, options)
        return _Modelled(inner, target, numbers)


def _not_generated(model: ir.Model, numbers: Numbers) -> str:
    """Say what keeps a part from our code generator, empty where nothing does."""
    from vermilion.codegen.lower.rules import refusal

    if numbers == "fp16":
        return "products of float16 are not generated"
    for node in model.graph:
        found = refusal(node)
        if found is not None:
            return f"{where(node)}: {found.reason}"
    return ""


@dataclass(frozen=True)
class _Modelled:
    inner: Executable
    target: Target
    numbers: str

    @property
    def runs_on(self) -> str:
        words = _WORDS[self.numbers]
        return f"{self.target.name} (modelled: {words} computed by {self.inner.runs_on})"

    def run(self, inputs: Tensors) -> dict[str, Array]:
        return self.inner.run(inputs)
