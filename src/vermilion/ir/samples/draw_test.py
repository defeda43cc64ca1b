"""Legal models whose inputs are indices, divisors, shapes, lengths: each must get samples."""

from __future__ import annotations

import tracemalloc
import weakref

import numpy as np
import onnx_ir as ir
import pytest

from vermilion.errors import ModelError, Refusal, UnsupportedError
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.limits import TimeLimitError
from vermilion.ir.passes.contract_test import parse, weight
from vermilion.ir.samples import draw_accepted, draw_sample, sample_inputs
from vermilion.ir.samples.open_sizes import IMAGE_SIDE

I64 = np.int64

# By what the inputs are: text, weights, and the opset where it is not 17.
CASES: dict[str, tuple] = {
    "index of a table of one row": (
        "(int64[1,6] i, int64[1,6] k) => (y) { a = Gather(t, i) b = Gather(u, k) y = Add(a, b) }",
        {"t": weight(50, 4), "u": weight(1, 4)},
    ),
    "index after a cast and a reshape": (
        "(float[1,6] i) => (y) { a = Cast<to=7>(i) b = Reshape(a, s) y = Gather(t, b) }",
        {"t": weight(5, 4), "s": np.array([2, 3], I64)},
    ),
    "index minus an offset": (
        "(int64[4] i) => (y) { a = Sub(i, o) y = Gather(t, a) }",
        {"t": weight(5, 4), "o": np.array(1000, I64)},
    ),
    "index from two inputs": (
        "(int64[4] i, int64[4] j) => (y) { a = Add(i, j) y = Gather(t, a) }",
        {"t": weight(5, 4)},
    ),
    "index of computed rows": (
        "(float[n,2] x, int64[3] i) => (y) { a = Abs(x) y = Gather(a, i) }",
    ),
    "index along the last axis": (
        "(float[3,2] x, int64[3] i) => (y) { y = Gather<axis=-1>(x, i) }",
    ),
    "index in pieces": (
        "(int64[1] i, int64[2] j) => (y) { a = Concat<axis=0>(i, j) y = Gather(t, a) }",
        {"t": weight(2, 4)},
    ),
    "index cut out of an input": (
        "(int64[8] i) => (y) { a = Slice(i, b, e) y = Gather(t, a) }",
        {"t": weight(2, 4), "b": np.array([2], I64), "e": np.array([5], I64)},
    ),
    "GatherElements": ("(float[2,3] x, int64[2,3] i) => (y) { y = GatherElements<axis=1>(x, i) }",),
    "GatherND": ("(float[2,5,3] x, int64[4,2] i) => (y) { y = GatherND(x, i) }",),
    "GatherND of batches": (
        "(float[2,5,3] x, int64[2,1] i) => (y) { y = GatherND<batch_dims=1>(x, i) }",
    ),
    "ScatterElements": (
        "(float[3,3] x, int64[2,3] i, float[2,3] u) => (y) { y = ScatterElements(x, i, u) }",
    ),
    "ScatterND": ("(float[4,3] x, int64[2,1] i, float[2,3] u) => (y) { y = ScatterND(x, i, u) }",),
    "token embeddings in one operator": (
        "(int32[2,3] i, int32[2,3] s, int32[2,3] m) => (y, z) { y, z = "
        "com.microsoft.EmbedLayerNormalization(i, s, w, p, g, l, b, m) }",
        {
            "w": weight(7, 8),
            "p": weight(4, 8),
            "g": weight(1, 8),
            "l": weight(8),
            "b": weight(8),
        },
    ),
    "division": ("(int64[4] a, int64[4] b) => (y) { y = Div(a, b) }",),
    "division by half": (
        "(int64[4] a, int64[4] b) => (y) { q = Div(b, k) y = Div(a, q) }",
        {"k": np.array([2], I64)},
    ),
    "division by a number above an offset": (
        "(int32[4] a, int32[4] b) => (y) { q = Add(b, k) y = Div(a, q) }",
        {"k": np.array([2], np.int32)},
    ),
    "division by bytes": ("(uint8[4] a, uint8[4] b) => (y) { y = Div(a, b) }",),
    "remainder": ("(int64[2] a, int64[2] b) => (y) { y = Mod(a, b) }",),
    "shift": ('(uint8[9] a, uint8[9] b) => (y) { y = BitShift<direction="LEFT">(a, b) }',),
    "integer power": ("(int64[9] a, int64[9] b) => (y) { y = Pow(a, b) }",),
    "Reshape": ("(float[4,6] x, int64[2] s) => (y) { y = Reshape(x, s) }",),
    "Reshape to declared columns": (
        "(float[4,6] x, int64[2] s) => (float[m,3] y) { y = Reshape(x, s) }",
    ),
    "Reshape by a shape in pieces": (
        "(float[4,6] x, int64 a, int64 b) => (y) { c = Unsqueeze(a, z) d = Unsqueeze(b, z) "
        "s = Concat<axis=0>(c, k, d) y = Reshape(x, s) }",
        {"z": np.array([0], I64), "k": np.array([3], I64)},
    ),
    "Reshape by a multiple": (
        "(float[4,6] x, int64[1] a) => (y) { b = Mul(a, two) s = Concat<axis=0>(b, k) "
        "y = Reshape(x, s) }",
        {"two": np.array([2], I64), "k": np.array([-1], I64)},
    ),
    "Reshape before a product": (
        "(float[4,6] x, int64[2] s) => (y) { a = Reshape(x, s) y = MatMul(a, w) }",
        {"w": weight(8, 2)},
    ),
    "Expand": ("(float[5,1] x, int64[2] s) => (y) { y = Expand(x, s) }",),
    "ConstantOfShape": ("(int64[3] s) => (y) { y = ConstantOfShape(s) }",),
    "Tile": ("(float[5,1] x, int64[2] s) => (y) { y = Tile(x, s) }",),
    "Resize by sizes": ('(float[1,1,3,3] x, int64[4] s) => (y) { y = Resize(x, "", "", s) }',),
    "Resize by scales": ('(float[1,1,3,3] x, float[4] s) => (y) { y = Resize(x, "", s) }',),
    "Resize by scales, opset 10": (
        '(float[1,1,3,3] x, float[4] s) => (y) { y = Resize<mode="linear">(x, s) }',
        {},
        10,
    ),
    "Upsample": ("(float[1,1,3,3] x, float[4] s) => (y) { y = Upsample(x, s) }", {}, 9),
    "Range": ("(int64 a, int64 b, int64 c) => (y) { y = Range(a, b, c) }",),
    "Range of floats": ("(float a, float b, float c) => (y) { y = Range(a, b, c) }",),
    "Range up to an input": (
        "(int64 n) => (y) { y = Range(z, n, o) }",
        {"z": np.array(0, I64), "o": np.array(1, I64)},
    ),
    "Slice": (
        "(float[11] x, int64[1] a, int64[1] b, int64[1] c) => (y) { y = Slice(x, a, b, k, c) }",
        {"k": np.array([0], I64)},
    ),
    "Slice with all given": (
        "(float[4,5] x, int64[2] a, int64[2] b, int64[2] k, int64[2] c) => (y)"
        " { y = Slice(x, a, b, k, c) }",
    ),
    "Slice into a product": (
        "(float[1,8] x, int64[1] a, int64[1] b) => (y) { s = Slice(x, a, b, k) y = Abs(s) }",
        {"k": np.array([1], I64)},
    ),
    "TopK": ("(float[2,5] x, int64[1] k) => (y, i) { y, i = TopK(x, k) }",),
    "Pad": ("(float[2,3] x, int64[4] p, float v) => (y) { y = Pad(x, p, v) }",),
    "Pad by reflection": ('(float[2,3] x, int64[4] p) => (y) { y = Pad<mode="reflect">(x, p) }',),
    "Pad along axes": (
        '(float[2,3] x, int64[2] p, int64[1] a) => (y) { y = Pad(x, p, "", a) }',
        {},
        18,
    ),
    "Unsqueeze": ("(float[2,3] x, int64[2] a) => (y) { y = Unsqueeze(x, a) }",),
    "Squeeze": ("(float[2,1,3,1] x, int64[2] a) => (y) { y = Squeeze(x, a) }",),
    "Split": ("(float[2,7] x, int64[2] s) => (y, z) { y, z = Split<axis=1>(x, s) }",),
    "ReduceSum": ("(float[2,7] x, int64[1] a) => (y) { y = ReduceSum(x, a) }",),
    "ReduceMean": ("(float[2,7] x, int64[1] a) => (y) { y = ReduceMean(x, a) }", {}, 18),
    "CumSum": ("(float[2,7] x, int64 a) => (y) { y = CumSum(x, a) }",),
    "Trilu": ("(float[4,4] x, int64 k) => (y) { y = Trilu(x, k) }",),
    "OneHot": (
        "(int64[4] i, int64[1] d) => (y) { y = OneHot(i, d, v) }",
        {"v": np.array([0, 1], np.float32)},
    ),
    "CenterCropPad": ("(float[4,4] x, int64[2] s) => (y) { y = CenterCropPad(x, s) }", {}, 18),
    "Compress": ("(float[4,4] x, bool[3] c) => (y) { y = Compress<axis=0>(x, c) }",),
    "NonMaxSuppression": (
        "(float[1,5,4] b, float[1,2,5] s, int64[1] m, float[1] i, float[1] t) => (y)"
        " { y = NonMaxSuppression(b, s, m, i, t) }",
    ),
    "RoiAlign": (
        "(float[2,3,16,16] x, float[4,4] r, int64[4] b) => (y) { y = RoiAlign(x, r, b) }",
    ),
    "lengths of an LSTM": (
        '(float[5,2,3] x, int32[2] n) => (y) { y = LSTM<hidden_size=4>(x, w, r, "", n) }',
        {"w": weight(1, 16, 3), "r": weight(1, 16, 4)},
    ),
    "ReverseSequence": ("(float[5,2,3] x, int64[2] n) => (y) { y = ReverseSequence(x, n) }",),
    "MaxUnpool": (
        "(float[1,1,2,2] x, int64[1,1,2,2] i) => (y)"
        " { y = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(x, i) }",
    ),
    "classes of a loss": (
        "(float[4,5] x, int64[4] t) => (y) { y = SoftmaxCrossEntropyLoss(x, t) }",
    ),
    "scale and zero point": (
        "(float[4,5] x, float s, uint8 z) => (y) { y = QuantizeLinear(x, s, z) }",
    ),
    "condition": (
        "(bool c, float[2] x) => (float[2] y) { y = If(c) <then_branch = a () => (float[2] p)"
        " { p = Abs(x) }, else_branch = b () => (float[2] q) { q = Neg(x) }> }",
    ),
    "number of rounds": (
        "(int64 n, bool c, float[2] x) => (float[2] y) { y = Loop(n, c, x) <body = b (int64 i,"
        " bool ci, float[2] s) => (bool co, float[2] t) { co = Identity(ci) t = Add(s, s) }> }",
    ),
    "index made in a branch": (
        "(bool c, int64[3] i) => (y) { j = If(c) <then_branch = a () => (int64[3] p)"
        " { p = Add(i, k) }, else_branch = b () => (int64[3] q) { q = Identity(i) }>"
        " y = Gather(t, j) }",
        {"t": weight(40, 2), "k": np.array(20, I64)},
    ),
    "a row for each round": (
        "(int64 n, bool c) => (float[m,2] y) { y = Loop(n, c) <body = b (int64 i, bool d)"
        " => (bool e, float[2] r) { e = Identity(d) r = Gather(t, i) }> }",
        {"t": weight(2, 2)},
    ),
    "Col2Im": ("(float[1,4,6] x, int64[2] s, int64[2] b) => (y) { y = Col2Im(x, s, b) }", {}, 18),
    "CumProd": ("(float[2,7] x, int64 a) => (y) { y = CumProd(x, a) }", {}, 26),
    "optional": ("(optional(float[2]) x) => (y) { y = OptionalGetElement(x) }", {}, 18),
    "index inside a body": (
        "(bool c, int64[3] i) => (float[3,2] y) { y = If(c) <then_branch = a () => (float[3,2] p)"
        " { p = Gather(t, i) }, else_branch = b () => (float[3,2] q) { q = Gather(u, i) }> }",
        {"t": weight(4, 2), "u": weight(2, 2)},
    ),
    "mask": (
        "(int64[2,6] m, float[2,6] s) => (y) { a = Cast<to=1>(m) b = Sub(o, a) c = Mul(b, k)"
        " d = Add(s, c) y = Softmax(d) }",
        {"o": np.float32(1), "k": np.float32(-10000)},
    ),
    "positions counted in a mask": (
        "(int64[2,6] m) => (y) { a = CumSum(m, k) b = Sub(a, o) y = Gather(t, b) }",
        {"k": np.array(1, I64), "o": np.array(1, I64), "t": weight(6, 2)},
    ),
    "numbers as text": ("(string[3] s) => (y) { y = Cast<to=1>(s) }",),
    "sequence": ("(seq(float[2]) x, int64 i) => (y) { y = SequenceAt(x, i) }",),
    "bytes": ("(uint8[1,3,4,4] x) => (y) { a = Cast<to=1>(x) y = Relu(a) }",),
    "bfloat16": (
        "(bfloat16[4] x) => (bfloat16[4] y) { z = Cast<to=1>(x) w = Abs(z) y = Cast<to=16>(w) }",
        {},
        21,
    ),
    "four bits": ("(int4[5] x) => (y) { y = Cast<to=1>(x) }", {}, 21),
    "eight bit floats": ("(float8e5m2[5] x) => (y) { y = Cast<to=1>(x) }", {}, 21),
    "half floats": ("(float16[4] x, float16[4] z) => (y) { y = Mul(x, z) }",),
    "Conv1d of open length": (
        "(float[1,2,t] x) => (y) { y = Conv(x, w) }",
        {"w": weight(3, 2, 7)},
    ),
    "deep Conv1d of open length": (
        "(float[n,2,t] x) => (y) { a = Conv<strides=[4]>(x, w) b = Conv<strides=[4]>(a, v)"
        " y = Conv(b, v) }",
        {"w": weight(3, 2, 9), "v": weight(3, 3, 9)},
    ),
    "Reshape of an open length": (
        "(float[n] x) => (y) { y = Reshape(x, s) }",
        {"s": np.array([-1, 6], I64)},
    ),
    "Reshape to a prime": (
        "(float[n,2] x) => (y) { y = Reshape(x, s) }",
        {"s": np.array([-1, 26], I64)},
    ),
    "product whose open size is fixed": (
        "(float[n,k] x) => (y) { y = MatMul(x, w) }",
        {"w": weight(7, 2)},
    ),
    "open channels": ("(float[n,c,h,w] x) => (y) { y = Conv(x, k) }", {"k": weight(3, 5, 3, 3)}),
    "sum with constants": ("(float[n,k] x) => (y) { y = Add(x, w) }", {"w": weight(4, 9)}),
    "sum of two open inputs": (
        "(float[n] x, float[m] z) => (y) { a = Add(x, z) y = Concat<axis=0>(a, w) }",
        {"w": weight(3)},
    ),
    "product of two open inputs": ("(float[a,b] x, float[c,d] z) => (y) { y = MatMul(x, z) }",),
    "pooling of an open length": ("(float[1,2,t] x) => (y) { y = MaxPool<kernel_shape=[5]>(x) }",),
    "unknown rank": (
        "(float x) => (y) { y = Conv(x, w) }",
        {"w": weight(3, 2, 7)},
    ),
    "attention of open length": (
        "(float[b,s,8] x, int64[b,s] m) => (y) { q = MatMul(x, w) t = Transpose<perm=[0,2,1]>(q)"
        " p = MatMul(q, t) a = Cast<to=1>(m) u = Unsqueeze(a, o) c = Add(p, u) y = Softmax(c) }",
        {"w": weight(8, 8), "o": np.array([1], I64)},
    ),
    "sound beside a state of one batch": (
        """(float[b,t] x, float[2,s] h) => (y) {
            p = Pad<mode="reflect">(x, a) r = Reshape(p, to) c = Conv<strides=[128]>(r, k)
            q = Squeeze(c, one) g = Reshape(h, two) y = Mul(q, g) }""",
        {
            "a": np.array([0, 0, 0, 64], I64),
            "to": np.array([1, 1, -1], I64),
            "k": np.ones((1, 1, 256), np.float32),
            "one": np.array([1], I64),
            "two": np.array([2, -1], I64),
        },
    ),
    "a name of an output that is not the batch": (
        """(float[batch,3] x, float[1,2,3] h) => (float[batch] y) {
            a = Concat<axis=0>(x, x) b = Reshape(a, s) c = Add(b, h) y = Reshape(c, flat) }""",
        {"s": np.array([1, 2, 3], I64), "flat": np.array([-1], I64)},
    ),
}


