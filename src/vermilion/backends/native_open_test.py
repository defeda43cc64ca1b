"""Machine code that is written once, at many sizes, against ONNX Runtime."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

from vermilion.backends.base import CompileOptions, Part
from vermilion.backends.native import NativeBackend
from vermilion.backends.native_open import OpenExecutable, open_claims
from vermilion.backends.native_run import BatchExecutable
from vermilion.codegen.lower import strassen
from vermilion.errors import OtherSizesError, UnsupportedError
from vermilion.hardware.targets.find import find_target
from vermilion.ir.literal.types import complete_types
from vermilion.ir.passes.pipeline import simplify

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
# One graph of kernels that are compiled together; weights are declared without values.
ROWS = """g (float[N,S,48] x, float[N,S,48] y, float[1,S,48] p) => (float[N,S,48] z)
 <float[48,96] w, float[96] b, float[96,48] v, float[48] s, float[48] t> {
 a = Add(x, p)  c = MatMul(a, w)  d = Add(c, b)  e = Relu(d)  f = MatMul(e, v)  g = Add(f, y)
 z = LayerNormalization<axis=-1>(g, s, t) }"""
ATTENTION = """g (float[N,S,48] x, float[N,{mask},S] m) => (float[N,S,48] z)
 <int64[4] s = {{0, 0, 4, 12}}, int64[3] t = {{0, 0, 48}}, float[1] c = {{0.3}}> {{
 y = Reshape(x, s)  q = Transpose<perm=[0,2,1,3]>(y)  k = Transpose<perm=[0,2,3,1]>(y)
 a = MatMul(q, k)  b = Mul(a, c)  d = Add(b, m)  e = Softmax<axis=-1>(d)  f = MatMul(e, q)
 h = Transpose<perm=[0,2,1,3]>(f)  z = Reshape(h, t) }}"""
REDUCED = """g (float[N,S,48] x, float[N,S] y) => (float[N,48] z, float[N,S] u, float[N,S,48] v,
 float[N,48,S] w) <int64[1] last = {1}> {
 z = ReduceMean<axes=[1], keepdims=0>(x)  a = Softmax<axis=-1>(y)  r = ReduceSum(y, last)
 u = Sub(a, r)  v = Softmax<axis=1>(x)  w = Transpose<perm=[0,2,1]>(x) }"""
# As exporters write positions and masks: sizes taken from a shape.
POSITIONS = """g (int64[N,S] i, int64[N,S] m) => (float[N,S,48] z, float[N,1,S,S] u)
 <float[100,48] table, float[64,48] places, int64 zero = {0}, int64 one = {1}, int64[1] first = {0},
  int64[1] other = {1}, int64[2] both = {1, 2}, int64[1] minus = {-1}, float k = {-10000.0}> {
 h = Shape(i)  n = Gather(h, zero)  l = Gather(h, one)  r = Range(zero, l, one)
 p = Gather(places, r)  e = Gather(table, i)  z = Add(e, p)
 nn = Unsqueeze(n, first)  ll = Unsqueeze(l, first)  shape = Concat<axis=0>(nn, other, ll, ll)
 rank = Shape(shape)  ones = ConstantOfShape<value = int64[1] {1}>(rank)
 wild = Mul(ones, minus)  is_wild = Equal(shape, wild)  wanted = Where(is_wild, ones, shape)
 mm = Unsqueeze(m, both)  wide = Expand(mm, wanted)  f = Cast<to=1>(wide)  u = Mul(f, k) }"""
JOINED = """g (float[N,S,48] x, float[N,T,48] y, float[N,S,16] w) => (float[N,U,48] z,
 float[N,S,64] v, float[N,A,48] s) <int64[1] b = {0}, int64[1] e = {5}, int64[1] axis = {1}> {
 z = Concat<axis=1>(x, y)  v = Concat<axis=2>(x, w)  s = Slice(x, b, e, axis) }"""
PICTURES = """g (float[N,3,H,W] x) => (float[N,24,A,B] z, float[N,24,1,1] u)
 <float[24,3,3,3] a, float[24] b, float[24,1,3,3] c, float[24,24,3,3] d, float[24,24,1,1] e,
  float[4] scales = {1, 1, 2, 3}> {
 p = Conv<pads=[1,1,1,1], strides=[2,2]>(x, a, b)  q = Relu(p)
 r = Conv<pads=[1,1,1,1], group=24>(q, c)  s = Conv<pads=[1,1,1,1]>(r, d)  t = Add(s, q)
 o = Conv(t, e)  v = Resize<mode="nearest", coordinate_transformation_mode="asymmetric",
 nearest_mode="floor">(o, , scales)
 z = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(v)
 u = GlobalAveragePool(z) }"""
ODD = """g (float[N,S] x, float[N,1] y, float[S,T] k) => (float[N,S] z, float[S,T] u, float[S,T] v)
 <int64 two = {-2}> {
 a = Mul(x, x)  b = Sub(a, y)  z = Tanh(b)  e = Exp(k)
 u = Trilu(e)  v = Trilu<upper=0>(k, two) }"""
# Amounts that follow from sizes: how often a tensor is repeated, and what is missing to a multiple.
AMOUNTS = """g (float[N,S,8] x, int64[N,S] i) => (float[N,S,8] a, int64[N,S] b, float[N,T,8] c,
 float[N,P,8] d, float[N,S] e) <int64 axis = {1}, int64 zero = {0}, int64 one = {1},
  int64[1] first = {0}, int64[1] single = {1}, int64[4] none = {0, 0, 0, 0}, int64 four = {4}> {
 a = CumSum(x, axis)  b = CumSum<exclusive=1, reverse=1>(i, axis)
 h = Shape(x)  n = Gather(h, zero)  l = Gather(h, one)
 nn = Unsqueeze(n, first)  ll = Unsqueeze(l, first)
 times = Concat<axis=0>(single, nn, single)  c = Tile(x, times)
 over = Mod(l, four)  left = Sub(four, over)  more = Mod(left, four)  mm = Unsqueeze(more, first)
 pads = Concat<axis=0>(none, mm, first)  d = Pad(x, pads)
 shape = Concat<axis=0>(nn, ll)  ones = ConstantOfShape<value = float[1] {1.5}>(shape)
 f = Cast<to=1>(i)  e = Add(ones, f) }"""
# What is left where a run has one row less: nothing, at one row.
EMPTIED = """g (float[N,S,8] x, float[8,8] k) => (float[N,S,8] a, float[N,B,8] b, float[N,8] c,
 float[N,S,24] d) <int64[1] first = {1}, int64[1] far = {1000}, int64[1] axis = {1},
  int64[1] none = {0}, int64[1] back = {-1}, int64[6] before = {0, 1, 0, 0, 0, 0},
  int64[6] after = {0, 0, 0, 0, 1, 0}> {
 l = Slice(x, first, far, axis)  b = Mul(l, l)  m = Transpose<perm=[0,2,1]>(b)
 t = Tanh(m)  c = ReduceSum<keepdims=0>(b, axis)  u = Transpose<perm=[0,2,1]>(t)
 p = Pad(u, after)  r = Slice(x, none, back, axis)  q = Pad(r, before)
 d = Concat<axis=2>(p, x, q)  w = MatMul(q, k)  a = Add(w, p) }"""
# Images of one size, as many as a run has.
RESIZED = """g (float[N,8,6,10] x) => (float[N,8,12,20] y, float[N,8,9,7] z, float[N,8,6,10] w)
 <float[4] twice = {1, 1, 2, 2}> {
 y = Resize<mode="linear", coordinate_transformation_mode="half_pixel">(x, , twice)
 n = Shape<start=0, end=1>(x)  rest = Constant<value_ints=[8,9,7]>()
 sizes = Concat<axis=0>(n, rest)
 z = Resize<mode="cubic", coordinate_transformation_mode="align_corners">(x, , , sizes)
 w = Relu(x) }"""
# Sequences that are turned round, whole and in part.
BACKWARDS = """g (float[N,S,8] x, int64[N,S] i) => (float[N,S,8] a, float[N,B,8] b, int64[N,S] c)
 <int64[1] last = {-1}, int64[1] end = {-9223372036854775807}, int64[1] axis = {1},
  int64[1] back = {-1}, int64[2] from = {4, 100}, int64[2] to = {0, -100}, int64[2] both = {1, 2},
  int64[2] by = {-2, -3}, int64[1] zero = {0}, int64[1] three = {3}, int64[1] two = {2}> {
 r = Slice(x, last, end, axis, back)  a = Add(r, x)  p = Slice(x, from, to, both, by)
 s = Slice(p, zero, three, two)
 w = ReduceSum<keepdims=1>(s, two)  t = ReduceSum<keepdims=1>(x, axis)
 b = Mul(w, t)  c = Slice(i, last, end, axis, back) }"""
# A mask of padding, looked up for each row and key, and rows that are counted from the end.
LOOKED_UP = """g (int64[N,S] m, float[N,S,8] x) => (bool[N,1,1,S] y, float[N,S,8] z)
 <int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[1] single = {1},
  int64[1] last = {-1}, int64[3] behind = {1, 2, 3}, int64[3] before = {0, 1, 2},
  int64[2] around = {0, 2}> {
 h = Shape(m)  n = Gather(h, zero)  l = Gather(h, one)
 r = Range(zero, n, one)  k = Range(zero, l, one)
 nn = Unsqueeze(n, first)  ll = Unsqueeze(l, first)
 wide = Concat<axis=0>(nn, single, single, ll)
 rr = Unsqueeze(r, behind)  a = Expand(rr, wide)  aa = Unsqueeze(a, last)
 kk = Unsqueeze(k, before)  b = Expand(kk, wide)  bb = Unsqueeze(b, last)
 i = Concat<axis=-1>(aa, bb)  c = Cast<to=9>(m)  y = GatherND(c, i)
 back = Sub(k, l)  row = Unsqueeze(back, around)  rows = Concat<axis=0>(nn, ll, single)
 j = Expand(row, rows)  z = GatherND<batch_dims=1>(x, j) }"""
# Rows of a batch that are replaced: each sequence's last one, and one of all of them.
PUT = """g (float[N,S,8] x, float[N,8] u) => (float[N,S,8] y, float[N,S,8] z)
 <int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[1] both = {1},
  int64[1,1] top = {0}> {
 h = Shape(x)  n = Gather(h, zero)  r = Range(zero, n, one)  rr = Unsqueeze(r, both)
 same = Mul(rr, zero)  last = Sub(same, one)  i = Concat<axis=1>(rr, last)
 y = ScatterND(x, i, u)
 t = Transpose<perm=[1,0,2]>(x)  uu = Unsqueeze(u, first)  p = ScatterND(t, top, uu)
 q = Relu(p)  z = Transpose<perm=[1,0,2]>(q) }"""
GRAPHS = {
    "looked up": LOOKED_UP,
    "put": PUT,
    "backwards": BACKWARDS,
    "rows": ROWS,
    "attention": ATTENTION.format(mask="1,1"),
    "attention with a whole mask": ATTENTION.format(mask="1,S"),
    "reduced": REDUCED,
    "positions": POSITIONS,
    "joined": JOINED,
    "pictures": PICTURES,
    "odd": ODD,
    "amounts": AMOUNTS,
    "emptied": EMPTIED,
    "resized": RESIZED,
}


def model(text: str) -> onnx.ModelProto:
    """Parse a model; weights that are declared without values get random ones."""
    weights: dict[str, list[int]] = {}

    def keep(found: re.Match[str]) -> str:
        weights[found[2]] = [int(size) for size in found[1].split(",")]
        return ""

    head, brace, body = text.partition("{\n")
    inputs, arrow, rest = head.partition("=>")
    if "<" in rest:
        declared = re.sub(r"float\[([\d,]+)\] (\w+)(?:,\s*|(?=>))", keep, rest)
        declared = re.sub(r",\s*>", ">", declared)
        rest = declared.replace("<>", "").replace("< >", "")
    proto = parser.parse_model(HEADER + inputs + arrow + rest + brace + body)
    rng = np.random.default_rng(3)
    for name, shape in weights.items():
        array = (rng.standard_normal(shape) / 4).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.checker.check_model(proto)
    return proto


def compiled(
    proto: onnx.ModelProto, folder: Path, precision: str = "auto", threads: int = 0
) -> OpenExecutable | BatchExecutable:
    graph = simplify(ir.from_proto(proto)).model
    complete_types(graph)
    backend, target = NativeBackend(), find_target("cpu")
    options = CompileOptions(precision=precision, threads=threads)
    refused = [r for r in open_claims(graph).reasons.values() if r is not None]
    assert not refused
    part = Part("part", "cpu", "native", graph, (), 0.0)
    program = backend.compile(part, target, options, folder)

    class Files:
        def read(self, name: str) -> memoryview:
            return memoryview((folder / name).read_bytes())

    loaded = backend.load(program, Files(), target, options)
    assert isinstance(loaded, OpenExecutable | BatchExecutable)
    return loaded


def reference(proto: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(proto.SerializeToString(), options)


def feeds(
    session: ort.InferenceSession, sizes: dict[str, int], rng: np.random.Generator
) -> dict[str, np.ndarray]:
    found = {}
    for value in session.get_inputs():
        shape = [sizes.get(size, size) for size in value.shape]
        if "int64" in value.type:
            found[value.name] = rng.integers(0, 100, shape)
        else:
            found[value.name] = rng.standard_normal(shape).astype(np.float32)
    return found


def error(expected: np.ndarray, found: np.ndarray) -> float:
    assert expected.shape == found.shape
    difference = np.linalg.norm(found.astype(np.float64) - expected)
    return float(difference / max(float(np.linalg.norm(expected)), 1e-30))


SIZES = [(1, 1), (2, 1), (1, 5), (2, 16), (3, 17), (8, 64), (1, 48), (5, 33), (4, 5), (2, 61)]


@pytest.mark.parametrize("name", GRAPHS)
def test_one_program_is_right_at_every_size(name: str, tmp_path: Path) -> None:
    proto = model(GRAPHS[name])
    program, expected = compiled(proto, tmp_path), reference(proto)
    rng = np.random.default_rng(0)
    for n, s in SIZES:
        sizes = {"N": n, "S": s, "T": 1 + s % 7, "H": s + 3, "W": 2 * n + 5}
        given = feeds(expected, sizes, rng)
        found = program.run(given)
        for value, array in zip(expected.get_outputs(), expected.run(None, given), strict=True):
            assert error(array, found[value.name]) < 1e-5, (sizes, value.name)


def test_more_keys_than_a_block_has(tmp_path: Path) -> None:
    proto = model(GRAPHS["attention with a whole mask"])
    program, expected = compiled(proto, tmp_path), reference(proto)
    for s in (511, 512, 513, 1100):
        given = feeds(expected, {"N": 1, "S": s}, np.random.default_rng(s))
        assert error(expected.run(None, given)[0], program.run(given)["z"]) < 1e-5


def test_bfloat16_at_every_size(tmp_path: Path) -> None:
    proto = model(GRAPHS["attention"])
    program, expected = compiled(proto, tmp_path, "bf16"), reference(proto)
    for n, s in SIZES:
        given = feeds(expected, {"N": n, "S": s}, np.random.default_rng(s))
        assert error(expected.run(None, given)[0], program.run(given)["z"]) < 2e-2


def test_what_was_made_on_the_way_names_the_sizes(tmp_path: Path) -> None:
    graph = simplify(ir.from_proto(model(GRAPHS["odd"]))).model
    complete_types(graph)
    options = CompileOptions(dump=tmp_path / "dump")
    part = Part("part", "cpu", "native", graph, (), 0.0)
    NativeBackend().compile(part, find_target("cpu"), options, tmp_path / "part")
    kernels = (tmp_path / "dump" / "part" / "kernels.txt").read_text("utf-8")
    assert "f32 <N>×<S> strides <S>,1" in kernels
    assert (tmp_path / "dump" / "part" / "program.s").stat().st_size > 1000


def test_sizes_that_contradict_each_other_or_the_model_are_refused(tmp_path: Path) -> None:
    proto = model(POSITIONS)
    program = compiled(proto, tmp_path)
    ones = np.ones((2, 9), np.int64)
    with pytest.raises(UnsupportedError, match=r"`m` has the shape \[2, 8\]"):
        program.run({"i": ones, "m": ones[:, :8]})
    with pytest.raises(UnsupportedError, match="dimension 1 must be 1 or more"):
        program.run({"i": ones[:, :0], "m": ones[:, :0]})
    with pytest.raises(UnsupportedError, match="idx=64 must be within"):  # 65 places of 64
        program.run({"i": np.ones((1, 65), np.int64), "m": np.ones((1, 65), np.int64)})
    with pytest.raises(UnsupportedError, match="idx=100 must be within"):
        program.run({"i": ones * 100, "m": ones})
    assert program.run({"i": ones, "m": ones})["z"].shape == (2, 9, 48)


# Sound: a stack of convolutions makes it some eighty times shorter.
SOUND = """g (float[N,1,T] x) => (float[N,8,U] y, float[N,V,8] z)
 <float[8,1,10] a, float[8,8,3] b, float[8,8,3] c, float[8,8,3] d, float[8,8,3] e, float[8] s,
  float[8] t> {
 p = Conv<strides=[5]>(x, a)  q = Conv<strides=[2]>(p, b)  r = Relu(q)
 i = Conv<strides=[2]>(r, c)  j = Conv<strides=[2]>(i, d)  y = Tanh(j)
 k = Conv<strides=[2]>(y, e)  l = Transpose<perm=[0,2,1]>(k)
 z = LayerNormalization<axis=-1>(l, s, t) }"""


def test_sound_of_any_length(tmp_path: Path) -> None:
    proto = model(SOUND)
    program, expected = compiled(proto, tmp_path), reference(proto)
    rng = np.random.default_rng(0)
    for n, length in ((1, 400), (2, 1000), (1, 1603), (3, 777)):
        x = {"x": rng.standard_normal((n, 1, length)).astype(np.float32)}
        for one, other in zip(program.run(x).values(), expected.run(None, x), strict=True):
            assert error(other, one) < 1e-5


def test_threads_with_other_sizes_take_turns(tmp_path: Path) -> None:
    proto = model(ROWS)
    program, expected = compiled(proto, tmp_path), reference(proto)
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(20):
            given = feeds(expected, {"N": int(rng.integers(1, 5)), "S": seed + 3}, rng)
            found = program.run(given)["z"]
            if error(expected.run(None, given)[0], found) > 1e-5:
                wrong.append(found.shape)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_run_that_is_larger_needs_no_memory_that_is_new(tmp_path: Path) -> None:
    program, rng = compiled(model(ROWS), tmp_path), np.random.default_rng(0)
    assert isinstance(program, OpenExecutable)
    arenas = []
    for s in (5, 700, 3000, 9000, 16000):
        x = rng.standard_normal((8, s, 48)).astype(np.float32)
        program.run({"x": x, "y": x, "p": x[:1]})
        assert program._program is not None
        assert program._current is not None
        arenas.append(program._program.arena)
        assert program._current.table.arena_bytes <= arenas[-1].size
    # What 3000 need is over the first 4 MB, and has room for four times as much.
    assert arenas[0] is arenas[1] is not arenas[2]
    assert arenas[2] is arenas[3] is not arenas[4]


BATCH = """g (float[N,16,160,160] x) => (float[N,32] z)
 <float[32,16,3,3] a, float[32] b, float[32,32,3,3] c> {
 p = Conv<pads=[1,1,1,1]>(x, a, b)  q = Relu(p)  r = Conv<pads=[1,1,1,1], strides=[2,2]>(q, c)
 s = GlobalAveragePool(r)  z = Flatten(s) }"""


def test_pictures_of_one_size_are_run_one_by_one(tmp_path: Path) -> None:
    proto = model(BATCH)
    program, expected = compiled(proto, tmp_path), reference(proto)
    assert isinstance(program, BatchExecutable)
    for n in (1, 3, 2):
        given = feeds(expected, {"N": n}, np.random.default_rng(n))
        assert error(expected.run(None, given)[0], program.run(given)["z"]) < 1e-5
    with pytest.raises(UnsupportedError, match="give every input the same batch"):
        program.run({"x": np.zeros((0, 16, 160, 160), np.float32)})


def test_what_is_not_followed_is_said(tmp_path: Path) -> None:
    text = """g (float[N,S] x) => (int64[2,M] z) { z = NonZero(x) }"""
    graph = simplify(ir.from_proto(parser.parse_model(HEADER + text))).model
    (refused,) = open_claims(graph).reasons.values()
    assert refused is not None
    assert "NonZero" in refused.reason


def test_dimensions_without_a_name_are_not_one(tmp_path: Path) -> None:
    text = """g (float[N,3,S,T] x) => (float[N,3,S,T] z) { z = Exp(x) }"""
    proto = model(text)
    for dimension in proto.graph.input[0].type.tensor_type.shape.dim[2:]:
        dimension.dim_param = "?"  # as paddle2onnx writes it
    program = compiled(proto, tmp_path)
    x = np.ones((2, 3, 4, 9), np.float32)
    np.testing.assert_allclose(program.run({"x": x})["z"], np.exp(x), rtol=1e-6)


def test_sizes_that_meet_must_be_equal_in_a_run(tmp_path: Path) -> None:
    """A table of positions is cut to the length of the text, which it may be too short for."""
    text = """g (float[N,S,4] x) => (float[N,S,4] z) <float[40,4] places, int64 one = {1},
     int64[1] zero = {0}, int64[1] first = {0}> {
     h = Shape(x)  l = Gather(h, one)  ll = Unsqueeze(l, first)  p = Slice(places, zero, ll, zero)
     z = Add(x, p) }"""
    proto = model(text)
    program, expected = compiled(proto, tmp_path), reference(proto)
    for s in (40, 7):
        given = feeds(expected, {"N": 2, "S": s}, np.random.default_rng(s))
        assert error(expected.run(None, given)[0], program.run(given)["z"]) < 1e-6
    with pytest.raises(OtherSizesError, match="cannot be run at the sizes N = 2, S = 41"):
        program.run({"x": np.ones((2, 41, 4), np.float32)})


@pytest.mark.parametrize("mode", ["wrap", "reflect"])
def test_a_pad_that_repeats_more_than_there_is_is_refused(mode: str, tmp_path: Path) -> None:
    text = f"""g (float[N,4] x) => (float[M,4] z) <int64[4] amounts = {{2, 0, 0, 0}}> {{
     s = Neg(x)  p = Pad<mode = "{mode}">(s, amounts)  z = Softplus(p) }}"""
    proto = onnx.parser.parse_model(HEADER.replace("17", "19") + text)
    program, expected = compiled(proto, tmp_path), reference(proto)
    for n in (3, 7):
        given = feeds(expected, {"N": n}, np.random.default_rng(n))
        assert error(expected.run(None, given)[0], program.run(given)["z"]) < 1e-6
    with pytest.raises(OtherSizesError, match="cannot be run at the sizes N = 1"):
        program.run({"x": np.ones((1, 4), np.float32)})


def test_a_size_of_one_that_makes_the_rank_is_refused(tmp_path: Path) -> None:
    text = "g (float[1,N,4] x) => (float[N,M] z) { s = Squeeze(x) z = Softplus(s) }"
    program = compiled(model(text), tmp_path)
    assert program.run({"x": np.ones((1, 3, 4), np.float32)})["z"].shape == (3, 4)
    with pytest.raises(OtherSizesError, match="cannot be run at the sizes N = 1"):
        program.run({"x": np.ones((1, 1, 4), np.float32)})


def test_pictures_that_are_halved_and_joined_again(tmp_path: Path) -> None:
    text = """g (float[N,3,H,W] x) => (float[N,8,A,B] z)
     <float[8,3,3,3] a, float[8,8,3,3] b, float[4] scales = {1, 1, 2, 2}> {
     p = Conv<pads=[1,1,1,1], strides=[2,2]>(x, a)  q = Conv<pads=[1,1,1,1], strides=[2,2]>(p, b)
     u = Resize<mode="nearest", coordinate_transformation_mode="asymmetric",
      nearest_mode="floor">(q, , scales)  z = Add(u, p) }"""
    proto = model(text)
    program, expected = compiled(proto, tmp_path), reference(proto)
    for h, w in ((32, 64), (96, 32), (4, 12)):
        given = feeds(expected, {"N": 2, "H": h, "W": w}, np.random.default_rng(h))
        assert error(expected.run(None, given)[0], program.run(given)["z"]) < 1e-5
    with pytest.raises(OtherSizesError, match="dimension 2 must be a multiple of 4"):
        program.run({"x": np.ones((1, 3, 42, 64), np.float32)})


def test_names_that_are_no_words_do_not_meet_others(tmp_path: Path) -> None:
    proto = model("""g (float[N,S] x, float[T,S] y) => (float[N,S] z, float[T,S] u) {
     z = Exp(x)  u = Exp(y) }""")
    names = {"N": "rows of x", "T": "size.0", "S": "2*N"}
    for value in proto.graph.input:
        for dimension in value.type.tensor_type.shape.dim:
            dimension.dim_param = names[dimension.dim_param]
    program = compiled(proto, tmp_path)
    x, y = np.ones((3, 4), np.float32), np.zeros((5, 4), np.float32)
    found = program.run({"x": x, "y": y})
    np.testing.assert_allclose(found["z"], np.exp(x), rtol=1e-6)
    np.testing.assert_allclose(found["u"], np.exp(y), rtol=1e-6)


# Products that are large enough for seven multiplications instead of eight.
WIDE = """g (float[N,S,512] x, float[N,S,1] r) => (float[N,S,512] z)
 <float[512,512] w, float[512] b, float[512,1024] u, float[1024,512] v> {
 a = MatMul(x, w)  c = Add(a, b)  d = Add(c, r)  e = Relu(d)  f = MatMul(e, u)  g = MatMul(f, v)
 z = Add(g, x) }"""


@pytest.mark.parametrize("are_twice", [True, False])
def test_rows_with_two_halves_have_seven_products_at_any_length(
    are_twice: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not are_twice:
        monkeypatch.setattr(strassen, "_TWICE_BYTES", 0)
    proto = model(WIDE)
    program, expected = compiled(proto, tmp_path), reference(proto)
    assert isinstance(program, OpenExecutable)
    rng, calls = np.random.default_rng(7), {}
    for n, s in ((1, 1), (2, 7), (1, 64), (3, 90), (2, 91), (1, 200)):
        given = feeds(expected, {"N": n, "S": s}, rng)
        assert error(expected.run(None, given)[0], program.run(given)["z"]) < 1e-5, (n, s)
        assert program._current is not None
        calls[n, s] = tuple(program._current.table.calls[:, 0])
    assert calls[1, 1] == calls[2, 7] == calls[2, 91]
    assert calls[1, 64] == calls[3, 90] == calls[1, 200] != calls[1, 1]


# Their left side is a view whose rows do not lie side by side, which two products read.
TURNED = """g (float[N,512,S] x, float[N,S,512] y) => (float[N,S,512] z, float[N,S,512] v)
 <float[512,512] w, float[512] b, float[512,512] u> {
 t = Transpose<perm=[0,2,1]>(x)  a = MatMul(t, w)  c = Add(a, b)  z = Add(c, y)  v = MatMul(t, u) }
