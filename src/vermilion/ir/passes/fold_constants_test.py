import re
from typing import Any

import numpy as np
import pytest

from vermilion.ir.passes import fold_constants as module
from vermilion.ir.passes.contract_test import operators, parse, reasons, run, weight
from vermilion.ir.passes.fold_constants import fold_constants
from vermilion.ir.passes.rewrite import run_pass


def test_a_shape_chain_folds_once_sizes_are_known() -> None:
    model = parse(
        """(float[2,3,4] x, int64[1] zero, int64[1] one, int64[1] rest) => (float[2,12] y) {
            s = Shape(x)
            batch = Slice(s, zero, one)
            target = Concat<axis = 0>(batch, rest)
            y = Reshape(x, target)
        }""",
        zero=np.array([0]),
        one=np.array([1]),
        rest=np.array([-1]),
    )
    work, step = run(fold_constants, model)
    assert step.fired == 3
    assert operators(work) == ["Reshape"]
    assert work.graph.initializers["target"].const_value.numpy().tolist() == [2, -1]


def test_shapes_that_become_known_are_followed() -> None:
    model = parse(
        """(float[2,6] x, int64[1] three, int64[1] rest) => (float[?,?] y) {
            t = Concat<axis = 0>(rest, three)
            a = Reshape(x, t)
            s = Shape(a)
            y = Expand(a, s)
        }""",
        three=np.array([3]),
        rest=np.array([-1]),
    )
    work, _ = run(fold_constants, model)
    assert operators(work) == ["Reshape", "Expand"]


def test_a_chain_of_reshapes_is_followed_in_one_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = "".join(
        f"""
            s{n} = Shape(x{n})
            b{n} = Slice(s{n}, zero, one)
            t{n} = Concat<axis = 0>(rest, b{n})
            x{n + 1} = Reshape(x{n}, t{n})"""
        for n in range(20)
    )
    model = parse(
        f"""(float[2,3,4] x0, int64[1] zero, int64[1] one, int64[1] rest) => (float[?,?] y) {{
            {nodes}
            y = Relu(x20)
        }}""",
        zero=np.array([0]),
        one=np.array([1]),
        rest=np.array([-1]),
    )
    whole: list[str] = []
    infer = module.infer_shapes

    def counted(*arguments: Any) -> None:
        whole.append("inferred")
        infer(*arguments)

    monkeypatch.setattr(module, "infer_shapes", counted)
    work, step = run(fold_constants, model)
    assert set(operators(work)) == {"Reshape", "Relu"}
    assert (step.fired, len(whole)) == (60, 1)


def test_part_of_a_shape_and_size() -> None:
    model = parse(
        """(float[2,3,4] x) => (float[2,3,4] y) {
            s = Shape<start = 1, end = -1>(x)
            n = Size(x)
            p = Mul(s, n)
            f = Cast<to = 1>(p)
            y = Add(x, f)
        }"""
    )
    work, step = run(fold_constants, model)
    assert (step.fired, operators(work)) == (4, ["Add"])
    assert work.graph.initializers["f"].const_value.numpy().tolist() == [72.0]


def test_known_sizes_beside_an_open_one() -> None:
    model = parse(
        """(float[N,3,4] x, int64 two, int64[2] some, int64[1] one, int64[1] last, int64[1] back,
         int64 none) => (int64 a, int64[2] b, int64[2] c, int64[1] d, int64 e) {
            s = Shape(x)
            g = Gather(s, two)
            h = Gather(s, some)
            p = Slice(s, one, last)
            q = Slice(s, back, last)
            n = Gather(s, none)
            a = Neg(g)  b = Neg(h)  c = Neg(p)  d = Neg(q)  e = Neg(n)
        }""",
        two=np.array(2),
        some=np.array([1, -1]),
        one=np.array([1]),
        last=np.array([2**62]),
        back=np.array([-1]),
        none=np.array(0),
    )
    work, _ = run(fold_constants, model)
    found = work.graph.initializers
    known = {name: found[name].const_value.numpy().tolist() for name in "ghpq"}
    assert known == {"g": 4, "h": [3, 4], "p": [3, 4], "q": [4]}
    assert operators(work).count("Gather") == 1