TYPES = {"float32": "float", "int64": "int64", "int32": "int32"}


def read(name: str) -> ir.Model:
    text, *rest = CASES[name]
    weights = rest[0] if rest else {}
    opset = rest[1] if len(rest) > 1 else 17
    declared = "".join(
        f", {TYPES[str(array.dtype)]}[{','.join(map(str, array.shape))}] {key}"
        for key, array in weights.items()
    ).replace("[]", "")
    inputs, arrow, rest = text.partition(") => ")
    domains = ', "com.microsoft": 1' if "com.microsoft" in text else ""
    model = parse(f"{inputs}{declared}{arrow}{rest}", opset, 10, domains=domains, **weights)
    if name == "unknown rank":
        model.graph.inputs[0].shape = None
    return model


@pytest.mark.parametrize("kind", ["ordinary", "edges", "large"])
@pytest.mark.parametrize("name", CASES)
def test_a_legal_model_gets_a_sample(name, kind) -> None:
    model = read(name)
    session = open_session(model, optimize=False, quiet=True)
    found = draw_accepted(model, kind, lambda inputs: run_session(session, inputs))
    assert not isinstance(found, Refusal), found
    assert set(found[0].inputs) == {value.name for value in model.graph.inputs}


@pytest.mark.parametrize("name", CASES)
def test_the_same_sample_each_time(name) -> None:
    first, again = draw_sample(read(name), "edges"), draw_sample(read(name), "edges")
    assert first.sizes == again.sizes
    for key, array in first.inputs.items():
        assert np.array_equal(array, again.inputs[key])


