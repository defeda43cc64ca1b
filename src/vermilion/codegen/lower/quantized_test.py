"""Integer products run natively, bit for bit as the reference in numpy says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from quantized_graphs import F32, Graph, conv, fma, over_channels, requantized, run_native
from vermilion.ir.execute import open_session, run_session

Array = NDArray[Any]


# Convolutions -------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConvCase:
    """One convolution between quantized tensors."""

    channels: tuple[int, int]
    size: tuple[int, int]
    kernel: int = 3
    stride: int = 1
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    group: int = 1
    dilation: int = 1
    batch: int = 1
    signed: bool = False
    per_channel: bool = True
    bias: str = "grid"  # or "none", "float", "own scale"
    activation: str = ""
    zeros: tuple[int, int] = (117, 3)


CONVS = (
    ConvCase((3, 16), (9, 9), 7, 2, (3, 3, 3, 3)),
    ConvCase((8, 16), (7, 7)),
    ConvCase((5, 37), (6, 11), signed=True, zeros=(-7, 4)),
    ConvCase((64, 64), (7, 7), 1, 1, (0, 0, 0, 0), activation="relu"),
    ConvCase((130, 70), (3, 5), 1, 1, (0, 0, 0, 0), signed=True, zeros=(0, 0)),
    ConvCase((16, 33), (8, 8), 3, 2, (0, 1, 1, 0), batch=3, bias="float"),
    ConvCase((6, 9), (10, 8), 3, 1, (2, 2, 2, 2), dilation=2, bias="none", activation="clip"),
    ConvCase((32, 32), (9, 9), group=32, activation="clip"),
    ConvCase((19, 19), (7, 9), 5, 2, (2, 2, 2, 2), group=19, batch=2, signed=True, zeros=(5, -9)),
    ConvCase((8, 12), (6, 6), group=4, bias="own scale"),
    ConvCase((20, 24), (5, 5), per_channel=False, bias="own scale", signed=True, zeros=(0, 0)),
    ConvCase((24, 20), (5, 5), per_channel=False, activation="relu", bias="float"),
    # Taps that lie in the border: for some patches, for all outputs.
    ConvCase((16, 24), (9, 10), 3, 1, (6, 6, 6, 6), dilation=6, activation="relu"),
    ConvCase((5, 40), (7, 7), 3, 1, (7, 7, 7, 7), dilation=7, signed=True, zeros=(-7, 4)),
    ConvCase((8, 8), (3, 40), 15, 1, (7, 7, 7, 7), group=2, bias="own scale"),
    # Groups of a few channels: whole words, words of two groups, groups that begin inside of one.
    ConvCase((32, 32), (6, 13), group=8, activation="relu"),
    ConvCase((24, 36), (7, 5), 3, 2, group=12, signed=True, zeros=(5, -9)),
    ConvCase((30, 20), (5, 9), group=10, batch=2, bias="float"),
    ConvCase((10, 20), (6, 6), group=10, bias="own scale"),
    ConvCase((19, 19), (9, 9), 7, 1, (3, 3, 3, 3), group=19, signed=True, zeros=(5, -9)),
)


@dataclass
class ConvData:
    """The tensors of a case."""

    x: Array
    w: Array
    w_scale: Array
    bias: Array
    bias_scale: Array | None


def conv_data(case: ConvCase, random: np.random.Generator) -> ConvData:
    kind = np.int8 if case.signed else np.uint8
    info = np.iinfo(kind)
    inputs, outputs = case.channels
    x = random.integers(info.min, info.max + 1, (case.batch, inputs, *case.size)).astype(kind)
    shape = (outputs, inputs // case.group, case.kernel, case.kernel)
    w = random.integers(-127, 128, shape).astype(np.int8)
    count = outputs if case.per_channel else 1
    w_scale = (random.uniform(0.5, 2.0, count) / 400).astype(F32)
    if not case.per_channel:
        w_scale = w_scale.reshape(())
    grid = (F32(X_SCALE) * w_scale).astype(F32)
    match case.bias:
        case "grid":
            return ConvData(x, w, w_scale, random.integers(-9999, 9999, outputs, np.int32), grid)
        case "own scale":  # as the NPU's scheme has it: eight bits, a power of two
            bias = random.integers(-127, 128, outputs).astype(np.int8)
            return ConvData(x, w, w_scale, bias, np.array(2.0**-6, F32))
        case "float":
            return ConvData(x, w, w_scale, random.standard_normal(outputs).astype(F32), None)
    return ConvData(x, w, w_scale, np.zeros(outputs, np.int32), grid)


X_SCALE, Y_SCALE = 0.0217, 0.31


def conv_graph(case: ConvCase, data: ConvData) -> tuple[Graph, str]:
    graph = Graph()
    x = graph.dequantize("x", X_SCALE, np.array(case.zeros[0], data.x.dtype))
    w = graph.dequantized(data.w, data.w_scale)
    inputs = [x, w]
    if case.bias == "float":
        inputs.append(graph.weight(data.bias))
    elif case.bias != "none":
        assert data.bias_scale is not None
        inputs.append(graph.dequantized(data.bias, data.bias_scale))
    y = graph.op(
        "Conv", *inputs, strides=[case.stride] * 2, pads=list(case.pads), group=case.group,
        dilations=[case.dilation] * 2,
    )  # fmt: skip
    if case.activation == "relu":
        y = graph.op("Relu", y)
    if case.activation == "clip":
        limits = [graph.weight(np.array(limit, F32)) for limit in (0.0, 6.0)]
        y = graph.op("Clip", y, *limits)
    return graph, y


def accumulated(case: ConvCase, data: ConvData) -> tuple[Array, Array, Array]:
    """Return the accumulator as float32, its factor, and what is added, both in float64."""
    x = data.x.astype(np.int64) - case.zeros[0]
    total = conv(x, data.w, case.stride, case.pads, case.group, case.dilation)
    factor = over_channels(np.float64(F32(X_SCALE)) * data.w_scale.astype(np.float64), 4)
    constant = np.zeros(())
    if case.bias == "grid":
        total = total + over_channels(data.bias.astype(np.int64), 4)
    elif case.bias == "float":
        constant = over_channels(data.bias.astype(np.float64), 4)
    elif case.bias == "own scale":
        constant = over_channels(data.bias.astype(np.float64) * 2.0**-6, 4)
    return total.astype(F32), factor, constant


def sum_of(acc: Array, factor: Array, constant: Array) -> Array:
    if not np.any(constant):
        return acc * factor.astype(F32)
    return fma(acc, factor.astype(F32), constant.astype(F32))


def bounds_of(activation: str) -> tuple[float, float]:
    six = float(np.rint(F32(6.0) / F32(Y_SCALE)))
    return {"": (-np.inf, np.inf), "relu": (0.0, np.inf), "clip": (0.0, six)}[activation]


@pytest.mark.parametrize("case", CONVS, ids=str)
def test_a_convolution_is_exact(case: ConvCase, target: str, tmp_path: Path) -> None:
    data = conv_data(case, np.random.default_rng(1))
    graph, y = conv_graph(case, data)
    kind = data.x.dtype
    graph.quantize(y, Y_SCALE, np.array(case.zeros[1], kind), name="y")
    model = graph.model({"x": data.x}, {"y": helper.np_dtype_to_tensor_dtype(kind)})
    got = run_native(model, {"x": data.x}, tmp_path, target)["y"]
    acc, factor, constant = accumulated(case, data)
    scale = np.float64(F32(Y_SCALE))
    value = sum_of(acc, factor * (1.0 / scale), constant * (1.0 / scale))
    wanted = requantized(value, case.zeros[1], kind, bounds_of(case.activation))
    np.testing.assert_array_equal(got, wanted)
    theirs = run_session(open_session(model), {"x": data.x})["y"]
    assert np.abs(got.astype(int) - theirs.astype(int)).max() <= 1
    assert len(np.unique(wanted)) > 12


@pytest.mark.parametrize("case", CONVS[:6], ids=str)
def test_a_convolution_that_gives_floats_is_exact(
    case: ConvCase, target: str, tmp_path: Path
) -> None:
    data = conv_data(case, np.random.default_rng(2))
    graph, y = conv_graph(case, data)
    graph.op("Identity", y, name="y")
    model = graph.model({"x": data.x}, {"y": TensorProto.FLOAT})
    got = run_native(model, {"x": data.x}, tmp_path, target)["y"]
    wanted = sum_of(*accumulated(case, data))
    if case.activation == "relu":
        wanted = np.maximum(wanted, 0)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("is_signed", [False, True])
def test_a_residual_block_is_exact(is_signed: bool, target: str, tmp_path: Path) -> None:
    case = ConvCase((16, 16), (6, 6), signed=is_signed, zeros=(-11, 0) if is_signed else (128, 0))
    data = conv_data(case, np.random.default_rng(3))
    graph, y = conv_graph(case, data)
    kind = data.x.dtype
    zero, middle, last = (np.array(v, kind) for v in (case.zeros[0], 7, -20 if is_signed else 9))
    y = graph.pair(y, Y_SCALE, middle)
    identity = graph.dequantize("x", X_SCALE, zero)
    y = graph.op("Relu", graph.op("Add", y, identity))
    graph.quantize(y, 0.2, last, name="y")
    model = graph.model({"x": data.x}, {"y": helper.np_dtype_to_tensor_dtype(kind)})
    got = run_native(model, {"x": data.x}, tmp_path, target)["y"]
    acc, factor, constant = accumulated(case, data)
    scale, out = np.float64(F32(Y_SCALE)), np.float64(F32(0.2))
    first = requantized(sum_of(acc, factor / scale, constant), 7, kind, (-np.inf, np.inf))
    first = (first.astype(int) - 7).astype(F32)
    second = (data.x.astype(int) - int(zero)).astype(F32)
    value = fma(first, scale / out, second * F32(np.float64(F32(X_SCALE)) / out))
    wanted = requantized(value, int(last), kind, (0.0, np.inf))
    np.testing.assert_array_equal(got, wanted)


# Matrix products ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Gemm", "Gemm transposed", "MatMul"])
@pytest.mark.parametrize("sizes", [(1, 64, 10), (7, 30, 33), (12, 129, 64)], ids=str)
@pytest.mark.parametrize("storage", [np.uint8, np.int8])
def test_a_matrix_product_is_exact(
    kind: str, sizes: tuple[int, int, int], storage: Any, target: str, tmp_path: Path
) -> None:
    random = np.random.default_rng(4)
    rows, inner, outputs = sizes
    info = np.iinfo(storage)
    shape = (rows, inner) if kind != "MatMul" else (2, rows, inner)
    x = random.integers(info.min, info.max + 1, shape).astype(storage)
    w = random.integers(-127, 128, (inner, outputs)).astype(np.int8)
    scales = random.uniform(0.001, 0.01, outputs).astype(F32)
    graph = Graph()
    a = graph.dequantize("x", X_SCALE, np.array(13, storage))
    if kind == "MatMul":
        y = graph.op("MatMul", a, graph.dequantized(w, scales, axis=1))
    else:
        bias = graph.weight(np.linspace(-1, 1, outputs).astype(F32))
        is_transposed = kind != "Gemm"
        b = graph.dequantized(w.T if is_transposed else w, scales, axis=0 if is_transposed else 1)
        y = graph.op("Gemm", a, b, bias, transB=int(is_transposed))
    graph.quantize(y, Y_SCALE, np.array(100, storage), name="y")
    model = graph.model({"x": x}, {"y": helper.np_dtype_to_tensor_dtype(np.dtype(storage))})
    got = run_native(model, {"x": x}, tmp_path, target)["y"]
    acc = ((x.astype(np.int64) - 13) @ w.astype(np.int64)).astype(F32)
    back = 1.0 / np.float64(F32(Y_SCALE))
    factor = np.float64(F32(X_SCALE)) * scales.astype(np.float64) * back
    constant = np.zeros(outputs) if kind == "MatMul" else np.linspace(-1, 1, outputs)
    value = sum_of(acc, factor, constant.astype(F32).astype(np.float64) * back)
    wanted = requantized(value, 100, storage, (-np.inf, np.inf))
    np.testing.assert_array_equal(got, wanted)
