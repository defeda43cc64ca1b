from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from vermilion.hello_network import (
    INPUT_SHAPE,
    OUTPUT_SHAPE,
    hello_network,
    hello_torch_module,
    hello_weights,
)
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.measure import agreement

# Float32 rounding of sums of up to 1152 products, four layers deep, is some 130 dB down.
SAME_SQNR_DB = 110.0


def image() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(INPUT_SHAPE, dtype=np.float32)


def test_the_network_is_the_documented_one_and_legal() -> None:
    model = hello_network()
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert Counter(node.op_type for node in model.graph) == {"Conv": 4, "Relu": 4, "Add": 1}
    assert [value.name for value in model.graph.inputs] == ["input"]
    assert [value.name for value in model.graph.outputs] == ["output"]
    assert model.opset_imports[""] == 17


def test_its_weights_are_the_same_each_time() -> None:
    first, second = hello_weights(), hello_weights()
    assert [array.shape for array in first.values()][::2] == [
        (32, 3, 3, 3),
        (64, 32, 3, 3),
        (128, 64, 3, 3),
        (256, 128, 3, 3),
    ]
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_activations_keep_their_scale_and_the_final_one_is_added() -> None:
    output = run_session(open_session(hello_network()), {"input": image()})["output"]
    assert output.shape == OUTPUT_SHAPE
    assert output.min() == 1.0  # what ReLU cut to zero, plus 1
    assert 0.1 < output.std() < 10.0


@pytest.mark.needs("torch")
def test_the_torch_module_computes_the_same() -> None:
    import torch

    with torch.no_grad():
        expected = hello_torch_module()(torch.from_numpy(image())).numpy()
    got = run_session(open_session(hello_network()), {"input": image()})["output"]
    assert agreement("output", expected, got).sqnr_db > SAME_SQNR_DB