def test_floats_of_known_sizes_are_the_same_stream_as_ever() -> None:
    model = parse("(float[2,3] x, int64[4] i, float[3] z) => (float[2,3] y) { y = Add(x, z) }")
    drawn = np.random.default_rng(7)
    inputs = draw_sample(model, seed=7).inputs
    for name, shape in {"x": (2, 3), "z": (3,)}.items():
        assert np.array_equal(inputs[name], drawn.standard_normal(shape, dtype=np.float32))


def test_indices_reach_both_ends_of_the_table() -> None:
    model = parse("(float[9,2] t, int64[64] i) => (y) { y = Gather(t, i) }")
    assert set(draw_sample(model).inputs["i"]) == set(range(9))
    edges = draw_sample(model, "edges").inputs["i"]
    assert edges.min() == -9
    assert edges.max() == 8


def test_edges_hold_zeros_of_both_signs_equal_and_large_values() -> None:
    model = parse("(float[1000] x) => (float[1000] y) { y = Abs(x) }")
    x = draw_sample(model, "edges").inputs["x"]
    zeros = x[x == 0]
    assert np.signbit(zeros).any()
    assert not np.signbit(zeros).all()
    assert (x == 1e4).any()
    assert (x[1:] == x[:-1]).mean() > 0.1
    assert np.isfinite(x).all()


