from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from vermilion.ir.execute import open_session, run_session
from vermilion.ir.opset import OPSET, opset_of
from vermilion.ir.passes.contract_test import operators, parse, reasons, run, weight
from vermilion.ir.passes.opset_versions import raise_opset, settle_softmax
from vermilion.ir.passes.rewrite import run_pass


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 16])
def test_fires_and_keeps_weights_and_names(opset) -> None:
    model = parse(
        "(float[1,3,8,8] x, float[64,3,3,3] w) => (float[1,64,6,6] y) "
        "{ a = Conv(x, w) y = Relu(a) }",
        opset=opset,
        ir_version=4,
        w=weight(64, 3, 3, 3),
    )
    model.graph[0].name = "first"
    tensor = model.graph.initializers["w"].const_value
    work, step = run(raise_opset, model)
    assert step.fired == OPSET - opset
    assert opset_of(work) == OPSET
    assert work.graph[0].name == "first"
    assert work.graph.initializers["w"].const_value is tensor
    assert [value.name for value in work.graph.inputs] == ["x"]
    assert work.ir_version >= 8


@pytest.mark.parametrize("opset", [13, 15, 16])
def test_what_no_version_changed_is_left_to_no_converter(
    opset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = parse(
        "(float[1,3,8,8] x, float[4,3,3,3] w) => (float[1,4,12,6] y) "
        "{ a = Conv(x, w) y = Concat<axis = 2>(a, a) }",
        opset=opset,
        ir_version=7,
        w=weight(4, 3, 3, 3),
    )
    converted = onnx.version_converter.convert_version(ir.to_proto(model), OPSET)
    monkeypatch.setattr(onnx.version_converter, "convert_version", None)
    work, step = run(raise_opset, model)
    assert (step.fired, opset_of(work), work.ir_version) == (OPSET - opset, OPSET, 8)
    assert list(ir.to_proto(work).graph.node) == list(converted.graph.node)


def test_attributes_become_inputs() -> None:
    model = parse(
        """(float[1,3,8] x) => (float[1,3,2] y) {
            a = Clip<min = 0.0, max = 6.0>(x)
            b = Slice<axes = [2], starts = [1], ends = [3]>(a)
            c = Unsqueeze<axes = [0]>(b)
            y = Squeeze<axes = [0]>(c)
        }""",
        opset=9,
    )
    work, _ = run(raise_opset, model)
    assert operators(work).count("Constant") >= 4


def test_softmax_over_the_last_axis_stays_one_node() -> None:
    model = parse("(float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis = 2>(x) }", opset=11)
    work, _ = run(raise_opset, model)
    assert operators(work) == ["Softmax"]
    model = parse("(float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis = 1>(x) }", opset=11)
    work, _ = run(raise_opset, model)
    assert len(operators(work)) > 1


def test_leaves_newer_models() -> None:
    model = parse("(float[2] x) => (float[2] y) { y = Abs(x) }", opset=20, ir_version=9)
    _, step = run(raise_opset, model)
    assert (step.fired, step.refusals) == (0, ())


def test_refuses_with_a_reason_and_a_hint() -> None:
    body = """(float[2] x, bool c) => (float[2] y) {
        y = If (c) <
            then_branch = a () => (float[2] t) { t = Abs(x) },
            else_branch = b () => (float[2] e) { e = Neg(x) }
        >
    }"""
    step = run_pass(raise_opset, parse(body, opset=11))
    assert reasons(step) == ["it has If nodes, whose bodies the converter does not follow"]
    assert step.refusals[0][1].hint == "export it with opset 17"
    foreign = "(float[2] x) => (float[2] y) { y = com.microsoft.Gelu(x) }"
    step = run_pass(raise_opset, parse(foreign, opset=11, domains=', "com.microsoft": 1'))
    assert reasons(step) == ["it has nodes of the domain `com.microsoft`"]


def test_refuses_what_onnx_has_no_rule_for() -> None:
    model = parse("(float[2] x) => (float[2] y) { y = NoSuchOperator(x) }", opset=11)
    step = run_pass(raise_opset, model)
    assert step.fired == 0
    assert "onnx cannot convert it from opset 11" in reasons(step)[0]
    assert opset_of(model) == 11


def test_inputs_with_defaults_survive() -> None:
    model = parse(
        "(float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }", opset=11, w=weight(2)
    )
    model.graph.inputs.append(model.graph.initializers["w"])
    work, _ = run(raise_opset, model)
    assert [value.name for value in work.graph.inputs] == ["x", "w"]
    assert np.array_equal(work.graph.initializers["w"].const_value.numpy(), weight(2))


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


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("sizes", ["4,5", "H,W"])
@pytest.mark.parametrize("opset", [8, 9, 10])
def test_older_resizing_divides_by_the_scale(opset: int, sizes: str, mode: str) -> None:
    """onnx's converter leaves the new attribute out, whose default is another way."""
    operator = "Upsample" if opset < 10 else "Resize"
    scales = f'<mode = "{mode}", scales = [1.0, 1.0, 1.5, 2.0]> (x)'
    if opset >= 9:
        scales = f'<mode = "{mode}"> (x, s)'
    out = "6,10" if sizes == "4,5" else "A,B"
    model = ir.from_onnx_text(
        f"""<ir_version: 8, opset_import: ["" : {opset}]>
        g (float[1,2,{sizes}] x) => (float[1,2,{out}] y) <float[4] s = {{1.0, 1.0, 1.5, 2.0}}>
        {{ y = {operator} {scales} }}"""
    )
    x = {"x": np.random.default_rng(0).standard_normal((1, 2, 4, 5)).astype(np.float32)}
    before = run_session(open_session(model), x)["y"]
    step = run_pass(raise_opset, model)
    assert not step.refusals
    assert opset_of(model) == OPSET
    np.testing.assert_allclose(run_session(open_session(model), x)["y"], before, rtol=1e-6)


def test_older_resizing_between_other_nodes_divides_by_the_scale() -> None:
    """onnx's converter gives what it writes inside a graph other names than there were."""
    model = ir.from_onnx_text(
        """<ir_version: 8, opset_import: ["" : 7]> g (float[2,3,4] x) => (float[A,B,C] y)
        { a = Abs (x)  b = Upsample <mode = "linear", scales = [1.0, 1.0, 2.0]> (a)
          y = Neg (b) }"""
    )
    x = {"x": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)}
    before = run_session(open_session(model), x)["y"]
    assert not run_pass(raise_opset, model).refusals
    np.testing.assert_allclose(run_session(open_session(model), x)["y"], before, rtol=1e-6)


