"""Small float models for tests of generated code: made, compiled, run, and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from kernels import TARGETS
from vermilion.backends.base import CompileOptions, Part
from vermilion.backends.native import NativeBackend
from vermilion.codegen.isa import isa_of
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.part import lower_part
from vermilion.codegen.lower.rules import refusal
from vermilion.hardware.targets.find import find_target
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.passes.pipeline import simplify

Array = NDArray[Any]

# What a test runs on: the target, and the precision of floats in it.
WAYS = tuple((target, precision) for target in TARGETS for precision in ("fp32", "bf16"))

# Of the largest value. float32: sums of up to a thousand products; bfloat16: 8 bits of mantissa,
# rounded at the inputs, between kernels and at the result.
TOLERANCE = {"fp32": 4e-6, "bf16": 2e-2}

_TYPES = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.int64): TensorProto.INT64,
    np.dtype(np.int32): TensorProto.INT32,
}


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    result: Sequence[int],
    constants: Mapping[str, Array] | None = None,
) -> ir.Model:
    """Return a model whose inputs look like `inputs` and whose only output, `y`, has this shape."""
    values = [
        helper.make_tensor_value_info(name, _TYPES[array.dtype], array.shape)
        for name, array in inputs.items()
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, tuple(result))
    weights = [numpy_helper.from_array(a, name) for name, a in (constants or {}).items()]
    proto = helper.make_model(
        helper.make_graph(list(nodes), "graph", values, [output], weights),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=8,
    )  # fmt: skip
    onnx.checker.check_model(proto)
    return simplify(ir.from_proto(proto)).model


def node(op_type: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    """Return a node; `inputs` are names with spaces between."""
    return helper.make_node(op_type, inputs.split(), [output], **attributes)


def families(model: ir.Model, target: str = "cpu") -> list[str]:
    """Return the families of the kernels that a model is lowered to, in order."""
    return [step.spec.family for step in steps(model, target)]


def steps(model: ir.Model, target: str = "cpu") -> Sequence[Step]:
    """Return the steps that a model is lowered to."""
    return lower_part(model, isa_of(find_target(target))).steps


def error_of(model: ir.Model, inputs: Mapping[str, Array], target: str, precision: str) -> float:
    """Run natively; give the largest error against ONNX Runtime, of its largest value."""
    refused = [reason for reason in map(refusal, model.graph) if reason is not None]
    assert not refused, f"the generator does not take every node: {refused[0].reason}"
    wanted = run_session(open_session(model, threads=1), dict(inputs))["y"]
    got = run_native(model, inputs, target, precision)["y"]
    assert got.shape == wanted.shape
    assert np.array_equal(np.isnan(got), np.isnan(wanted)), "NaN in different places"
    known = np.isfinite(wanted)
    assert np.array_equal(got[~known], wanted[~known], equal_nan=True)
    if not known.any():
        return 0.0
    largest = max(float(np.abs(wanted[known]).max()), 1e-30)
    return float(np.abs(got[known] - wanted[known]).max()) / largest


def run_native(
    model: ir.Model,
    inputs: Mapping[str, Array],
    target: str,
    precision: str,
    threads: int = 1,
) -> dict[str, Array]:
    """Compile, load and run a model."""
    backend, place = NativeBackend(), find_target(target)
    options = CompileOptions(precision=precision, threads=threads)
    with TemporaryDirectory() as name:
        folder = Path(name)
        part = Part("p", "cpu", "native", model, (), 0.0)
        program = backend.compile(part, place, options, folder)
        loaded = backend.load(program, _Files(folder), place, options)
        return loaded.run(dict(inputs))


@dataclass
class _Files:
    folder: Path

    def read(self, name: str) -> memoryview:
        return memoryview((self.folder / name).read_bytes())
