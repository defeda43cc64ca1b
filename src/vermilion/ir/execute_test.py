from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from vermilion.errors import UnsupportedError
from vermilion.ir.element_types import numpy_type
from vermilion.ir.execute import (
    open_fed_session,
    open_session,
    run_session,
    session_from_bytes,
    split_weights,
    stripped_proto,
)
from vermilion.ir.literal.types import complete_types
from vermilion.ir.load import load_model

HEADER = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>\n'
PRODUCT = "g (float[n,64] x) => (float[n,80] y) { a = MatMul(x, w) y = Add(a, b) }"


def parse(text: str, **weights: np.ndarray) -> ir.Model:
    proto = onnx.parser.parse_model(HEADER + text)
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in weights.items()
    )
    return ir.from_proto(proto)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def product() -> ir.Model:
    return parse(PRODUCT, w=normal(64, 80), b=normal(80))


def external(model: ir.Model, folder: Path) -> Path:
    """Save with every weight, small ones as well, in a file beside the model."""
    proto = ir.to_proto(model)
    path = folder / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.data", size_threshold=0)
    return path


def check(model: ir.Model) -> None:
    x = normal(3, 64)
    expected = x @ normal(64, 80) + normal(80)
    found = run_session(open_session(model), {"x": x})
    # Sums of 64 float32 products near 1, in another order.
    np.testing.assert_allclose(found["y"], expected, rtol=1e-4, atol=1e-4)


def test_large_weights_are_lent_and_the_model_is_as_before() -> None:
    model = product()
    before = {name: value.const_value for name, value in model.graph.initializers.items()}
    serialized, weights = split_weights(model)
    assert list(weights) == ["w"]
    assert len(serialized) < 2000
    assert {n: v.const_value for n, v in model.graph.initializers.items()} == before
    session = session_from_bytes(serialized, weights)
    x = normal(1, 64)
    np.testing.assert_array_equal(
        session.run(None, {"x": x})[0], run_session(open_session(model), {"x": x})["y"]
    )
    check(model)


def test_the_threshold_can_be_chosen() -> None:
    assert set(split_weights(product(), lent_bytes=1)[1]) == {"w", "b"}
    assert not split_weights(product(), lent_bytes=1 << 20)[1]


def test_external_data_is_found_from_any_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(external(product(), tmp_path))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    check(model)
    # The small one travels in the message, for it may be opened where nobody knows the folder.
    proto, weights = stripped_proto(model)
    assert list(weights) == ["w"]
    small = next(tensor for tensor in proto.graph.initializer if tensor.name == "b")
    assert small.data_location == onnx.TensorProto.DEFAULT
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(small), normal(80))


def test_external_data_in_two_folders(tmp_path: Path) -> None:
    model = load_model(external(product(), tmp_path))
    tensor = model.graph.initializers["w"].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    (tmp_path / "other").mkdir()
    (tmp_path / "weights.data").rename(tmp_path / "other" / "weights.data")
    small = ir.Tensor(normal(80), name="b")
    model.graph.initializers["b"].const_value = small
    tensor.base_dir = tmp_path / "other"
    check(model)


def test_weights_that_nothing_reads_need_not_be_there(tmp_path: Path) -> None:
    text = "g (float[2] x) => (float[2] y) { y = Relu(x) }"
    model = load_model(external(parse(text, w=normal(100, 100)), tmp_path))
    (tmp_path / "weights.data").unlink()
    found = run_session(open_session(model), {"x": np.array([-1, 1], np.float32)})
    np.testing.assert_array_equal(found["y"], [0, 1])
    # In memory, and too large to travel inside: it must not be asked for either.
    check_inline = parse(text, w=normal(100, 100))
    assert run_session(open_session(check_inline), {"x": np.zeros(2, np.float32)})


@pytest.mark.parametrize(
    "dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.float16]
)
def test_large_weights_of_types_that_numpy_lacks(dtype: type) -> None:
    weight = normal(200, 200).astype(dtype)
    kind = ir.DataType.from_numpy(weight.dtype)
    text = "g (float[200,200] x) => (float[200,200] y) { c = Cast<to = 1>(w) y = Add(x, c) }"
    model = parse(text)
    value = ir.Value(name="w", const_value=ir.Tensor(weight, name="w"), type=ir.TensorType(kind))
    node = model.graph[0]
    node.replace_input_with(0, value)
    model.graph.initializers["w"] = value
    for optimize in (False, True):
        session = open_session(model, optimize=optimize)
        found = run_session(session, {"x": np.zeros((200, 200), np.float32)})
        np.testing.assert_array_equal(found["y"], weight.astype(np.float32))


def test_small_types_and_strings_travel_inside() -> None:
    model = parse(
        "g (int64[1] i) => (string[1] y, int8[1] z) {"
        " y = Gather(words, i) c = Cast<to = 3>(nibbles) z = Gather(c, i) }",
        words=np.array(["a", "b"] * 9000, object),
    )
    nibbles = np.arange(-8, 8).repeat(4096).astype(ml_dtypes.int4)
    tensor = ir.Tensor(nibbles, dtype=ir.DataType.INT4, name="nibbles")
    value = ir.Value(
        name="nibbles",
        const_value=tensor,
        shape=ir.Shape([65536]),
        type=ir.TensorType(tensor.dtype),
    )
    model.graph[1].replace_input_with(0, value)
    model.graph.initializers["nibbles"] = value
    assert not split_weights(model)[1]
    found = run_session(open_session(model), {"i": np.array([1])})
    assert found["y"].tolist() == ["b"]
    assert found["z"].tolist() == [-8]


