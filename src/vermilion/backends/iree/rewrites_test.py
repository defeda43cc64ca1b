from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from models import Net
from vermilion.backends.base import CompileOptions, Part
from vermilion.backends.iree.backend import IreeBackend
from vermilion.backends.iree.rewrites import flatten_pointwise, pad_softmax, slice_strided
from vermilion.errors import Refusal
from vermilion.hardware.targets.find import find_target
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.literal.types import complete_types
from vermilion.ir.samples import sample_inputs

TEXT = """<ir_version: 8, opset_import: ["" : {opset}]>
net (float[2, 3, {length}] x) => (float[2, 3, {length}] y, float[2, 3, {length}] z) {{
    y = {operator}<axis={axis}> (x)
    z = Neg (y)
}}"""


def softmax(
    operator: str = "Softmax", length: int = 1001, axis: int = -1, opset: int = 17
) -> ir.Model:
    text = TEXT.format(operator=operator, length=length, axis=axis, opset=opset)
    return ir.from_proto(onnx.parser.parse_model(text))


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [-1, 2])
def test_the_numbers_stay_and_the_row_is_one_of_whole_waves(operator: str, axis: int) -> None:
    model = softmax(operator, axis=axis)
    assert pad_softmax(model) == 1
    assert [node.op_type for node in model.graph] == ["Pad", operator, "Slice", "Neg"]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    x = np.random.default_rng(0).standard_normal((2, 3, 1001), dtype=np.float32) * 9
    x[0, 0, 5:] = -np.inf
    x[1, 2] = -np.inf  # NaN before, NaN after
    expected = run_session(open_session(softmax(operator, axis=axis)), {"x": x})
    found = run_session(open_session(model), {"x": x})
    for name in ("y", "z"):
        np.testing.assert_allclose(found[name], expected[name], atol=2e-6)
    assert pad_softmax(model) == 0, "a second time there is nothing to do"


@pytest.mark.parametrize(
    "model",
    [
        softmax(length=500),  # short
        softmax(length=1024),  # whole waves
        softmax(axis=1),  # another axis
        softmax(opset=11),  # there it flattens
    ],
)
def test_what_is_left_alone(model: ir.Model) -> None:
    assert pad_softmax(model) == 0
    assert len(model.graph) == 2


@pytest.mark.needs("iree")
def test_no_register_is_spilled(tmp_path: Path) -> None:
    """Hold what the rewrite is for: as it stands, this row spills 212 registers of gfx1100."""
    part = Part("p", "gpu", "iree", softmax(length=2002), ("0", "1"), 0.0)
    backend = IreeBackend(find=lambda: Refusal("this test has no GPU"))
    done = backend.compile(part, find_target("gfx1100"), CompileOptions(), tmp_path)
    assert done.details["padded_softmaxes"] == "1"
    assert [row["vgpr_spills"] for row in done.machine_code] == [0] * len(done.machine_code)
    assert done.machine_code


def network(
    kernel: int = 1, stride: int = 2, batch: int | str = 1, height: int | str = 7,
    **attributes: object,
) -> ir.Model:  # fmt: skip
    """Return Relu → two convolutions on the same tensor → Add."""
    net = Net("strided", seed=8)
    x = net.op("Relu", net.input("x", (batch, 4, height, 9)), name="r")
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
    net.output(net.op("Add", *sides, name="add"), "y", (batch, 6, "h", "w"))
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


def test_rows_of_an_open_batch_are_one_dimension() -> None:
    """As it stands, LLVM cannot select instructions of such a convolution for gfx942."""
    model = network(batch="n")
    inputs = {"x": np.random.default_rng(8).standard_normal((3, 4, 7, 9), np.float32)}
    expected = run_session(open_session(model), inputs)["y"]
    assert slice_strided(model) == 2
    assert flatten_pointwise(model) == 2
    weights = [node.inputs[1] for node in model.graph if node.op_type == "Conv"]
    assert [w.shape.dims for w in weights if w is not None and w.shape] == [(6, 4, 1)] * 2
    found = run_session(open_session(model), inputs)["y"]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert flatten_pointwise(model) == 0


@pytest.mark.parametrize(
    "model",
    [
        network(stride=1),
        network(batch="n", kernel=3),
        network(batch="n", height="h"),
        network(batch="n"),
    ],
    ids=["a known batch", "3x3", "an open image", "strided"],
)
def test_other_convolutions_keep_their_images(model: ir.Model) -> None:
    assert flatten_pointwise(model) == 0


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
