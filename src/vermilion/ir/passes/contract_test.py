"""What every pass promises, as one function that all pass tests use."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from vermilion.ir.passes.pipeline import PASSES
from vermilion.ir.passes.probe import interface_change, take_probe
from vermilion.ir.passes.rewrite import PassStep, Rewrite, run_pass
from vermilion.ir.verify import check_graph


def parse(
    text: str, opset: int = 17, ir_version: int = 8, domains: str = "", **weights
) -> ir.Model:
    """Read ONNX text; inputs named in `weights` become initializers."""
    header = f'<ir_version: {ir_version}, opset_import: ["": {opset}{domains}]>'
    model = ir.from_onnx_text(f"{header} g {text}")
    graph = model.graph
    for value in list(graph.inputs):
        if value.name in weights:
            graph.inputs.remove(value)
            value.const_value = ir.tensor(weights[value.name], name=value.name)
            graph.register_initializer(value)
    return model


def weight(*shape: int, seed: int = 0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def run(rewrite: Rewrite, model: ir.Model) -> tuple[ir.Model, PassStep]:
    """Run a pass on a copy and hold it to the contract: outputs, interface, idempotence."""
    probe = take_probe(model)
    assert probe.results, probe.step
    work = model.clone()
    step = run_pass(rewrite, work)
    check_graph(work)
    assert interface_change(model, work) == ""
    assert probe.difference(work) == ""
    before = operators(work)
    again = run_pass(rewrite, work)
    assert again.fired == 0, "a second time changes nothing"
    assert operators(work) == before
    return work, step


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def reasons(step: PassStep) -> list[str]:
    return [refusal.reason for _, refusal in step.refusals]


MODELS = {
    "empty": parse("(float[2] x) => (float[2] y) { y = Identity(x) }"),
    "control flow": parse(
        """(float[2] x, bool c) => (float[2] y) {
            one = Constant<value = float {1.0}>()
            y = If (c) <
                then_branch = a () => (float[2] t) { t = Add(x, one) },
                else_branch = b () => (float[2] e) { e = Mul(x, one) }
            >
        }"""
    ),
    "random": parse(
        """(float[2] x) => (float[2] y) {
            r = RandomNormalLike(x)
            s = RandomNormalLike(x)
            d = Sub(r, s)
            y = Add(x, d)
        }"""
    ),
    "unsorted, dead and repeated": parse(
        """(float[2] x) => (float[2] y) {
            a = Abs(x)
            b = Abs(x)
            dead = Neg(a)
            y = Add(a, b)
        }"""
    ),
    "two outputs of one value": parse(
        """(float[2] x) => (float[2] y, float[2] z) {
            y = Abs(x)
            z = Identity(y)
        }"""
    ),
}


@pytest.mark.parametrize("rewrite", dict.fromkeys(PASSES), ids=lambda rewrite: rewrite.__name__)
@pytest.mark.parametrize("name", MODELS)
def test_a_pass_leaves_odd_graphs_sound(rewrite, name) -> None:
    model = MODELS[name]
    work = model.clone()
    run_pass(rewrite, work)
    check_graph(work)
    assert interface_change(model, work) == ""
    assert take_probe(model).difference(work) == ""
    assert run_pass(rewrite, work).fired == 0


def test_a_pass_is_one_of_onnx_irs() -> None:
    from vermilion.ir.passes.redundancy import remove_identities
    from vermilion.ir.passes.rewrite import GraphPass

    model = parse("(float[2] x) => (float[2] y) { a = Identity(x) y = Abs(a) }")
    result = ir.passes.PassManager([GraphPass(remove_identities)])(model)
    assert result.modified
    assert operators(model) == ["Abs"]
