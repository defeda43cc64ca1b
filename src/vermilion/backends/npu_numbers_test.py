"""What a modelled NPU computes, bit by bit, against references that are written out here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from quantized_graphs import Graph, conv, fma, requantized
from vermilion.backends.base import CompileOptions, Part, Tensors
from vermilion.backends.native import NativeBackend
from vermilion.backends.npu_model import NpuModelBackend
from vermilion.backends.npu_numbers import (
    for_generated_code,
    in_standard_operators,
    numbers_of,
    rounded_weights,
    summed_axes,
)
from vermilion.backends.ort import OrtBackend
from vermilion.codegen.isa import isa_of
from vermilion.hardware.targets.find import find_target
from vermilion.ir.execute import split_weights
from vermilion.quantize.blocks import round_to

Array = NDArray[Any]

STRIX = find_target("strix")
HAS_BF16 = isa_of(find_target("cpu")).has_bf16


def read(text: str, **weights: Array) -> ir.Model:
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\ng {text}')
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in weights.items()
    )
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto, strict_mode=True))


class Files:
    def __init__(self, folder: Path, model: ir.Model) -> None:
        self._folder, self._model = folder, model

    def read(self, name: str) -> memoryview:
        return memoryview((self._folder / name).read_bytes())

    def weights(self) -> Mapping[str, Array]:
        return split_weights(self._model)[1]


def run(
    model: ir.Model, inputs: Tensors, folder: Path, precision: str = "auto", engine: str = "native"
) -> dict[str, Array]:
    """Compile, load and run a part as the modelled NPU does; check who computed it."""
    part = Part("vaiml_par_0", "npu", "npu_model", model, (), 0.0)
    options = CompileOptions(precision=precision, threads=1)
    backend = NpuModelBackend()
    program = backend.compile(part, STRIX, options, folder)
    assert program.details["engine"] == engine, program.notes
    return backend.load(program, Files(folder, model), STRIX, options).run(inputs)


def run_literal(model: ir.Model, inputs: Tensors, folder: Path, precision: str) -> dict[str, Array]:
    """Run the same numbers written in standard operators, in ONNX Runtime."""
    literal = in_standard_operators(model, numbers_of(model, precision))
    part = Part("literal", "cpu", "ort", literal, (), 0.0)
    program = OrtBackend().compile(part, STRIX, CompileOptions(threads=1), folder)
    loaded = OrtBackend().load(program, Files(folder, literal), STRIX, CompileOptions(threads=1))
    return loaded.run(inputs)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def to_bf16(values: Array) -> Array:
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


# References ---------------------------------------------------------------------------------------


def summed(left: Array, right: Array) -> Array:
    """Return left @ right as the processor sums it, each addition rounded to float32.

    vdpbf16ps adds the second product of a pair before the first (found by experiment on Zen 5: no
    other order gives the same bits). Without it, products are added one after the other, in runs of
    about 512 that have a sum each.
    """
    depth = left.shape[1]
    if HAS_BF16:
        return _added(left, right, [k ^ 1 for k in range(depth + depth % 2) if k ^ 1 < depth])
    runs = np.array_split(np.arange(depth), max(1, round(depth / 512)))
    total = _added(left, right, runs[0])
    for run in runs[1:]:
        total = total + _added(left, right, run)
    return total


def _added(left: Array, right: Array, order: Iterable[int]) -> Array:
    """Return the sum of the products of these depths, one after the other."""
    total = np.zeros((left.shape[0], right.shape[1]), np.float32)
    for k in order:  # products of 16 bits are exact in float64
        step = left[:, k : k + 1].astype(np.float64) * right[k : k + 1].astype(np.float64)
        total = (total.astype(np.float64) + step).astype(np.float32)
    return total


def patches(x: Array, size: int, pad: int) -> Array:
    """Return (pixels, taps of a row side by side, channels last) of an image (1, C, H, W)."""
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))[0].transpose(1, 2, 0)
    rows = padded.shape[0] - size + 1
    columns = padded.shape[1] - size + 1
    return np.stack(
        [
            padded[r : r + size, c : c + size].reshape(-1)
            for r in range(rows)
            for c in range(columns)
        ]
    )


def convolved(x: Array, weights: Array, pad: int) -> Array:
    """Return a stride-1 convolution (1, O, H, W), summed as the kernel does: by rows of taps."""
    size = weights.shape[2]
    flat = weights.transpose(2, 3, 1, 0).reshape(-1, weights.shape[0])
    sums = summed(patches(x, size, pad), flat)
    height = x.shape[2] + 2 * pad - size + 1
    return sums.T.reshape(1, weights.shape[0], height, -1)


def cancelling(rows: int, depth: int, columns: int) -> tuple[Array, Array]:
    """Return two matrices whose products add up to little: what is left is all rounding."""
    half, other = normal(rows, depth // 2), normal(depth // 2, columns, seed=1)
    left = np.concatenate([half, -half[:, ::-1]], axis=1)
    return left, np.concatenate([other, other[::-1]])


# bfloat16 -----------------------------------------------------------------------------------------


def test_weights_are_rounded_as_ml_dtypes_does() -> None:
    bits = np.random.default_rng(2).integers(0, 2**32, 20000, np.uint32)
    values = bits.view(np.float32)
    values = values[np.isfinite(values) & (np.abs(values) < 3.3e38)]
    np.testing.assert_array_equal(rounded_weights(values), to_bf16(values))
    most = np.float32(3.3895313892515355e38)
    np.testing.assert_array_equal(
        rounded_weights(np.array([3.4e38, -3.4e38, np.inf], np.float32)), [most, -most, np.inf]
    )


def test_a_product_has_the_bits_of_its_sums(tmp_path: Path) -> None:
    x, w = cancelling(24, 1024, 48)
    model = read("(float[24,1024] x) => (float[24,48] y) { y = MatMul (x, w) }", w=w)
    wanted = to_bf16(summed(to_bf16(x), to_bf16(w)))
    assert np.abs(wanted).max() < 1e-3
    assert np.unique(wanted).size > 30, "roundings differ"
    np.testing.assert_array_equal(run(model, {"x": x}, tmp_path)["y"], wanted)


def test_every_operator_rounds_what_it_gives(tmp_path: Path) -> None:
    x, w, b = normal(1, 20, 6, 7), normal(24, 20, 3, 3, seed=1), normal(24, seed=2)
    model = read(
        """(float[1,20,6,7] x, float[1,24,6,7] r) => (float[1,24,6,7] y, float[1,24,6,7] z) {
          c = Conv<pads = [1, 1, 1, 1]> (x, w, b)  d = Add (c, r)  y = Relu (d)
          e = Mul (d, r)  f = Sub (e, x0)  z = Div (f, three)
        }""",
        w=w, b=b, x0=np.array(0.3, np.float32), three=np.array(3.0, np.float32),
    )  # fmt: skip
    r = normal(1, 24, 6, 7, seed=3)
    found = run(model, {"x": x, "r": r}, tmp_path)
    small = to_bf16(r)
    c = to_bf16(convolved(to_bf16(x), to_bf16(w), 1) + to_bf16(b)[:, None, None])
    d = to_bf16(c + small)
    np.testing.assert_array_equal(found["y"], np.maximum(d, 0))
    e = to_bf16(d * small)
    f = to_bf16(e - to_bf16(np.array(0.3, np.float32)))
    np.testing.assert_array_equal(found["z"], to_bf16(f / np.float32(3.0)))


def test_what_says_how_is_not_rounded(tmp_path: Path) -> None:
    """1.3005 would become 1.296875, and that times 10 is 12 pixels, not 13."""
    scales = np.array([1, 1, 1.3005, 1.3005], np.float32)
    model = read(
        """(float[1,4,10,10] x) => (float[1,4,13,13] y) {
          y = Resize<mode = "nearest", nearest_mode = "floor",
            coordinate_transformation_mode = "asymmetric"> (x, , s)
        }""",
        s=scales,
    )
    x = normal(1, 4, 10, 10)
    found = run(model, {"x": x}, tmp_path)["y"]
    places = np.floor(np.arange(13) / np.float32(1.3005)).astype(int)
    np.testing.assert_array_equal(found, to_bf16(x)[:, :, places][:, :, :, places])


# Blocks -------------------------------------------------------------------------------------------


def test_a_product_of_blocks_has_the_bits_of_its_sums(tmp_path: Path) -> None:
    x, w = normal(24, 100), normal(100, 40, seed=1)
    model = read("(float[24,100] x) => (float[24,40] y) { y = MatMul (x, w) }", w=w)
    left, right = round_to(to_bf16(x), "bfp16", 1), round_to(w, "bfp16", 0)
    wanted = to_bf16(summed(left, right))
    np.testing.assert_array_equal(run(model, {"x": x}, tmp_path, "bfp16")["y"], wanted)


def test_a_convolution_of_blocks_has_the_bits_of_its_sums(tmp_path: Path) -> None:
    """Twice, so that what is rounded between lies in the border that the second one wants."""
    x, w = normal(1, 3, 9, 11), normal(20, 3, 3, 3, seed=1)
    v, b = normal(24, 20, 3, 3, seed=2), normal(20, seed=3)
    model = read(
        """(float[1,3,9,11] x) => (float[1,24,9,11] y) {
          c = Conv<pads = [1, 1, 1, 1]> (x, w, b)  d = Relu (c)
          y = Conv<pads = [1, 1, 1, 1]> (d, v)
        }""",
        w=w, v=v, b=b,
    )  # fmt: skip
    blocks = [round_to(array, "bfp16", 1) for array in (to_bf16(x), w, v)]
    c = to_bf16(convolved(blocks[0], blocks[1], 1) + to_bf16(b)[:, None, None])
    d = round_to(np.maximum(c, 0), "bfp16", 1)
    wanted = to_bf16(convolved(d, blocks[2], 1))
    np.testing.assert_array_equal(run(model, {"x": x}, tmp_path, "bfp16")["y"], wanted)


def test_two_tensors_are_blocks_along_what_is_summed_over(tmp_path: Path) -> None:
    a, b = normal(2, 9, 50), normal(2, 50, 21, seed=1)
    model = read("(float[2,9,50] a, float[2,50,21] b) => (float[2,9,21] y) { y = MatMul (a, b) }")
    left, right = round_to(to_bf16(a), "bfp16", 2), round_to(to_bf16(b), "bfp16", 1)
    wanted = np.stack([to_bf16(summed(x, y)) for x, y in zip(left, right, strict=True)])
    np.testing.assert_array_equal(run(model, {"a": a, "b": b}, tmp_path, "bfp16")["y"], wanted)


def test_the_error_of_the_order_is_bounded(tmp_path: Path) -> None:
    """Whatever order a chip adds in: n roundings of half a unit of what is added up."""
    x, w = normal(16, 512), normal(512, 32, seed=1)
    model = read("(float[16,512] x) => (float[16,32] y) { y = MatMul (x, w) }", w=w)
    left, right = round_to(to_bf16(x), "bfp16", 1), round_to(w, "bfp16", 0)
    exact = left.astype(np.float64) @ right.astype(np.float64)
    bound = 512 * 2.0**-24 * (np.abs(left).astype(np.float64) @ np.abs(right).astype(np.float64))
    found = run(model, {"x": x}, tmp_path, "bfp16")["y"]
    assert (np.abs(found - exact) <= bound + 2.0**-8 * np.abs(exact)).all()


AXES = {
    "(float[2,3] x) => (float[2,4] y) { y = Gemm (x, w) }": ((3, 4), [(0, 1), (1, 0)]),
    "(float[3,2] x) => (float[2,4] y) { y = Gemm<transA = 1, transB = 1> (x, w) }": (
        (4, 3),
        [(0, 0), (1, 1)],
    ),
    "(float[1,6,5] x) => (float[1,4,5] y) { y = Conv (x, w) }": ((4, 6, 1), [(0, 1), (1, 1)]),
    "(float[1,6,5] x) => (float[1,6,5] y) { y = Conv<group = 6> (x, w) }": ((6, 1, 1), []),
    "(float[1,6,5] x) => (float[1,4,5] y) { y = ConvTranspose (x, w) }": (
        (6, 4, 1),
        [(0, 1), (1, 0)],
    ),
    "(float[7,2,3] x) => (float[7,2] y) { y = MatMul (x, w) }": ((3,), [(0, 2), (1, 0)]),
}


@pytest.mark.parametrize("text", AXES)
def test_blocks_lie_along_what_is_summed_over(text: str) -> None:
    shape, wanted = AXES[text]
    (node,) = read(text, w=normal(*shape)).graph
    assert list(summed_axes(node)) == wanted


# Against the same numbers in standard operators --------------------------------------------------


@pytest.mark.parametrize("precision", ["bf16", "bfp16"])
def test_standard_operators_say_the_same(precision: str, tmp_path: Path) -> None:
    """ONNX Runtime adds in another order: a few values fall on the other side of a step."""
    model = read(
        """(float[1,16,8,8] x) => (float[1,10] y) {
          c = Conv<pads = [1, 1, 1, 1]> (x, w)  d = HardSwish (c)  e = MaxPool<kernel_shape =
          [2, 2], strides = [2, 2]> (d)  f = Conv<group = 32> (e, v)  g = GlobalAveragePool (f)
          h = Flatten (g)  y = Gemm<transB = 1> (h, u)
        }""",
        w=normal(32, 16, 3, 3) / 8, v=normal(32, 1, 1, 1, seed=1), u=normal(10, 32, seed=2) / 4,
    )  # fmt: skip
    x = normal(1, 16, 8, 8, seed=3)
    found = run(model, {"x": x}, tmp_path / "a", precision)["y"]
    other = run_literal(model, {"x": x}, tmp_path / "b", precision)["y"]
    np.testing.assert_array_equal(other, to_bf16(other))
    assert np.abs(found - other).max() <= 2.0**-7 * np.abs(other).max()


def test_a_part_that_is_not_generated_is_computed_in_the_same_numbers(tmp_path: Path) -> None:
    """Einsum is on AMD's list and not in our generator."""
    model = read(
        """(float[4,100] x) => (float[4,40] y) {
          a = Einsum<equation = "ij,jk->ik"> (x, w)  y = Mul (a, a)
        }""",
        w=normal(100, 40, seed=1),
    )
    x = normal(4, 100)
    part = Part("vaiml_par_0", "npu", "npu_model", model, (), 0.0)
    program = NpuModelBackend().compile(part, STRIX, CompileOptions(), tmp_path / "program")
    assert program.modelled
    (note,) = program.notes
    assert "modelled by ONNX Runtime" in note
    assert "`Einsum`" in note
    found = run(model, {"x": x}, tmp_path, engine="ort")["y"]
    a = to_bf16(to_bf16(x) @ rounded_weights(normal(100, 40, seed=1)))
    np.testing.assert_allclose(found, to_bf16(a * a), rtol=2.0**-6)
    np.testing.assert_array_equal(found, to_bf16(found))


