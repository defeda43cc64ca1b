from vermilion.ir.passes.contract_test import operators, parse, run, weight
from vermilion.ir.passes.remove_dead_nodes import remove_dead_nodes


def test_fires_on_nodes_and_weights_without_readers() -> None:
    model = parse(
        "(float[2] x, float[2] w) => (float[2] y) { a = Add(x, w) b = Neg(a) y = Abs(x) }",
        w=weight(2),
    )
    work, step = run(remove_dead_nodes, model)
    assert step.fired == 3
    assert operators(work) == ["Abs"]
    assert not work.graph.initializers


def test_keeps_unused_inputs_and_what_a_body_reads() -> None:
    model = parse(
        """(float[2] x, float[2] unused, bool c) => (float[2] y) {
            a = Neg(x)
            y = If (c) <
                then_branch = a () => (float[2] t) { t = Abs(a) },
                else_branch = b () => (float[2] e) { e = Abs(x) }
            >
        }"""
    )
    work, step = run(remove_dead_nodes, model)
    assert step.fired == 0
    assert operators(work) == ["Neg", "If"]
    assert len(work.graph.inputs) == 3