def test_sizes_can_be_given() -> None:
    model = parse("(float[n,t] x) => (y) { y = Abs(x) }")
    sample = draw_sample(model, "large", sizes={"t": 9})
    assert sample.sizes["t"] == 9
    assert sample.inputs["x"].shape[1] == 9


def test_a_model_that_nothing_can_run_is_a_refusal() -> None:
    model = parse("(float[2] x) => (float[2] y) { y = NoSuch(x) }")

    def refuse(inputs) -> None:
        raise UnsupportedError("there is no such operator", where="node `y`")

    found = draw_accepted(model, "ordinary", refuse)
    assert isinstance(found, Refusal)
    assert found.reason == "none of 16 samples is accepted: there is no such operator (node `y`)"


def test_lengths_that_a_mask_is_made_of_are_near_the_length() -> None:
    model = parse(
        """(float[n,t,4] x, int64[n] lengths) => (float[n,t,4] y) {
            i = Constant<value_int=1>() z = Constant<value_int=0>() l = Shape<start=1, end=2>(x)
            u = Squeeze(l) r = Range(z, u, i) at = Constant<value_ints=[0]>()
            r2 = Unsqueeze(r, at) one = Constant<value_ints=[1]>() n2 = Unsqueeze(lengths, one)
            m = Less(r2, n2) m3 = Unsqueeze(m, two) w = Where(m3, x, low) y = Softmax<axis=1>(w)
        }""",
        low=np.array(-np.inf, np.float32),
        two=np.array([2], I64),
    )
    found = [draw_sample(model, "ordinary", attempt=at) for at in range(8)]
    assert all((one.inputs["lengths"] >= -1).all() for one in found)
    assert any((one.inputs["lengths"] > 1).any() for one in found)


