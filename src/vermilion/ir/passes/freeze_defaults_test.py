import onnx_ir as ir

from vermilion.ir.passes.contract_test import parse, run, weight
from vermilion.ir.passes.freeze_defaults import freeze_defaults


def test_fires_on_inputs_with_a_default() -> None:
    model = parse("(float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }")
    value = model.graph.inputs[1]
    value.const_value = ir.tensor(weight(2))
    model.graph.register_initializer(value)
    work, step = run(freeze_defaults, model)
    assert step.fired == 1
    assert [value.name for value in work.graph.inputs] == ["x"]
    assert list(work.graph.initializers) == ["w"]


def test_leaves_required_inputs() -> None:
    _, step = run(freeze_defaults, parse("(float[2] x) => (float[2] y) { y = Abs(x) }"))
    assert step.fired == 0
