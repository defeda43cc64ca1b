from __future__ import annotations

from dataclasses import replace

import onnx
import onnx_ir as ir
import pytest

from vermilion.backends.base import Claim, ModelFacts
from vermilion.backends.npu_rules import claim
from vermilion.errors import Refusal
from vermilion.hardware.targets.find import find_target

STRIX, PHOENIX = find_target("strix"), find_target("phoenix")
FACTS = ModelFacts("fp32", 17, 20, (), 1)


def nodes(text: str) -> list[ir.Node]:
    model = ir.from_proto(
        onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {text}')
    )
    return list(model.graph)


def verdicts(text: str, facts: ModelFacts = FACTS, target=STRIX) -> list[str]:
    answers = [claim(node, facts, target) for node in nodes(text)]
    for answer in answers:
        assert isinstance(answer, Claim) or answer.reason
    return ["" if isinstance(answer, Claim) else answer.reason for answer in answers]


RESIZES = {
    "scales of height and width": (
        "g (float[1,3,4,4] x) => (float[1,3,8,8] y) <float[4] s = {1,1,2,2}>"
        ' { y = Resize<mode="nearest"> (x, , s) }',
        "",
    ),
    "cubic": (
        "g (float[1,3,4,4] x) => (float[1,3,8,8] y) <float[4] s = {1,1,2,2}>"
        ' { y = Resize<mode="cubic"> (x, , s) }',
        "not cubic",
    ),
    "of channels": (
        "g (float[1,4,4,3] x) => (float[1,8,8,3] y) <float[4] s = {1,2,2,1}>"
        ' { y = Resize<mode="nearest"> (x, , s) }',
        "scale should have two dims",
    ),
    "computed scales": (
        "g (float[1,3,4,4] x, float[4] s) => (float[1,3,8,8] y) { y = Resize (x, , s) }",
        "scales that are computed",
    ),
    "computed size": (
        "g (float[1,3,4,4] x, int64[4] s) => (float[1,3,8,8] y) { y = Resize (x, , , s) }",
        "size that is computed",
    ),
    "crop": (
        "g (float[1,3,4,4] x) => (float[1,3,8,8] y) <float[4] s = {1,1,2,2}> { y ="
        ' Resize<coordinate_transformation_mode="tf_crop_and_resize"> (x, , s) }',
        "crops",
    ),
}


@pytest.mark.parametrize("name", RESIZES)
def test_forms_of_resize(name: str) -> None:
    text, words = RESIZES[name]
    (reason,) = verdicts(text)
    assert words in reason
    assert bool(words) == bool(reason)


def test_padding_by_a_computed_amount() -> None:
    text = "g (float[1,3,4,4] x, int64[8] p) => (float[1,3,a,b] y) { y = Pad (x, p) }"
    assert "computed" in verdicts(text)[0]


def test_batch_is_judged_node_by_node() -> None:
    text = """g (float[4,3,8,8] x) => (float[4,3,8,8] y) {
        h = Relu (x)
        y = Relu (h)
    }"""
    facts = replace(FACTS, number_format="xint8", batch=4)
    assert all("1 entry of a batch" in reason for reason in verdicts(text, facts, PHOENIX))
    assert verdicts(text, facts, STRIX) == ["", ""]
    single = "g (float[1,3,8,8] x) => (float[1,3,8,8] y) { y = Relu (x) }"
    assert verdicts(single, facts, PHOENIX) == [""]


ATTENTION = """g (float[1,8,16] q, float[1,16,8] k, float[1,8,16] v) => (float[1,8,16] y)
    <float s = {0.5}> {
    a = MatMul (q, k)
    b = Mul (a, s)
    c = Softmax<axis=-1> (b)
    y = MatMul (c, v)
}"""


def test_attention_in_int8_is_sent_to_bf16() -> None:
    facts = replace(FACTS, number_format="a8w8")
    reasons = verdicts(ATTENTION, facts)
    assert [bool(reason) for reason in reasons] == [True, False, False, True]
    assert "attention is not taken in a8w8" in reasons[0]
    assert verdicts(ATTENTION) == ["", "", "", ""]
    answer = claim(nodes(ATTENTION)[0], facts, STRIX)
    assert isinstance(answer, Refusal)
    assert "BF16" in answer.hint


def test_a_classifier_is_no_attention() -> None:
    text = """g (float[1,8] x, float[8,4] w) => (float[1,4] y) <float[8,4] k = {
        0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}> {
        a = MatMul (x, k)
        y = Softmax<axis=-1> (a)
    }"""
    assert verdicts(text, replace(FACTS, number_format="xint8")) == ["", ""]


def test_bfloat16_tensors_and_fixable_operators() -> None:
    text = "g (float[1,8] x) => (float[1,8] y) { y = Relu (x) }"
    assert "bfloat16" in verdicts(text, replace(FACTS, number_format="bf16"))[0]
    prelu = nodes("g (float[1,8] x, float[8] s) => (float[1,8] y) { y = PRelu (x, s) }")[0]
    answer = claim(prelu, FACTS, STRIX)
    assert isinstance(answer, Refusal)
    assert "`--fix` writes it as Relu" in answer.hint


def test_integer_operators() -> None:
    text = """g (uint8[1,3,8,8] x, float s, uint8 z, int8[4,3,3,3] w, int8 v) =>
        (uint8[1,4,6,6] y, int32[1,4,6,6] i) {
        y = QLinearConv (x, s, z, w, s, v, s, z)
        i = ConvInteger (x, w, z, v)
    }"""
    reasons = verdicts(text, replace(FACTS, number_format="int8"))
    assert reasons[0] == ""
    assert "`ConvInteger` is not supported in a8w8" in reasons[1]