def test_outputs_can_be_chosen() -> None:
    model = parse("g (float[1] x) => (float[1] y, float[1] z) { y = Neg(x) z = Abs(x) }")
    x = np.array([-3], np.float32)
    assert run_session(open_session(model), {"x": x}, ["z"]) == {"z": np.array([3], np.float32)}


def test_what_cannot_be_opened_is_said_in_one_line() -> None:
    with pytest.raises(UnsupportedError, match="ONNX Runtime cannot run this model") as error:
        open_session(parse("g (float[1] x) => (float[1] y) { y = Konv(x) }"), quiet=True)
    assert "\n" not in error.value.message
    assert error.value.hint


def test_what_fails_while_running_is_said() -> None:
    text = "g (float[n] x, int64[1] i) => (float[1] y) { y = Gather(x, i) }"
    session = open_session(parse(text), quiet=True)
    with pytest.raises(UnsupportedError, match="running the model failed"):
        run_session(session, {"x": np.zeros(2, np.float32), "i": np.array([9])})


def test_types_by_onnx_runtimes_names() -> None:
    assert numpy_type("tensor(float16)") == np.float16
    assert numpy_type("tensor(string)") == np.object_
    assert numpy_type("tensor(bfloat16)") is None
    assert numpy_type("seq(tensor(float))") is None


def test_types_behind_operators_of_other_domains() -> None:
    model = parse(
        "g (float[n,8] x) => (float[n,8] y) {"
        " a = com.microsoft.QuickGelu(x) b = Softplus(a) y = Relu(b) }"
    )
    complete_types(model)
    first, second = model.graph[0].outputs[0], model.graph[1].outputs[0]
    assert first.dtype == second.dtype == ir.DataType.FLOAT
    assert first.shape is not None
    assert (first.shape[1], len(model.graph.outputs)) == (8, 1)


def test_what_nobody_can_run_keeps_its_types_open() -> None:
    model = parse("g (float[1] x) => (float[1] y) { a = acme.Teleport(x) y = Relu(a) }")
    complete_types(model)
    assert model.graph[0].outputs[0].type is None


def test_weights_that_are_fed_give_what_lent_ones_give() -> None:
    rng = np.random.default_rng(3)
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[2,99] x) => (float[2,99] y)
        { h = MatMul(x, w) y = Add(h, b) }"""
    )
    for name, shape in (("w", (99, 99)), ("b", (99,))):  # the second is too small to be fed
        array = rng.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model = ir.from_proto(proto)
    x = rng.standard_normal((2, 99)).astype(np.float32)
    fed = open_fed_session(model)
    assert {value.name for value in fed.session.get_inputs()} == {"x", "w"}
    assert fed.weights.keys() == {"w"}
    lent = run_session(open_session(model), {"x": x})
    np.testing.assert_allclose(fed.run({"x": x})["y"], lent["y"], rtol=1e-5)
    assert fed.run({"x": x}, ["y"]).keys() == {"y"}
    with pytest.raises(UnsupportedError, match="running the model failed"):
        run_session(fed.session, {"x": x})
    assert [value.name for value in model.graph.inputs] == ["x"]


@pytest.mark.parametrize("operator", ["Scaler", "Normalizer", "Imputer", "Binarizer"])
def test_an_unknown_rank_stays_unknown(operator: str) -> None:
    """ONNX Runtime describes such a tensor as it does a number: with no sizes."""
    attributes = {
        "Scaler": "<offset = [1.0], scale = [0.5]>",
        "Normalizer": '<norm = "L2">',
        "Imputer": "<imputed_value_floats = [0.0], replaced_value_float = 7.0>",
        "Binarizer": "<threshold = 0.5>",
    }[operator]
    model = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3]>'
        " g (float[2,5] x, float[5,3] w) => (float[2,3] y)"
        f" {{ a = ai.onnx.ml.{operator}{attributes}(x) y = MatMul(a, w) }}"
    )
    complete_types(model)
    found = model.graph[0].outputs[0]
    assert found.dtype == ir.DataType.FLOAT
    assert found.shape is None or len(found.shape) == 2
    assert [len(node.inputs) for node in model.graph] == [1, 2]


def test_a_number_has_rank_zero() -> None:
    model = parse("g (float x) => (float y) { a = com.microsoft.QuickGelu(x) y = Relu(a) }")
    complete_types(model)
    shape = model.graph[0].outputs[0].shape
    assert shape is not None
    assert len(shape) == 0


def test_sums_of_eight_bit_products_are_exact() -> None:
    """Also without VNNI, where ONNX Runtime by itself cuts pairs off at 16 bits."""
    body = "g (uint8[4,64] x) => (int32[4,32] y) { y = MatMulInteger(x, w) }"
    weights = np.random.default_rng(0).integers(90, 128, (64, 32)).astype(np.int8)
    model = parse(body, w=weights)
    x = np.full((4, 64), 255, np.uint8)
    found = run_session(open_session(model), {"x": x})["y"]
    np.testing.assert_array_equal(found, x.astype(np.int32) @ weights.astype(np.int32))
