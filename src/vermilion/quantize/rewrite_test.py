from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from vermilion.ir.execute import open_session, run_session
from vermilion.quantize.quantize import quantize_model

RNG = np.random.default_rng(11)


def quantized(
    body: str, results: str = "float[1,4,4,4] y", samples: list[np.ndarray] | None = None
) -> ir.Model:
    text = (
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[1,3,4,4] x) => ({results}) {{ {body} }}'
    )
    proto = onnx.parser.parse_model(text)
    for name, shape in {"w": (4, 3, 1, 1), "b": (4,)}.items():
        values = RNG.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    data = samples or [RNG.standard_normal((1, 3, 4, 4)).astype(np.float32) for _ in range(4)]
    done = quantize_model(ir.from_proto(proto), [{"x": array} for array in data]).model
    onnx.checker.check_model(ir.to_proto(done), full_check=True)
    return done


def names(model: ir.Model) -> dict[str, str]:
    return {str(n.outputs[0].name): n.op_type for n in model.graph}


def scale(model: ir.Model, tensor: str) -> float:
    value = model.graph.initializers[f"{tensor}_scale"].const_value
    assert value is not None
    return float(value.numpy())


def test_tensors_keep_their_names() -> None:
    found = names(quantized("h = Conv(x, w, b) \n y = Tanh(h)"))
    assert found["h"] == "Conv"
    assert found["h_quantized"] == found["x_quantized"] == "QuantizeLinear"
    assert found["h_dequantized"] == "DequantizeLinear"
    assert found["y_float"] == "Tanh"
    assert found["y"] == "DequantizeLinear"


def test_integers_and_scales_are_as_the_scheme_says() -> None:
    model = quantized("h = Conv(x, w, b) \n y = Tanh(h)")
    for name, value in model.graph.initializers.items():
        array = value.const_value.numpy()
        if name.endswith("_scale"):
            assert np.log2(array) == np.rint(np.log2(array))
        elif name.endswith("_zero_point"):
            assert (array.dtype, array.item()) == (np.int8, 0)
        else:
            assert array.dtype == np.int8
            assert np.abs(array.astype(int)).max() <= 127
    assert "w" not in model.graph.initializers


def test_output_that_is_also_read_is_rounded_once() -> None:
    model = quantized(
        "h = Conv(x, w, b) \n y = Tanh(h)", results="float[1,4,4,4] h, float[1,4,4,4] y"
    )
    assert [value.name for value in model.graph.outputs] == ["h", "y"]
    tanh = next(node for node in model.graph if node.op_type == "Tanh")
    assert tanh.inputs[0].name == "h"
    assert names(model)["h_float"] == "Conv"


def test_float_output_stays_exact() -> None:
    model = quantized("h = Conv(x, w, b) \n y = Sigmoid(h)")
    assert names(model)["y"] == "Sigmoid"


def test_float_reader_beside_a_float_producer_sees_the_float_tensor() -> None:
    model = quantized(
        "s = Sigmoid(x) \n h = Conv(s, w, b) \n k = Sin(s) \n m = ReduceSum(k) \n y = Add(h, m)"
    )
    sine = next(node for node in model.graph if node.op_type == "Sin")
    assert sine.inputs[0].name == "s"


def test_shared_scales_round_nothing_twice() -> None:
    model = quantized("h = Conv(x, w, b) \n t = Transpose<perm=[0,1,3,2]>(h) \n y = Identity(t)")
    assert scale(model, "h") == scale(model, "t") == scale(model, "y")
    copy = model.clone()
    by_name = {str(v.name): v for node in copy.graph for v in node.outputs}
    copy.graph.outputs.extend([by_name["h_dequantized"]])
    x = RNG.standard_normal((1, 3, 4, 4)).astype(np.float32)
    got = run_session(open_session(copy), {"x": x})
    np.testing.assert_array_equal(got["y"], got["h_dequantized"].transpose(0, 1, 3, 2))


def test_concatenated_tensors_take_the_coarsest_scale() -> None:
    model = quantized(
        "h = Conv(x, w, b) \n k = Tanh(h) \n y = Concat<axis=1>(h, k)",
        results="float[1,8,4,4] y",
    )
    assert scale(model, "h") == scale(model, "k") == scale(model, "y")
    assert scale(model, "k") > 2.0**-6  # alone, values of a tanh would fit 2^-7


def test_weight_read_in_float_too_is_kept_for_that() -> None:
    model = quantized("h = Conv(x, w, b) \n s = Sin(w) \n m = ReduceSum(s) \n y = Add(h, m)")
    assert "w" in model.graph.initializers
    assert "w_quantized" in model.graph.initializers


def test_taken_names_are_avoided() -> None:
    model = quantized("x_quantized = Conv(x, w, b) \n y = Tanh(x_quantized)")
    found = names(model)
    assert found["x_quantized"] == "Conv"
    assert found["x_quantized_2"] == "QuantizeLinear"


def test_graph_nested_in_a_branch_reads_what_it_read() -> None:
    body = """h = Conv(x, w, b)
        m = ReduceMax(h)
        zero = Constant<value_float=0.0>()
        up = Greater(m, zero)
        y = If(up)<then_branch = t () => (float[1,4,4,4] p) { p = Sin(h) },
                   else_branch = e () => (float[1,4,4,4] q) { q = Cos(h) }>"""
    model = quantized(body)
    inner = [node for node in model.graph.all_nodes() if node.op_type in {"Sin", "Cos"}]
    assert [node.inputs[0].name for node in inner] == ["h", "h"]
    x = RNG.standard_normal((1, 3, 4, 4)).astype(np.float32)
    assert run_session(open_session(model), {"x": x})["y"].shape == (1, 4, 4, 4)
