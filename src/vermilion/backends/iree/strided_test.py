from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from models import Net
from vermilion.backends.iree.strided import slice_strided
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.literal.types import complete_types
from vermilion.ir.samples import sample_inputs


def network(kernel: int = 1, stride: int = 2, **attributes: object) -> ir.Model:
    """Return Relu → two convolutions on the same tensor → Add."""
    net = Net("strided", seed=8)
    x = net.op("Relu", net.input("x", (1, 4, 7, 9)), name="r")
    sides = [
        net.op(
            "Conv",
            x,
            net.constant(f"w{n}", net.normal((6, 4, kernel, kernel), 0.5)),
            name=f"c{n}",
            strides=[stride, 2 * stride],
            **attributes,
        )
        for n in range(2)
    ]
    net.output(net.op("Add", *sides, name="add"), "y", (1, 6, "h", "w"))
    complete_types(model := net.model())
    return model


def test_both_read_one_slice_and_the_numbers_are_the_same() -> None:
    model = network()
    inputs = sample_inputs(model)
    expected = run_session(open_session(model), inputs)["y"]
    assert slice_strided(model) == 2
    kinds = [node.op_type for node in model.graph]
    assert kinds.count("Slice") == 1
    assert all(
        list(node.attributes["strides"].as_ints()) == [1, 1]
        for node in model.graph
        if node.op_type == "Conv"
    )
    found = run_session(open_session(model), inputs)["y"]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def quantized() -> ir.Model:
    """Return DequantizeLinear → 1×1 convolution with a stride: a slice between would part them."""
    net = Net("quantized", seed=9)
    x = net.input("x", (1, 4, 6, 6), ir.DataType.UINT8)
    y = net.op("DequantizeLinear", x, net.constant("s", np.float32(0.1)), name="dq")
    weight = net.constant("w", net.normal((6, 4, 1, 1), 0.5))
    net.output(net.op("Conv", y, weight, name="c", strides=[2, 2]), "y", (1, 6, 3, 3))
    complete_types(model := net.model())
    return model


@pytest.mark.parametrize(
    "model",
    [
        network(kernel=3),
        network(pads=[1, 1, 1, 1]),
        network(auto_pad="SAME_UPPER"),
        quantized(),
    ],
    ids=["3x3", "padded", "padded by rule", "quantized"],
)
def test_others_are_left_alone(model: ir.Model) -> None:
    before = [node.op_type for node in model.graph]
    assert slice_strided(model) == 0
    assert [node.op_type for node in model.graph] == before
