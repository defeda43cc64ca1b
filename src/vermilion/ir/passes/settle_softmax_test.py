import numpy as np
import onnx_ir as ir
import pytest

from vermilion.ir.execute import open_session, run_session
from vermilion.ir.passes.contract_test import operators, run
from vermilion.ir.passes.settle_softmax import settle_softmax


def old(text: str, opset: int = 12) -> ir.Model:
    return ir.from_onnx_text(f'<ir_version: 7, opset_import: ["": {opset}]> g {text}')


@pytest.mark.parametrize("opset", [7, 11, 12])
@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize(
    ("shape", "attribute", "count"),
    [
        ("2,3,4", "", 3),
        ("2,3,4", "<axis = 0>", 3),
        ("2,3,4", "<axis = 2>", 1),
        ("3,4", "", 1),
        ("2,3,1", "", 1),
        ("2,n,4", "<axis = 1>", 4),
    ],
)
def test_what_it_means_stays(
    opset: int, operator: str, shape: str, attribute: str, count: int
) -> None:
    model = old(
        f"(float[{shape}] x) => (float[{shape}] y) {{ y = {operator}{attribute}(x) }}", opset
    )
    x = np.random.default_rng(0).standard_normal(
        [3 if n == "n" else int(n) for n in shape.split(",")]
    )
    inputs = {"x": x.astype(np.float32)}
    wanted = run_session(open_session(model, threads=1, optimize=False), inputs)["y"]
    work, _ = run(settle_softmax, model)
    assert len(operators(work)) == count
    found = run_session(open_session(work, threads=1, optimize=False), inputs)["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    # From opset 13 on, the same nodes give the same numbers.
    work.graph.opset_imports[""] = 13
    found = run_session(open_session(work, threads=1, optimize=False), inputs)["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_new_models_are_left() -> None:
    model = old("(float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis = 1>(x) }", 13)
    work, step = run(settle_softmax, model)
    assert step.fired == 0
    assert operators(work) == ["Softmax"]


def test_a_softmax_in_a_branch() -> None:
    model = old(
        """(float[2,3,4] x, bool c) => (float[2,3,4] y) {
            y = If (c) <
                then_branch = a () => (float[2,3,4] p) { p = Softmax(x) },
                else_branch = b () => (float[2,3,4] q) { q = Neg(x) }
            >
        }"""
    )
    inputs = {"x": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32),
              "c": np.array(True)}  # fmt: skip
    wanted = run_session(open_session(model, threads=1, optimize=False), inputs)["y"]
    work, step = run(settle_softmax, model)
    assert step.fired == 1
    found = run_session(open_session(work, threads=1, optimize=False), inputs)["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
