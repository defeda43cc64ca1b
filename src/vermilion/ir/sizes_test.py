from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import hostile
import models
from vermilion.errors import ModelError
from vermilion.ir.sizes import check_sizes

MEGABYTE = 1 << 20


def graph(text: str, **weights: np.ndarray) -> ir.Model:
    return ir.from_proto(hostile.text_model(text, **weights))


@pytest.mark.parametrize("name", sorted(models.PACKAGE_MODELS))
def test_real_models_pass(name: str) -> None:
    check_sizes(models.package_model(name))


def test_one_value_over_the_limit_names_its_node() -> None:
    model = graph(
        "net (float[8] x) => (float[n] y) { [big] y = Expand (x, n) }", n=np.array([MEGABYTE, 8])
    )
    check_sizes(model, 33 * MEGABYTE)
    with pytest.raises(ModelError, match="`y` needs") as caught:
        check_sizes(model, 31 * MEGABYTE)
    assert caught.value.where == "node `big`, Expand"


def test_values_count_only_while_they_are_needed() -> None:
    # Ten steps of 1 MB each; two live at a time, and the input.
    steps = "\n".join(f"v{i + 1} = Relu (v{i})" for i in range(10))
    model = graph(f"net (float[262144] v0) => (float[262144] v10) {{ {steps} }}")
    check_sizes(model, 3 * MEGABYTE)
    with pytest.raises(ModelError, match="at one time"):
        check_sizes(model, 3 * MEGABYTE - 1)


def test_what_the_file_says_of_inner_values_is_not_believed() -> None:
    model = graph(
        "net (float[8] x) => (float y) { h = Expand (x, n) y = ReduceMax <keepdims = 0> (h) }",
        n=np.array([1 << 40, 8]),
    )
    model.graph.node(0).outputs[0].shape = ir.Shape([1, 8])
    with pytest.raises(ModelError, match="`h` needs"):
        check_sizes(model)


def test_the_model_is_sorted_and_otherwise_stays_as_it_is() -> None:
    model = graph("net (float[n, 4] x) => (float[n, 4] y) { y = Relu (h) h = Exp (x) }")
    check_sizes(model)
    assert [node.op_type for node in model.graph] == ["Exp", "Relu"]
    assert str(model.graph.inputs[0].shape) == "[n,4]"


def test_sizes_that_depend_on_data_are_left_to_the_run() -> None:
    check_sizes(graph("net (float[8] x) => (int64[1, n] y) { y = NonZero (x) }"), MEGABYTE)
