"""Graphs that are long, wide, or whose expressions double at each node: native, in linear time."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from float_graphs import run_native
from vermilion.codegen.isa import isa_of
from vermilion.codegen.lower.part import lower_part
from vermilion.codegen.lower.rules import refusal
from vermilion.hardware.targets.find import find_target
from vermilion.ir.execute import open_session, run_session
from vermilion.partition.cut import connected_parts

N = helper.make_node
X = np.random.default_rng(3).standard_normal((2, 4, 6, 6)).astype(np.float32)
WEIGHT = (np.random.default_rng(4).standard_normal((4, 4, 3, 3)) / 6).astype(np.float32)
CONSTANTS = {
    "a": np.array(0.001, np.float32), "b": np.array(1.0002, np.float32), "w": WEIGHT,
    "s": np.array(0.05, np.float32), "z": np.array(128, np.uint8),
}  # fmt: skip


def made(nodes: Sequence[onnx.NodeProto], result: str, shape: Sequence[int] = X.shape) -> ir.Model:
    """Return a model whose values have all their types, without the passes."""
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info(result, TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(v, k) for k, v in CONSTANTS.items() if k in used],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def chain(op_types: Sequence[str], count: int) -> ir.Model:
    """Return nodes one after the other, each reading the last result as often as it has inputs."""
    nodes: list[onnx.NodeProto] = []
    last = "x"
    for at in range(count):
        op_type, *others = op_types[at % len(op_types)].split()
        inputs = [last if name == "_" else name for name in others] or [last]
        attributes = {"pads": [1] * 4} if op_type == "Conv" else {}
        nodes.append(N(op_type, inputs, [f"t{at}"], **attributes))
        last = f"t{at}"
    return made(nodes, last)


LONG = {
    "of small operators": (("Sub _ a", "Mul _ b"), 1500),
    "of convolutions": (("Conv _ w", "Tanh"), 800),
    "of what moves data": (("Transpose", "Tanh"), 800),
    "through integers": (("QuantizeLinear _ s z", "DequantizeLinear _ s z", "Mul _ b"), 600),
    "whose sums double": (("Add _ _", "Tanh"), 120),
    "of composite functions": (("Gelu",), 100),
    "of products of itself": (("Mul _ _", "Sqrt"), 120),
}


@pytest.mark.parametrize("kind", LONG)
def test_a_long_chain_is_native(kind: str) -> None:
    model = chain(*LONG[kind])
    assert not [reason for node in model.graph if (reason := refusal(node)) is not None]
    got = run_native(model, {"x": X}, "cpu", "fp32", 1)
    wanted = run_session(open_session(model, threads=1, optimize=False), {"x": X})
    for name, right in wanted.items():
        largest = max(float(np.abs(right).max()), 1e-30)
        assert np.abs(got[name] - right).max() / largest < 1e-4


@pytest.mark.parametrize("op_type", ["Sum", "Max", "Min", "Mean", "Concat"])
def test_an_operator_may_have_many_inputs(op_type: str) -> None:
    count = 300
    names = [("x", "n", "p")[at % 3] for at in range(count)]
    nodes = [N("Neg", ["x"], ["n"]), N("Exp", ["x"], ["p"])]
    attributes = {"axis": 1} if op_type == "Concat" else {}
    nodes.append(N(op_type, names, ["y"], **attributes))
    shape = (2, 4 * count, 6, 6) if op_type == "Concat" else X.shape
    model = made(nodes, "y", shape)
    got = run_native(model, {"x": X}, "cpu", "fp32", 1)["y"]
    right: NDArray[np.float32] = run_session(open_session(model, optimize=False), {"x": X})["y"]
    np.testing.assert_allclose(got, right, rtol=2e-5, atol=2e-6)


def test_no_kernel_grows_with_the_graph() -> None:
    isa = isa_of(find_target("cpu"))
    for kind in ("of small operators", "whose sums double", "of composite functions"):
        steps = lower_part(chain(*LONG[kind]), isa).steps
        assert max(len(step.nodes) for step in steps) <= 48
        assert max(len(repr(step.spec)) for step in steps) < 200_000


@pytest.mark.parametrize("every", [1, 2, 50])
def test_a_long_graph_is_cut_in_linear_time(every: int) -> None:
    count = 20_000
    reads = [[at - 1] if at else [] for at in range(count)]
    supported = [at % 100 >= every or every == 1 for at in range(count)]
    start = time.monotonic()
    parts = connected_parts(reads, supported)
    assert time.monotonic() - start < 10
    assert sum(map(len, parts)) == sum(supported)
