import onnx_ir as ir

from vermilion.ir.passes.contract_test import operators, reasons, run
from vermilion.ir.passes.inline_functions import inline_functions
from vermilion.ir.passes.report import run_pass

HEADER = '<ir_version: 8, opset_import: ["": 17, "local": 1]>'
MAIN = HEADER + " g (float[2] x) => (float[2] y) { a = local.twice(x) y = local.twice(a) }"
FUNCTION = ' <domain: "local", opset_import: ["": {}, "local": 1]> {} (a) => (b) {{ {} }}'


def test_fires_on_each_function() -> None:
    inner = FUNCTION.format(17, "once", "b = Add(a, a)")
    model = ir.from_onnx_text(MAIN + FUNCTION.format(17, "twice", "b = local.once(a)") + inner)
    work, step = run(inline_functions, model)
    assert step.fired == 2
    assert operators(work) == ["Add", "Add"]
    assert not work.functions


def test_refuses_a_function_that_calls_itself() -> None:
    model = ir.from_onnx_text(MAIN + FUNCTION.format(17, "twice", "b = local.twice(a)"))
    step = run_pass(inline_functions, model)
    assert reasons(step) == ["a function of the model calls itself"]
    assert operators(model) == ["twice", "twice"]


def test_refuses_what_would_grow_without_bound() -> None:
    text = MAIN + FUNCTION.format(17, "twice", "c = local.f0(a) b = local.f0(c)")
    for level in range(30):
        body = f"c = local.f{level + 1}(a) b = local.f{level + 1}(c)"
        text += FUNCTION.format(17, f"f{level}", body)
    text += FUNCTION.format(17, "f30", "b = Abs(a)")
    step = run_pass(inline_functions, ir.from_onnx_text(text))
    assert step.fired == 0
    assert reasons(step) == [f"inlined, the model would have {2**32} nodes"]


def test_refuses_another_version() -> None:
    model = ir.from_onnx_text(MAIN + FUNCTION.format(16, "twice", "b = Add(a, a)"))
    step = run_pass(inline_functions, model)
    assert reasons(step) == ["it speaks version 16 of `ai.onnx`, the model another"]
