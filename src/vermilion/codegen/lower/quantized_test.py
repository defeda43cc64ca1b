"""Quantized models run natively, held bit by bit to a reference written in numpy.

The reference follows the order of operations that `affine` states: int64 accumulators, then
float32 with every fused multiply-add rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from vermilion.backends.base import CompileOptions, Part
from vermilion.backends.native import NativeBackend
from vermilion.codegen.lower.rules import refusal
from vermilion.hardware.targets.find import find_target
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.passes.pipeline import simplify

Array = NDArray[Any]
F32 = np.float32

TARGETS = ("cpu", "zen3")


# Running a graph ----------------------------------------------------------------------------


@dataclass
class Graph:
    """An ONNX graph while it is written."""

    is_wide: bool = False
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def weight(self, array: Array, name: str = "") -> str:
        label = name or f"weight{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(array), label))
        return label

    def op(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        label = name or f"{kind}{len(self.nodes)}"
        node = helper.make_node(kind, list(inputs), [label], name=f"n{label}", **attributes)
        self.nodes.append(node)
        return label

    def quantize(self, x: str, scale: float, zero: Array, name: str = "") -> str:
        s, z = self.weight(np.array(scale, F32)), self.weight(zero)
        return self.op("QuantizeLinear", x, s, z, name=name)

    def dequantize(self, x: str, scale: float, zero: Array, name: str = "") -> str:
        s, z = self.weight(np.array(scale, F32)), self.weight(zero)
        return self.op("DequantizeLinear", x, s, z, name=name)

    def pair(self, x: str, scale: float, zero: Array) -> str:
        return self.dequantize(self.quantize(x, scale, zero), scale, zero)

    def dequantized(self, array: Array, scale: Array | float, axis: int = 0) -> str:
        """Add integer weights behind a DequantizeLinear."""
        scales = np.asarray(scale, F32)
        zero = self.weight(np.zeros(scales.shape, array.dtype))
        return self.op("DequantizeLinear", self.weight(array), self.weight(scales), zero, axis=axis)

    def model(self, inputs: Mapping[str, Array], outputs: Mapping[str, Any]) -> ir.Model:
        ins = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in inputs.items()
        ]
        outs = [helper.make_tensor_value_info(n, t, None) for n, t in outputs.items()]
        graph = helper.make_graph(self.nodes, "g", ins, outs, self.weights)
        # 16 bits came with version 21.
        version = [helper.make_opsetid("", 21 if self.is_wide else 17)]
        proto = helper.make_model(graph, opset_imports=version, ir_version=10)
        return simplify(ir.from_proto(proto)).model


def run_native(
    model: ir.Model, inputs: Mapping[str, Array], folder: Path, target: str, threads: int = 1
) -> dict[str, Array]:
    refused = [r.reason for node in model.graph if (r := refusal(node))]
    assert not refused
    backend, options = NativeBackend(), CompileOptions(threads=threads)
    place = find_target(target)
    program = backend.compile(Part("p", "cpu", "native", model, (), 0.0), place, options, folder)
    loaded = backend.load(program, _Files(folder), place, options)
    return loaded.run(inputs)


@dataclass
class _Files:
    folder: Path

    def read(self, name: str) -> memoryview:
        return memoryview((self.folder / name).read_bytes())


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    missing = find_target(name).features - find_target("cpu").features
    if missing:
        pytest.skip(f"this machine has no {', '.join(sorted(missing))}")
    return name


# The reference ------------------------------------------------------------------------------


def fma(a: Array, b: Array | float, c: Array | float) -> Array:
    """a·b + c rounded once: exact in float64 but for the sum, which is rounded to odd."""
    product = a.astype(np.float64) * np.asarray(b, F32).astype(np.float64)
    other = np.asarray(c, F32).astype(np.float64)
    total = product + other
    back = total - product
    error = (product - (total - back)) + (other - back)
    is_even = total.view(np.int64) % 2 == 0 if total.ndim else np.array(True)
    nudged = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where((error != 0) & is_even, nudged, total).astype(F32)


def requantized(value: Array, zero: int, storage: Any, bounds: tuple[float, float]) -> Array:
    """Clamp (the bounds count from the zero point), round half to even, add the zero point."""
    info = np.iinfo(storage)
    low, high = max(info.min - zero, bounds[0]), min(info.max - zero, bounds[1])
    clamped = np.minimum(np.maximum(value, F32(low)), F32(high))
    return (np.rint(clamped).astype(np.int64) + zero).astype(storage)


def conv(x: Array, w: Array, stride: int, pads: Sequence[int], group: int, dilation: int) -> Array:
    """Convolve integers in int64. Shapes: (N, C, H, W), (O, C ÷ group, h, w)."""
    n, _, h, wide = x.shape
    top, left, bottom, right = pads
    padded = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    outputs, inputs, taps_y, taps_x = w.shape
    rows = (h + top + bottom - (taps_y - 1) * dilation - 1) // stride + 1
    columns = (wide + left + right - (taps_x - 1) * dilation - 1) // stride + 1
    result = np.zeros((n, outputs, rows, columns), np.int64)
    each = outputs // group
    for g in range(group):
        part = padded[:, g * inputs : (g + 1) * inputs]
        for y in range(taps_y):
            for z in range(taps_x):
                window = part[:, :, y * dilation :, z * dilation :][:, :, ::stride, ::stride]
                kernel = w[g * each : (g + 1) * each, :, y, z].astype(np.int64)
                taken = window[:, :, :rows, :columns]
                result[:, g * each : (g + 1) * each] += np.einsum("nchw,oc->nohw", taken, kernel)
    return result


def over_channels(values: Array | float, rank: int) -> Array:
    array = np.asarray(values)
    return array if array.ndim == 0 else array.reshape(1, -1, *[1] * (rank - 2))


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
    """Give the accumulator as float32, its factor, and what is added, both in float64."""
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
    assert np.abs(got.astype(int) - theirs.astype(int)).max() <= 1
    assert len(np.unique(theirs)) > 20


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


def test_a_scale_that_is_not_constant_is_refused() -> None:
    graph = Graph()
    graph.op("DequantizeLinear", "x", "s", name="y")
    x, s = np.zeros(4, np.uint8), np.ones((), F32)
    model = graph.model({"x": x, "s": s}, {"y": TensorProto.FLOAT})
    (node,) = model.graph
    found = refusal(node)
    assert found is not None
    assert "scale" in found.reason
