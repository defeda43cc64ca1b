import numpy as np
import pytest

from vermilion.ir.opset import constant_of, is_inference_dropout, is_random, opset_of, where
from vermilion.ir.passes.contract_test import parse, weight


def test_both_spellings_of_the_default_domain() -> None:
    model = parse("(float[2] x) => (float[2] y) { y = Abs(x) }", opset=13)
    assert opset_of(model) == 13
    model.graph.opset_imports["ai.onnx"] = model.graph.opset_imports.pop("")
    assert opset_of(model) == 13
    model.graph.opset_imports.clear()
    assert opset_of(model) == 0


@pytest.mark.parametrize(
    ("text", "training", "inference"),
    [
        ("y = Dropout(x)", None, True),
        ("y = Dropout<is_test = 0>(x)", None, False),
        ("y = Dropout(x, r, t)", True, False),
        ("y = Dropout(x, r, t)", False, True),
    ],
)
def test_dropout(text, training, inference) -> None:
    weights = {} if training is None else {"t": np.array(training), "r": np.float32(0.5)}
    declared = ", float r, bool t" if weights else ""
    model = parse(f"(float[2] x{declared}) => (float[2] y) {{ {text} }}", **weights)
    assert is_inference_dropout(model.graph[0]) is inference
    assert is_random(model.graph[0]) is not inference


def test_an_input_with_a_default_is_no_constant() -> None:
    model = parse("(float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }", w=weight(2))
    value = model.graph.initializers["w"]
    assert constant_of(value) is not None
    model.graph.inputs.append(value)
    assert constant_of(value) is None
    assert constant_of(model.graph.inputs[0]) is None
    assert constant_of(None) is None


def test_nodes_are_named_for_people() -> None:
    model = parse("(float[2] x) => (float[2] y) { y = Abs(x) }")
    assert where(model.graph[0]) == "node `y`, Abs"
    model.graph[0].name = "layer1/abs"
    assert where(model.graph[0]) == "node `layer1/abs`, Abs"
