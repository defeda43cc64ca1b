"""What a file says of its values, held against what its nodes make."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from vermilion.errors import ModelError
from vermilion.ir.declared import check_declared, inferred_anew
from vermilion.ir.opset import static_shape
from vermilion.ir.passes.bind_dimensions import bind_dimensions
from vermilion.ir.passes.contract_test import parse
from vermilion.ir.passes.pipeline import simplify

# What is declared of `a`, and of `y`; what the nodes make of them.
LIES = {
    "smaller": ("float[4,6]", "float[2,3]", "y", "float[2, 3]", "float[4, 6]"),
    "larger": ("float[4,6]", "float[4,60]", "y", "float[4, 60]", "float[4, 6]"),
    "other rank": ("float[4,6]", "float[24]", "y", "float[24]", "float[4, 6]"),
    "other type": ("float[4,6]", "int32[4,6]", "y", "int32[4, 6]", "float[4, 6]"),
    "scalar": ("float[4,6]", "float", "y", "float[]", "float[4, 6]"),
    "between": ("float[4,5]", "float[4,6]", "a", "float[4, 5]", "float[4, 6]"),
    "between, result open": ("float[4,5]", "float[n,m]", "a", "float[4, 5]", "float[4, 6]"),
}


def net(between: str, result: str, body: str = "a = Abs(x) y = Neg(a)") -> ir.Model:
    return parse(f"(float[4,6] x) => ({result} y) <{between} a> {{ {body} }}")


@pytest.mark.parametrize("name", LIES)
def test_a_contradiction_names_both_shapes_the_value_and_the_node(name: str) -> None:
    between, result, value, declared, computed = LIES[name]
    with pytest.raises(ModelError) as error:
        simplify(net(between, result))
    assert error.value.message == (
        f"`{value}` is declared as {declared}, and its node makes it {computed}"
    )
    assert error.value.where.startswith("node `")


def test_what_is_open_or_unknown_is_no_contradiction() -> None:
    assert static_shape(simplify(net("float[n,6]", "float[?,m]")).model.graph.outputs[0]) == (4, 6)


def test_the_body_of_a_branch_may_not_lie() -> None:
    model = parse(
        """(bool c, float[4] x) => (float[4] y) {
            y = If (c) <
                then_branch = yes () => (float[4] t) <float[3] s> { s = Abs(x) t = Neg(s) },
                else_branch = no () => (float[4] e) { e = Neg(x) }
            >
        }"""
    )
    with pytest.raises(ModelError, match=r"`s` is declared as float\[3\]"):
        simplify(model)


def test_the_result_of_a_function_may_not_lie() -> None:
    model = ir.from_proto(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["": 17, "own": 1]>
            net (float[4] x) => (float[3] y) { y = own.f(x) }
            <domain: "own", opset_import: ["": 17]> f (u) => (v) { w = Abs(u) v = Neg(w) }"""
        )
    )
    with pytest.raises(ModelError, match=r"float\[3\].* float\[4\]"):
        simplify(model)


def test_one_of_two_results_may_not_lie() -> None:
    model = parse("(float[4,6] x) => (float[4,3] y, float[4,2] z) { y, z = Split<axis=1>(x) }")
    with pytest.raises(ModelError, match="`z` is declared as"):
        simplify(model)


def test_sizes_of_one_run_that_stand_beside_an_open_dimension_are_no_lie_when_it_is_bound() -> None:
    model = parse("(float[n,6] x) => (float[1,6] y) <float[1,6] a> { a = Abs(x) y = Neg(a) }")
    bound = simplify(model, dims={"n": 3}).model
    assert static_shape(bound.graph.outputs[0]) == (3, 6)
    assert static_shape(bound.graph[0].outputs[0]) == (3, 6)


def test_a_dynamic_shape_of_another_rank_is_what_is_computed() -> None:
    model = parse("(float[n, 4] x) => (float[n] y) { y = Abs(x) }")
    fixed = bind_dimensions(model, {"n": 2})
    check_declared(fixed, inferred_anew(fixed))
    assert fixed.graph.outputs[0].shape == ir.Shape([2, 4])
    other = parse("(float[n, 4] x) => (int64[n] y) { y = Abs(x) }")
    with pytest.raises(ModelError, match="declared as int64"):
        check_declared(other, inferred_anew(other))


def test_a_pool_whose_size_onnx_infers_wrongly_excuses_no_other_type() -> None:
    """Sizes behind such a pool may be wrong in a file; a type that no node gives is never right."""
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,1,5,5] x) => (int32[1,1,3,3] y) {
            a = MaxPool<kernel_shape = [2,2], strides = [2,2], pads = [0,0,1,1], ceil_mode = 1>(x)
            y = Neg(a) }""")
    model = ir.from_proto(proto)
    with pytest.raises(ModelError, match="int32"):
        check_declared(model, inferred_anew(model))
