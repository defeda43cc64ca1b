"""Models written as ONNX text, run natively and held against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from float_graphs import run_native
from vermilion.codegen.lower.rules import refusal
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.passes.pipeline import simplify

Array = NDArray[Any]


def read(text: str, opset: int = 17, **weights: Array) -> ir.Model:
    """Read `(inputs) => (outputs) { nodes }`; inputs named in `weights` become constants."""
    model = ir.from_onnx_text(f'<ir_version: 8, opset_import: ["": {opset}]> g {text}')
    for value in list(model.graph.inputs):
        if value.name in weights:
            model.graph.inputs.remove(value)
            value.const_value = ir.tensor(weights[value.name], name=value.name)
            model.graph.register_initializer(value)
    return simplify(model).model


def refusals(model: ir.Model) -> list[str]:
    """Return why nodes are not generated."""
    return [found.reason for node in model.graph if (found := refusal(node)) is not None]


def differences(
    model: ir.Model, inputs: Mapping[str, Array], target: str = "cpu", threads: int = 1
) -> dict[str, float]:
    """Return for each output the largest error against ONNX Runtime, of its largest value."""
    assert not refusals(model)
    wanted = run_session(open_session(model, threads=1), dict(inputs))
    got = run_native(model, inputs, target, "fp32", threads)
    found = {}
    for name, right in wanted.items():
        mine = got[name]
        assert (mine.shape, mine.dtype) == (right.shape, right.dtype)
        if right.dtype.kind != "f":
            found[name] = 0.0 if np.array_equal(mine, right) else 1.0
            continue
        largest = max(float(np.abs(right).max()), 1e-30)
        found[name] = float(np.abs(mine.astype(np.float64) - right).max()) / largest
    return found


def normal(*shape: int, seed: int = 0) -> Array:
    """Return random numbers of the usual size."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
