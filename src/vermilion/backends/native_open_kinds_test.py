"""Operators that are written out as others, and choices of layout: one program at every size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from vermilion.backends.native_open_test import compiled, error, feeds, reference
from vermilion.codegen.emit.resize_table import NEAREST
from vermilion.codegen.lower.resize import Axis, table
from vermilion.errors import UnsupportedError
from vermilion.ir.literal.interpret import interpret

WEIGHTS = {
    "s": np.linspace(0.5, 2, 8, dtype=np.float32),
    "b": np.linspace(0.1, 1, 8, dtype=np.float32),
    "k": np.sin(np.arange(8 * 4 * 6, dtype=np.float32)).reshape(8, 4, 2, 3),
    "axes": np.array([-1]),
    "three": np.array([3]),
}
# Opset, inputs, node.
NODES = {
    "groups": (21, "float[N,8,S] x", "GroupNormalization<num_groups=4>(x, s, b)"),
    "groups of pictures": (21, "float[N,8,S,T] x", "GroupNormalization<num_groups=2>(x, s, b)"),
    "magnitudes": (18, "float[N,8,S] x", "ReduceL1<keepdims=0>(x, axes)"),
    "logarithms": (18, "float[N,8,S] x", "ReduceLogSumExp<keepdims=0>(x, axes)"),
    "neighbours": (18, "float[N,S,T,3] x", "LRN<size=3>(x)"),
    "many addends": (21, "float[N,8,S] x, float[N,1,S] y", "Max(x,y,x,y,x,y,x,y,x,y)"),
    "attention": (
        23, "float[N,S,32] x, float[N,T,32] y",
        "Attention<q_num_heads=2, kv_num_heads=2>(x, y, y)",
    ),
    "shared heads": (
        23, "float[N,S,64] x, float[N,T,32] y, float[1,1,S,T] m",
        "Attention<q_num_heads=4, kv_num_heads=2>(x, y, y, m)",
    ),
    "causal": (23, "float[N,2,S,16] x", "Attention<is_causal=1>(x, x, x)"),
    "causal and masked": (
        23, "float[N,4,S,16] x, float[N,2,T,16] y, float[N,1,S,T] m",
        "Attention<is_causal=1>(x, y, y, m)",
    ),
    "rotated": (
        23, "float[N,S,32] x, float[N,S,8] c, float[N,S,8] d",
        "RotaryEmbedding<num_heads=2, interleaved=1>(x, c, d)",
    ),
    "rounded up": (19, "float[N,8,S,T] x", "MaxPool<kernel_shape=[2,1], strides=[2,2], "
                   "pads=[1,0,1,0], ceil_mode=1>(x)"),
    "open channels": (19, "float[N,S,6,T] x", "AveragePool<kernel_shape=[1,1], strides=[3,3]>(x)"),
    "the best": (13, "float[N,S,8] x", "TopK<axis=2>(x, three)"),
    "the least": (13, "float[N,8,S] x", "TopK<axis=1, largest=0>(x, three)"),
    "transposed": (21, "float[N,8,S,T] x", "ConvTranspose<strides=[2,3], pads=[0,1,1,0]>(x, k)"),
}  # fmt: skip
SIZES = [(1, 1, 1), (2, 1, 1), (1, 1, 9), (1, 7, 1), (2, 2, 3), (3, 4, 2), (1, 17, 40), (2, 40, 5)]


@pytest.mark.parametrize("name", NODES)
def test_a_node_is_right_at_every_size(name: str, tmp_path: Path) -> None:
    opset, inputs, node = NODES[name]
    results = "z, places" if node.startswith("TopK") else "z"
    body = f"g ({inputs}) => (float z) {{ {results} = {node} }}"
    text = f'<ir_version: 10, opset_import: ["": {opset}]> {body}'
    proto = parser.parse_model(text)
    del proto.graph.output[:]
    proto.graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None))
    for key in set(WEIGHTS) & set(proto.graph.node[0].input):
        proto.graph.initializer.append(numpy_helper.from_array(WEIGHTS[key], key))
    program, expected = compiled(proto, tmp_path), reference(proto)
    rng = np.random.default_rng(0)
    for n, s, t in SIZES:
        given = feeds(expected, {"N": n, "S": s, "T": t}, rng)
        found = program.run(given)["z"]
        assert error(expected.run(None, given)[0], found) < 1e-5, (n, s, t)


DECIDED = """<ir_version: 8, opset_import: ["" : 15]>
g (float[N,S] x) => (bool y, float[N,S] z) <int64[1] eight = {8}> {
 k = Size(x)  m = Mul(k, eight)  y = Greater(m, k)  z = Relu(x) }"""


def test_what_any_size_decides_alike_is_a_constant(tmp_path: Path) -> None:
    proto = parser.parse_model(DECIDED)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    program, expected = compiled(proto, tmp_path), reference(proto)
    for n, s in ((1, 1), (3, 5)):
        given = feeds(expected, {"N": n, "S": s}, np.random.default_rng(0))
        y, z = expected.run(["y", "z"], given)
        found = program.run(given)
        np.testing.assert_array_equal(found["y"], y)
        np.testing.assert_array_equal(found["z"], z)


# A side is made of the smallest tiles that will do.
HALVED = """g (float[N,8,H,6] x) => (float[N,32,U,3] z) { z = SpaceToDepth<blocksize=2>(x) }"""


def test_a_side_need_not_be_more_even_than_the_model_asks(tmp_path: Path) -> None:
    proto = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + HALVED)
    program, expected = compiled(proto, tmp_path), reference(proto)
    for height in (2, 6, 34):
        given = feeds(expected, {"N": 2, "H": height}, np.random.default_rng(height))
        assert error(expected.run(None, given)[0], program.run(given)["z"]) == 0.0


# As exporters write what is resized to the sides of another picture.
TO_SIDES = """<ir_version: 8, opset_import: ["" : 19]>
g (float[N,5,S,T] x, float[N,1,U,V] y) => (float[N,5,A,B] z)
 <int64[1] zero = {{0}}, int64[1] two = {{2}}, int64[1] four = {{4}}> {{
 h = Shape(y)  sides = Slice(h, two, four)  k = Shape(x)  rest = Slice(k, zero, two)
 sizes = Concat<axis=0>(rest, sides)
 z = Resize<mode="{mode}", coordinate_transformation_mode="{transform}", nearest_mode="{nearest}">
  (x, , , sizes) }}"""
BY_SCALES = """<ir_version: 8, opset_import: ["" : 19]>
g (float[{shape}] x) => (float[{result}] z) <float[{rank}] scales = {{{scales}}}> {{
 z = Resize<mode="{mode}">(x, , scales) }}"""
WAYS = [
    (mode, transform, nearest)
    for transform in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
    for mode, nearest in (("linear", "floor"), *(("nearest", name) for name in NEAREST))
]


# Primes: where a coordinate should lie between two pixels, or on one, float32 decides.
SIDES = [(53, 43), (1, 1), (7, 43), (3, 2), (5, 7), (53, 3), (17, 1), (2, 43)]


def _check_sizes(proto: onnx.ModelProto, folder: Path) -> None:
    program, expected = compiled(proto, folder), reference(proto)
    rng = np.random.default_rng(0)
    for (n, s, t), (u, v) in zip(SIZES, SIDES, strict=True):
        sizes = {"N": n, "S": s + 1, "T": t + 1, "U": u, "V": v}
        given = feeds(expected, sizes, rng)
        assert error(expected.run(None, given)[0], program.run(given)["z"]) < 1e-5, sizes


@pytest.mark.parametrize(("mode", "transform", "nearest"), WAYS)
def test_a_picture_takes_the_sides_of_another(
    mode: str, transform: str, nearest: str, tmp_path: Path
) -> None:
    text = TO_SIDES.format(mode=mode, transform=transform, nearest=nearest)
    _check_sizes(parser.parse_model(text), tmp_path)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("scales", ["1, 1, 2.5, 1.25", "1, 1, 0.5, 3", "1, 1, 1.5", "1, 1, 2"])
def test_open_sides_by_parts_of_a_whole(mode: str, scales: str, tmp_path: Path) -> None:
    rank = scales.count(",") + 1
    shape, result = ("N,5,S,T", "N,5,A,B") if rank == 4 else ("N,5,S", "N,5,A")
    text = BY_SCALES.format(shape=shape, result=result, rank=rank, scales=scales, mode=mode)
    _check_sizes(parser.parse_model(text), tmp_path)


# As a mixture of experts chooses two of eight.
ROUTER = """<ir_version: 8, opset_import: ["" : 18]>
g (float[N,S,8] x) => (float[N,S,8] z) <int64[1] two = {2}> {
 v, i = TopK(x, two)  w = Softmax<axis=-1>(v)  h = Shape(x)  none = ConstantOfShape(h)
 z = ScatterElements<axis=2>(none, i, w) }"""
PLACED = """<ir_version: 8, opset_import: ["" : 18]>
g (float[N,4] x, int64[N,2] i, float[N,2] u) => (float[N,4] z) {
 z = ScatterElements<axis=1, reduction="add">(x, i, u) }"""


def test_a_router_of_experts_at_every_size(tmp_path: Path) -> None:
    _check_sizes(parser.parse_model(ROUTER), tmp_path)


def test_elements_are_added_in_their_order_and_none_outside(tmp_path: Path) -> None:
    program = compiled(parser.parse_model(PLACED), tmp_path)
    x, u = np.zeros((3, 4), np.float32), np.array([[1, 2]] * 3, np.float32)
    places = np.array([[0, 0], [-1, 1], [3, 2]])
    found = program.run({"x": x, "i": places, "u": u})["z"]
    assert found.tolist() == [[3, 0, 0, 0], [0, 2, 0, 1], [0, 0, 2, 1]]
    with pytest.raises(UnsupportedError, match="idx=4 must be within"):
        program.run({"x": x, "i": places + 1, "u": u})


# As a detector counts the pixels of its grid: in floats, up to a size of the run.
GRID = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,5,S,T] x) => (float[N,5,S,T] z) <int64 last = {3}, float zero = {0}, float one = {1},
  float half = {0.5}> {
 h = Shape(x)  n = Gather<axis=0>(h, last)  f = Cast<to=1>(n)  k = Range(zero, f, one)
 c = Add(k, half)  z = Add(x, c) }"""


def test_floats_are_counted_up_to_a_size(tmp_path: Path) -> None:
    _check_sizes(parser.parse_model(GRID), tmp_path)


@pytest.mark.parametrize(("before", "after"), [(18, 40), (15, 70), (14, 20)])
def test_a_coordinate_that_is_a_half_but_for_float32(
    before: int, after: int, tmp_path: Path
) -> None:
    text = TO_SIDES.format(mode="nearest", transform="asymmetric", nearest="round_prefer_ceil")
    proto = parser.parse_model(text)
    x = np.tile(np.arange(before, dtype=np.float32)[:, None], (1, 5, 1, 1))
    given = {"x": x, "y": np.zeros((1, 1, after, 1), np.float32)}
    wanted = np.minimum((2 * np.arange(after) * before + after) // (2 * after), before - 1)
    literal = interpret(ir.from_proto(proto), given, ["z"])["z"]
    for found in (compiled(proto, tmp_path).run(given)["z"], literal):
        assert np.array_equal(found[0, 0, :, 0], wanted)
    node = next(node for node in ir.from_proto(proto).graph if node.op_type == "Resize")
    at, _ = table(node, Axis(before, after, after / before))
    assert np.array_equal(at[:, 0], wanted)
