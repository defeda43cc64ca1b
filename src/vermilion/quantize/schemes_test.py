"""Every scheme, from a float model to one that ONNX Runtime runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import models
from vermilion.errors import OptionError, UnsupportedError
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.load import load_model
from vermilion.quantization import quantize_file
from vermilion.quantize.blocks import round_to
from vermilion.quantize.formats import (
    SCHEMES,
    DynamicScheme,
    FloatScheme,
    WeightScheme,
    any_scheme_named,
)
from vermilion.quantize.quantize import quantize_model

RNG = np.random.default_rng(8)
IMAGES = [{"input": RNG.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(8)]
ROWS = [{"x": RNG.standard_normal((1, 6, 64)).astype(np.float32)} for _ in range(8)]

LEAST_DB = {
    "bf16": 40.0,
    "fp16": 55.0,
    "a16w8": 35.0,
    "mxfp4": 5.0,
    "mxfp8e5m2": 10.0,
    "mxfp8e4m3": 12.0,
}
LEAST_DB |= dict.fromkeys(("mxfp6e2m3", "mxfp6e3m2"), 10.0)


def transformer(opset: int = 17) -> ir.Model:
    text = f"""<ir_version: 10, opset_import: ["" : {opset}]>
        g (float[1,6,64] x) => (float[1,6,48] y) {{
        h = MatMul(x, w)
        k = Add(h, b)
        r = Relu(k)
        y = MatMul(r, v) }}"""
    proto = onnx.parser.parse_model(text)
    for name, shape in {"w": (64, 80), "b": (80,), "v": (80, 48)}.items():
        array = RNG.standard_normal(shape).astype(np.float32) / 8.0
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return ir.from_proto(proto)


def run(model: ir.Model, feed: dict[str, np.ndarray]) -> np.ndarray:
    return next(iter(run_session(open_session(model), feed).values()))


@pytest.mark.parametrize(
    "scheme", [n for n, s in SCHEMES.items() if not isinstance(s, WeightScheme | DynamicScheme)]
)
@pytest.mark.parametrize("builder", [models.small_cnn, models.branching_cnn, models.mobilenet])
def test_networks_keep_their_answers(scheme: str, builder: object) -> None:
    model = builder()  # type: ignore[operator]
    name = str(model.graph.inputs[0].name)
    shape = tuple(int(n) for n in model.graph.inputs[0].shape)
    data = [{name: RNG.standard_normal(shape).astype(np.float32)} for _ in range(8)]
    done = quantize_model(model, data, scheme=scheme)
    least = LEAST_DB.get(scheme, 20.0)
    assert min(row.sqnr_db for row in done.outputs) > least
    assert [v.name for v in done.model.graph.outputs] == [v.name for v in model.graph.outputs]
    if isinstance(any_scheme_named(scheme), FloatScheme):
        onnx.checker.check_model(ir.to_proto(done.model))


@pytest.mark.parametrize("scheme", ["int4", "uint4", "int4-qdq", "uint4-qdq"])
@pytest.mark.parametrize("block", [16, 32])
def test_four_bits(scheme: str, block: int) -> None:
    model = transformer()
    found = {
        rounding: quantize_model(
            model,
            ROWS,
            scheme=scheme,
            block=block,
            rounding=rounding,  # type: ignore[arg-type]
        )
        for rounding in ("nearest", "compensated")
    }
    assert found["nearest"].outputs[0].sqnr_db > 15.0
    assert found["compensated"].outputs[0].sqnr_db > found["nearest"].outputs[0].sqnr_db - 0.3
    assert "w" not in found["nearest"].model.graph.initializers


def test_four_bits_mean_what_the_operators_say() -> None:
    """The fused operator and the written-out one hold the same numbers."""
    model = transformer()
    pair = [quantize_model(model, ROWS, scheme=s, block=16).model for s in ("int4", "int4-qdq")]
    fused, written = (run(model, ROWS[0]) for model in pair)
    assert np.abs(fused - written).max() < 0.05 * np.abs(written).max()


@pytest.mark.parametrize("scheme", ["int4", "uint4", "int4-qdq", "uint4-qdq"])
def test_four_bits_come_back_from_their_file(scheme: str, tmp_path: Path) -> None:
    """Of symmetric blocks, half have a scale below zero."""
    file = tmp_path / "q.onnx"
    done = quantize_file(transformer(), file, calib=ROWS, scheme=scheme, block=16).quantized
    found = run(load_model(file), ROWS[0])
    np.testing.assert_allclose(found, run(done.model, ROWS[0]), rtol=1e-4, atol=1e-5)


def test_sixteen_bits_stay_in_an_optimized_session() -> None:
    """ONNX Runtime rounds what a product reads to int8, where only its weight seems rounded."""
    done = quantize_model(transformer(), ROWS, scheme="a16w8").model
    found = []
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        options = ort.SessionOptions()
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
        session = ort.InferenceSession(ir.to_proto(done).SerializeToString(), options)
        found.append(session.run(None, ROWS[0])[0].astype(np.float64))
    noise, signal = np.sum((found[1] - found[0]) ** 2), np.sum(found[0] ** 2)
    assert noise < 1e-6 * signal


def test_written_out_blocks_fill_their_axis() -> None:
    """64 rows take blocks of 32, 80 rows those of 16: a shorter last one is not read by all."""
    written = quantize_model(transformer(), ROWS, scheme="int4-qdq", block=32).model
    sizes = {
        str(node.inputs[0].name): node.attributes["block_size"].as_int()
        for node in written.graph
        if node.op_type == "DequantizeLinear" and node.inputs[0] is not None
    }
    assert sizes == {"w_quantized": 32, "v_quantized": 16}
    fused = quantize_model(transformer(), ROWS, scheme="int4", block=32).model
    of_fused = [
        n.attributes["block_size"].as_int() for n in fused.graph if "block_size" in n.attributes
    ]
    assert of_fused == [32, 32]


def test_four_bits_need_a_matrix() -> None:
    with pytest.raises(UnsupportedError, match="no operator"):
        quantize_model(models.small_cnn(), IMAGES[:1], scheme="int4")


def test_block_sizes_are_checked() -> None:
    with pytest.raises(OptionError, match="blocks of 24"):
        quantize_model(transformer(), ROWS, scheme="int4", block=24)


@pytest.mark.parametrize("number", ["bfp16", "mx9", "mxint8", "mxfp8e4m3", "mxfp6e3m2", "mxfp4"])
@pytest.mark.parametrize("shape", [(1, 5, 64), (2, 3, 37)])
def test_emulation_in_the_model_equals_the_numbers(number: str, shape: tuple[int, ...]) -> None:
    width = shape[-1]
    sizes = ",".join(map(str, shape))
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[{sizes}] x) => (float[{shape[0]},{shape[1]},{width}] y) {{ y = MatMul(x, w) }}"""
    proto = onnx.parser.parse_model(text)
    eye = np.eye(width, dtype=np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(eye, "w"))
    x = RNG.standard_normal(shape) * 2.0 ** RNG.integers(-8, 8, shape)
    x[0, 0, :] = 2.0 ** RNG.integers(-5, 6, width)
    x[0, 1, :] = 0.0
    x = x.astype(np.float32)
    done = quantize_model(ir.from_proto(proto), [{"x": x}], scheme=number)
    np.testing.assert_array_equal(run(done.model, {"x": x}), round_to(x, number, -1))


