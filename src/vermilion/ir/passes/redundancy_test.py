from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from vermilion.ir.passes.contract_test import operators, parse, reasons, run, weight
from vermilion.ir.passes.redundancy import merge_repeats, remove_dead_nodes, remove_identities
from vermilion.ir.passes.rewrite import run_pass


def test_fires_on_nodes_and_weights_without_readers() -> None:
    model = parse(
        "(float[2] x, float[2] w) => (float[2] y) { a = Add(x, w) b = Neg(a) y = Abs(x) }",
        w=weight(2),
    )
    work, step = run(remove_dead_nodes, model)
    assert step.fired == 3
    assert operators(work) == ["Abs"]
    assert not work.graph.initializers


def test_keeps_unused_inputs_and_what_a_body_reads() -> None:
    model = parse(
        """(float[2] x, float[2] unused, bool c) => (float[2] y) {
            a = Neg(x)
            y = If (c) <
                then_branch = a () => (float[2] t) { t = Abs(a) },
                else_branch = b () => (float[2] e) { e = Abs(x) }
            >
        }"""
    )
    work, step = run(remove_dead_nodes, model)
    assert step.fired == 0
    assert operators(work) == ["Neg", "If"]
    assert len(work.graph.inputs) == 3


ONE = np.array([1])
SHAPE = np.array([2, 3])
NODES = [
    ("Identity(a)", {}),
    ("Dropout(a)", {}),
    ("Cast<to = 1>(a)", {}),
    ("Reshape(a, k)", {"k": SHAPE}),
    ("Flatten(a)", {}),
    ("Expand(a, k)", {"k": SHAPE}),
    ("Transpose<perm = [0, 1]>(a)", {}),
    ("Pad(a, k)", {"k": np.zeros(4, np.int64)}),
    ("Slice(a, k, l)", {"k": np.array([0, 0]), "l": np.array([9, 9])}),
    ("Tile(a, k)", {"k": np.array([1, 1])}),
    ("Concat<axis = 0>(a)", {}),
    ("Sum(a)", {}),
    ("Max(a)", {}),
    ("Clip(a)", {}),
]
NOT_IDENTITIES = [
    ("Cast<to = 10>(a)", {}),
    ("Reshape(a, k)", {"k": np.array([3, 2])}),
    ("Transpose(a)", {}),
    ("Pad(a, k)", {"k": np.array([0, 0, 0, 1])}),
    ("Tile(a, k)", {"k": np.array([1, 2])}),
    ("Clip(a, m)", {"m": np.float32(0)}),
    (
        "Slice(a, k, l, m, n)",
        {"k": np.array([-1]), "l": np.array([-9]), "m": np.array([1]), "n": np.array([-1])},
    ),
]


def model_of(node: str, constants) -> ir.Model:
    declared = "".join(
        f", {'float' if value.dtype == np.float32 else f'int64[{value.size}]'} {name}"
        for name, value in constants.items()
    )
    model = parse(
        f"(float[2,3] x{declared}) => (float[?,?] y) {{ a = Neg(x) b = {node} y = Abs(b) }}",
        **constants,
    )
    kind = 10 if "to = 10" in node else 1
    a, b = model.graph[0].outputs[0], model.graph[1].outputs[0]
    a.type, a.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([2, 3])
    b.type = ir.TensorType(ir.DataType(kind))
    model.graph.outputs[0].type = b.type
    if "3, 2" in str(constants.get("k")) or node == "Transpose(a)" or node.startswith("Resh"):
        b.shape = ir.Shape([3, 2] if list(constants.get("k", [3, 2])) == [3, 2] else [2, 3])
    elif node.startswith(("Pad", "Tile")) and constants["k"].any() and constants["k"].max() > 0:
        b.shape = None
    else:
        b.shape = ir.Shape([2, 3])
    return model


@pytest.mark.parametrize(("node", "constants"), NODES, ids=lambda value: str(value)[:12])
def test_fires(node, constants) -> None:
    work, step = run(remove_identities, model_of(node, constants))
    assert step.fired == 1
    assert operators(work) == ["Neg", "Abs"]


@pytest.mark.parametrize(("node", "constants"), NOT_IDENTITIES, ids=lambda value: str(value)[:12])
def test_leaves_what_changes_something(node, constants) -> None:
    work, step = run(remove_identities, model_of(node, constants))
    assert (step.fired, step.refusals) == (0, ())
    assert len(work.graph) == 3


