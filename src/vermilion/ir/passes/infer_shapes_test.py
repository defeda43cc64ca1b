from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from vermilion.ir.opset import static_shape
from vermilion.ir.passes.contract_test import operators, parse, reasons, run, weight
from vermilion.ir.passes.fold_constants import fold_constants
from vermilion.ir.passes.infer_shapes import infer_shapes, propagated_elements, settle_casts
from vermilion.ir.passes.rewrite import PassStep, run_pass

CONV = "(float[1,3,8,8] x, float[4,3,3,3] w) => (float[?,?,?,?] y) { a = Conv(x, w) y = Relu(a) }"


def test_fires_with_weights_left_where_they_are() -> None:
    model = parse(CONV, w=weight(4, 3, 3, 3))
    tensor = model.graph.initializers["w"].const_value
    work, step = run(infer_shapes, model)
    assert step.fired == 2
    assert static_shape(work.graph[0].outputs[0]) == (1, 4, 6, 6)
    assert static_shape(work.graph.outputs[0]) == (1, 4, 6, 6)
    assert work.graph.initializers["w"].const_value is tensor
    assert [value.name for value in work.graph.inputs] == ["x"]


def test_large_weights_are_not_serialized_and_come_back() -> None:
    model = parse(
        "(float[1,512] x, float[512,512] w) => (float[1,512] y) { a = MatMul(x, w) y = Abs(a) }",
        w=weight(512, 512),
    )
    work, _ = run(infer_shapes, model)
    assert list(work.graph.initializers) == ["w"]
    assert static_shape(work.graph[0].outputs[0]) == (1, 512)


def test_open_sizes_keep_their_own_names_only() -> None:
    model = parse(
        """(float[n, 4] x, bool[4] m) => (float[?, ?] y) {
            a = Abs(x)
            y = Compress<axis = 1>(a, m)
        }"""
    )
    run_pass(infer_shapes, model)
    assert [size.value for size in model.graph[0].outputs[0].shape.dims[:1]] == ["n"]
    assert [getattr(size, "value", size) for size in model.graph.outputs[0].shape.dims] == [
        None,
        None,
    ]


def test_a_size_of_minus_one_is_an_open_size() -> None:
    model = parse("(float[2, 3] x) => (float[2, 3] y) { y = Abs(x) }")
    model.graph.inputs[0].shape = ir.Shape([-1, 3])
    run_pass(infer_shapes, model)
    assert model.graph.inputs[0].shape.dims[0].value is None


def test_a_model_that_cannot_be_inferred_stays_and_says_why() -> None:
    model = parse("(float[2] x) => (float[2] y) { a = Abs() y = Neg(a) }")
    step = run_pass(infer_shapes, model)
    assert step.fired == 0
    assert reasons(step)[0].startswith("onnx cannot infer shapes: ")
    assert model.graph[0].outputs[0].shape is None


def test_a_model_in_which_all_is_known_is_not_inferred(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse(CONV, w=weight(4, 3, 3, 3))
    assert run_pass(infer_shapes, model).fired == 2
    monkeypatch.setattr("vermilion.ir.passes.infer_shapes.infer", None)
    assert run_pass(infer_shapes, model) == PassStep("infer-shapes")
    model.graph[0].outputs[0].shape = None
    with pytest.raises(TypeError):
        run_pass(infer_shapes, model)


def test_shape_values_that_double_are_not_followed() -> None:
    chain = " ".join(
        f"s{i + 1} = Concat<axis = 0>(s{i}, s{i})" for i in range(40)
    )  # 2^40 sizes, a terabyte in onnx's propagation
    model = parse(f"(float[2] x) => (float[?] y) {{ s0 = Shape(x) {chain} y = Expand(x, s40) }}")
    assert propagated_elements(model) > 1 << 40
    step = run_pass(infer_shapes, model)
    assert "would grow too large" in reasons(step)[0]


def test_never_makes_a_known_size_unknown() -> None:
    model = parse(CONV, w=weight(4, 3, 3, 3))
    model.graph[0].outputs[0].shape = ir.Shape([1, 4, 6, 6])
    model.graph.outputs[0].shape = ir.Shape([1, 4, 6, 6])
    work, _ = run(infer_shapes, model)
    assert static_shape(work.graph.outputs[0]) == (1, 4, 6, 6)
    assert np.prod(static_shape(work.graph[0].outputs[0])) == 144


def test_a_cast_to_a_known_type_no_longer_reads_the_tensor_that_has_it() -> None:
    model = parse(
        """(float16[2] x) => (float16[2] y, float[2] z) {
            one = Constant<value = float {1.0}>()
            a = CastLike(one, x)
            y = Add(x, a)
            z = CastLike(x, one)
        }"""
    )
    work, step = run(settle_casts, model)
    assert step.fired == 2
    assert operators(work) == ["Constant", "Cast", "Add", "Cast"]
    run_pass(fold_constants, work)
    assert operators(work) == ["Constant", "Add", "Cast"]


def test_an_unknown_type_is_left() -> None:
    model = parse(
        """(float[2] x, bool c) => (float[2] y) {
            t = If (c) <
                then_branch = a () => (float[2] p) { p = Neg(x) },
                else_branch = b () => (float[2] q) { q = Exp(x) }
            >
            y = CastLike(x, t)
        }"""
    )
    work, step = run(settle_casts, model)
    assert "CastLike" in operators(work)
    assert reasons(step) == ["the type that it asks for is not known"]