@pytest.mark.parametrize("scheme", ["bf16", "fp16"])
def test_the_lowest_float_in_a_mask_stays_finite(scheme: str) -> None:
    """Rounded to minus infinity, times zero, it would be NaN."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,4] m, float[1,4] x) => (float[1,4] y)
        <float lowest = {-3.4028234e38}>
        { b = Mul(m, lowest) \n s = Add(x, b) \n y = Softmax(s) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    feed = {
        "m": np.asarray([[0.0, 0.0, 1.0, 1.0]], np.float32),
        "x": RNG.standard_normal((1, 4)).astype(np.float32),
    }
    done = quantize_model(model, [feed], scheme=scheme)
    assert not done.outputs[0].has_nan
    np.testing.assert_allclose(run(done.model, feed), run(model, feed), atol=0.02)


def test_blocks_need_a_length() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,n] x, float[n,2] w) => (float[1,2] y) { y = MatMul(x, w) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    sample = {"x": np.ones((1, 4), np.float32), "w": np.ones((4, 2), np.float32)}
    with pytest.raises(UnsupportedError, match="known length"):
        quantize_model(model, [sample], scheme="bfp16")


def test_a_constant_tells_how_long_the_other_is() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,n] x) => (float[1,2] y)
        <float[4,2] w = {1,2,3,4,5,6,7,8}> { y = MatMul(x, w) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    sample = {"x": RNG.standard_normal((1, 4)).astype(np.float32)}
    assert quantize_model(model, [sample], scheme="bfp16").outputs[0].sqnr_db > 30.0


def test_bfloat16_weights_take_half_the_space_and_excluded_ones_do_not() -> None:
    model = models.small_cnn()
    first = next(str(n.name) for n in model.graph if n.op_type == "Conv")
    done = quantize_model(model, IMAGES, scheme="bf16", exclude=[first])
    convs = [n for n in done.model.graph if n.op_type == "Conv"]
    assert convs[0].inputs[1].const_value.dtype == ir.DataType.FLOAT
    cast = convs[1].inputs[1].producer()
    assert cast.inputs[0].const_value.dtype == ir.DataType.BFLOAT16


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
def test_integers_are_of_the_kind_that_was_asked_for(symmetric: bool, per_channel: bool) -> None:
    done = quantize_model(
        models.small_cnn(), IMAGES, scheme="a8w8", symmetric=symmetric, per_channel=per_channel
    )
    stored = done.model.graph.initializers
    points = [v.const_value for n, v in stored.items() if n.endswith("input_zero_point")]
    assert points[0].dtype == (ir.DataType.INT8 if symmetric else ir.DataType.UINT8)
    conv = next(n for n in done.model.graph if n.op_type == "Conv")
    weight = conv.inputs[1].producer()
    assert weight.inputs[1].const_value.shape.rank() == int(per_channel)
    assert conv.inputs[2].producer().inputs[0].const_value.dtype == ir.DataType.INT32
    assert done.outputs[0].sqnr_db > 25.0


def test_int32_bias_has_the_product_of_both_scales() -> None:
    done = quantize_model(models.small_cnn(), IMAGES, scheme="a8w8")
    for conv in (n for n in done.model.graph if n.op_type == "Conv"):
        x, w, b = (value.producer().inputs[1].const_value.numpy() for value in conv.inputs)
        np.testing.assert_allclose(b, x * w, rtol=1e-6)


def test_wide_tensors_have_sixteen_bits() -> None:
    model = models.small_cnn()
    plain = quantize_model(model, IMAGES, scheme="a8w8")
    wide = quantize_model(model, IMAGES, scheme="a8w8", wide=["*"])
    assert wide.outputs[0].sqnr_db > plain.outputs[0].sqnr_db + 3.0
    assert plain.eight_bit_share > 0.9
    assert wide.eight_bit_share == 0.0
    rounders = [n for n in wide.model.graph if n.op_type == "QuantizeLinear"]
    assert {n.domain for n in rounders} == {"com.microsoft"}


@pytest.mark.parametrize("asked", [{"wide": ["outptu*"]}, {"ranges": {"outptu": "minmax"}}])
def test_tensors_that_there_are_not_are_refused(asked: Any) -> None:
    with pytest.raises(OptionError, match="no tensor is called `outptu") as caught:
        quantize_model(models.small_cnn(), IMAGES, scheme="a8w8", **asked)
    assert "`output`" in str(caught.value.hint)


def test_large_bias_makes_the_weight_coarser_instead_of_overflowing() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,3,4,4] x) => (float[1,2,4,4] y) { y = Conv(x, w, b) }"""
    proto = onnx.parser.parse_model(text)
    weights = {"w": 1e-9 * RNG.standard_normal((2, 3, 1, 1)), "b": np.asarray([300.0, -300.0])}
    for name, array in weights.items():
        tensor = onnx.numpy_helper.from_array(array.astype(np.float32), name)
        proto.graph.initializer.append(tensor)
    data = [{"x": RNG.standard_normal((1, 3, 4, 4)).astype(np.float32)} for _ in range(3)]
    done = quantize_model(ir.from_proto(proto), data, scheme="a8w8")
    assert done.outputs[0].sqnr_db > 30.0


def test_shared_weight_and_shared_bias() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,3,4,4] x) => (float[1,3,4,4] y) { h = Conv(x, w, b)
 k = Relu(h)
 y = Conv(k, w, b) }"""
    proto = onnx.parser.parse_model(text)
    for name, shape in {"w": (3, 3, 1, 1), "b": (3,)}.items():
        array = RNG.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    data = [{"x": RNG.standard_normal((1, 3, 4, 4)).astype(np.float32)} for _ in range(4)]
    for scheme in ("xint8", "a8w8"):
        done = quantize_model(ir.from_proto(proto), data, scheme=scheme)
        assert done.outputs[0].sqnr_db > 20.0
