"""What flows in branches and bodies is rounded as outside of them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from vermilion.quantize.every_graph_test import BRANCHES, RNG, decibels, feeds, model, real
from vermilion.quantize.quantize import quantize_model

SHAPES = {"w": (4, 4, 3, 3), "v": (4, 4, 3, 3), "u": (4, 4, 3, 3)}

LOOP = """(float[1,6,16] x) => (float[1,6,16] y) {
    y = Loop(three, yes, x) <body = b (int64 n, bool go, float[1,6,16] s)
            => (bool still, float[1,6,16] t) {
        a = MatMul(s, w) r = Relu(a) t = Add(r, x) still = Identity(go) }> }"""

SCAN = """(float[6,1,16] x) => (float[6,1,16] y) {
    last, y = Scan<num_scan_inputs = 1, scan_output_directions = [0],
        body = b (float[1,16] h, float[1,16] row) => (float[1,16] next, float[1,16] out) {
        a = MatMul(row, w) c = MatMul(h, v) d = Add(a, c) next = Tanh(d)
        out = MatMul(next, u) }>(begin, x) }"""

NESTED = """(float[1,6,16] x) => (float[1,6,16] y) {
    y = Loop(three, yes, x) <body = b (int64 n, bool go, float[1,6,16] s)
            => (bool still, float[1,6,16] t) {
        m = ReduceMax<keepdims = 0>(s) c = Less(m, limit)
        a = If(c) <then_branch = p () => (float[1,6,16] f) { f = MatMul(s, w) },
                   else_branch = q () => (float[1,6,16] e) { e = MatMul(s, v) }>
        t = Tanh(a) still = Identity(go) }> }"""


@pytest.fixture(autouse=True)
def drawn_anew() -> None:
    """Let each test draw the same numbers, whichever ran before it."""
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


def case(name: str) -> tuple[ir.Model, list[dict[str, np.ndarray]]]:
    """Return a model and samples."""
    if name == "if":
        weights = {word: real(*shape) for word, shape in SHAPES.items()}
        return model(BRANCHES, limit=np.float32(2.5), **weights), feeds("x", 1, 4, 8, 8)
    weights = {word: real(16, 16) for word in "wvu"}
    three, yes = np.asarray(3), np.asarray(True)
    if name == "loop":
        return model(LOOP, w=weights["w"], three=three, yes=yes), feeds("x", 1, 6, 16)
    if name == "scan":
        begin = np.zeros((1, 16), np.float32)
        return model(SCAN, begin=begin, **weights), feeds("x", 6, 1, 16)
    weights.pop("u")
    limit = np.float32(1.5)
    return model(NESTED, three=three, yes=yes, limit=limit, **weights), feeds("x", 1, 6, 16)


@pytest.mark.parametrize("name", ["if", "loop", "scan", "nested"])
@pytest.mark.parametrize("scheme", ["xint8", "a8w8", "a16w8", "bf16"])
def test_activations_inside_are_rounded(name: str, scheme: str) -> None:
    original, data = case(name)
    done = quantize_model(original, data, scheme=scheme)
    assert done.inner
    assert all(row.has_weights and row.has_activations for row in done.inner)
    least = {"xint8": 16.0, "a8w8": 22.0, "a16w8": 30.0, "bf16": 35.0}
    assert decibels(original, done, data) > least[scheme]


def test_a_branch_that_no_sample_takes_keeps_its_activations() -> None:
    original, data = case("if")
    original.graph.initializers["limit"].const_value = ir.tensor(np.float32(1e6), name="limit")
    done = quantize_model(original, data, scheme="a8w8")
    assert sorted((row.has_weights, row.has_activations) for row in done.inner) == [
        (True, False),
        (True, True),
    ]


def test_what_is_left_out_inside_stays() -> None:
    original, data = case("loop")
    name = next(str(node.name) for node in original.graph.all_nodes() if node.op_type == "MatMul")
    done = quantize_model(original, data, scheme="a8w8", exclude=[":MatMul,Add"])
    assert [(row.has_weights, row.has_activations) for row in done.inner] == [(False, False)], name


def test_a_loop_whose_tensors_grow_keeps_them_in_float() -> None:
    text = """(float[1,16] x) => (float[n,16] y) {
        y = Loop(three, yes, x) <body = b (int64 n, bool go, float[m,16] s)
                => (bool still, float[k,16] t) {
            a = MatMul(s, w) t = Concat<axis = 0>(s, a) still = Identity(go) }> }"""
    three, yes = np.asarray(3), np.asarray(True)
    original = model(text, three=three, yes=yes, w=real(16, 16))
    data = feeds("x", 1, 16)
    done = quantize_model(original, data, scheme="a8w8")
    assert [(row.has_weights, row.has_activations) for row in done.inner] == [(True, False)]
    assert decibels(original, done, data) > 30.0


def test_a_branch_reads_an_output_that_is_rounded() -> None:
    text = """(float[1,6,16] x) => (float[1,6,16] r, float[1,6,16] y) {
        a = MatMul(x, w) r = Relu(a) m = ReduceMax<keepdims = 0>(x) c = Greater(m, limit)
        y = If(c) <then_branch = p () => (float[1,6,16] f) { f = MatMul(r, w) },
                   else_branch = q () => (float[1,6,16] e) { e = MatMul(r, v) }> }"""
    original = model(text, w=real(16, 16), v=real(16, 16), limit=np.float32(2.5))
    data = feeds("x", 1, 6, 16, count=24)  # of which some take either branch
    for scheme in ("xint8", "a8w8", "bf16"):
        done = quantize_model(original, data, scheme=scheme)
        assert all(row.has_activations for row in done.inner)
        assert min(output.sqnr_db for output in done.outputs) > 20.0


def test_nodes_that_read_one_weight_inside_and_outside_have_names_of_their_own() -> None:
    text = """(float[1,6,16] x) => (float[1,6,16] y) {
        a = MatMul(x, w) m = ReduceMax<keepdims = 0>(x) c = Greater(m, limit)
        b = If(c) <then_branch = p () => (float[1,6,16] f) { f = MatMul(a, w) },
                   else_branch = q () => (float[1,6,16] e) { e = MatMul(a, w) }>
        y = MatMul(b, w) }"""
    original = model(text, w=real(16, 16), limit=np.float32(2.5))
    data = feeds("x", 1, 6, 16, count=24)
    done = quantize_model(original, data, scheme="a8w8")
    names = [str(node.name) for node in done.model.graph.all_nodes()]
    assert len(set(names)) == len(names)
    assert decibels(original, done, data) > 22.0