@pytest.mark.parametrize("kind", ["ordinary", "edges", "large"])
def test_a_threshold_is_among_the_numbers_that_it_divides(kind: str) -> None:
    model = parse(
        """(float[b,100] x, float least, float most, float[100] f, float low) =>
          (float[b,100] y) {
            a = GreaterOrEqual(f, least) b2 = LessOrEqual(f, most) c = And(a, b2)
            w = Where(c, x, low) y = Softmax<axis=-1>(w) }""",
        low=np.array(-np.inf, np.float32),
        f=np.linspace(50, 1600, 100, dtype=np.float32),
    )
    session = open_session(model, optimize=False, quiet=True)
    found = draw_accepted(
        model, kind, lambda inputs: run_session(session, inputs),
        likes=lambda outputs: not np.isnan(outputs["y"]).all(),
    )  # fmt: skip
    assert not isinstance(found, Refusal)
    assert not np.isnan(found[1]["y"]).all()


def test_what_is_not_liked_is_returned_where_nothing_is() -> None:
    model = parse("(float[2] x, int64[1] k) => (float[2] y) { c = Cast<to=1>(k) y = Add(x, c) }")

    def run(inputs) -> int:
        return int(inputs["k"][0])

    found = draw_accepted(model, "ordinary", run, likes=lambda k: k > 3)
    assert not isinstance(found, Refusal)
    assert found[1] > 3
    first = draw_accepted(model, "ordinary", run)
    assert draw_accepted(model, "ordinary", run, likes=lambda k: False)[1] == first[1]