@pytest.mark.parametrize("precision", ["bf16", "bfp16"])
def test_a_processor_without_bfloat16_gives_the_same_numbers(
    precision: str, tmp_path: Path
) -> None:
    random = np.random.default_rng(7)
    x, w = (random.integers(-9, 10, shape).astype(np.float32) for shape in ((6, 40), (40, 24)))
    model = read(
        """(float[6,40] x) => (float[6,24] y) {
          a = MatMul (x, w)  b = Sigmoid (x)  c = MatMul (b, w)  d = Mul (a, half)
          e = Floor (c)  y = Add (d, e)
        }""",
        w=w, half=np.array(0.3, np.float32),
    )  # fmt: skip
    numbers = numbers_of(model, precision)
    older = find_target("zen3")
    if older.features - find_target("cpu").features:
        pytest.skip("this machine does not run code for zen3")
    written = for_generated_code(model, numbers, stores_bf16=False)
    part = Part("p", "cpu", "native", written, (), 0.0)
    options = CompileOptions(threads=1, winograd=False)
    program = NativeBackend().compile(part, older, options, tmp_path / "older")
    loaded = NativeBackend().load(program, Files(tmp_path / "older", written), older, options)
    found = loaded.run({"x": x})["y"]
    np.testing.assert_array_equal(found, to_bf16(found))
    wanted = run(model, {"x": x}, tmp_path / "here", precision)["y"]
    same = found == wanted
    assert same.mean() > 0.9, "a sum of sigmoids may fall on the other side of a whole number"
    np.testing.assert_allclose(found, wanted, atol=1.0 + 2.0**-7 * np.abs(wanted).max())


