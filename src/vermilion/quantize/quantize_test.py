from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import models
from vermilion.errors import ModelError, OptionError, UnsupportedError
from vermilion.ir.execute import open_session, run_session, split_weights
from vermilion.ir.passes.pipeline import simplify
from vermilion.quantize.native_run import cost_model
from vermilion.quantize.quantize import quantize_model
from vermilion.quantize.result import OUTPUT_SAMPLES

Sample = dict[str, np.ndarray]

# int8 keeps about 6 dB a bit, less what half-used powers of two and a chain of layers cost.
GOOD_DB = 20.0


def noise(name: str, shape: tuple[int, ...], count: int = 8, seed: int = 0) -> list[Sample]:
    rng = np.random.default_rng(seed)
    return [{name: rng.standard_normal(shape).astype(np.float32)} for _ in range(count)]


IMAGES = noise("input", (1, 3, 16, 16))


def parsed(body: str, head: str = "float[1,3,16,16] x) => (float[1,8,16,16] y") -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g ({head}) {body}')


def with_weights(proto: onnx.ModelProto, **weights: np.ndarray) -> ir.Model:
    for name, array in weights.items():
        tensor = onnx.numpy_helper.from_array(array.astype(np.float32), name)
        proto.graph.initializer.append(tensor)
    return ir.from_proto(proto)


@pytest.mark.parametrize("builder", [models.small_cnn, models.branching_cnn, models.mobilenet])
@pytest.mark.parametrize("equalize", [False, True])
def test_networks_keep_their_answers(builder: object, equalize: bool) -> None:
    model = builder()  # type: ignore[operator]
    shape = tuple(int(n) for n in model.graph.inputs[0].shape)
    done = quantize_model(model, noise("input", shape), equalize=equalize)
    assert min(row.sqnr_db for row in done.outputs) > GOOD_DB
    assert done.unmet == ()
    assert [row.name for row in done.outputs] == [value.name for value in model.graph.outputs]
    onnx.checker.check_model(ir.to_proto(done.model), full_check=True)


def test_trained_mobile_network_keeps_its_answers() -> None:
    """PP-OCR's direction classifier: depthwise layers, squeeze-and-excite, hard swish."""
    shape = models.PACKAGE_SHAPES["ocr-cls"]["x"]
    simplified = simplify(models.package_model("ocr-cls"), dims={"x": shape}).model
    done = quantize_model(simplified, noise("x", shape, count=4))
    assert done.unmet == ()
    assert done.outputs[0].cosine > 0.9
    floats, integers = (
        sum(value.const_value.nbytes for value in model.graph.initializers.values())
        for model in (simplified, done.model)
    )
    assert integers < 0.3 * floats


def test_report_is_what_running_both_models_gives() -> None:
    model = models.small_cnn()
    done = quantize_model(model, IMAGES[:3])
    pair = [open_session(model), open_session(done.model)]
    runs = [[next(iter(run_session(s, x).values())) for x in IMAGES[:3]] for s in pair]
    a, b = (np.stack(run).astype(np.float64) for run in runs)
    measured = 10 * np.log10(np.sum(a**2) / np.sum((a - b) ** 2))
    assert done.outputs[0].sqnr_db == pytest.approx(measured, abs=0.01)
    assert done.samples == 3


def test_every_rounded_result_is_reported_under_the_node_that_makes_it() -> None:
    done = quantize_model(models.small_cnn(), IMAGES)
    moves = {"Flatten", "Reshape"}
    made = [n for n in models.small_cnn().graph if n.op_type not in {"Relu", *moves}]
    assert [layer.name for layer in done.layers] == [str(node.name) for node in made]
    kinds = [layer.op_type for layer in done.layers]
    assert kinds.count("Conv + Relu") == 2
    assert all(layer.sqnr_db > GOOD_DB for layer in done.layers)