def test_a_pad_by_edges_keeps_no_number() -> None:
    model = ir.from_onnx_text(
        """<ir_version: 8, opset_import: ["" : 8]>
        g (float[3,4] x) => (float[5,5] y)
        { y = Pad <mode = "edge", pads = [1, 0, 1, 1], value = 1.5> (x) }"""
    )
    x = {"x": np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)}
    before = run_session(open_session(model), x)["y"]
    assert not run_pass(raise_opset, model).refusals
    assert opset_of(model) == OPSET
    np.testing.assert_array_equal(run_session(open_session(model), x)["y"], before)


@pytest.mark.parametrize("shape", ["2,3,4", "a,b,c"])
def test_an_old_hardmax_is_raised_with_what_it_means(shape: str) -> None:
    """onnx's converter leaves it as it is, and at sizes of the run no probe tells."""
    model = old(f"(float[{shape}] x) => (float[{shape}] y) {{ y = Hardmax(x) }}", 9)
    inputs = {"x": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)}
    wanted = run_session(open_session(model, threads=1, optimize=False), inputs)["y"]
    work, _ = run(raise_opset, model)
    assert opset_of(work) == OPSET
    found = run_session(open_session(work, threads=1, optimize=False), inputs)["y"]
    assert wanted.sum() == 2
    np.testing.assert_array_equal(found, wanted)