def test_a_model_that_takes_too_long_is_tried_once() -> None:
    model, runs = parse("(float[2] x) => (float[2] y) { y = Abs(x) }"), []

    def wait(inputs) -> None:
        runs.append(inputs)
        raise TimeLimitError(60)

    assert isinstance(draw_accepted(model, "ordinary", wait), Refusal)
    assert len(runs) == 1


def test_any_other_error_of_the_run_is_raised() -> None:
    model = parse("(float[2] x) => (float[2] y) { y = Abs(x) }")

    def fail(inputs) -> None:
        raise ModelError("this is another matter")

    with pytest.raises(ModelError, match="another matter"):
        draw_accepted(model, "ordinary", fail)


def test_nodes_in_no_order_and_an_input_of_no_rank() -> None:
    model = parse("(float x) => (float y) { y = Neg(a) a = Abs(x) }")
    model.graph.inputs[0].shape = None
    assert draw_accepted(model, "ordinary", lambda inputs: run_session(open_session(model), inputs))


TEXT = """(float[2,3] f, int64[4] i, uint8[4] u, bool[3] b, string[2] s, float16[2] h)
=> (bool[3] y) { y = Not(b) }"""


def test_each_type_has_its_values() -> None:
    inputs = sample_inputs(parse(TEXT))
    assert inputs["f"].shape == (2, 3)
    assert inputs["f"].dtype == np.float32
    assert set(inputs["i"].tolist()) <= {0, 1}
    assert inputs["u"].dtype == np.uint8
    assert inputs["b"].tolist() == [True, False, True]
    assert inputs["s"].tolist() == ["a", "a"]
    assert inputs["h"].dtype == np.float16
    model = parse(TEXT)
    run_session(open_session(model), inputs)


def test_same_seed_same_values_and_another_another() -> None:
    first, again = sample_inputs(parse(TEXT)), sample_inputs(parse(TEXT))
    assert np.array_equal(first["f"], again["f"])
    assert not np.array_equal(first["f"], sample_inputs(parse(TEXT), seed=1)["f"])


@pytest.mark.parametrize(
    ("declared", "shape"),
    [
        ("float[n, 3, h, w] x", (1, 3, IMAGE_SIDE, IMAGE_SIDE)),
        ("float[?, 3, 32, w] x", (1, 3, 32, IMAGE_SIDE)),
        ("int64[n, s] x", (1, 1)),
        ("int64[n, 3, h, w] x", (1, 3, 1, 1)),
        ("float[n, s, 8] x", (1, 1, 8)),
        ("float x", ()),
        ("float[0] x", (0,)),
    ],
)
def test_open_sizes(declared, shape) -> None:
    kind = declared.split("[")[0].split()[0]
    model = parse(f"({declared}) => ({kind} y) {{ y = Abs(x) }}")
    assert sample_inputs(model)["x"].shape == shape


