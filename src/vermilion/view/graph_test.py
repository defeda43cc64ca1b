from __future__ import annotations

import numpy as np
import onnx_ir as ir

import models
from vermilion.view.graph import BINS, MOST_NAME, graph_of, shorter, weight_facts


def test_rows_have_all_edges() -> None:
    model = models.branching_cnn()
    graph = graph_of(model)
    assert [node.name for node in graph.nodes] == [node.name for node in model.graph]
    assert [graph.tensors[n].name for n in graph.inputs] == ["input"]
    assert [graph.tensors[n].name for n in graph.outputs] == ["features", "mask"]
    for row, node in zip(graph.nodes, model.graph, strict=True):
        names = [None if t is None else graph.tensors[t].name for t in row.inputs]
        assert names == [None if v is None else v.name for v in node.inputs]
        for tensor in row.outputs:
            assert graph.nodes[graph.tensors[tensor].made_by or 0] is row or not tensor
    conv = next(node for node in graph.nodes if node.op_type == "Conv")
    assert conv.operations > 0
    assert conv.attributes["kernel_shape"] == [3, 3]


def test_a_weight_is_described_by_its_values_or_their_histogram() -> None:
    small = weight_facts(ir.tensor(np.array([0.5, -1.0], np.float32)))
    assert small == {"values": [0.5, -1.0]}
    array = np.linspace(-2.0, 3.0, 1000, dtype=np.float32)
    array[::10] = 0.0
    large = weight_facts(ir.tensor(array))
    assert (large["low"], large["high"]) == (-1.99499, 3.0)
    counts = large["counts"]
    assert isinstance(counts, list)
    assert (len(counts), sum(counts), large["zeros"]) == (BINS, 1000, 0.1)


def test_numbers_that_are_none_are_counted() -> None:
    array = np.ones(100, np.float32)
    array[:3] = np.nan
    array[3] = np.inf
    facts = weight_facts(ir.tensor(array))
    assert (facts["low"], facts["high"], facts["not_finite"]) == (1.0, 1.0, 4)
    assert weight_facts(ir.tensor(np.full(20, np.nan, np.float32))) == {"not_finite": 20}


def test_every_type_of_weight() -> None:
    for kind in (ir.DataType.BFLOAT16, ir.DataType.FLOAT8E4M3FN, ir.DataType.INT4, ir.DataType.BOOL,
                 ir.DataType.FLOAT16, ir.DataType.UINT8, ir.DataType.INT64):  # fmt: skip
        tensor = ir.tensor(np.arange(16).astype(kind.numpy()) if kind != ir.DataType.INT4 else
                           np.arange(16).astype(np.int8) % 8, dtype=kind)  # fmt: skip
        assert weight_facts(tensor)
    assert weight_facts(ir.tensor(["a", "b"])) == {}
    assert weight_facts(ir.tensor(np.zeros((0, 3), np.float32))) == {}


def test_a_name_without_end_is_cut_in_the_middle() -> None:
    name = shorter("a" * 50_000 + "b" * 50_000)
    assert len(name) < MOST_NAME + 40
    assert "99,600 characters" in name
    assert (name[0], name[-1]) == ("a", "b")
