"""The test models are what they say they are."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import models
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.measure import agreement

# Folding a batch norm reorders float32 products along 18 layers.
FOLDING_SQNR_DB = 90.0


def run(model: ir.Model, shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    inputs = {n: random.standard_normal(s, dtype=np.float32) for n, s in shapes.items()}
    return run_session(open_session(model), inputs)


def shapes_of(model: ir.Model) -> dict[str, tuple[int, ...]]:
    return {v.name: tuple(v.shape.numpy()) for v in model.graph.inputs}


@pytest.mark.parametrize("name", models.SMALL_MODELS)
def test_a_small_model_is_legal_and_keeps_its_activations_alive(name: str) -> None:
    model = models.SMALL_MODELS[name]()
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    outputs = run(model, shapes_of(model))
    for value in model.graph.outputs:
        assert outputs[value.name].shape == tuple(value.shape.numpy())
        assert np.isfinite(outputs[value.name]).all()
        assert 1e-3 < outputs[value.name].std() < 1e2


def test_a_builder_gives_the_same_weights_each_time() -> None:
    first, second = ir.to_proto(models.mobilenet()), ir.to_proto(models.mobilenet())
    assert first.SerializeToString() == second.SerializeToString()


def test_resnet18_folded_is_the_49_nodes_of_the_vendors_example() -> None:
    model = models.resnet18()
    assert Counter(node.op_type for node in model.graph) == {
        "Conv": 20,
        "Relu": 17,
        "MaxPool": 1,
        "Add": 8,
        "GlobalAveragePool": 1,
        "Flatten": 1,
        "Gemm": 1,
    }


def test_resnet18_with_batch_norm_is_the_same_function() -> None:
    folded, plain = models.resnet18(image=64), models.resnet18(bn=True, image=64)
    assert sum(node.op_type == "BatchNormalization" for node in plain.graph) == 20
    shapes = {"input": (1, 3, 64, 64)}
    got = agreement("output", run(plain, shapes)["output"], run(folded, shapes)["output"])
    assert got.sqnr_db > FOLDING_SQNR_DB


def test_resnet50_has_122_nodes_and_strides_where_v1_has_them() -> None:
    for v1, kernel in ((True, 1), (False, 3)):
        model = models.resnet50(v1=v1, image=64)
        assert len(list(model.graph)) == 122
        strided = [
            node.attributes["kernel_shape"].as_ints()[0]
            for node in model.graph
            if node.op_type == "Conv"
            and node.attributes["strides"].as_ints() == (2, 2)
            and "downsample" not in node.name
        ]
        assert strided == [7, kernel, kernel, kernel]


def test_a_symbolic_batch_runs_at_any_size() -> None:
    outputs = run(models.small_cnn(batch="N"), {"input": (3, 3, 16, 16)})
    assert outputs["output"].shape == (3, 10)


@pytest.mark.parametrize("name", models.PACKAGE_MODELS)
def test_a_package_model_runs_with_its_usual_shapes(name: str) -> None:
    model = models.package_model(name)
    assert {v.name for v in model.graph.inputs} == set(models.PACKAGE_SHAPES[name])
    outputs = run(model, models.PACKAGE_SHAPES[name])
    assert all(np.isfinite(array).all() for array in outputs.values())
