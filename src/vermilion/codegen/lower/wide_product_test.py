"""Products of 16-bit activations and 8-bit weights: exact, however deep."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from quantized_graphs import F32, Graph, conv, fma, over_channels, requantized, run_native
from vermilion.api import compile_model
from vermilion.ir.execute import open_session, run_session

Array = NDArray[Any]
X_SCALE, W_SCALE = 1.7e-4, 0.0123
EVERYTHING = (-np.inf, np.inf)


@dataclass(frozen=True)
class Case:
    """One convolution of 16-bit numbers."""

    channels: tuple[int, int]
    size: tuple[int, int] = (6, 7)
    kernel: int = 3
    stride: int = 1
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    group: int = 1
    storage: Any = np.int16
    zeros: tuple[int, int] = (0, 0)
    bias: bool = True


CASES = (
    Case((3, 20), kernel=5, stride=2, pads=(2, 2, 2, 2)),
    Case((16, 37), storage=np.uint16, zeros=(31000, 40000)),
    Case((24, 24), group=24, zeros=(-300, 77)),
    Case((8, 12), group=4, bias=False),
    Case((700, 18), size=(3, 3), zeros=(5, -5)),  # sums of more than 32 bits
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_convolution_is_exact(case: Case, target: str, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    info = np.iinfo(case.storage)
    inputs, outputs = case.channels
    # Far from zero on one side, so that the sums grow with the depth.
    x = random.integers(info.max // 2, info.max + 1, (1, inputs, *case.size)).astype(case.storage)
    x[0, 0] = info.min
    w = random.integers(-127, 128, (outputs, inputs // case.group, case.kernel, case.kernel))
    w = w.astype(np.int8)
    w[0] = 127
    bias = random.integers(-(2**31), 2**31, outputs).astype(np.int32)
    graph = Graph(is_wide=True)
    parts = [graph.dequantize("x", X_SCALE, np.array(case.zeros[0], case.storage))]
    scales = (random.uniform(0.5, 2.0, outputs) * W_SCALE).astype(F32)
    parts.append(graph.dequantized(w, scales))
    if case.bias:
        parts.append(graph.dequantized(bias, (F32(X_SCALE) * scales).astype(F32)))
    y = graph.op("Conv", *parts, strides=[case.stride] * 2, pads=list(case.pads), group=case.group)
    total = conv(x.astype(np.int64) - case.zeros[0], w, case.stride, case.pads, case.group, 1)
    if case.bias:
        total = total + over_channels(bias.astype(np.int64), 4)
    factor = np.float64(F32(X_SCALE)) * scales.astype(np.float64)
    largest = np.abs(total * over_channels(factor, 4)).max()
    scale = np.float64(F32(largest / 30000))
    graph.quantize(y, float(scale), np.array(case.zeros[1], case.storage), name="y")
    model = graph.model({"x": x}, {"y": helper.np_dtype_to_tensor_dtype(x.dtype)})
    got = run_native(model, {"x": x}, tmp_path, target)["y"]
    value = total.astype(F32) * over_channels((factor * (1.0 / scale)).astype(F32), 4)
    wanted = requantized(value, case.zeros[1], case.storage, EVERYTHING)
    np.testing.assert_array_equal(got, wanted)
    theirs = run_session(open_session(model), {"x": x})["y"]
    assert np.abs(got.astype(int) - theirs.astype(int)).max() <= 2
    if inputs == 700:
        assert np.abs(total).max() > 2**32


@pytest.mark.parametrize("kind", ["Gemm", "MatMul"])
def test_a_matrix_product_is_exact(kind: str, target: str, tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    shape = (7, 700) if kind == "Gemm" else (2, 5, 700)
    x = random.integers(10000, 32768, shape).astype(np.int16)
    w = random.integers(-30, 128, (700, 33)).astype(np.int8)
    graph = Graph(is_wide=True)
    inputs = [graph.dequantize("x", X_SCALE, np.array(0, np.int16)), graph.dequantized(w, W_SCALE)]
    constant = np.zeros(33, F32)
    if kind == "Gemm":
        constant = np.linspace(-3, 3, 33).astype(F32)
        inputs.append(graph.weight(constant))
    y = graph.op(kind, *inputs)
    graph.quantize(graph.op("Relu", y), 0.05, np.array(-20000, np.int16), name="y")
    model = graph.model({"x": x}, {"y": helper.np_dtype_to_tensor_dtype(np.dtype(np.int16))})
    got = run_native(model, {"x": x}, tmp_path, target)["y"]
    total = (x.astype(np.int64) @ w.astype(np.int64)).astype(F32)
    back = 1.0 / np.float64(F32(0.05))
    factor = np.float64(F32(X_SCALE)) * np.float64(F32(W_SCALE)) * back
    value = total * F32(factor)
    if kind == "Gemm":
        value = fma(total, F32(factor), (constant.astype(np.float64) * back).astype(F32))
    wanted = requantized(value, -20000, np.int16, (0.0, np.inf))
    np.testing.assert_array_equal(got, wanted)


def test_onnx_runtimes_own_quantizers_are_as_onnxs(tmp_path: Path) -> None:
    """Before opset 21 ONNX has no codes of 16 bits: quantizers write `com.microsoft`'s."""
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
      g (float[2,8,5,5] x) => (float[2,6,5,5] y)
      <float s = {0.001}, uint16 z = {32000}, float t = {0.02}, int8 n = {0}, float u = {0.003}> {
      q = com.microsoft.QuantizeLinear (x, s, z) d = com.microsoft.DequantizeLinear (q, s, z)
      k = DequantizeLinear (w, t, n) c = Conv (d, k)
      r = com.microsoft.QuantizeLinear (c, u, z) y = com.microsoft.DequantizeLinear (r, u, z) }"""
    proto = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    w = random.integers(-127, 128, (6, 8, 1, 1)).astype(np.int8)
    proto.graph.initializer.append(numpy_helper.from_array(w, "w"))
    compiled = compile_model(proto, cache_dir=tmp_path)
    assert {node["backend"] for node in compiled.report.nodes} == {"native"}
    assert all(row["status"] == "proven" for row in compiled.report.verification)
    x = random.standard_normal((2, 8, 5, 5)).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    wanted = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    (right,) = wanted.run(None, {"x": x})
    (mine,) = compiled.session().run(None, {"x": x})
    steps = np.abs(mine - right) / np.float32(0.003)
    assert steps.max() < 1.01
    assert np.mean(steps > 0.5) < 0.01, "at ties alone"