def test_large_scores_are_not_cut_off() -> None:
    """Most scores of a detector are near zero; least squared error alone would cut the others."""
    weight = np.zeros((8, 3, 1, 1))
    weight[0] = 0.05
    head = "float[1,3,128,128] x) => (float[1,8,128,128] y"
    body = "{ s = Conv(x, w, b) \n h = Sigmoid(s) \n y = Conv(h, v) }"
    read = np.ones((8, 8, 1, 1))
    model = with_weights(parsed(body, head), w=weight, b=np.full(8, -6.4), v=read)
    samples = noise("x", (1, 3, 128, 128))
    samples[0]["x"][0, :, 0, 0] = 100.0  # one score of 1 among a million of 0.002

    def scale(**settings: Any) -> float:
        done = quantize_model(model, samples, scheme="a8w8", **settings)
        return float(done.model.graph.initializers["h_scale"].const_value.numpy())

    assert scale(method="mse") < 0.9 * scale(method="minmax")
    assert scale() == scale(method="minmax")


def test_given_model_is_not_changed() -> None:
    model = models.small_cnn()
    before = split_weights(model)
    quantize_model(model, IMAGES[:2], equalize=True)
    after = split_weights(model)
    assert before[0] == after[0]
    for name, array in before[1].items():
        np.testing.assert_array_equal(array, after[1][name])


def test_moved_scales_requantize_the_data() -> None:
    """Tiny weights beside a large bias force two positions to move.

    A tool that rewrites only the scales turns 47 dB into 6 dB here (AMD Quark 0.13 does).
    """
    rng = np.random.default_rng(3)
    weights = {"w": 2e-4 * rng.standard_normal((8, 3, 3, 3)), "b": rng.choice([-3.0, 3.0], 8)}
    body = "{ y = Conv<pads=[1,1,1,1]>(x, w, b) }"
    model = with_weights(parsed(body), **weights)
    done = quantize_model(model, noise("x", (1, 3, 16, 16)), rounding="nearest")
    assert done.moved > 0
    assert done.unmet == ()
    assert done.outputs[0].sqnr_db > 46.0
    for name in weights:
        constants = done.model.graph.initializers
        scale = float(constants[f"{name}_scale"].const_value.numpy())
        back = constants[f"{name}_quantized"].const_value.numpy() * scale
        assert np.abs(back - weights[name]).max() <= scale / 2 + 1e-9


def test_samples_stream() -> None:
    """However many samples come, only those kept for the report stay alive."""
    alive: list[weakref.ref[np.ndarray]] = []
    most = 0

    def source() -> Iterator[Sample]:
        nonlocal most
        rng = np.random.default_rng(1)
        for _ in range(4 * OUTPUT_SAMPLES):
            array = rng.standard_normal((1, 3, 16, 16)).astype(np.float32)
            alive.append(weakref.ref(array))
            yield {"input": array}
            del array
            most = max(most, sum(ref() is not None for ref in alive))

    done = quantize_model(models.small_cnn(), source())
    assert done.samples == 4 * OUTPUT_SAMPLES
    assert most <= OUTPUT_SAMPLES + 2


def test_all_samples_count() -> None:
    """A large value in the last sample widens the scale of the input."""
    body = "{ y = Conv<pads=[1,1,1,1]>(x, w) }"
    weights = {"w": np.random.default_rng(0).standard_normal((8, 3, 3, 3))}
    samples = noise("x", (1, 3, 16, 16), count=12)

    def input_scale(data: list[Sample]) -> float:
        done = quantize_model(with_weights(parsed(body), **weights), data)
        return float(done.model.graph.initializers["x_scale"].const_value.numpy())

    louder = [*samples[:-1], {"x": samples[-1]["x"] * 64}]
    assert input_scale(louder) >= 16 * input_scale(samples)


def test_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    quantize_model(models.small_cnn(), IMAGES[:3], progress=lambda *step: told.append(step))
    assert [("calibrate", n, 3) for n in (1, 2, 3)] == [s for s in told if s[0] == "calibrate"]


def test_a_large_network_is_as_good_from_our_own_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = models.resnet18(image=160), noise("input", (1, 3, 160, 160), count=6)
    samples = [images[number % 6] for number in range(12)]
    monkeypatch.setattr(cost_model, "LEAST_SAVED_MS", -math.inf)
    own = quantize_model(model, samples)
    monkeypatch.setattr(cost_model, "LEAST_SAVED_MS", math.inf)
    other = quantize_model(model, samples)
    assert (own.own_samples, other.own_samples) == (8, 0)
    assert own.outputs[0].sqnr_db == pytest.approx(other.outputs[0].sqnr_db, abs=0.5)
    assert own.outputs[0].sqnr_db > GOOD_DB


