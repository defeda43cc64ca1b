from vermilion.ir.passes.contract_test import operators, parse, reasons, run
from vermilion.ir.passes.merge_repeats import merge_repeats
from vermilion.ir.passes.report import run_pass


def test_fires_on_whole_chains() -> None:
    model = parse(
        """(float[2] x) => (float[2] y) {
            a = Abs(x)  b = Sqrt(a)
            c = Abs(x)  d = Sqrt(c)
            y = Add(b, d)
        }"""
    )
    work, step = run(merge_repeats, model)
    assert step.fired == 2
    assert operators(work) == ["Abs", "Sqrt", "Add"]


def test_other_attributes_inputs_or_outputs_stay_apart() -> None:
    model = parse(
        """(float[2,4] x) => (float[2,4] y) {
            a = Elu<alpha = 0.0>(x)
            b = Elu<alpha = -0.0>(x)
            c = Elu(x)
            d = Sub(a, b)
            e = Sub(b, a)
            f = Sum(c, d, e)
            y = Identity(f)
        }"""
    )
    _, step = run(merge_repeats, model)
    assert step.fired == 0


def test_a_missing_second_output_is_not_a_twin() -> None:
    model = parse(
        """(float[4] x) => (float[4] y, int64[4] i) {
            a = Unique<sorted = 1>(x)
            b, i, inverse = Unique<sorted = 1>(x)
            c = Gather(b, inverse)
            y = Add(c, a)
        }"""
    )
    work, step = run(merge_repeats, model)
    assert step.fired == 0
    assert operators(work).count("Unique") == 2


def test_refuses_outputs_and_random_nodes() -> None:
    model = parse("(float[2] x) => (float[2] y, float[2] z) { y = Abs(x) z = Abs(x) }")
    _, step = run(merge_repeats, model)
    assert reasons(step) == ["its result is an output of the model with its own name"]
    model = parse(
        "(float[2] x) => (float[2] y) "
        "{ a = RandomNormalLike(x) b = RandomNormalLike(x) y = Sub(a, b) }"
    )
    assert reasons(run_pass(merge_repeats, model)) == ["it may give another result each time"]
    assert len(model.graph) == 3
