from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import models
from vermilion.errors import OptionError, UnsupportedError
from vermilion.ir.execute import open_session, run_session
from vermilion.quantize.quantize import quantize_model

RNG = np.random.default_rng(5)
ROWS = [{"x": RNG.standard_normal((6, 64)).astype(np.float32)} for _ in range(6)]


def network(head: str = "Gemm<transB=1>(r, v, c)") -> ir.Model:
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[6,64] x) => (float[6,10] y)
        {{ [first] h = MatMul(x, w) \n [beside] g = MatMul(x, u) \n s = Add(h, g)
           r = Relu(s) \n [head] y = {head} }}"""
    proto = onnx.parser.parse_model(text)
    for name, shape in {"w": (64, 32), "u": (64, 32), "v": (10, 32), "c": (10,)}.items():
        array = RNG.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return ir.from_proto(proto)


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize("rounding", ["nearest", "compensated"])
@pytest.mark.parametrize("per_channel", [True, False])
def test_products_become_integer_ones(rounding: str, per_channel: bool) -> None:
    done = quantize_model(
        network(), ROWS, scheme="int8-dynamic", rounding=rounding, per_channel=per_channel
    )
    onnx.checker.check_model(ir.to_proto(done.model))
    found = operators(done.model)
    assert found.count("MatMulInteger") == 3
    assert found.count("DynamicQuantizeLinear") == 2  # `x` is rounded once for both
    assert {"MatMul", "Gemm"}.isdisjoint(found)
    assert done.outputs[0].sqnr_db > 30.0
    assert {"w", "u", "v"}.isdisjoint(done.model.graph.initializers)
    assert done.model.graph.initializers["w_quantized"].dtype == ir.DataType.INT8


def test_range_is_that_of_the_run_not_of_the_samples() -> None:
    model = network()
    done = quantize_model(model, ROWS, scheme="int8-dynamic").model
    far = {"x": ROWS[0]["x"] * np.float32(1000.0)}
    exact, found = (run_session(open_session(m), far)["y"] for m in (model, done))
    assert np.abs(exact - found).max() < 0.05 * np.abs(exact).max()


def test_what_runs_is_what_the_operators_say() -> None:
    """Against numpy, with the formulas of DynamicQuantizeLinear-11."""
    model = network()
    done = quantize_model(model, ROWS, scheme="int8-dynamic", exclude=["beside", "head"]).model
    assert operators(done).count("MatMulInteger") == 1
    x = ROWS[0]["x"]
    low, high = min(x.min(), 0.0), max(x.max(), 0.0)
    scale = np.float32((high - low) / 255.0)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    read = (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale
    stored = {n: done.graph.initializers[n].const_value for n in ("w_quantized",)}
    scales = done.graph.initializers["w_quantized_scales"].const_value
    assert scales is not None
    assert stored["w_quantized"] is not None
    weight = stored["w_quantized"].numpy().astype(np.float32) * scales.numpy()
    arrays = {
        n: v.const_value.numpy() for n, v in model.graph.initializers.items() if v.const_value
    }
    hidden = np.maximum(read @ weight + x @ arrays["u"], 0.0)
    expected = hidden @ arrays["v"].T + arrays["c"]
    found = run_session(open_session(done), ROWS[0])["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


def test_networks_without_products_are_refused() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[4] x) => (float[4] y) { y = Relu(x) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    with pytest.raises(UnsupportedError, match="while it runs"):
        quantize_model(model, [{"x": np.zeros(4, np.float32)}], scheme="int8-dynamic")


def test_excluded_names_are_checked() -> None:
    with pytest.raises(OptionError, match="no node is called"):
        quantize_model(network(), ROWS, scheme="int8-dynamic", exclude=["nobody"])


def test_a_gemm_with_a_factor_stays_in_float() -> None:
    done = quantize_model(
        network("Gemm<transB=1, alpha=0.5>(r, v, c)"), ROWS, scheme="int8-dynamic"
    )
    assert operators(done.model).count("Gemm") == 1


def test_the_factor_of_an_addend_goes_into_it() -> None:
    done = quantize_model(network("Gemm<transB=1, beta=0.5>(r, v, c)"), ROWS, scheme="int8-dynamic")
    assert operators(done.model).count("Gemm") == 0
    assert done.outputs[0].sqnr_db > 30.0


def test_only_the_products_of_a_convolutional_network_change() -> None:
    model = models.small_cnn()
    name = str(model.graph.inputs[0].name)
    shape = tuple(int(n) for n in model.graph.inputs[0].shape or ())
    data = [{name: RNG.standard_normal(shape).astype(np.float32)} for _ in range(4)]
    done = quantize_model(model, data, scheme="int8-dynamic")
    assert operators(done.model).count("Conv") == operators(model).count("Conv")
    assert done.outputs[0].sqnr_db > 30.0
