import pytest

from vermilion.errors import ModelError
from vermilion.ir.passes.bind_dimensions import bind_dimensions
from vermilion.ir.passes.contract_test import operators, parse
from vermilion.ir.passes.pipeline import simplify
from vermilion.ir.passes.probe import take_probe
from vermilion.ir.passes.rewrite import run_pass
from vermilion.ir.passes.sort_nodes import sort_nodes

TEXTS = [
    "(float[2] x) => (float[2] y) { a = Neg(x) y = Abs(a) }",
    """(float[2] x, bool c) => (float[2] y) {
        a = Neg(x)
        y = If (c) <
            then_branch = a () => (float[2] t) { t = Abs(a) },
            else_branch = b () => (float[2] e) { e = Abs(x) }
        >
    }""",
]


def unsorted(text: str):
    model = parse(text)
    first = model.graph[0]
    model.graph.remove(first)
    model.graph.append(first)
    return model


@pytest.mark.parametrize("text", TEXTS)
def test_fires_on_a_node_before_its_source(text) -> None:
    probe = take_probe(parse(text))
    model = unsorted(text)
    assert run_pass(sort_nodes, model).fired == 1
    assert operators(model)[0] == "Neg"
    assert probe.difference(model) == ""
    assert run_pass(sort_nodes, model).fired == 0


@pytest.mark.parametrize("text", TEXTS)
def test_unsorted_models_go_through_the_pipeline(text) -> None:
    assert take_probe(parse(text)).difference(simplify(unsorted(text)).model) == ""
    assert operators(bind_dimensions(unsorted(text), {}))[0] == "Neg"


def test_refuses_a_cycle() -> None:
    model = parse("(float[2] x) => (float[2] y) { a = Add(x, x) y = Abs(a) }")
    model.graph[0].replace_input_with(1, model.graph.outputs[0])
    with pytest.raises(ModelError, match="cycle"):
        run_pass(sort_nodes, model)