@pytest.mark.parametrize("kind", ["ordinary", "edges", "large"])
def test_a_mask_is_as_long_as_the_cache_that_grows(kind) -> None:
    model = parse(
        "(float[b,p,4] past, float[b,s,4] x, int64[b,t] mask, int64 zero, int64 one, int64[1] last)"
        " => (float[b,t,4] cache, float[b,t] y) { cache = Concat<axis=1>(past, x)"
        " shape = Shape(mask) length = Gather(shape, one)"
        " numbers = Range(zero, length, one) places = Cast<to=1>(numbers)"
        " sums = ReduceSum<keepdims=0>(cache, last) y = Add(sums, places) }",
        zero=np.array(0, I64),
        one=np.array(1, I64),
        last=np.array([2], I64),
    )
    found = draw_accepted(model, kind, lambda inputs: run_session(open_session(model), inputs))
    assert not isinstance(found, Refusal)
    past, x, mask = found[0].inputs.values()
    assert mask.shape[1] == past.shape[1] + x.shape[1]


def test_names_of_outputs_that_say_nothing_change_no_sizes() -> None:
    text = "(float[1,t,4] x) => (float[1,t,4] y) { y = Concat<axis=1>(x, x) }"
    assert draw_sample(parse(text), "edges").inputs["x"].shape == (1, 3, 4)


def test_a_size_of_minus_one_is_open() -> None:
    model = parse("(float[2] x) => (float[2] y) { y = Abs(x) }")
    model.graph.inputs[0].shape = ir.Shape([-1])
    assert sample_inputs(model)["x"].shape == (1,)


def test_inputs_with_a_default_are_left_to_it() -> None:
    model = parse("(float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }", w=weight(2))
    model.graph.inputs.append(model.graph.initializers["w"])
    assert list(sample_inputs(model)) == ["x"]


def test_refuses_huge_inputs_before_making_them() -> None:
    model = parse("(float[1000000, 1000000] x) => (float[1] y) { y = ReduceSum(x) }")
    with pytest.raises(ModelError, match="would need more than 1024 MiB") as caught:
        sample_inputs(model)
    assert caught.value.where == "input `x`"


def test_a_sequence_is_a_list_of_tensors() -> None:
    model = parse("(seq(float[2]) x) => (int64 y) { y = SequenceLength(x) }")
    drawn = sample_inputs(model)["x"]
    assert [array.shape for array in drawn] == [(2,), (2,)]


def test_refuses_types_that_onnx_runtime_does_not_have() -> None:
    model = parse("(float[2] x) => (float[2] y) { y = Abs(x) }")
    model.graph.inputs[0].type = ir.TensorType(ir.DataType.COMPLEX64)
    with pytest.raises(UnsupportedError, match="the type COMPLEX64"):
        sample_inputs(model)


@pytest.mark.parametrize("kind", ["ordinary", "edges", "large"])
@pytest.mark.parametrize("declared", ["float[3,4000000]", "int64[3,4000000]", "bool[3,4000000]"])
def test_drawing_a_large_input_takes_little_more_than_it(declared: str, kind: str) -> None:
    model = parse(f"({declared} x) => (y) {{ y = Identity(x) }}")
    tracemalloc.start()
    try:
        array = draw_sample(model, kind).inputs["x"]  # type: ignore[arg-type]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert array.shape == (3, 4_000_000)
    # The part that is drawn, 4 million elements, needs up to 200 bytes each.
    assert peak < 3 * array.nbytes + 200 * (1 << 22)


def test_what_is_refused_is_not_held() -> None:
    model = parse("(float[1000] x) => (y) { y = Abs(x) }")
    drawn: list[weakref.ref] = []

    def run(inputs) -> None:
        assert not [one for one in drawn if one() is not None]
        drawn.append(weakref.ref(inputs["x"]))
        raise UnsupportedError("no")

    assert isinstance(draw_accepted(model, "ordinary", run), Refusal)
    assert len(drawn) > 1


def test_an_input_that_is_its_own_parameter_gets_a_sample() -> None:
    """What is wanted of eight pads is not wanted of an image."""
    model = parse("(float[1,31,2,13] x) => (y, z) { y = Pad(x, x) z = Abs(x) }")
    assert draw_sample(model, "ordinary").inputs["x"].shape == (1, 31, 2, 13)
