"""Sizes below zero in front of a Slice: onnx's inference would end the process of the tests."""

from __future__ import annotations

import onnx
import pytest
from onnx import parser

from vermilion.ir.inference import INFERENCE_ERRORS, infer
from vermilion.ir.onnx_shapes import may_go_below_zero

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
SLICE = "<int64[1] s = {0}, int64[1] e = {6}, int64[1] axis = {2}"


IMAGE = "float[1,3,2,2] x, float[3,3,5,5] w"


def model(nodes: str, inputs: str = IMAGE, more: str = "") -> onnx.ModelProto:
    return parser.parse_model(
        f"{HEADER}g ({inputs}) => (float[a,b,c,d] y) {SLICE}{more}> "
        f"{{ {nodes} y = Slice(c, s, e, axis) }}"
    )


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize(
    ("nodes", "more"),
    [
        ("c = Conv(x, w)", ""),
        ("c = MaxPool<kernel_shape = [5, 5]>(x)", ""),
        ("c = ConvTranspose<pads = [5, 5, 5, 5]>(x, w)", ""),
        ("c = Pad(x, p)", ", int64[8] p = {0, 0, -3, 0, 0, 0, 0, 0}"),
        ("r = ReduceMax<axes = [2]>(x)  c = Expand(r, p)", ", int64[4] p = {1, 3, -3, 2}"),
        ("c, rest = Split<axis = 2>(x, p)", ", int64[2] p = {-3, 5}"),
        ("c = Resize(x, , p)", ", float[4] p = {1, 1, -2, 2}"),
        ("c, at = TopK<axis = 2>(x, p)", ", int64[1] p = {-3}"),
        ("r = Relu(x)  q = Conv(r, w)  c = Relu(q)", ""),
    ],
)
def test_a_slice_of_a_size_below_zero_is_an_error(nodes: str, more: str, follow: bool) -> None:
    with pytest.raises(onnx.shape_inference.InferenceError, match="would have a size of -"):
        infer(model(nodes, more=more), follow=follow)


@pytest.mark.parametrize(
    "nodes",
    [
        "p, q, c = Split<axis = 0, num_outputs = 3>(x)",  # the last one of 1 - 2
        "m = Multinomial<sample_size = -3>(x)  c = Transpose(m)",
        "h = Constant<value_ints = [-3, 7]>()  c = Expand(x, h)",
    ],
)
def test_a_slice_backwards_of_a_size_below_zero_is_an_error(nodes: str) -> None:
    text = f"""<ir_version: 9, opset_import: ["" : 18]> g (float[1,7] x) => (y)
        <int64[1] s = {{-1}}, int64[1] e = {{-9}}, int64[1] axis = {{0}}> {{
            {nodes} y = Slice(c, s, e, axis, s) }}"""
    with pytest.raises(onnx.shape_inference.InferenceError, match="would have a size of -"):
        infer(parser.parse_model(text))


def test_a_size_that_only_another_slice_shows() -> None:
    large = "float[1,3,9,9] x, float[3,3,5,5] w"
    nodes = "a = Conv(x, w)  b = Slice(a, s, f, axis)  c = Conv(b, w)"
    with pytest.raises(INFERENCE_ERRORS, match="crashed"):
        infer(model(nodes, large, ", int64[1] f = {2}"))
    found = infer(model(nodes, large, ", int64[1] f = {9}"))
    assert [dim.dim_value for dim in found.graph.output[0].type.tensor_type.shape.dim] == [
        1,
        3,
        1,
        1,
    ]


def test_a_declared_size_below_zero() -> None:
    with pytest.raises(onnx.shape_inference.InferenceError, match="`x` would have a size of -2"):
        infer(model("c = Relu(x)", "float[1,3,-2,2] x"))


@pytest.mark.parametrize(
    ("nodes", "more", "may"),
    [
        ("c = Relu(x)", "", False),
        ("c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w)", "", False),
        ("c = Conv<kernel_shape = [5, 5], strides = [5, 5]>(x, w)", "", False),
        ("c = Conv<kernel_shape = [5, 5], auto_pad = \"SAME_UPPER\">(x, w)", "", False),
        ("c = Conv(x, w)", "", True),
        ("c = Conv<kernel_shape = [3, 3], pads = [2,2,2,2], dilations = [2,2]>(x, w)", "", False),
        ("c = Conv<kernel_shape = [3, 3], pads = [1,1,1,1], dilations = [3,3]>(x, w)", "", True),
        ("c = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)", "", False),
        ("c = ConvTranspose<kernel_shape = [2, 2], strides = [2, 2]>(x, w)", "", False),
        ("c = Pad(x, p)", ", int64[8] p = {0, 0, 1, 1, 0, 0, 1, 1}", False),
        ("h = Shape(x)  c = Expand(x, h)", "", False),
    ],
)  # fmt: skip
def test_which_models_may(nodes: str, more: str, may: bool) -> None:
    assert may_go_below_zero(model(nodes, more=more)) is may


def test_without_a_slice_nothing_is_asked() -> None:
    proto = parser.parse_model(
        HEADER + "g (float[1,3,2,2] x, float[3,3,5,5] w) => (float[a,b,c,d] y) { y = Conv(x, w) }"
    )
    assert not may_go_below_zero(proto)


@pytest.mark.parametrize(
    "node",
    [
        "y = EyeLike<dtype = 1>(c)",
        'y = ai.onnx.ml.LabelEncoder<classes_strings = ["a"]>(c)',
        'y = ai.onnx.ml.DictVectorizer<string_vocabulary = ["a"]>(c)',
        'y = RegexFullMatch<pattern = "a">(c)',
    ],
)
def test_a_node_that_reads_the_type_of_what_has_none_does_not_end_the_process(node: str) -> None:
    text = f"""<ir_version: 9, opset_import: ["" : 20, "ai.onnx.ml" : 1, "of.us" : 1]>
        g (float[2, 3] x) => (y, z) {{ c = of.us.Unknown(x) {node} z = Relu(x) }}"""
    before = parser.parse_model(text)
    found = infer(before)
    assert [node.domain for node in found.graph.node] == [n.domain for n in before.graph.node]
    assert found.opset_import == before.opset_import
    assert found.graph.output[1].type.tensor_type.HasField("shape")


def test_a_node_that_reads_a_type_is_inferred_where_there_is_one() -> None:
    text = """<ir_version: 9, opset_import: ["" : 20]> g (float[2, 3] x) => (y) {
        a = Relu(x) b = EyeLike<dtype = 7>(a) c = Cast<to = 1>(b) y = EyeLike<dtype = 6>(c) }"""
    found = infer(parser.parse_model(text)).graph
    assert found.output[0].type.tensor_type.elem_type == onnx.TensorProto.INT32
    assert [dim.dim_value for dim in found.output[0].type.tensor_type.shape.dim] == [2, 3]
