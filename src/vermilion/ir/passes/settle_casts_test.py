from vermilion.ir.passes.contract_test import operators, parse, reasons, run
from vermilion.ir.passes.fold_constants import fold_constants
from vermilion.ir.passes.report import run_pass
from vermilion.ir.passes.settle_casts import settle_casts


def test_a_cast_to_a_known_type_no_longer_reads_the_tensor_that_has_it() -> None:
    model = parse(
        """(float16[2] x) => (float16[2] y, float[2] z) {
            one = Constant<value = float {1.0}>()
            a = CastLike(one, x)
            y = Add(x, a)
            z = CastLike(x, one)
        }"""
    )
    work, step = run(settle_casts, model)
    assert step.fired == 2
    assert operators(work) == ["Constant", "Cast", "Add", "Cast"]
    run_pass(fold_constants, work)
    assert operators(work) == ["Constant", "Add", "Cast"]


def test_an_unknown_type_is_left() -> None:
    model = parse(
        """(float[2] x, bool c) => (float[2] y) {
            t = If (c) <
                then_branch = a () => (float[2] p) { p = Neg(x) },
                else_branch = b () => (float[2] q) { q = Exp(x) }
            >
            y = CastLike(x, t)
        }"""
    )
    work, step = run(settle_casts, model)
    assert "CastLike" in operators(work)
    assert reasons(step) == ["the type that it asks for is not known"]
