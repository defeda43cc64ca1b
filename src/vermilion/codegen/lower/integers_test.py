"""What lies between integer products stays integer, bit for bit as the reference says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from kernels import TARGETS
from quantized_graphs import F32, Graph, fma, requantized, run_native
from random_quantized import RandomGraph
from vermilion.api import compile_model
from vermilion.codegen.lower.rules import refusal
from vermilion.ir.execute import open_session, run_session

Array = NDArray[Any]


# Everything between products ----------------------------------------------------------------


@pytest.mark.parametrize("storage", [np.uint8, np.int8, np.uint16, np.int16])
def test_elementwise_chains_are_exact(storage: Any, target: str, tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    info = np.iinfo(storage)
    x, z = (random.integers(info.min, info.max + 1, (2, 5, 7, 9)).astype(storage) for _ in "xz")
    graph = Graph(is_wide=info.bits == 16)
    zero = np.array(3, storage)
    a, b = graph.dequantize("x", 0.02, zero), graph.dequantize("z", 0.05, zero)
    graph.quantize(graph.op("Add", a, b), 0.06, zero, name="sum")
    graph.quantize(graph.op("Sub", a, b), 0.06, zero, name="difference")
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(storage))
    model = graph.model({"x": x, "z": z}, {"sum": kind, "difference": kind})
    got = run_native(model, {"x": x, "z": z}, tmp_path, target)
    ones, others = ((v.astype(int) - 3).astype(F32) for v in (x, z))
    out = np.float64(F32(0.06))
    one, other = np.float64(F32(0.02)) * (1 / out), np.float64(F32(0.05)) * (1 / out)
    for name, sign in (("sum", 1.0), ("difference", -1.0)):
        value = fma(ones, one, others * F32(sign * other))
        wanted = requantized(value, 3, storage, (-np.inf, np.inf))
        np.testing.assert_array_equal(got[name], wanted)


def test_equal_numbers_differ_by_nothing(target: str, tmp_path: Path) -> None:
    """Of two fused multiply-adds one is not rounded: x - x would be what that leaves."""
    x = np.random.default_rng(9).integers(-128, 128, (3, 33)).astype(np.int8)
    graph = Graph()
    zero = np.array(0, np.int8)
    a, b = graph.dequantize("x", 0.03744339, zero), graph.dequantize("z", 0.03744339, zero)
    graph.op("Sub", a, a, name="own")
    graph.op("Sub", a, b, name="others")
    model = graph.model({"x": x, "z": x}, {"own": TensorProto.FLOAT, "others": TensorProto.FLOAT})
    got = run_native(model, {"x": x, "z": x.copy()}, tmp_path, target)
    assert not got["own"].any()
    assert not got["others"].any()


@pytest.mark.parametrize("storage", [np.uint8, np.int8, np.uint16, np.int16])
@pytest.mark.parametrize("shape", [(2, 17, 5, 3), (1, 3, 9), (1, 1, 1)])
def test_the_greatest_of_integers_is_an_integer(
    storage: Any, shape: tuple[int, ...], target: str, tmp_path: Path
) -> None:
    info = np.iinfo(storage)
    x = np.random.default_rng(6).integers(info.min, info.max + 1, shape).astype(storage)
    graph = Graph(is_wide=info.bits == 16)
    zero = np.array(5, storage)
    greatest = graph.op("GlobalMaxPool", graph.dequantize("x", 0.25, zero))
    graph.quantize(greatest, 0.25, zero, name="y")
    model = graph.model({"x": x}, {"y": helper.np_dtype_to_tensor_dtype(np.dtype(storage))})
    got = run_native(model, {"x": x}, tmp_path, target)["y"]
    np.testing.assert_array_equal(got, x.max(axis=tuple(range(2, x.ndim)), keepdims=True))


def test_quantizing_floats_divides_as_onnx_says(target: str, tmp_path: Path) -> None:
    x = np.linspace(-40, 40, 100003, dtype=F32)
    graph = Graph()
    graph.quantize("x", 0.3, np.array(7, np.uint8), name="y")
    model = graph.model({"x": x}, {"y": TensorProto.UINT8})
    got = run_native(model, {"x": x}, tmp_path, target)["y"]
    wanted = np.clip(np.rint(x / F32(0.3)) + 7, 0, 255).astype(np.uint8)
    np.testing.assert_array_equal(got, wanted)
    theirs = run_session(open_session(model), {"x": x})["y"]
    np.testing.assert_array_equal(got, theirs)


def moved_model(storage: Any) -> tuple[Graph, dict[str, Array], dict[str, int]]:
    """Data that only moves between two convolutions, all on one grid."""
    random = np.random.default_rng(6)
    info = np.iinfo(storage)
    x = random.integers(info.min, info.max + 1, (1, 4, 8, 8)).astype(storage)
    graph, zero = Graph(), np.array(11, storage)
    w = graph.dequantized(random.integers(-9, 9, (8, 4, 3, 3)).astype(np.int8), 0.01)
    y = graph.op("Conv", graph.dequantize("x", 0.05, zero), w, pads=[1, 1, 1, 1])
    y = graph.pair(graph.op("Relu", graph.pair(y, 0.1, zero)), 0.1, zero)
    y = graph.op("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    left = graph.pair(y, 0.1, zero)
    right = graph.op("Transpose", left, perm=[0, 1, 3, 2])
    y = graph.pair(graph.op("Concat", left, right, axis=1), 0.1, zero)
    w = graph.dequantized(random.integers(-9, 9, (8, 16, 3, 3)).astype(np.int8), 0.01)
    y = graph.op("Conv", y, w, pads=[1, 1, 1, 1])
    shape = graph.weight(np.array([1, -1], np.int64))
    y = graph.op("Reshape", graph.pair(y, 0.25, zero), shape)
    graph.quantize(y, 0.25, zero, name="y")
    return graph, {"x": x}, {"y": helper.np_dtype_to_tensor_dtype(np.dtype(storage))}


@pytest.mark.parametrize("storage", [np.uint8, np.int8])
def test_data_moves_as_integers(storage: Any, target: str, tmp_path: Path) -> None:
    graph, inputs, outputs = moved_model(storage)
    model = graph.model(inputs, outputs)
    got = run_native(model, inputs, tmp_path, target)["y"]
    theirs = run_session(open_session(model), inputs)["y"]
    # Rounding half-way cases in another order of operations moves a result by one step.
    difference = np.abs(got.astype(int) - theirs.astype(int))
    assert difference.max() <= 1
    assert (difference != 0).mean() < 0.01


@pytest.mark.parametrize("storage", [np.uint8, np.int8])
def test_powers_of_two_agree_with_onnx_runtime_to_the_bit(
    storage: Any, target: str, tmp_path: Path
) -> None:
    random = np.random.default_rng(7)
    x = random.standard_normal((2, 6, 10, 10)).astype(F32)
    graph, zero = Graph(), np.array(0 if storage is np.int8 else 128, storage)
    y = graph.pair("x", 2.0**-5, zero)
    for index in range(3):
        w = random.integers(-127, 128, (6, 6, 3, 3)).astype(np.int8)
        bias = graph.dequantized(random.integers(-127, 128, 6).astype(np.int8), 2.0**-7)
        z = graph.op("Conv", y, graph.dequantized(w, 2.0**-9), bias, pads=[1, 1, 1, 1])
        z = graph.pair(graph.op("Relu", z) if index else z, 2.0**-4, zero)
        y = graph.pair(graph.op("Add", z, y), 2.0**-4, zero)
    graph.op("Identity", y, name="y")
    model = graph.model({"x": x}, {"y": TensorProto.FLOAT})
    got = run_native(model, {"x": x}, tmp_path, target)["y"]
    np.testing.assert_array_equal(got, run_session(open_session(model), {"x": x})["y"])


def test_answers_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    graph, inputs, outputs = moved_model(np.uint8)
    model = graph.model(inputs, outputs)
    one = run_native(model, inputs, tmp_path / "1", "cpu", 1)["y"]
    for threads in (2, 4):
        more = run_native(model, inputs, tmp_path / str(threads), "cpu", threads)["y"]
        np.testing.assert_array_equal(one, more)


SEEDS = [("cpu", seed) for seed in range(24)]
SEEDS += [(target, seed) for target in TARGETS[1:] for seed in range(6)]


@pytest.mark.parametrize(("target", "seed"), SEEDS, indirect=["target"])
def test_random_graphs_give_onnx_runtimes_answer_to_the_bit(
    seed: int, target: str, tmp_path: Path
) -> None:
    made = RandomGraph(seed)
    model = made.graph.model(made.inputs, made.outputs)
    got = run_native(model, made.inputs, tmp_path, target)
    # Without its own fusions, which round in another order.
    plain = ort.SessionOptions()
    plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), plain)
    names = [value.name for value in session.get_outputs()]
    for name, wanted in zip(names, session.run(names, made.inputs), strict=True):
        np.testing.assert_array_equal(got[name], wanted)


# Operators on integers ------------------------------------------------------------------------


def test_qlinear_operators(target: str, tmp_path: Path) -> None:
    random = np.random.default_rng(8)
    x = random.integers(0, 256, (1, 4, 6, 6)).astype(np.uint8)
    graph = Graph()

    def grid(scale: Array | float, zero: Array) -> list[str]:
        return [graph.weight(np.asarray(scale, F32)), graph.weight(zero)]

    w = random.integers(-127, 128, (5, 4, 3, 3)).astype(np.int8)
    scales = random.uniform(0.001, 0.01, 5).astype(F32)
    y = graph.op(
        "QLinearConv", "x", *grid(0.02, np.array(120, np.uint8)), graph.weight(w),
        *grid(scales, np.zeros(5, np.int8)), *grid(0.25, np.array(99, np.uint8)),
        graph.weight(random.integers(-5000, 5000, 5).astype(np.int32)), pads=[1, 1, 1, 1],
    )  # fmt: skip
    y = graph.op("Reshape", y, graph.weight(np.array([5, 36], np.int64)))
    b = random.integers(-127, 128, (36, 8)).astype(np.int8)
    graph.op(
        "QLinearMatMul", y, *grid(0.25, np.array(99, np.uint8)), graph.weight(b),
        *grid(0.01, np.array(0, np.int8)), *grid(0.9, np.array(128, np.uint8)), name="y",
    )  # fmt: skip
    model = graph.model({"x": x}, {"y": TensorProto.UINT8})
    got = run_native(model, {"x": x}, tmp_path, target)["y"]
    theirs = run_session(open_session(model), {"x": x})["y"]
    np.testing.assert_array_equal(got, theirs)
    assert len(np.unique(theirs)) > 20


@pytest.mark.parametrize("scales", [(0.02, 0.1, 0.02), (0.05, 0.05, 0.005), (0.3, 0.05, 0.03)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_halves_of_qlinear_operators_are_rounded_by_one_factor(
    with_bias: bool, scales: tuple[float, float, float], target: str, tmp_path: Path
) -> None:
    """Sums of small integers lie on many halves, which three scales in turn would move."""
    random = np.random.default_rng(12)
    x = random.integers(118, 139, (1, 16, 9, 9)).astype(np.uint8)
    w = random.integers(-2, 3, (32, 16, 3, 3)).astype(np.int8)
    a = random.integers(118, 139, (40, 48)).astype(np.uint8)
    b = random.integers(-2, 3, (48, 16)).astype(np.int8)
    graph = Graph()
    x_scale, w_scale, y_scale = (graph.weight(np.array(scale, F32)) for scale in scales)
    middle, zero = graph.weight(np.array(128, np.uint8)), graph.weight(np.array(0, np.int8))
    bias = [graph.weight(random.integers(-9, 9, 32).astype(np.int32))] if with_bias else []
    for kind, left, right, more, name in (
        ("QLinearConv", "x", w, bias, "y"),
        ("QLinearMatMul", "a", b, [], "z"),
    ):
        graph.op(
            kind, left, x_scale, middle, graph.weight(right), w_scale, zero, y_scale, middle,
            *more, name=name,
        )  # fmt: skip
    model = graph.model({"x": x, "a": a}, {"y": TensorProto.UINT8, "z": TensorProto.UINT8})
    got = run_native(model, {"x": x, "a": a}, tmp_path, target)
    theirs = run_session(open_session(model), {"x": x, "a": a})
    for name in "yz":
        np.testing.assert_array_equal(got[name], theirs[name])


def test_wide_activations_are_computed_in_floats(target: str, tmp_path: Path) -> None:
    random = np.random.default_rng(9)
    x = random.standard_normal((1, 8, 7, 7)).astype(F32)
    graph, zero = Graph(is_wide=True), np.array(32000, np.uint16)
    w = graph.dequantized(random.integers(-127, 128, (8, 8, 3, 3)).astype(np.int8), 0.01)
    y = graph.op("Conv", graph.pair("x", 2e-4, zero), w, pads=[1, 1, 1, 1])
    graph.op("Identity", graph.pair(y, 1e-3, zero), name="y")
    model = graph.model({"x": x}, {"y": TensorProto.FLOAT})
    got = run_native(model, {"x": x}, tmp_path, target)["y"]
    theirs = run_session(open_session(model), {"x": x})["y"]
    assert np.abs(got - theirs).max() <= 1.01e-3


def test_scales_of_blocks_are_refused() -> None:
    graph = Graph(is_wide=True)
    graph.op("DequantizeLinear", "x", "s", name="y", axis=1, block_size=2)
    x, s = np.zeros((3, 4), np.uint8), np.ones((3, 2), F32)
    model = graph.model({"x": x, "s": s}, {"y": TensorProto.FLOAT})
    (node,) = model.graph
    found = refusal(node)
    assert found is not None
    assert "scale" in found.reason


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (1, 5), (5, 1), (5, 5), (1, 1)])
def test_a_matrix_that_gemm_adds_is_no_bias(
    shape: tuple[int, ...], wide: bool, target: str, tmp_path: Path
) -> None:
    """As many rows as columns: one number a row would be taken for one a column."""
    random = np.random.default_rng(3)
    storage = np.uint16 if wide else np.uint8
    graph = Graph(is_wide=wide)
    x = random.integers(0, 200, (5, 40)).astype(storage)
    weights = random.integers(-60, 60, (40, 5)).astype(np.int8)
    data = graph.dequantize("x", 0.02, np.array(100, storage))
    factors = graph.dequantize(graph.weight(weights), 0.01, np.array(0, np.int8))
    added = random.standard_normal(shape).astype(np.float32)
    graph.op("Gemm", data, factors, graph.weight(added), name="y")
    model = graph.model({"x": x}, {"y": TensorProto.FLOAT})
    got = run_native(model, {"x": x}, tmp_path, target)["y"]
    wanted = (x.astype(np.float64) - 100) * 0.02 @ (weights * 0.01) + added
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_a_window_with_no_pixel_has_the_least_number(tmp_path: Path) -> None:
    """Not the least code: with dilations a window may lie beside the image."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,3,2,4] x) => (float[1,3,1,4] y)
      <float s = {0.02}, int8 z = {-128}, float t = {0.03}, int8 n = {0}> {
      q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)
      m = MaxPool <kernel_shape = [2, 1], dilations = [3, 1], pads = [1, 0, 1, 0]> (d)
      r = QuantizeLinear (m, t, n) y = DequantizeLinear (r, t, n) }"""
    proto = onnx.parser.parse_model(text)
    x = np.random.default_rng(0).random((1, 3, 2, 4)).astype(np.float32)
    (wanted,) = ort.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    compiled = compile_model(proto, cache_dir=tmp_path)
    assert {node["backend"] for node in compiled.report.nodes} == {"native"}
    (found,) = compiled.session().run(None, {"x": x})
    assert np.array_equal(found, wanted)
