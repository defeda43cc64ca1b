import numpy as np

from vermilion.ir.passes.contract_test import parse, reasons, run, weight
from vermilion.ir.passes.deduplicate_weights import deduplicate_weights

TEXT = """(float[1000] x, float[1000] a, float[1000] b) => (float[1000] y) {
    c = Add(x, a)
    y = Mul(c, b)
}"""


def test_fires_on_equal_weights() -> None:
    work, step = run(deduplicate_weights, parse(TEXT, a=weight(1000), b=weight(1000)))
    assert step.fired == 1
    assert list(work.graph.initializers) == ["a"]


def test_one_bit_apart_is_apart() -> None:
    other = weight(1000)
    other[501] = np.nextafter(other[501], np.float32(9))
    _, step = run(deduplicate_weights, parse(TEXT, a=weight(1000), b=other))
    assert step.fired == 0


def test_minus_zero_and_other_types_stay_apart() -> None:
    zeros = np.zeros(1000, np.float32)
    _, step = run(deduplicate_weights, parse(TEXT, a=zeros, b=-zeros))
    assert step.fired == 0
    text = "(float[2] x, float[2] a, int32[2] b) => (float[2] y, int32[2] z) "
    text += "{ y = Add(x, a) z = Neg(b) }"
    _, step = run(
        deduplicate_weights, parse(text, a=np.zeros(2, np.float32), b=np.zeros(2, np.int32))
    )
    assert step.fired == 0


def test_empty_and_scalar_weights() -> None:
    text = "(float x, float a, float b, float[0] c, float[0] d) => (float y, float[0] z) "
    text += "{ e = Add(x, a) y = Add(e, b) z = Add(c, d) }"
    empty, one = np.zeros(0, np.float32), np.float32(1)
    _, step = run(deduplicate_weights, parse(text, a=one, b=one, c=empty, d=empty))
    assert step.fired == 2


def test_refuses_a_weight_that_is_an_output() -> None:
    model = parse(
        "(float[2] x, float[2] a, float[2] b) => (float[2] y) { c = Add(x, a) y = Add(c, b) }",
        a=weight(2),
        b=weight(2),
    )
    model.graph.outputs.append(model.graph.initializers["b"])
    work, step = run(deduplicate_weights, model)
    assert reasons(step) == ["it is an output of the model"]
    assert len(work.graph.initializers) == 2
