from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from models import Net
from vermilion.backends.iree.parameters import (
    LEAST_ELEMENTS,
    Parameter,
    mapped_weights,
    name_parameters,
    write_weights,
)
from vermilion.errors import ArtifactError
from vermilion.ir.literal.types import complete_types


def two_products(*names: str) -> ir.Model:
    net = Net("products", seed=2)
    y = net.input("x", (4, 128))
    for name in names:
        y = net.op("MatMul", y, net.constant(name, net.normal((128, 128), 0.1)), name=f"by_{name}")
    net.output(
        net.op("Add", y, net.constant("small", net.normal((128,), 0.1)), name="add"), "y", (4, 128)
    )
    complete_types(model := net.model())
    return model


def test_large_weights_get_keys_that_are_their_own() -> None:
    # The importer makes one key of both names.
    model = two_products("a:b", "a_b")
    assert name_parameters(model) == (Parameter("weight0", "a:b"), Parameter("weight1", "a_b"))
    assert set(model.graph.initializers) == {"weight0", "weight1", "small"}
    assert [str(node.inputs[1].name) for node in list(model.graph)[:2]] == ["weight0", "weight1"]


def test_a_name_that_is_taken() -> None:
    model = two_products("weight0", "w")
    assert [p.key for p in name_parameters(model)] == ["weight0_2", "weight1"]


def test_none_is_lent_where_one_has_to_stay() -> None:
    model = two_products("a", "b")
    weight = model.graph.initializers["b"]
    assert weight.const_value is not None
    assert weight.const_value.size >= LEAST_ELEMENTS
    model.graph.outputs.append(weight)  # what gives it as it is cannot read it under a key
    assert name_parameters(model) == ()
    assert set(model.graph.initializers) == {"a", "b", "small"}


def test_weights_cross_into_a_worker(tmp_path: Path) -> None:
    weights = {"a": np.arange(7, dtype=np.float16), "b": np.ones((3, 5), np.int8)}
    parameters = (Parameter("weight0", "b"), Parameter("weight1", "a"))
    found = dict(mapped_weights(write_weights(parameters, weights, tmp_path), tmp_path))
    assert found["weight1"].tobytes() == weights["a"].tobytes()
    assert found["weight0"].tobytes() == weights["b"].tobytes()


def test_a_program_without_weights(tmp_path: Path) -> None:
    assert list(mapped_weights(write_weights((), {}, tmp_path), tmp_path)) == []


def test_a_weight_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="`a` is not in the bundle"):
        write_weights((Parameter("weight0", "a"),), {}, tmp_path)
