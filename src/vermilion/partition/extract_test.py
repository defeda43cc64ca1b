from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from vermilion.ir.execute import open_session, run_session
from vermilion.partition.extract import Extractor

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
