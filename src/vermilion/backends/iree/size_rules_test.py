"""Sizes that a program for open dimensions is not right at are named before it runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from vermilion.api import compile_model
from vermilion.backends.iree.size_rules import SizeRules, follow_sizes, read_size_rules, size_claims
from vermilion.errors import OtherSizesError, UnsupportedError
from vermilion.ir.execute import open_session, run_session
from vermilion.runtime.session import Session

HEADER = '<ir_version: 9, opset_import: ["" : 17]> '


def model(text: str) -> ir.Model:
    """Parse a model; weights that are declared without values are ones."""
    proto = onnx.parser.parse_model(HEADER + text)
    for value in proto.graph.value_info:
        sizes = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        ones = onnx.numpy_helper.from_array(np.ones(sizes, np.float32), value.name)
        proto.graph.initializer.append(ones)
    del proto.graph.value_info[:]
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto, data_prop=True))


def rules(text: str) -> SizeRules:
    found = follow_sizes(model(text))
    assert found is not None
    return found


def holds(found: SizeRules, *shapes: tuple[int, ...]) -> bool:
    try:
        found.check([f"input{at}" for at in range(len(shapes))], shapes)
    except OtherSizesError:
        return False
    return True


@pytest.mark.parametrize(
    "line",
    ["z = Add(x, y)", "c = Less(x, y)  z = Where(c, x, y)", "z = Concat<axis=0>(x, y)",
     "z = Max(x, y)", "a = Transpose(y)  z = MatMul(x, a)"],
)  # fmt: skip
def test_open_dimensions_that_meet_are_equal(line: str) -> None:
    found = rules(f"g (float[4,N] x, float[4,M] y) => (float[A,B] z) {{ {line} }}")
    assert holds(found, (4, 3), (4, 3))
    assert holds(found, (4, 1), (4, 1))
    assert not holds(found, (4, 3), (4, 1))
    assert not holds(found, (4, 1), (4, 3))
    assert not holds(found, (4, 0), (4, 0))


def test_products_broadcast_their_leading_dimensions() -> None:
    found = rules("g (float[N,2,4] x, float[M,4,3] y) => (float[K,2,3] z) { z = MatMul(x, y) }")
    assert holds(found, (3, 2, 4), (3, 4, 3))
    assert not holds(found, (3, 2, 4), (1, 4, 3))


def test_a_dimension_that_is_one_in_the_model_is_repeated() -> None:
    found = rules("g (float[N,4] x, float[1,4] y) => (float[N,4] z) { z = Add(x, y) }")
    assert holds(found, (3, 4), (1, 4))
    one = rules("g (float[N,4] x, float[N,4] y) => (float[N,4] z) { z = Add(x, y) }")
    assert not holds(one, (3, 4), (1, 4))


def test_a_dimension_that_meets_a_number_has_to_be_it() -> None:
    found = rules("g (float[N,4] x) => (float[K,4] z) <float[5,4] w> { z = Add(x, w) }")
    assert holds(found, (5, 4))
    assert not holds(found, (1, 4))


def test_a_mask_is_as_long_as_a_cache_and_a_step() -> None:
    found = rules(
        """g (float[N,S] x, float[N,T] mask, float[N,P] past) => (float[N,K] z) {
        now = Concat<axis=1>(past, x)  z = Add(now, mask) }"""
    )
    assert holds(found, (2, 1), (2, 6), (2, 5))
    assert not holds(found, (2, 1), (2, 1), (2, 5))
    assert not holds(found, (2, 1), (1, 6), (2, 5))


def test_a_table_of_positions_ends() -> None:
    found = rules(
        """g (float[N,S,4] x) => (float[N,S,4] z) <float[40,4] places, int64 one = {1},
        int64[1] zero = {0}, int64[1] first = {0}> { h = Shape(x)  l = Gather(h, one)
        ll = Unsqueeze(l, first)  p = Slice(places, zero, ll, zero)  z = Add(x, p) }"""
    )
    assert holds(found, (2, 40, 4))
    assert not holds(found, (2, 41, 4))


@pytest.mark.parametrize(
    "line",
    ["z = Conv(x, w)", "z = MaxPool<kernel_shape=[3,3]>(x)",
     "p = AveragePool<kernel_shape=[3,1]>(x)  z = Relu(p)"],
)  # fmt: skip
def test_a_window_fits_in(line: str) -> None:
    found = rules(f"g (float[N,2,H,8] x) => (float[N,A,B,C] z) <float[2,2,3,3] w> {{ {line} }}")
    assert holds(found, (1, 2, 3, 8))
    assert not holds(found, (1, 2, 2, 8))


def test_a_reshape_keeps_the_number_of_elements() -> None:
    text = "g (float[N,6] x, float[K,3] y) => (float[A,B] z) { h = Shape(y)  z = Reshape(x, h) }"
    found = rules(text)
    assert holds(found, (2, 6), (4, 3))
    assert not holds(found, (2, 6), (5, 3))


def test_what_cannot_be_followed_is_refused() -> None:
    graph = model(
        """g (float[N,K] x, float[K,M] y) => (float[N,M] z)
        { a = Relu(x)  z = Einsum<equation="ij,jk->ik">(a, y) }"""
    )
    refused = size_claims(graph).refused
    assert [node.op_type for node in refused] == ["Einsum"]
    with pytest.raises(UnsupportedError, match="`Einsum`"):
        follow_sizes(graph)


def test_a_product_that_fits_at_a_few_sizes_alone_is_refused() -> None:
    """The rows of a MaxPool in steps of 3 are 3 for three lengths; no symbol can be solved for."""
    graph = model(
        """g (float[1,2,2,N] x) => (float[1,2,2,2] z) <float[3,2] w>
        { a = MaxPool<kernel_shape=[1,4], strides=[1,3]>(x)  z = MatMul(a, w) }"""
    )
    assert [node.op_type for node in size_claims(graph).refused] == ["MatMul"]
    with pytest.raises(UnsupportedError, match="`MatMul`"):
        follow_sizes(graph)


def test_dimensions_that_turn_out_to_be_numbers_are_written() -> None:
    graph = model(
        """g (float[N,S] x) => (float[N,S] z) <int64[1] one = {1}, int64[1] at = {0}> {
        h = Shape(x)  n = Gather(h, at)  t = Concat<axis=0>(n, one)
        m = ReduceSum<keepdims=0>(x, one)  r = Reshape(m, t)  z = Add(x, r) }"""
    )
    next(v for n in graph.graph for v in n.outputs if v.name == "r").shape = ir.Shape([None, None])
    found = follow_sizes(graph)
    assert found is not None
    assert holds(found, (3, 5))
    value = next(v for n in graph.graph for v in n.outputs if v.name == "r")
    assert value.shape is not None
    assert value.shape[1] == 1


def test_rules_are_read_back_and_not_believed() -> None:
    found = rules("g (float[N,4] x, float[M,4] y) => (float[A,4] z) { z = Add(x, y) }")
    text = json.dumps(found.as_json())
    again = read_size_rules(json.loads(text), [2, 2])
    assert holds(again, (3, 4), (3, 4))
    assert not holds(again, (3, 4), (1, 4))
    for old, new in (("0", "99"), ('"N": [0, 0]', '"N": [7, 0]'), ('"sum"', '"power"')):
        assert old in text
        with pytest.raises((ValueError, KeyError, TypeError)):
            read_size_rules(json.loads(text.replace(old, new)), [2, 2])


@pytest.mark.needs("iree")
def test_sizes_that_broadcast_in_a_run_go_to_onnx_runtime(tmp_path: Path) -> None:
    graph = model("g (float[N,4] x, float[M,4] y) => (float[K,4] z) { a = Add(x, y)  z = Relu(a) }")
    done = compile_model(graph, target="gfx1100", cache_dir=tmp_path)
    assert {node["device"] for node in done.report.nodes} == {"gpu"}
    plain = open_session(graph)
    random = np.random.default_rng(24)
    with Session(done.artifact) as session:
        for n, m in ((3, 3), (3, 1), (1, 3), (2, 2)):
            given = {
                "x": random.standard_normal((n, 4), np.float32),
                "y": random.standard_normal((m, 4), np.float32),
            }
            (found,) = session.run(None, given)
            np.testing.assert_allclose(found, run_session(plain, given)["z"], rtol=1e-6)
        (note,) = [one for one in session.notes if "ONNX Runtime runs the model" in one]
        assert "N = 3, M = 1" in note