def test_arithmetic_on_weights_of_each_type() -> None:
    for dtype, name in ((np.float32, "float"), (np.float16, "float16"), (np.float64, "double")):
        model = parse(
            f"({name}[4] x, {name}[4] a, {name}[4] b) => ({name}[4] y) "
            "{ p = Mul(a, b) q = Sqrt(p) r = Neg(q) y = Add(x, r) }",
            a=np.abs(weight(4, dtype=dtype)),
            b=np.abs(weight(4, seed=1, dtype=dtype)),
        )
        work, step = run(fold_constants, model)
        assert (step.fired, operators(work)) == (3, ["Add"])


def test_symbolic_sizes_are_left_alone() -> None:
    model = parse("(float[n,3] x) => (float[?,?] y) { s = Shape(x) y = Expand(x, s) }")
    work, step = run(fold_constants, model)
    assert step.fired == 0
    assert operators(work) == ["Shape", "Expand"]


def test_dequantize_linear_is_kept() -> None:
    model = parse(
        """(float[2,2] x, int8[2,2] q, float s) => (float[2,2] y) {
            w = DequantizeLinear(q, s)
            y = MatMul(x, w)
        }""",
        q=np.array([[1, 2], [3, 4]], np.int8),
        s=np.float32(0.5),
    )
    work, step = run(fold_constants, model)
    assert step.fired == 0
    assert operators(work) == ["DequantizeLinear", "MatMul"]


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ([1 << 20, 1 << 20], "more than 67108864"),
        ([1 << 62, 1 << 62], "not known beforehand|more than 67108864"),
        ([2048, 2048], "it would turn 16 bytes into 16777216"),
    ],
)
def test_refuses_results_that_are_too_large(shape, reason) -> None:
    model = parse(
        """(float[2] x, int64[2] s) => (float[2] y, float m) {
            big = ConstantOfShape(s)
            m = ReduceMax<keepdims = 0>(big)
            y = Abs(x)
        }""",
        s=np.array(shape),
    )
    step = run_pass(fold_constants, model)
    assert step.fired == 0
    assert "ConstantOfShape" in operators(model)
    assert re.search(reason, reasons(step)[0])


def test_refuses_a_result_that_is_an_output() -> None:
    model = parse(
        "(float[1] x, float[1] a) => (float[1] y, float[1] z) { y = Neg(a) z = Abs(x) }",
        a=weight(1),
    )
    work, step = run(fold_constants, model)
    assert reasons(step) == ["its result is an output of the model"]
    assert operators(work) == ["Neg", "Abs"]


def test_refuses_what_cannot_be_computed_and_folds_the_rest() -> None:
    model = parse(
        """(float[4] x, float[4] a, float[2] b) => (float[4] y) {
            good = Neg(a)
            bad = Add(a, b)
            worse = Add(x, bad)
            best = Abs(good)
            y = Add(worse, best)
        }""",
        a=weight(4),
        b=weight(2),
    )
    for node in model.graph:
        node.outputs[0].type = model.graph.inputs[0].type
        node.outputs[0].shape = model.graph.inputs[0].shape
    step = run_pass(fold_constants, model)
    assert step.fired == 2
    assert len(reasons(step)) == 1
    assert step.refusals[0][0] == "node `bad`, Add"
    assert operators(model) == ["Add", "Add", "Add"]


def test_random_nodes_and_bodies_are_left_alone() -> None:
    model = parse(
        """(float[2] x, bool c) => (float[2] y) {
            r = RandomNormal<shape = [2]>()
            i = If (c) <
                then_branch = a () => (float[2] t) { t = Neg(r) },
                else_branch = b () => (float[2] e) { e = Abs(r) }
            >
            y = Add(x, i)
        }""",
        c=np.array(True),
    )
    assert run_pass(fold_constants, model).fired == 0


def test_the_bound_is_what_decides(monkeypatch) -> None:
    text = "(float[64] x, float[64] a) => (float[64] y) { b = Neg(a) y = Add(x, b) }"
    monkeypatch.setattr(module, "MAX_BYTES", 255)
    assert run_pass(fold_constants, parse(text, a=weight(64))).fired == 0
    monkeypatch.setattr(module, "MAX_BYTES", 256)
    assert run_pass(fold_constants, parse(text, a=weight(64))).fired == 1
