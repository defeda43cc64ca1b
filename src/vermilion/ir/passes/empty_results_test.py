from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from vermilion.ir.execute import open_session, run_session
from vermilion.ir.literal.vouch import unvouched
from vermilion.ir.passes.empty_results import fold_empty
from vermilion.ir.passes.rewrite import Notes
from vermilion.ir.verify import check_graph

# On which ONNX Runtime ends the process, if it has more than one thread.
DEADLY = {
    "normalized": """(float[1,6,0,6] x) => (float[1,6,0,6] y) <float[6] s = {1,1,1,1,1,1}>
        { r = Relu(x) y = InstanceNormalization(r, s, s) }""",
    "recurrent": """(float[6,0,2] x, float[1,12,2] w, float[1,12,4] r) => (float[6,1,0,4] y)
        { q = Relu(x) y = GRU<hidden_size = 4>(q, w, r) }""",
    "in the middle": """(float[6,0,2] x, float[1,12,2] w, float[1,12,4] r, float[3] b)
        => (float[3] z) <int64[4] all = {0, 1, 2, 3}>
        { y = GRU<hidden_size = 4>(x, w, r) m = ReduceSum<keepdims = 0>(y, all) z = Add(m, b) }""",
}


def parsed(text: str) -> ir.Model:
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


@pytest.mark.parametrize("name", DEADLY)
def test_what_has_no_elements_is_not_computed(name: str) -> None:
    model = parsed(DEADLY[name])
    assert "no elements" in unvouched(model)
    before = [(v.name, v.dtype, v.shape) for v in model.graph.outputs]
    fold_empty(model, notes := Notes())
    check_graph(model)
    assert notes.fired > 0
    assert not {"GRU", "InstanceNormalization"} & {node.op_type for node in model.graph}
    assert [(v.name, v.dtype, v.shape) for v in model.graph.outputs] == before
    given = {
        str(v.name): np.ones(v.shape.numpy() if v.shape else (), np.float32)
        for v in model.graph.inputs
    }
    (found,) = run_session(open_session(model, threads=2, optimize=False), given).values()
    assert list(found.shape) == list(model.graph.outputs[0].shape.numpy())
    assert np.all(found == 1.0)
    fold_empty(model, again := Notes())
    assert again.fired == 0


def test_a_size_that_only_the_file_says_is_not_believed() -> None:
    model = parsed("(float[2,3] x) => (float[2,3] y) { r = Relu(x) y = Neg(r) }")
    model.graph[0].outputs[0].shape = ir.Shape([0, 3])
    fold_empty(model, notes := Notes())
    assert notes.fired == 0
