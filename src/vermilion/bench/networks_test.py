from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest

from vermilion.bench.networks import NETWORKS, bert_base, resnet50
from vermilion.ir.cost import model_cost
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.passes.bind_dimensions import bind_dimensions
from vermilion.ir.passes.infer_shapes import infer_shapes
from vermilion.ir.passes.rewrite import Notes
from vermilion.ir.samples import sample_inputs

# torchvision's resnet50 has 25,557,032 parameters; folding turns the four numbers a channel of its
# batch norms into one. `transformers`' bert-base-uncased has 109,482,240, pooler included.
RESNET50_PARAMETERS = 25_557_032 - 53_120 + 26_560
BERT_BASE_PARAMETERS = 109_482_240 - (768 * 768 + 768)


def parameters(model: ir.Model) -> int:
    tensors = [value.const_value for value in model.graph.initializers.values()]
    floats = [t for t in tensors if t is not None and t.dtype == ir.DataType.FLOAT]
    return sum(math.prod(t.shape.numpy()) for t in floats if len(t.shape) > 0)


@pytest.fixture(scope="module")
def resnet() -> ir.Model:
    return resnet50()


def test_resnet50_has_the_published_size(resnet: ir.Model) -> None:
    assert parameters(resnet) == RESNET50_PARAMETERS
    bound = bind_dimensions(resnet, {"batch": 1})
    infer_shapes(bound, Notes())
    # 4.09 G multiply-adds, as torchvision says of its ResNet-50.
    assert model_cost(bound).gops == pytest.approx(2 * 4.09, rel=0.01)


def test_resnet50_computes_something_that_depends_on_the_image(resnet: ir.Model) -> None:
    bound = bind_dimensions(resnet, {"batch": 2})
    session = open_session(bound)
    found = run_session(session, sample_inputs(bound))["output"]
    assert found.shape == (2, 1000)
    assert 0.1 < float(found.std()) < 10.0
    assert not np.allclose(found[0], found[1], atol=1e-3)


def test_bert_base_has_the_published_size_and_reads_what_it_should() -> None:
    model = bert_base()
    assert parameters(model) == BERT_BASE_PARAMETERS
    bound = bind_dimensions(model, {"batch": 1, "sequence": 16})
    session = open_session(bound)
    feeds = sample_inputs(bound)
    feeds["attention_mask"] = np.ones((1, 16), np.int64)
    found = run_session(session, feeds)["last_hidden_state"]
    assert found.shape == (1, 16, 768)
    # What is masked changes nothing; what is not does.
    shorter = {**feeds, "attention_mask": np.array([[1] * 15 + [0]])}
    other = {**shorter, "input_ids": np.concatenate([feeds["input_ids"][:, :15], [[5]]], axis=1)}
    first, second = run_session(session, shorter), run_session(session, other)
    np.testing.assert_array_equal(
        first["last_hidden_state"][:, :15], second["last_hidden_state"][:, :15]
    )
    assert not np.allclose(first["last_hidden_state"], found, atol=1e-3)


def test_the_same_weights_each_time(resnet: ir.Model) -> None:
    again = resnet50()
    for name, value in resnet.graph.initializers.items():
        first, second = value.const_value, again.graph.initializers[name].const_value
        assert first is not None
        assert second is not None
        np.testing.assert_array_equal(first.numpy(), second.numpy())
    assert set(NETWORKS) == {"resnet50", "bert_base"}
