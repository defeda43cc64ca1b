"""What other tools write, in their forms."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from vermilion.quantize.dpu import factor_of, window_factor
from vermilion.quantize.every_graph_test import RNG, decibels, feeds, first, model, real
from vermilion.quantize.quantize import quantize_model

CNN = """(float[1,4,12,12] x) => (float[1,4,1,1] y) {
    a = Conv<pads = [1,1,1,1]>(x, w) r = LeakyRelu<alpha = 0.1>(a)
    p = AveragePool<kernel_shape = [3,3], strides = [3,3]>(r) s = Sigmoid(p)
    c = Conv(s, v) y = GlobalAveragePool(c) }"""


def network() -> tuple[ir.Model, list[dict[str, np.ndarray]]]:
    """Return a small network and samples."""
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state
    return model(CNN, w=real(4, 4, 3, 3), v=real(4, 4, 1, 1)), feeds("x", 1, 4, 12, 12)


@pytest.mark.parametrize(
    ("side", "factor"),
    [(3, 63 / 64), (5, 250 / 256), (7, 1029 / 1024), (2, 1.0), (14, 4116 / 4096)],
)
def test_factors_of_windows(side: int, factor: float) -> None:
    assert window_factor(side) == factor


def test_the_nearest_part() -> None:
    assert factor_of(4) == 1.0
    assert factor_of(12) == pytest.approx(12 * 85 / 1024)
    assert abs(factor_of(100) - 1.0) < 0.01


def test_as_the_first_npus_compute() -> None:
    original, data = network()
    done = quantize_model(original, data, scheme="xint8", dpu=True).model
    kinds = [node.op_type for node in done.graph]
    assert "Sigmoid" not in kinds
    assert kinds.count("HardSigmoid") == 1
    leaky = next(node for node in done.graph if node.op_type == "LeakyRelu")
    assert leaky.attributes["alpha"].as_float() == pytest.approx(26 / 256)
    factors = {
        round(float(node.inputs[1].const_value.numpy()), 5)  # type: ignore[union-attr]
        for node in done.graph
        if node.op_type == "Mul"
    }
    assert factors == {0.98438, round(2731 / 16384 * 6, 5)}
    outputs = [str(value.name) for value in done.graph.outputs]
    assert outputs == ["y"]


def test_uint8_around_128_is_the_same_model() -> None:
    original, data = network()
    plain = quantize_model(original, data, scheme="xint8")
    middle = quantize_model(original, data, scheme="xint8", middle=True)
    for sample in data:
        np.testing.assert_array_equal(first(plain.model, sample), first(middle.model, sample))
    zeros = [
        node.inputs[2].const_value.numpy()  # type: ignore[union-attr]
        for node in middle.model.graph
        if node.op_type == "QuantizeLinear"
    ]
    assert {(str(zero.dtype), int(zero)) for zero in zeros} == {("uint8", 128)}


def test_all_tensors_are_rounded_where_asked() -> None:
    text = """(float[1,4,8,8] x) => (float[1,4,8,8] y) { a = Conv(x, w) b = Sigmoid(a)
        c = Mul(a, b) d = Tanh(c) y = Conv(d, w) }"""
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state
    original = model(text, w=real(4, 4, 1, 1))
    data = feeds("x", 1, 4, 8, 8)

    def rounded(**settings: bool) -> int:
        done = quantize_model(original, data, scheme="a8w8", **settings)  # type: ignore[arg-type]
        assert decibels(original, done, data) > 22.0
        return sum(node.op_type == "QuantizeLinear" for node in done.model.graph)

    assert rounded() < rounded(all_tensors=True) == 6


@pytest.mark.parametrize("scheme", ["a8w8", "xint8"])
def test_nodes_in_bfloat16(scheme: str) -> None:
    original, data = network()
    names = [str(node.name) for node in original.graph if node.op_type == "Conv"]
    plain = quantize_model(original, data, scheme=scheme)
    done = quantize_model(original, data, scheme=scheme, bfloat=[":Conv"])
    kinds = [node.op_type for node in done.model.graph]
    assert kinds.count("Cast") >= 2 * len(names)
    stored = [v.dtype for v in done.model.graph.initializers.values()]
    assert stored.count(ir.DataType.BFLOAT16) == 2
    assert decibels(original, done, data) > decibels(original, plain, data)
