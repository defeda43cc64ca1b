"""A Ryzen AI or Versal NPU where there is none: placed by the documented rules, run on the CPU.

What this backend says about *where* nodes go follows the vendor's documentation. What it computes
is computed by ONNX Runtime on the CPU, and what it says about time comes from a line fitted to
published latencies. Both are marked modelled wherever they are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

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
from vermilion.backends.ort import OrtBackend
from vermilion.errors import Refusal
from vermilion.hardware.targets.target import Target
from vermilion.ir.ops import elements, find_operator

# Which column of the vendor's operator table a model's number format is looked up in. Float models
# are compiled as bfloat16 (Ryzen AI documentation, model_quantization.rst).
_COLUMN = {
    "fp32": "bf16",
    "fp16": "bf16",
    "bf16": "bf16",
    "xint8": "xint8",
    "a8w8": "a8w8",
    "a16w8": "a16w8",
}

_RESIZE_OPSET = 11  # Resize of opset 10 is refused: https://github.com/amd/RyzenAI-SW/issues/164


def column_of(number_format: str) -> str | None:
    """Give the operator-table column for a model's number format, None where there is none."""
    return _COLUMN.get(number_format)


def predict_ms(
    target: Target, number_format: str, nodes: Sequence[ir.Node], *, parts: int
) -> float | None:
    """Give the modelled latency of `nodes` in `parts` regions, None where nothing was fitted.

    Traffic counts the weights, inputs and outputs of convolutions and matrix products, one byte an
    element in INT8 and two in BF16; what lies between them is taken as fused.
    """
    is_float = column_of(number_format) == "bf16"
    line = target.latency.get("bf16" if is_float else "int8")
    if line is None:
        return None
    gigabytes = gigaoperations = 0.0
    for node in nodes:
        operator = find_operator(node)
        if operator is None:
            continue
        gigaoperations += operator.rule(node) / 1e9
        if operator.family == "product":
            touched = sum(elements(value) for value in [*node.inputs, *node.outputs])
            gigabytes += touched * (2 if is_float else 1) / 1e9
    return line.overhead_ms * parts + line.ms_per_gop * gigaoperations + line.ms_per_gb * gigabytes


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
        for rule in (_whole_model, _single_node):
            refusal = rule(node, facts, target)
            if refusal is not None:
                return refusal
        return Claim()

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


def _whole_model(node: ir.Node, facts: ModelFacts, target: Target) -> Refusal | None:
    """Refuse every node for what the model is as a whole."""
    column = column_of(facts.number_format)
    if column is None or column not in target.formats:
        return Refusal(
            f"{target.name} takes {', '.join(target.formats)}; this model is {facts.number_format}",
            "quantize it first: `vermilion quantize MODEL --scheme xint8 --calib DATA`",
        )
    if facts.symbolic_dimensions:
        names = ", ".join(facts.symbolic_dimensions)
        return Refusal(
            f"{target.name} needs fixed shapes; {names} is open",
            f"bind it: `--dim {facts.symbolic_dimensions[0]}=1`",
        )
    limits = target.limits
    if facts.convolutions < limits.min_convolutions:
        return Refusal(
            f"{target.name} takes models with at least {limits.min_convolutions} convolutions; "
            f"this one has {facts.convolutions}",
            "such a model is little work; let the CPU run it",
        )
    if facts.batch is not None and limits.max_batch is not None and facts.batch > limits.max_batch:
        return Refusal(
            f"{target.name} computes {limits.max_batch} entry of a batch; this model has "
            f"{facts.batch}",
            "use batch 1 and run once an entry",
        )
    return None


def _single_node(node: ir.Node, facts: ModelFacts, target: Target) -> Refusal | None:
    """Refuse one node for what it is."""
    column = column_of(facts.number_format) or ""
    if node.domain not in ("", "ai.onnx"):
        return Refusal(
            f"`{node.domain}::{node.op_type}` is not a standard ONNX operator",
            "export the model with standard operators",
        )
    if node.op_type not in target.operators[column]:
        return Refusal(
            f"`{node.op_type}` is not supported in {column} by {target.name}",
            _other_format(node.op_type, column, target.operators),
        )
    if node.op_type == "Resize" and facts.opset < _RESIZE_OPSET:
        return Refusal("Resize of opset 10 is not supported", "convert the model to opset 17")
    return _edge_of_quantized(node, facts)


def _edge_of_quantized(node: ir.Node, facts: ModelFacts) -> Refusal | None:
    """Keep the outermost Q and DQ on the CPU.

    Source: the vendor's own summary of a quantized ResNet-50 v1 offloads 491 of 493 operators, and
    its compiler logs say `Standalone (de)quantizeLinear is not supported`.
    """
    if node.op_type == "QuantizeLinear":
        source = node.inputs[0]
        if source is not None and source.is_graph_input():
            return Refusal(
                "quantizing the model's input happens before the device",
                "feed integers, or take it as it is: it is little work",
            )
    if node.op_type == "DequantizeLinear":
        output = node.outputs[0]
        if output.is_graph_output() and not output.uses():
            return Refusal(
                "dequantizing the model's output happens after the device",
                "take it as it is: it is little work",
            )
    return None


def _other_format(op_type: str, column: str, operators: Mapping[str, frozenset[str]]) -> str:
    others = [name for name in sorted(operators) if name != column and op_type in operators[name]]
    if others:
        return f"it is supported in {', '.join(others)}"
    return "replace it by supported operators where you export the model, or let the CPU run it"