# Integers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["xint8", "a8w8", "a16w8"])
def test_a_chain_of_quantized_layers_is_exact(kind: str, tmp_path: Path) -> None:
    """Two convolutions, a residual sum and a pool, against integers in numpy."""
    random = np.random.default_rng(4)
    wide = kind == "a16w8"
    storage = {"xint8": np.int8, "a8w8": np.uint8, "a16w8": np.int16}[kind]
    zero = 0 if kind != "a8w8" else 131
    info = np.iinfo(storage)
    graph = Graph(is_wide=wide)
    scales = [2.0**-4, 2.0**-2, 2.0**-1] if kind == "xint8" else [0.0613, 0.211, 0.37]
    w_scale = 2.0**-7 if kind == "xint8" else 0.0091
    if wide:
        scales = [scale / 256 for scale in scales]
    zeros = np.array(zero, storage)
    x = random.integers(info.min, info.max + 1, (1, 8, 7, 7)).astype(storage)
    w, v = (random.integers(-127, 128, (8, 8, 3, 3)).astype(np.int8) for _ in range(2))
    b = random.integers(-127, 128, 8).astype(np.int8)
    b_scale = 2.0**-5 if kind == "xint8" else np.float32(scales[0]) * np.float32(w_scale)
    bias = graph.dequantized(b if kind == "xint8" else b.astype(np.int32), b_scale)
    a = graph.dequantize("x", scales[0], zeros)
    first = graph.op("Conv", a, graph.dequantized(w, w_scale), bias, pads=[1] * 4)
    first = graph.pair(graph.op("Relu", first), scales[1], zeros)
    second = graph.op("Conv", first, graph.dequantized(v, w_scale), pads=[1] * 4)
    second = graph.pair(second, scales[2], zeros)
    total = graph.op("Relu", graph.op("Add", second, a))
    graph.quantize(total, scales[2], zeros, name="y")
    model = graph.model({"x": x}, {"y": onnx.helper.np_dtype_to_tensor_dtype(np.dtype(storage))})
    assert numbers_of(model) == "integers"
    found = run(model, {"x": x}, tmp_path)["y"]

    one = [np.float64(np.float32(scale)) for scale in scales]
    weight_scale = np.float64(np.float32(w_scale))
    centred = x.astype(np.int64) - zero
    sums = conv(centred, w, 1, [1] * 4, 1, 1)
    factor = one[0] * weight_scale / one[1]
    b_wide = b.astype(np.int64)[:, None, None]
    if kind == "xint8":  # the bias has a scale of its own, and is no multiple of the sums' steps
        steps = 2.0**-5 / (one[0] * weight_scale)
        assert steps == int(steps)
        b_wide = b_wide * int(steps)
    value = (sums + b_wide).astype(np.float32) * np.float32(factor)
    middle = requantized(value, zero, storage, (0.0, np.inf)).astype(np.int64) - zero
    value = conv(middle, v, 1, [1] * 4, 1, 1).astype(np.float32) * np.float32(
        one[1] * weight_scale / one[2]
    )
    last = requantized(value, zero, storage, (-np.inf, np.inf)).astype(np.int64) - zero
    ratio = one[0] / one[2]
    value = fma(last.astype(np.float32), 1.0, centred.astype(np.float32) * np.float32(ratio))
    wanted = requantized(value, zero, storage, (0.0, np.inf))
    np.testing.assert_array_equal(found, wanted)
    assert np.unique(wanted).size > 12
