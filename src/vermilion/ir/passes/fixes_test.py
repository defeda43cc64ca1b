"""Each fix fires, refuses with a reason, keeps the outputs, and changes nothing a second time."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from vermilion.ir.execute import open_session, run_session
from vermilion.ir.passes.contract_test import MODELS, operators, parse, reasons, run, weight
from vermilion.ir.passes.fixes import (
    SINGLE_ENTRY_FIXES,
    apply_fixes,
    fold_pad,
    freeze_batch,
    replace_prelu,
    settle_resize,
)
from vermilion.ir.passes.infer_shapes import infer_shapes
from vermilion.ir.passes.opset_versions import lower_opset
from vermilion.ir.passes.probe import interface_change, take_probe
from vermilion.ir.passes.rewrite import run_pass
from vermilion.ir.passes.unroll_batch import unroll_batch
from vermilion.ir.passes.write_attributes import write_attributes
from vermilion.ir.verify import check_graph


def inferred(model: ir.Model) -> ir.Model:
    run_pass(infer_shapes, model)
    return model


@pytest.mark.parametrize("rewrite", SINGLE_ENTRY_FIXES, ids=lambda rewrite: rewrite.__name__)
@pytest.mark.parametrize("name", MODELS)
def test_a_fix_leaves_odd_graphs_sound(rewrite, name) -> None:
    work = MODELS[name].clone()
    run_pass(rewrite, work)
    check_graph(work)
    assert interface_change(MODELS[name], work) == ""
    assert take_probe(MODELS[name]).difference(work) == ""


CONV = """(float[1,3,9,8] x, float[4,3,3,3] w) => (float[a,b,c,d] y) {{
    y = Conv{attributes}(x, w)
}}"""


@pytest.mark.parametrize(
    ("attributes", "pads"),
    [
        ("", (0, 0, 0, 0)),
        ('<auto_pad="VALID">', (0, 0, 0, 0)),
        ('<auto_pad="SAME_UPPER", strides=[2,2]>', (1, 0, 1, 1)),
        ('<auto_pad="SAME_LOWER", strides=[2,2]>', (1, 1, 1, 0)),
    ],
)
def test_attributes_are_written(attributes: str, pads: tuple[int, ...]) -> None:
    model = parse(CONV.format(attributes=attributes), w=weight(4, 3, 3, 3))
    work, step = run(write_attributes, model)
    (node,) = work.graph
    assert step.fired
    assert set(node.attributes) == {"strides", "pads", "dilations", "kernel_shape", "group"}
    assert tuple(node.attributes["pads"].as_ints()) == pads


def test_attributes_of_pools_and_of_what_is_not_known() -> None:
    pool = """(float[1,3,8,8] x) => (float[1,3,7,7] y) { y = MaxPool<kernel_shape=[2,2]>(x) }"""
    work, _ = run(write_attributes, parse(pool))
    assert set(work.graph.node(0).attributes) == {"kernel_shape", "strides", "pads", "dilations"}
    unknown = "(float[1,3,8,8] x, float[a,3,b,c] w) => (float[d,e,f,g] y) { y = Conv(x, w) }"
    model = parse(unknown)
    step = run_pass(write_attributes, model)
    assert not step.fired
    assert "kernel" in reasons(step)[0]


def test_prelu_becomes_exact_arithmetic() -> None:
    text = "(float[2,3,4,4] x, float[3,1,1] s) => (float[2,3,4,4] y) { y = PRelu(x, s) }"
    model = parse(text, s=weight(3, 1, 1))
    work, step = run(replace_prelu, model)
    assert step.fired == 1
    assert operators(work) == ["Relu", "Sub", "Mul", "Sub"]
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 4), dtype=np.float32) * 1000
    before, after = (run_session(open_session(m), {"x": x})["y"] for m in (model, work))
    np.testing.assert_array_equal(before, after)


def test_prelu_inside_keeps_its_readers() -> None:
    text = """(float[2,4] x, float[4] s) => (float[2,4] y, float[2,4] z) {
        a = Abs(x)  y = PRelu(x, s)  b = PRelu(a, s)  z = Neg(b)
    }"""
    work, step = run(replace_prelu, parse(text, s=weight(4)))
    assert step.fired == 2
    assert "PRelu" not in operators(work)


RESIZE = """(float[1,2,3,4] x, int64[4] sizes) => (float[1,2,{h},{w}] y) {{
    y = Resize<mode="{mode}">(x, , , sizes)
}}"""


@pytest.mark.parametrize(
    ("mode", "height", "width", "form"),
    [
        ("nearest", 6, 8, "asymmetric"),
        ("nearest", 9, 16, "asymmetric"),
        ("nearest", 5, 8, None),
        ("linear", 6, 8, None),
        ("linear", 4, 7, None),
    ],
)
def test_resize_by_sizes_becomes_resize_by_scales(mode, height, width, form) -> None:
    sizes = np.array([1, 2, height, width])
    text = RESIZE.format(h=height, w=width, mode=mode)
    work, step = run(settle_resize, inferred(parse(text, sizes=sizes)))
    assert step.fired
    node = work.graph.node(0)
    assert node.inputs[2].const_value.numpy().tolist() == pytest.approx(
        [1, 1, height / 3, width / 4]
    )
    assert len(node.inputs) == 3
    written = node.attributes.get("coordinate_transformation_mode")
    assert (written.as_string() if written else None) == form


def test_resize_that_is_left_alone() -> None:
    crop = """(float[1,2,4,4] x, float[8] r, float[4] s) => (float[1,2,8,8] y) {
        y = Resize<coordinate_transformation_mode="tf_crop_and_resize">(x, r, s)
    }"""
    model = parse(crop, s=np.array([1, 1, 2, 2], np.float32), r=np.zeros(8, np.float32))
    step = run_pass(settle_resize, model)
    assert (step.fired, reasons(step)) == (0, ["it crops"])


PAD = """(float[1,3,8,8] x, int64[8] p, float[4,3,3,3] w) => (float[1,4,h,w_] y) {{
    a = Pad{mode}(x, p)
    y = Conv<pads=[0,1,0,1]>(a, w)
}}"""


def test_padding_by_zeros_goes_into_the_convolution() -> None:
    pads = np.array([0, 0, 1, 2, 0, 0, 3, 4])
    model = parse(PAD.format(mode=""), p=pads, w=weight(4, 3, 3, 3))
    work, _ = run(fold_pad, inferred(model))
    assert operators(work) == ["Conv"]
    assert tuple(work.graph.node(0).attributes["pads"].as_ints()) == (1, 3, 3, 5)
    assert "p" not in work.graph.initializers


@pytest.mark.parametrize(
    ("mode", "pads", "words"),
    [
        ('<mode="reflect">', [0, 0, 1, 1, 0, 0, 1, 1], "by reflect"),
        ("", [0, 1, 1, 1, 0, 0, 1, 1], "other axes"),
        ("", [0, 0, -1, 1, 0, 0, 1, 1], "cuts"),
    ],
)
def test_other_padding_stays(mode: str, pads: list[int], words: str) -> None:
    channels = 4 if pads[1] else 3
    model = parse(PAD.format(mode=mode), p=np.array(pads), w=weight(4, channels, 3, 3))
    step = run_pass(fold_pad, model)
    assert not step.fired
    assert words in reasons(step)[0]


def test_padding_that_a_pool_reads_stays() -> None:
    text = """(float[1,3,8,8] x, int64[8] p) => (float[1,3,9,9] y) {
        a = Pad(x, p)
        y = MaxPool<kernel_shape=[2,2]>(a)
    }"""
    step = run_pass(fold_pad, parse(text, p=np.array([0, 0, 1, 1, 0, 0, 1, 1])))
    assert "MaxPool reads it" in reasons(step)[0]


def test_an_open_batch_becomes_1_and_the_rest_is_the_users() -> None:
    model = parse("(float[N,3,H,8] x) => (float[N,3,H,8] y) { y = Relu(x) }")
    step = run_pass(freeze_batch, model)
    assert step.fired
    assert str(model.graph.inputs[0].shape) == str(ir.Shape([1, 3, "H", 8]))
    assert "axis 2 is dynamic" in reasons(step)[0]
    tokens = parse("(int64[seq] x) => (int64[seq] y) { y = Identity(x) }")
    step = run_pass(freeze_batch, tokens)
    assert (step.fired, len(step.refusals)) == (0, 1)


NEWER = """(float[2,4,6] x, int64[1] a) => (float[2,1,6] y, float[2,2,6] z, float[2,2,6] u) {
    b = Relu(x)
    y = ReduceMean(b, a)
    z, u = Split<axis=1, num_outputs=2>(b)
}"""


def test_a_newer_opset_is_lowered_where_it_means_the_same() -> None:
    model = inferred(parse(NEWER, opset=21, ir_version=10, a=np.array([1])))
    work, step = run(lower_opset, model)
    assert step.fired == 4
    assert work.graph.opset_imports[""] == 17
    reduce_mean, split = work.graph.node(1), work.graph.node(2)
    assert tuple(reduce_mean.attributes["axes"].as_ints()) == (1,)
    assert len(reduce_mean.inputs) == 1
    assert set(split.attributes) == {"axis"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(float[2,4] x) => (float[2,4] y) { y = Gelu(x) }", "no Gelu"),
        (
            "(float[2,4] x, int64[1] a) => (float[2,1] y) { y = ReduceMax(x, a) }",
            "axes of ReduceMax are computed",
        ),
        (
            "(float[2,5] x) => (float[2,3] y, float[2,2] z) {"
            " y, z = Split<axis=1, num_outputs=2>(x) }",
            "has no `num_outputs`",
        ),
    ],
)
def test_a_newer_opset_that_has_something_new_stays(text: str, words: str) -> None:
    model = parse(text, opset=20, ir_version=9)
    step = run_pass(lower_opset, model)
    assert not step.fired
    assert words in reasons(step)[0]
    assert model.graph.opset_imports[""] == 20


BATCHED = """(float[4,3,8,8] x, float[5,3,3,3] w, int64[2] s, float[320,6] k) => (float[4,6] y) {
    a = Conv<pads=[1,1,1,1]>(x, w)
    b = Relu(a)
    c = Reshape(b, s)
    y = MatMul(c, k)
}"""


def test_a_batch_is_unrolled() -> None:
    weights = {"w": weight(5, 3, 3, 3), "k": weight(320, 6)}
    model = inferred(parse(BATCHED, s=np.array([4, 320]), **weights))
    work, step = run(unroll_batch, model)
    assert step.fired == 4
    kinds = operators(work)
    assert (kinds.count("Conv"), kinds[0], kinds[-1]) == (4, "Split", "Concat")
    assert inferred(work).graph.node(1).outputs[0].shape[0] == 1


def test_what_mixes_its_entries_is_left_out_by_the_proof() -> None:
    text = """(float[4,8] x) => (float[4,8] y) {
        m = ReduceMean<axes=[0],keepdims=1>(x)
        y = Sub(x, m)
    }"""
    fixed = apply_fixes(parse(text), max_batch=1)
    (step,) = [step for step in fixed.steps if step.name == "unroll-batch"]
    assert not step.fired
    assert "changes the outputs" in reasons(step)[0]
    assert operators(fixed.model) == ["ReduceMean", "Sub"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(float[32,8] x) => (float[32,8] y) { y = Relu(x) }", "32 times as large"),
        ("(float[4,8] x, float[2,8] z) => (float[4,8] y) { y = Relu(x) }", "no first size"),
    ],
)
def test_a_batch_that_is_not_unrolled(text: str, words: str) -> None:
    step = run_pass(unroll_batch, parse(text))
    assert not step.fired
    assert words in reasons(step)[0]


def test_all_fixes_together_keep_the_outputs() -> None:
    text = """(float[N,3,8,8] x, float[4,3,3,3] w, float[4,1,1] s, int64[8] p, int64[4] z)
        => (float[N,4,16,16] y) {
        a = Pad(x, p)
        b = Conv(a, w)
        c = PRelu(b, s)
        y = Resize<mode="nearest">(c, , , z)
    }"""
    model = parse(
        text,
        w=weight(4, 3, 3, 3),
        s=weight(4, 1, 1),
        p=np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        z=np.array([1, 4, 16, 16]),
    )
    fixed = apply_fixes(model)
    assert [step.name for step in fixed.fired][:-1] == [
        "freeze-batch",
        "fold-pad",
        "write-attributes",
        "replace-prelu",
        "settle-resize",
    ]
    assert operators(fixed.model) == ["Conv", "Relu", "Sub", "Mul", "Sub", "Resize"]
    assert operators(model) == ["Pad", "Conv", "PRelu", "Resize"]
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8), dtype=np.float32)
    before, after = (run_session(open_session(m), {"x": x})["y"] for m in (model, fixed.model))
    np.testing.assert_allclose(before, after, atol=1e-5)
    again = apply_fixes(fixed.model)
    assert [step.name for step in again.fired] == ["compare-outputs"]
