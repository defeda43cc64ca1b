"""Whether it is the model or its inputs that ONNX Runtime refuses."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from vermilion.errors import ModelError, VermilionError
from vermilion.ir.literal.run import open_literally
from vermilion.runtime.invalid import Runs

OUTSIDE = """g (float[4] x) => (float[1] y) <int64[1] i = {7}> { y = Gather(x, i) }"""
# Legal with other inputs: what is read decides the size, or the filters.
BY_INPUTS = {
    "range": "g (float a, float b, float d) => (float[N] y) { y = Range(a, b, d) }",
    "filters": """g (float a, float b) => (float[M,N] y)
        <int64 bins = {3}, int64 length = {8}, int64 rate = {8000}>
        { y = MelWeightMatrix(bins, length, rate, a, b) }""",
}


def refused(text: str) -> tuple[Runs, ir.Model]:
    """Run a model twice with what it does not take."""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    runs = Runs(open_literally(model))
    for _ in range(2):
        inputs = {
            str(value.name): np.full(value.shape.numpy() if value.shape else (), -3, np.float32)
            for value in model.graph.inputs
        }
        inputs |= {name: np.zeros((), np.float32) for name in inputs if name == "d"}
        with pytest.raises(VermilionError):
            runs.run(inputs)
    return runs, model


def test_a_model_that_is_refused_whatever_its_data_are_is_invalid() -> None:
    runs, model = refused(OUTSIDE)
    with pytest.raises(ModelError, match="out of"):
        runs.check_valid(model)


@pytest.mark.parametrize("name", BY_INPUTS)
def test_a_model_whose_data_decide_is_not_called_invalid(name: str) -> None:
    runs, model = refused(BY_INPUTS[name])
    runs.check_valid(model)
