"""An old node is never read with the meaning that its operator has now."""

import numpy as np
import onnx_ir as ir
import pytest

from float_graphs import run_native
from native_text import refusals
from vermilion.codegen.lower.rules import refusal
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.passes.report import run_pass
from vermilion.ir.passes.settle_softmax import settle_softmax


def reasons(text: str, opset: int) -> list[str]:
    model = ir.from_onnx_text(f'<ir_version: 7, opset_import: ["": {opset}]> g {text}')
    return [found.reason for node in model.graph if (found := refusal(node)) is not None]


@pytest.mark.parametrize(
    ("text", "opset", "operator"),
    [
        ("(float[2,3,4] x) => (float[2,3,4] y) { y = Softmax(x) }", 12, "Softmax"),
        ("(float[2,3,4] x) => (float[2,3,4] y) { y = LogSoftmax<axis = 0>(x) }", 11, "LogSoftmax"),
        ("(float[4,4] x) => (float[2,4] y) { y = Slice<starts = [0], ends = [2]>(x) }", 9, "Slice"),
        ("(float[4,4] x) => (float[5,4] y) { y = Pad<pads = [0, 0, 1, 0]>(x) }", 10, "Pad"),
        ("(float[1,1,4,4] x, float[4] s) => (float[1,1,8,8] y) { y = Resize(x, s) }", 10, "Resize"),
    ],
)
def test_what_meant_another_thing(text: str, opset: int, operator: str) -> None:
    assert reasons(text, opset) == [f"{operator} of opset {opset}, which meant another thing"]


def test_versions_without_a_change_are_taken() -> None:
    text = "(float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis = 2>(x) }"
    assert reasons(text, 7) == []
    text = "(float[4] x) => (float[4] y) { y = Relu(x) }"
    assert reasons(text, 7) == []
    assert reasons(text, 6) == ["Relu of opset 6, older than 7"]


@pytest.mark.parametrize("opset", [8, 11, 12])
@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", ["", "<axis = 0>", "<axis = 2>", "<axis = 3>"])
def test_an_old_softmax_in_a_model_that_stays_old(operator: str, axis: str, opset: int) -> None:
    """As where a node of another domain keeps the model from being raised."""
    model = ir.from_onnx_text(
        f'<ir_version: 7, opset_import: ["": {opset}]> g (float[2,3,4,5] x) => '
        f"(float[2,3,4,5] y) {{ y = {operator}{axis}(x) }}"
    )
    x = {"x": np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)}
    wanted = run_session(open_session(model, threads=1, optimize=False), x)["y"]
    run_pass(settle_softmax, model)
    assert not refusals(model)
    found = run_native(model, x, "cpu", "fp32")["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_bounds_as_attributes() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 7, opset_import: ["": 9]> g (float[20] x) => (float[20] y) '
        "{ y = Clip<min = -0.5, max = 0.75>(x) }"
    )
    x = np.linspace(-2, 2, 20).astype(np.float32)
    assert np.array_equal(run_native(model, {"x": x}, "cpu", "fp32")["y"], np.clip(x, -0.5, 0.75))
