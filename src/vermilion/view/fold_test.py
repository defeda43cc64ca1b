from __future__ import annotations

from collections import Counter

import onnx
import onnx_ir as ir
import pytest

import models
from vermilion.ir.load import load_model
from vermilion.view.fold import MOST_CHILDREN, Folds, folds_of, repeats_in, units_of
from vermilion.view.graph import Graph, graph_of

QDQ = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,8,16,16] x) => (float[1,8,16,16] y)
<float s = {0.05}, int8 z = {0}, int8[8,8,1,1] w = {WEIGHTS}>
{
  q = QuantizeLinear(x, s, z)
  d = DequantizeLinear(q, s, z)
  v = DequantizeLinear(w, s, z)
  c = Conv(d, v)
  qc = QuantizeLinear(c, s, z)
  dc = DequantizeLinear(qc, s, z)
  r = Relu(dc)
  t = Sigmoid(dc)
  y = Add(r, t)
}""".replace("WEIGHTS", ", ".join(["1"] * 64))


def long_quantized(layers: int) -> ir.Model:
    """Return a chain of quantized convolutions: five nodes a layer."""
    body = ["q0 = QuantizeLinear(x, s, z)", "d0 = DequantizeLinear(q0, s, z)"]
    for n in range(1, layers + 1):
        body += [
            f"w{n} = DequantizeLinear(w, s, z)", f"c{n} = Conv(d{n - 1}, w{n})",
            f"r{n} = Relu(c{n})", f"q{n} = QuantizeLinear(r{n}, s, z)",
            f"d{n} = DequantizeLinear(q{n}, s, z)",
        ]  # fmt: skip
    text = QDQ.partition("{\n  q =")[0].replace("float[1,8,16,16] y", f"float[1,8,16,16] d{layers}")
    return load_model(onnx.parser.parse_model(text + "{\n" + "\n".join(body) + "\n}"))


def most_children(folds: Folds, graph: Graph) -> int:
    counts = Counter(group.parent for group in folds.groups)
    counts.update(parent for parent in folds.of_node if parent is None)
    alone = Counter(parent for parent in folds.of_node if parent is not None)
    kinds = {n for n, group in enumerate(folds.groups) if group.kind == "unit"}
    counts.update({parent: n for parent, n in alone.items() if parent not in kinds})
    return max(counts.values())


def test_quantizers_go_with_their_operator() -> None:
    graph = graph_of(load_model(onnx.parser.parse_model(QDQ)))
    names = [graph.tensors[node.outputs[0]].name for node in graph.nodes]
    units = [[names[number] for number in unit] for unit in units_of(graph)]
    # What is rounded behind the convolution goes with it, though two nodes read it.
    assert units == [["c", "q", "d", "v", "qc", "dc"], ["r"], ["t"], ["y"]]


def test_repeats_are_found_where_few_tensors_pass() -> None:
    cuts = [1] * 30
    (repeat,) = repeats_in([9, *[1, 2, 3, 4] * 5, 8], cuts)
    assert (repeat.start, repeat.period, repeat.count, repeat.end) == (1, 4, 5, 21)
    # Where a block begins is where one tensor passes, not three.
    cuts = [3, 3, 1, 3, 3, 3, 1, 3, 3, 3, 1, 3, 3, 3, 1, 3]
    (repeat,) = repeats_in([3, 4, *[1, 2, 3, 4] * 3, 1], cuts)
    assert (repeat.start, repeat.count) == (2, 3)
    assert repeats_in([1, 2, 3, 4, 5, 6], [1] * 7) == []
    assert repeats_in([1] * 20, [1] * 21) == []  # twenty of one operator are no block


@pytest.mark.parametrize("name", ["resnet50", "mobilenet", "transformer_block"])
def test_every_node_has_a_place_and_no_level_is_crowded(name: str) -> None:
    graph = graph_of(getattr(models, name)())
    folds = folds_of(graph)
    assert len(folds.of_node) == len(graph.nodes)
    assert all(group.parent is None or group.parent < n for n, group in enumerate(folds.groups))
    assert most_children(folds, graph) <= MOST_CHILDREN


def test_resnet_has_its_blocks() -> None:
    folds = folds_of(graph_of(models.resnet50()))
    repeats = {(group.title, group.count) for group in folds.groups if group.kind == "repeat"}
    assert repeats
    assert sum(count for _, count in repeats) >= 10


def test_thousands_of_nodes_become_few() -> None:
    graph = graph_of(long_quantized(1000))
    assert len(graph.nodes) == 5002
    folds = folds_of(graph)
    assert most_children(folds, graph) <= MOST_CHILDREN
    top = [group for group in folds.groups if group.parent is None]
    assert len(top) + sum(parent is None for parent in folds.of_node) <= MOST_CHILDREN


def test_a_repeat_has_no_name_that_is_its_first_blocks_alone() -> None:
    model = long_quantized(12)
    for number, node in enumerate(model.graph):
        node.name = f"/layer{max(number - 2, 0) // 10}/{node.op_type}_{number}"
    folds = folds_of(graph_of(model))
    (repeat,) = [group for group in folds.groups if group.kind == "repeat"]
    assert repeat.title == "Conv, Relu"
