from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from vermilion.errors import OptionError
from vermilion.ir.execute import open_session, run_session
from vermilion.quantize.algorithms.migrate import migrate
from vermilion.quantize.quantize import quantize_model

RNG = np.random.default_rng(0)
WIDTH = 32
OUTLIERS = np.where(np.arange(WIDTH) % 8 == 3, 60.0, 1.0).astype(np.float32)
SAMPLES = [{"x": RNG.standard_normal((4, WIDTH)).astype(np.float32)} for _ in range(12)]


def model_of(body: str) -> ir.Model:
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[4,{WIDTH}] x) => (float[4,8] y)
        {{ {body} }}"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    arrays = {
        "gain": OUTLIERS,
        "shift": OUTLIERS * 0.1,
        "w": RNG.standard_normal((WIDTH, 8)).astype(np.float32) / OUTLIERS[:, None],
        "v": RNG.standard_normal((WIDTH, 8)).astype(np.float32) / OUTLIERS[:, None],
    }
    inner = {value for node in model.graph for value in node.inputs if value is not None}
    for value in inner:
        if value.name in arrays:
            value.const_value = ir.tensor(arrays[value.name], name=value.name)
            value.shape = ir.Shape(arrays[value.name].shape)
            value.type = ir.TensorType(ir.DataType.FLOAT)
            model.graph.register_initializer(value)
    return model


NORM = "h = LayerNormalization(x, gain, shift)"
BODIES = {
    "folded": f"{NORM} \n a = MatMul(h, w) \n b = MatMul(h, v) \n y = Add(a, b)",
    "beside": f"{NORM} \n a = MatMul(h, w) \n s = ReduceSum<keepdims=1>(h) \n y = Add(a, s)",
    "product": "h = Mul(x, gain) \n a = MatMul(h, w) \n b = MatMul(h, v) \n y = Add(a, b)",
}


def outputs(model: ir.Model) -> np.ndarray:
    session = open_session(model)
    return np.stack([run_session(session, sample)["y"] for sample in SAMPLES])


@pytest.mark.parametrize("case", BODIES)
def test_function_stays_and_channels_become_alike(case: str) -> None:
    model = model_of(BODIES[case])
    before, operators = outputs(model), [node.op_type for node in model.graph]
    assert migrate(model, SAMPLES) == 1
    np.testing.assert_allclose(outputs(model), before, atol=1e-4)
    added = len(list(model.graph)) - len(operators)
    assert added == (0 if case == "folded" else 1)
    product = next(node for node in model.graph if node.op_type == "MatMul")
    weight = product.inputs[1]
    assert weight is not None
    assert weight.const_value is not None
    rows = np.abs(weight.const_value.numpy()).max(axis=1)
    assert rows.max() / rows.min() < 10.0  # 60 and more before


def test_rounding_costs_less_afterwards() -> None:
    model = model_of(BODIES["product"])
    plain, moved = (
        quantize_model(model, iter(SAMPLES), scheme="a8w8", migrate=migrate)
        for migrate in (False, True)
    )
    assert moved.outputs[0].sqnr_db > plain.outputs[0].sqnr_db + 3.0
    assert moved.samples == len(SAMPLES)
    assert moved.options.migrate


def gated(gate: np.ndarray) -> ir.Model:
    """Return a block whose gate lets some channels through far larger than others."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,16,6,6] x) => (float[1,8,6,6] y, float[1,16,6,6] h) {
          h = Mul(x, gate)
          y = Conv<pads=[1,1,1,1]>(h, w)
        }"""
    proto = onnx.parser.parse_model(text)
    random = np.random.default_rng(5)
    weight = random.standard_normal((8, 16, 3, 3)).astype(np.float32) / gate.reshape(1, 16, 1, 1)
    for name, array in (("gate", gate.reshape(1, 16, 1, 1)), ("w", weight)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return ir.from_proto(proto)


PICTURES = [{"x": RNG.standard_normal((1, 16, 6, 6)).astype(np.float32)} for _ in range(8)]


def test_what_a_gate_lets_through_is_made_alike_before_a_convolution() -> None:
    gate = np.where(np.arange(16) == 3, 50.0, 1.0).astype(np.float32)
    moved = gated(gate)
    assert migrate(moved, PICTURES) == 1
    assert [node.op_type for node in moved.graph] == ["Mul", "Mul", "Conv"]
    a, b = (open_session(model) for model in (gated(gate), moved))
    for sample in PICTURES:
        exact, found = run_session(a, sample), run_session(b, sample)
        np.testing.assert_allclose(found["y"], exact["y"], atol=1e-4)
        np.testing.assert_array_equal(found["h"], exact["h"])
    sqnr_db = []
    for asked in (False, True):
        done = quantize_model(gated(gate), PICTURES, scheme="a8w8", migrate=asked)
        sqnr_db.append(next(row.sqnr_db for row in done.outputs if row.name == "y"))
    assert sqnr_db[1] > sqnr_db[0] + 6.0


def test_channels_that_are_alike_stay_before_a_convolution() -> None:
    model = gated(np.ones(16, np.float32))
    assert migrate(model, PICTURES) == 0
    assert [node.op_type for node in model.graph] == ["Mul", "Conv"]


def test_dead_channels_are_left_alone() -> None:
    model = model_of(BODIES["product"])
    gain = model.graph.initializers["gain"]
    gain.const_value = ir.tensor(np.where(np.arange(WIDTH) < 4, 0.0, OUTLIERS).astype(np.float32))
    before = outputs(model)
    migrate(model, SAMPLES)
    np.testing.assert_allclose(outputs(model), before, atol=1e-4)


def test_models_without_products_stay_as_they_are() -> None:
    model = model_of("h = Mul(x, gain) \n y = Relu(h)")
    assert migrate(model, SAMPLES) == 0


def test_schemes_that_round_no_activations_refuse() -> None:
    with pytest.raises(OptionError, match="`migrate` is for schemes that round activations"):
        quantize_model(model_of(BODIES["product"]), SAMPLES, scheme="int4", migrate=True)