def test_dynamic_batch_takes_samples_of_any_size() -> None:
    model = models.small_cnn(batch="batch")
    samples = [noise("input", (n, 3, 16, 16), count=1)[0] for n in (1, 4, 2)]
    assert quantize_model(model, samples).outputs[0].sqnr_db > GOOD_DB


def test_spelled_out_normalizations_survive_rows_of_different_size() -> None:
    model = models.transformer_block()
    rng = np.random.default_rng(4)
    slots = {v.name: v for v in model.graph.inputs}
    samples = []
    for _ in range(6):
        sample = {}
        for name, value in slots.items():
            shape = tuple(n if isinstance(n, int) else 1 for n in value.shape)
            if value.dtype == ir.DataType.FLOAT:
                sample[name] = rng.standard_normal(shape).astype(np.float32)
            else:
                sample[name] = np.ones(shape, value.dtype.numpy())
        samples.append(sample)
    done = quantize_model(model, samples)
    ops = [node.op_type for node in done.model.graph]
    assert "QuantizeLinear" in ops
    for node in done.model.graph:
        if node.op_type in {"Sqrt", "Pow"}:
            assert all(
                use.node.op_type != "QuantizeLinear" for out in node.outputs for use in out.uses()
            )
    assert min(row.sqnr_db for row in done.outputs) > 15.0


def test_excluded_nodes_keep_their_float_weights() -> None:
    model = models.small_cnn()
    first = next(str(node.name) for node in model.graph if node.op_type == "Conv")
    done = quantize_model(model, IMAGES[:2], exclude=[first])
    kept = next(node for node in done.model.graph if node.name == first)
    assert kept.inputs[1].const_value.dtype == ir.DataType.FLOAT


def test_no_data_is_refused() -> None:
    with pytest.raises(OptionError, match="no calibration data"):
        quantize_model(models.small_cnn(), [])


def test_unknown_scheme_is_refused_with_the_known_ones() -> None:
    with pytest.raises(OptionError, match="`int3`") as caught:
        quantize_model(models.small_cnn(), IMAGES, scheme="int3")
    assert "`xint8`" in caught.value.hint


def test_wrong_samples_are_refused() -> None:
    with pytest.raises(OptionError, match=r"float32\[1,3,8,8\]"):
        quantize_model(models.small_cnn(), noise("input", (1, 3, 8, 8)))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_is_refused_by_sample_and_tensor(bad: float) -> None:
    samples = noise("input", (1, 3, 16, 16), count=3)
    samples[2]["input"][0, 0, 0, 0] = bad
    with pytest.raises(ModelError, match="`input` holds NaN or infinity") as caught:
        quantize_model(models.small_cnn(), samples)
    assert caught.value.where == "calibration sample 2"


def test_quantized_model_is_refused() -> None:
    done = quantize_model(models.small_cnn(), IMAGES[:1])
    with pytest.raises(ModelError, match="quantized already"):
        quantize_model(done.model, IMAGES[:1])


def test_old_opset_is_raised_before_anything_is_read() -> None:
    text = '<ir_version: 8, opset_import: ["" : 9]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    model = ir.from_proto(onnx.parser.parse_model(text))
    done = quantize_model(model, [{"x": np.ones(2, np.float32)}])
    assert done.model.graph.opset_imports[""] == 17
    assert model.graph.opset_imports[""] == 9


def test_old_opset_that_cannot_be_raised_is_refused_before_anything_is_read() -> None:
    text = """<ir_version: 8, opset_import: ["" : 9, "com.microsoft" : 1]>
        g (float[2] x) => (float[2] y) { h = com.microsoft.Gelu(x)
 y = Relu(h) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))

    def never() -> Iterator[Sample]:
        raise AssertionError("samples were read")
        yield {}

    with pytest.raises(ModelError, match="opset 9") as caught:
        quantize_model(model, never())
    assert "opset 17" in caught.value.hint


def test_model_without_float_operators_is_refused() -> None:
    body = "{ y = Add(x, x) }"
    model = ir.from_proto(parsed(body, "int64[2] x) => (int64[2] y"))
    with pytest.raises(UnsupportedError, match="no operator"):
        quantize_model(model, [{"x": np.zeros(2, np.int64)}])