def test_an_output_keeps_its_name() -> None:
    model = parse("(float[2] x) => (float[2] y) { a = Neg(x) y = Identity(a) }")
    work, step = run(remove_identities, model)
    assert step.fired == 1
    assert work.graph[0].outputs[0].name == "y"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("=> (float[2] y) { y = Identity(x) }", "ties an input or a weight straight"),
        ("=> (float[2] a, float[2] y) { a = Neg(x) y = Identity(a) }", "second output name"),
        ("=> (float[?] y) { a = Neg(x) s = Shape(a) y = Reshape(a, s) }", "shapes are not all"),
        ("=> (float[2] y) { a, m = Dropout(x) c = Cast<to = 1>(m) y = Add(a, c) }", "its mask"),
        ("=> (float[?] y) { s = Shape(x) a = Tile(x, s) y = Neg(a) }", "computed while running"),
    ],
)
def test_refuses_with_a_reason(text, reason) -> None:
    _, step = run(remove_identities, parse(f"(float[2] x) {text}"))
    assert step.fired == 0
    assert reason in reasons(step)[0]


def test_dropout_that_trains_is_kept() -> None:
    model = parse(
        "(float[2] x, float r, bool t) => (float[2] y) { a = Dropout(x, r, t) y = Neg(a) }",
        r=np.float32(0.5),
        t=np.array(True),
    )
    step = run_pass(remove_identities, model)
    assert reasons(step) == ["it may be in training mode"]


def test_bodies_are_left_alone() -> None:
    model = parse(
        """(float[2] x, bool c) => (float[2] y) {
            y = If (c) <
                then_branch = a () => (float[2] t) { t = Identity(x) },
                else_branch = b () => (float[2] e) { e = Identity(x) }
            >
        }"""
    )
    _, step = run(remove_identities, model)
    assert step.fired == 0


def test_fires_on_whole_chains() -> None:
    model = parse(
        """(float[2] x) => (float[2] y) {
            a = Abs(x)  b = Sqrt(a)
            c = Abs(x)  d = Sqrt(c)
            y = Add(b, d)
        }"""
    )
    work, step = run(merge_repeats, model)
    assert step.fired == 2
    assert operators(work) == ["Abs", "Sqrt", "Add"]


def test_other_attributes_inputs_or_outputs_stay_apart() -> None:
    model = parse(
        """(float[2,4] x) => (float[2,4] y) {
            a = Elu<alpha = 0.0>(x)
            b = Elu<alpha = -0.0>(x)
            c = Elu(x)
            d = Sub(a, b)
            e = Sub(b, a)
            f = Sum(c, d, e)
            y = Identity(f)
        }"""
    )
    _, step = run(merge_repeats, model)
    assert step.fired == 0


def test_a_missing_second_output_is_not_a_twin() -> None:
    model = parse(
        """(float[4] x) => (float[4] y, int64[4] i) {
            a = Unique<sorted = 1>(x)
            b, i, inverse = Unique<sorted = 1>(x)
            c = Gather(b, inverse)
            y = Add(c, a)
        }"""
    )
    work, step = run(merge_repeats, model)
    assert step.fired == 0
    assert operators(work).count("Unique") == 2


def test_refuses_outputs_and_random_nodes() -> None:
    model = parse("(float[2] x) => (float[2] y, float[2] z) { y = Abs(x) z = Abs(x) }")
    _, step = run(merge_repeats, model)
    assert reasons(step) == ["its result is an output of the model with its own name"]
    model = parse(
        "(float[2] x) => (float[2] y) "
        "{ a = RandomNormalLike(x) b = RandomNormalLike(x) y = Sub(a, b) }"
    )
    assert reasons(run_pass(merge_repeats, model)) == ["it may give another result each time"]
    assert len(model.graph) == 3


def test_what_is_empty_is_left_out_of_a_concat() -> None:
    model = parse(
        """(float[2,3,4] x, int64[1] far, int64[1] last, int64[1] axis)
        => (float[2,3,4] y, float[2,3,8] z) {
            e = Slice(x, far, last, axis)
            c = Concat<axis = -1>(x, e)
            y = Neg(c)
            z = Concat<axis = 2>(x, e, x)
        }""",
        far=np.array([4]),
        last=np.array([2**62]),
        axis=np.array([2]),
    )
    for value in (node.outputs[0] for node in model.graph):
        if value.name == "e":
            value.shape = ir.Shape([2, 3, 0])
    work, step = run(remove_identities, model)
    assert step.fired == 3
    assert operators(work) == ["Slice", "Neg", "Concat"]
    assert [value.name for value in list(work.graph)[-1].inputs] == ["x", "x"]
