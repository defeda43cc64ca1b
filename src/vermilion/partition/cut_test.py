"""Cutting: parts are connected, never wait on themselves, and everything is ordered."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vermilion.ir.execute import open_session, run_session
from vermilion.partition.cut import Extractor, connected_parts, narrow_cuts, schedule


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[set[int]], list[bool]]:
    size = draw(st.integers(1, 24))
    reads = [
        draw(st.sets(st.integers(0, node - 1), max_size=3)) if node else set()
        for node in range(size)
    ]
    supported = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    return reads, supported


def reachable(reads: list[set[int]], start: set[int]) -> set[int]:
    """Return every node that depends on one of `start`."""
    found = set(start)
    for node, sources in enumerate(reads):
        if sources & found:
            found.add(node)
    return found


@given(graphs())
@settings(max_examples=400, deadline=None)
def test_parts_cover_connect_and_never_wait_on_each_other(
    graph: tuple[list[set[int]], list[bool]],
) -> None:
    reads, supported = graph
    parts = connected_parts(reads, supported)
    covered = sorted(node for part in parts for node in part)
    assert covered == [node for node, is_supported in enumerate(supported) if is_supported]
    for part in parts:
        members = set(part)
        grown = {part[0]}
        while True:
            more = {
                n
                for n in members
                if n in grown or reads[n] & grown or any(n in reads[g] for g in grown)
            }
            if more == grown:
                break
            grown = more
        assert grown == members, "a part is not connected"
    done: set[int] = set()
    for step in schedule(reads, parts):  # asserts by itself that nothing waits in a circle
        for node in step.nodes:
            assert reads[node] <= done | set(step.nodes)
        done |= set(step.nodes)
    assert done == set(range(len(reads)))


def test_a_chain_is_one_part() -> None:
    assert connected_parts([set(), {0}, {1}], [True] * 3) == [[0, 1, 2]]


def test_a_part_does_not_wait_on_itself_through_an_unsupported_node() -> None:
    # 0 → 1 → 2 and 0 → 2, with 1 on the CPU: 0 and 2 must not be one part.
    assert connected_parts([set(), {0}, {0, 1}], [True, False, True]) == [[0], [2]]


def test_parts_do_not_wait_on_each_other() -> None:
    # Two chains a: 0→3, b: 1→4 that cross through CPU nodes: 0→2(cpu)→4 and 1→5(cpu)→… 3 reads 5.
    reads: list[set[int]] = [set(), set(), {0}, {1}, {0, 3}, {1, 2}]
    parts = connected_parts(reads, [True, True, False, False, True, True])
    schedule(reads, parts)
    assert sorted(map(tuple, parts)) == [(0, 4), (1,), (5,)]


def test_a_diamond_of_supported_nodes_is_one_part() -> None:
    assert connected_parts([set(), {0}, {0}, {1, 2}], [True] * 4) == [[0, 1, 2, 3]]


def test_separate_branches_stay_separate() -> None:
    assert connected_parts([set(), {0}, set(), {2}], [True] * 4) == [[0, 1], [2, 3]]


def test_cpu_nodes_are_gathered_around_a_device_part() -> None:
    # cpu 0, part (1), cpu 2 and 3 after it, cpu 4 free: it joins the first group.
    steps = schedule([set(), {0}, {1}, {2}, set()], [[1]])
    assert [(s.part, s.nodes) for s in steps] == [(None, (0, 4)), (0, (1,)), (None, (2, 3))]


def test_parts_in_a_circle_are_refused() -> None:
    with pytest.raises(AssertionError, match="wait on each other"):
        schedule([set(), {0}, {1}], [[0, 2]])


def test_long_chains_with_side_branches_are_cut_in_reasonable_time() -> None:
    size = 4000
    reads = [{max(0, n - 1), max(0, n - 7)} - {n} for n in range(size)]
    supported = [n % 50 != 0 for n in range(size)]
    parts = connected_parts(reads, supported)
    assert sum(map(len, parts)) == sum(supported)
    schedule(reads, parts)


HEADER = '<ir_version: 10, opset_import: ["" : 17, "acme" : 1]>\n'
CHAIN = """g (float[2,100] x) => (float[2,100] y, float[2,100] b) {
  [n0] a = MatMul (x, w)
  [n1] b = Relu (a)
  [n2] c = Neg (b)
  [n3] y = Add (c, a)
}"""


def parse(text: str, **weights: np.ndarray) -> ir.Model:
    proto = onnx.parser.parse_model(HEADER + text)
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in weights.items()
    )
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def chain() -> ir.Model:
    weight = np.random.default_rng(0).standard_normal((100, 100), dtype=np.float32)
    return parse(CHAIN, w=weight)


def names(values: object) -> list[str]:
    return [value.name for value in values]  # type: ignore[attr-defined]


def test_what_each_node_reads() -> None:
    assert Extractor(chain()).reads == [frozenset(), {0}, {1}, {0, 2}]


def test_a_part_has_the_names_that_it_had_in_the_whole() -> None:
    part = Extractor(chain()).extract("p", [1, 2])
    assert names(part.graph.inputs) == ["a"]
    # `b` is an output of the whole model, `c` is read outside.
    assert sorted(names(part.graph.outputs)) == ["b", "c"]
    assert names(part.graph) == ["n1", "n2"]
    assert part.graph.name == "p"
    assert part.graph.inputs[0].dtype == ir.DataType.FLOAT
    assert part.graph.inputs[0].shape == ir.Shape([2, 100])


def test_weights_are_shared_with_the_whole_model() -> None:
    model = chain()
    part = Extractor(model).extract("p", [0])
    shared = part.graph.initializers["w"].const_value
    assert shared is model.graph.initializers["w"].const_value
    assert names(part.graph.inputs) == ["x"]


def test_the_order_of_positions_does_not_matter() -> None:
    extractor = Extractor(chain())
    one, other = extractor.extract("p", [2, 0, 1]), extractor.extract("p", [0, 1, 2])
    assert ir.to_proto(one) == ir.to_proto(other)


def test_parts_compute_what_the_whole_computes() -> None:
    model = chain()
    extractor = Extractor(model)
    x = np.random.default_rng(1).standard_normal((2, 100), dtype=np.float32)
    tensors = {"x": x}
    for positions in ([0], [1], [2, 3]):
        part = extractor.extract("p", positions)
        feed = {name: tensors[name] for name in names(part.graph.inputs)}
        tensors |= run_session(open_session(part), feed)
    for name, array in run_session(open_session(model), {"x": x}).items():
        np.testing.assert_allclose(tensors[name], array, rtol=1e-6)


CAPTURE = """g (bool c, float[4] x) => (float[4] y) {
  [outer] a = Neg (x)
  [choose] y = If (c) <
    then_branch = t () => (float[4] u) { k = Identity (a) u = Add (k, w) },
    else_branch = e () => (float[4] v) { v = Identity (x) }
  >
}"""


def test_a_subgraph_reads_what_it_captures() -> None:
    extractor = Extractor(parse(CAPTURE, w=np.ones(4, np.float32)))
    assert extractor.reads == [frozenset(), {0}]
    part = extractor.extract("p", [1])
    # `k` is the branch's own, `w` a weight: neither is an input.
    assert names(part.graph.inputs) == ["a", "c", "x"]
    assert list(part.graph.initializers) == ["w"]
    x = np.arange(4, dtype=np.float32)
    found = run_session(open_session(part), {"a": -x, "c": np.array(True), "x": x})
    np.testing.assert_array_equal(found["y"], 1 - x)


def test_a_value_that_a_later_subgraph_captures_is_an_output() -> None:
    part = Extractor(parse(CAPTURE, w=np.ones(4, np.float32))).extract("p", [0])
    assert names(part.graph.outputs) == ["a"]


def test_absent_inputs_and_outputs_are_no_names() -> None:
    model = parse(
        "g (float[4] x, float m) => (float[4] y) { a, unused = Dropout (x) y = Clip (a, , m) }"
    )
    extractor = Extractor(model)
    assert extractor.reads == [frozenset(), {0}]
    assert names(extractor.extract("p", [1]).graph.inputs) == ["a", "m"]


def test_the_models_functions_come_along() -> None:
    text = """g (float[4] x) => (float[4] y) { y = acme.twice (x) }
    <domain: "acme", opset_import: ["" : 17]>
    twice (a) => (b) { b = Add (a, a) }"""
    part = Extractor(parse(text)).extract("p", [0])
    assert [name for _, name, _ in part.functions] == ["twice"]
    found = run_session(open_session(part), {"x": np.ones(4, np.float32)})
    np.testing.assert_array_equal(found["y"], np.full(4, 2, np.float32))


def test_a_value_without_a_type_stays_without_one() -> None:
    model = parse("g (float[4] x) => (float[4] y) { a = acme.Teleport (x) y = Relu (a) }")
    part = Extractor(model).extract("p", [1])
    assert part.graph.inputs[0].type is None


TWO_ENDS = """<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y, float[4] z) {
    a = Relu (x)
    b = Abs (a)
    c = Neg (a)
    d = Add (b, c)
    z = Exp (d)
    y = Sqrt (d)
}"""


def test_cuts_hand_over_what_is_still_read() -> None:
    model = ir.from_proto(onnx.parser.parse_model(TWO_ENDS))
    found = [(at, [value.name for value in tensors]) for at, tensors in narrow_cuts(model)]
    # Not after `z`: the first half would have a result of the whole.
    assert found == [(1, ["a"]), (2, ["a", "b"]), (3, ["b", "c"]), (4, ["d"])]
