"""Outputs that nothing computes: constants, weights, inputs, and what is known beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from vermilion.api import compile_model
from vermilion.inspection import inspect_model
from vermilion.runtime.session import Session

N = helper.make_node
STEPS = np.array([4, 16, 64], np.float32)
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def constant(name: str = "k", value: NDArray[np.generic] = STEPS) -> onnx.NodeProto:
    return N("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value)))


@dataclass(frozen=True)
class Case:
    nodes: Sequence[onnx.NodeProto]
    wanted: Mapping[str, NDArray[np.generic]]
    weights: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)

    def save(self, path: Path) -> Path:
        outputs = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype), array.shape
            )
            for name, array in self.wanted.items()
        ]
        graph = helper.make_graph(
            self.nodes, "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)], outputs,
            [numpy_helper.from_array(array, name) for name, array in self.weights.items()],
        )  # fmt: skip
        imports = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
        return path


RELU = N("Relu", ["x"], ["y"])
CASES = {
    "a constant": Case([RELU, constant()], {"y": X, "k": STEPS}),
    "a constant, first": Case([constant(), RELU], {"k": STEPS, "y": X}),
    "constants alone": Case([constant(), constant("m", STEPS + 1)], {"k": STEPS, "m": STEPS + 1}),
    "a constant of rank 0": Case(
        [constant(value=np.array(3.0, np.float32))], {"k": np.array(3.0, np.float32)}
    ),
    "a constant of doubles": Case([RELU, constant(value=np.ones(3))], {"y": X, "k": np.ones(3)}),
    "a constant that is read, too": Case(
        [constant(), N("Mul", ["x", "k"], ["y"])], {"y": X * STEPS, "k": STEPS}
    ),
    "a list": Case(
        [RELU, N("Constant", [], ["k"], value_floats=[1.0, 2.0])],
        {"y": X, "k": np.array([1, 2], np.float32)},
    ),
    "a weight": Case([RELU], {"y": X, "w": STEPS}, {"w": STEPS}),
    "a weight that is read, too": Case(
        [N("Mul", ["x", "w"], ["y"])], {"y": X * STEPS, "w": STEPS}, {"w": STEPS}
    ),
    "a weight and no node": Case([], {"w": STEPS}, {"w": STEPS}),
    "an input": Case([RELU], {"y": X, "x": X}),
    "an input and no node": Case([], {"x": X}),
    "an input under another name": Case([N("Identity", ["x"], ["y"])], {"y": X}),
    "one result under two names": Case([RELU, N("Identity", ["y"], ["z"])], {"y": X, "z": X}),
    "two equal results": Case([RELU, N("Relu", ["x"], ["z"])], {"y": X, "z": X}),
    "a known shape": Case([N("Shape", ["x"], ["s"])], {"s": np.array([2, 3])}),
    "a range": Case(
        [RELU, N("Range", ["a", "b", "d"], ["s"])], {"y": X, "s": np.arange(5)},
        {"a": np.array(0), "b": np.array(5), "d": np.array(1)},
    ),
    "a sum of weights": Case(
        [RELU, N("Add", ["w", "w"], ["s"])], {"y": X, "s": STEPS * 2}, {"w": STEPS}
    ),
}  # fmt: skip


@pytest.mark.parametrize("target", ["cpu", "strix"])
@pytest.mark.parametrize("name", CASES)
def test_an_output_may_be_given(name: str, target: str, tmp_path: Path) -> None:
    case = CASES[name]
    path = case.save(tmp_path / "m.onnx")
    bundle = tmp_path / "m.rai"
    compiled = compile_model(path, target=target, cache_dir=tmp_path / "cache", output=bundle)
    for place in (compiled.artifact, bundle):
        got = Session(place).run(None, {"x": X})
        for mine, right in zip(got, case.wanted.values(), strict=True):
            assert (mine.shape, mine.dtype) == (right.shape, right.dtype)
            # An NPU's numbers have eight bits of mantissa.
            np.testing.assert_allclose(mine, right, rtol=0 if target == "cpu" else 0.01)
    assert inspect_model(path) is not None
