from __future__ import annotations

import numpy as np
import onnx_ir as ir

from vermilion.ir.passes.contract_test import operators, parse, reasons, run
from vermilion.ir.passes.inline import inline_branches, inline_functions
from vermilion.ir.passes.rewrite import run_pass

HEADER = '<ir_version: 8, opset_import: ["": 17, "local": 1]>'
MAIN = HEADER + " g (float[2] x) => (float[2] y) { a = local.twice(x) y = local.twice(a) }"
FUNCTION = ' <domain: "local", opset_import: ["": {}, "local": 1]> {} (a) => (b) {{ {} }}'


def test_fires_on_each_function() -> None:
    inner = FUNCTION.format(17, "once", "b = Add(a, a)")
    model = ir.from_onnx_text(MAIN + FUNCTION.format(17, "twice", "b = local.once(a)") + inner)
    work, step = run(inline_functions, model)
    assert step.fired == 2
    assert operators(work) == ["Add", "Add"]
    assert not work.functions


def test_refuses_a_function_that_calls_itself() -> None:
    model = ir.from_onnx_text(MAIN + FUNCTION.format(17, "twice", "b = local.twice(a)"))
    step = run_pass(inline_functions, model)
    assert reasons(step) == ["a function of the model calls itself"]
    assert operators(model) == ["twice", "twice"]


def test_refuses_what_would_grow_without_bound() -> None:
    text = MAIN + FUNCTION.format(17, "twice", "c = local.f0(a) b = local.f0(c)")
    for level in range(30):
        body = f"c = local.f{level + 1}(a) b = local.f{level + 1}(c)"
        text += FUNCTION.format(17, f"f{level}", body)
    text += FUNCTION.format(17, "f30", "b = Abs(a)")
    step = run_pass(inline_functions, ir.from_onnx_text(text))
    assert step.fired == 0
    assert reasons(step) == [f"inlined, the model would have {2**32} nodes"]


def test_refuses_another_version() -> None:
    model = ir.from_onnx_text(MAIN + FUNCTION.format(16, "twice", "b = Add(a, a)"))
    step = run_pass(inline_functions, model)
    assert reasons(step) == ["it speaks version 16 of `ai.onnx`, the model another"]


_TRUE, _FALSE = np.array(True), np.array([False])


def test_the_branch_that_is_taken_stands_in_the_place_of_the_if() -> None:
    model = parse(
        """(float[2] x, bool[1] no) => (float[2] y) {
            one = Constant<value = float {1.0}>()
            a = If (no) <
                then_branch = p () => (float[2] t) { t = Add(x, one) },
                else_branch = q () => (float[2] e) { e = Mul(x, one) }
            >
            y = Neg(a)
        }""",
        no=_FALSE,
    )
    work, step = run(inline_branches, model)
    assert step.fired == 1
    assert operators(work) == ["Mul", "Identity", "Neg"]
    assert len(work.graph.inputs[0].uses()) == 1, "the other branch reads nothing any more"


def test_branches_with_equal_names_weights_of_their_own_and_an_if_inside() -> None:
    model = parse(
        """(float[2] x, bool yes) => (float[2] y, float[2] z) {
            a = If (yes) <
                then_branch = p () => (float[2] t) {
                    one = Constant<value = float {1.0}>()
                    inner = If (yes) <
                        then_branch = pp () => (float[2] u) { u = Add(x, one) },
                        else_branch = pq () => (float[2] v) { v = Identity(x) }
                    >
                    t = Exp(inner)
                },
                else_branch = q () => (float[2] e) { e = Identity(x) }
            >
            y = If (yes) <
                then_branch = r () => (float[2] t) {
                    one = Constant<value = float {3.0}>()
                    t = Mul(x, one)
                },
                else_branch = s () => (float[2] e) { e = Identity(x) }
            >
            z = Neg(a)
        }""",
        yes=_TRUE,
    )
    work, step = run(inline_branches, model)
    assert step.fired == 3
    assert "If" not in operators(work)


def test_a_condition_that_the_branch_before_makes_known() -> None:
    model = parse(
        """(float[1,3] x, bool yes, int64[1] axes, int64 first, int64 one) => (float y) {
            a = If (yes) <
                then_branch = p () => (float[n] t) { t = Squeeze(x, axes) },
                else_branch = q () => (float[n, m] e) { e = Identity(x) }
            >
            s = Shape(a)
            n = Gather(s, first)
            c = Equal(n, one)
            y = If (c) <
                then_branch = r () => (float u) { u = ReduceMax<keepdims = 0>(a) },
                else_branch = s () => (float v) { v = ReduceMin<keepdims = 0>(a) }
            >
        }""",
        yes=_TRUE,
        axes=np.array([0]),
        first=np.array(0),
        one=np.array(1),
    )
    work, step = run(inline_branches, model)
    assert step.fired == 2
    assert operators(work) == ["Squeeze", "Identity", "ReduceMin", "Identity"]


def test_a_condition_that_is_computed_stays() -> None:
    model = parse(
        """(float[2] x, bool c) => (float[2] y) {
            y = If (c) <
                then_branch = a () => (float[2] t) { t = Neg(x) },
                else_branch = b () => (float[2] e) { e = Exp(x) }
            >
        }"""
    )
    work, step = run(inline_branches, model)
    assert operators(work) == ["If"]
    assert reasons(step) == ["its condition is not known before running"]