"""


@pytest.mark.parametrize("are_twice", [True, False])
def test_columns_that_are_multiplied_as_rows(
    are_twice: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strassen, "_TWICE_BYTES", 1 << 20 if are_twice else 0)
    proto = model(TURNED)
    program, expected = compiled(proto, tmp_path), reference(proto)
    assert isinstance(program, OpenExecutable)
    rng = np.random.default_rng(8)
    for n, s in ((1, 1), (1, 7), (2, 33), (1, 64), (3, 90)):
        given = feeds(expected, {"N": n, "S": s}, rng)
        found = program.run(given)
        for name, array in zip(("z", "v"), expected.run(None, given), strict=True):
            assert error(array, found[name]) < 1e-5, (n, s, name)


def test_rows_that_are_few_are_one_step_a_product(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strassen, "_TWICE_BYTES", 1 << 20)
    program = compiled(model(WIDE), tmp_path)
    assert isinstance(program, OpenExecutable)
    program.run({"x": np.ones((1, 7, 512), np.float32), "r": np.ones((1, 7, 1), np.float32)})
    assert program._current is not None
    calls = program._current.table.calls
    # The first has 1 MB of weights, which are kept plain; before the others are sums of halves.
    assert [program._current.table.functions[n].split("_")[0] for n in calls[:, 0]] == [
        "matmul", "map", "matmul", "map", "matmul",
    ]  # fmt: skip


def test_what_is_no_number_in_one_entry_stays_there(tmp_path: Path) -> None:
    program = compiled(model(WIDE), tmp_path)
    x, r = np.ones((3, 128, 512), np.float32), np.zeros((3, 128, 1), np.float32)
    x[1, 5, 3] = np.nan
    z = program.run({"x": x, "r": r})["z"]
    assert np.isnan(z[1]).any()
    assert np.isfinite(z[[0, 2]]).all()


@pytest.mark.parametrize("winograd", [True, False])
def test_the_proof_is_told_of_fewer_products(winograd: bool, tmp_path: Path) -> None:
    proto = model(
        "g (float[N,64,H,W] x) => (float[N,64,H,W] z)"
        " <float[64,64,3,3] w> { z = Conv<pads=[1,1,1,1]>(x, w) }".replace("> {", "> {\n")
    )
    graph = simplify(ir.from_proto(proto)).model
    complete_types(graph)
    part = Part("part", "cpu", "native", graph, (), 0.0)
    options = CompileOptions(winograd=winograd)
    program = NativeBackend().compile(part, find_target("cpu"), options, tmp_path)
    assert program.numerics.fewer_products is winograd


def test_what_is_empty_at_the_sizes_that_are_tried_is_refused(tmp_path: Path) -> None:
    text = """g (float[3,S] x) => (float[3,T] z) <int64[1] s = {-30}, int64[1] e = {30},
     int64[1] axis = {1}, int64[1] far = {-2}> {
     a = Slice(x, s, e, axis)  b = Slice(x, far, e, axis)  c = Selu(b)  z = Tanh(c) }"""
    with pytest.raises(UnsupportedError, match="is empty at sizes that are tried"):
        compiled(model(text), tmp_path)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_first_run_of_which_nothing_is_left_gives_nothing(tmp_path: Path, threads: int) -> None:
    text = """g (float[N,2,S,2] x) => (float[N,2,T,2] z) <int64[1] s = {1}, int64[1] e = {-5},
     int64[1] axis = {2}, int64[1] by = {3}> { z = Slice(x, s, e, axis, by) }"""
    program = compiled(model(text), tmp_path, threads=threads)
    for length, left in ((1, 0), (16, 4), (6, 0)):
        assert program.run({"x": np.ones((1, 2, length, 2), np.float32)})["z"].shape[2] == left
