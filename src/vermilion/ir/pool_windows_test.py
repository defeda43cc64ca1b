"""Sizes of pools that round up: inferred as ONNX Runtime has them, whatever a file declares."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from vermilion.api import compile_model
from vermilion.ir.inference import infer


def _pool(operator: str, size: int, attributes: str, declared: str = "A, B, C") -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 19]> g (float[1, 2, {size}] x) => '
        f"(float[{declared}] y) <float[{declared}] p> {{ "
        f"p = {operator} <ceil_mode = 1, {attributes}> (x) y = Relu (p) }}"
    )


def _literal(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options)
    return np.asarray(session.run(None, {"x": x})[0])


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
def test_sizes_are_those_that_onnx_runtime_has(operator: str) -> None:
    wrong = 0
    for kernel, stride, dilation, pads in product((1, 2, 3), (2, 3), (1, 2), ("", "0, 1", "1, 0")):
        if kernel == 1 and pads:
            continue  # no more padding than a kernel has
        for size in (7, 8):
            attributes = f"kernel_shape = [{kernel}], strides = [{stride}]"
            attributes += f", dilations = [{dilation}]" + (f", pads = [{pads}]" if pads else "")
            model = _pool(operator, size, attributes)
            there = _literal(model, np.zeros((1, 2, size), np.float32)).shape[2]
            inferred = infer(model)
            found = inferred.graph.output[0].type.tensor_type.shape.dim[2].dim_value
            assert found == there, (attributes, size)
            assert inferred.graph.node[0] == model.graph.node[0]
            plain = onnx.shape_inference.infer_shapes(model).graph.output[0]
            wrong += plain.type.tensor_type.shape.dim[2].dim_value != there
    assert wrong  # when onnx infers all of them, this module can go


@pytest.mark.parametrize("declared", ["1, 2, 4", "1, 2, 5", "1, 2, C"])
def test_a_pool_is_native_whatever_the_exporter_believed(tmp_path: Path, declared: str) -> None:
    model = _pool("MaxPool", 10, "kernel_shape = [2], strides = [3], pads = [1, 1]", declared)
    compiled = compile_model(model, cache_dir=tmp_path)
    assert compiled.placement == "2 of 2 operators native"
    x = np.random.default_rng(0).standard_normal((1, 2, 10)).astype(np.float32)
    found = compiled.session().run(None, {"x": x})[0]
    assert found.shape == (1, 2, 4)
    assert np.array_equal(found, _literal(model, x))
