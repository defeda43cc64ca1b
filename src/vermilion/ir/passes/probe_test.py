import ml_dtypes
import numpy as np
import onnx_ir as ir

from vermilion.ir.passes.contract_test import parse, reasons
from vermilion.ir.passes.probe import interface_change, take_probe

SUM = "(float[8] x) => (float[8] y) { y = Add(x, x) }"


def test_equal_and_unequal_models_are_told_apart() -> None:
    probe = take_probe(parse(SUM))
    assert probe.step.fired == 1
    assert probe.difference(parse(SUM)) == ""
    assert probe.difference(parse("(float[8] x) => (float[8] y) { y = Mul(x, x) }")).startswith(
        "output `y`: "
    )
    assert "became" in probe.difference(parse("(float[8] x) => (float[1] y) { y = ReduceSum(x) }"))


def test_a_small_error_is_an_error_and_a_rounding_is_not() -> None:
    text = "(float[8] x, float s) => (float[8] y) { y = Mul(x, s) }"
    probe = take_probe(parse(text, s=np.float32(1)))
    assert probe.difference(parse(text, s=np.float32(1.01))) != ""
    assert probe.difference(parse(text, s=np.float32(1 + 2**-23))) == ""


def test_an_error_in_the_sixth_digit_is_one() -> None:
    text = "(float[512] x, float[512] s) => (float[512] y) { y = Mul(x, s) }"
    right = np.ones(512, np.float32)
    probe = take_probe(parse(text, s=right))
    assert probe.difference(parse(text, s=right * np.float32(1.0001))) != ""  # 80 dB
    assert probe.difference(parse(text, s=right * np.float32(1 + 2**-22))) == ""


def test_one_wrong_element_among_a_million_is_seen() -> None:
    text = "(float[1000000] x, float[1000000] s) => (float[1000000] y) { y = Mul(x, s) }"
    right = np.ones(1_000_000, np.float32)
    wrong = right.copy()
    wrong[777_777] = np.float32(0.99)
    assert take_probe(parse(text, s=right)).difference(parse(text, s=wrong)) != ""


def test_no_number_where_there_was_one_is_an_error() -> None:
    probe = take_probe(parse("(float[64] x) => (float[64] y) { y = Abs(x) }"))
    assert probe.difference(parse("(float[64] x) => (float[64] y) { a = Sqrt(x) y = Mul(a, a) }"))


def test_an_index_may_flip_where_it_hangs_by_a_hair_only() -> None:
    text = "(float[8,64] x, float s) => (int64[8] y) { a = Mul(x, s) y = ArgMax<keepdims=0>(a) }"
    text = text.replace("ArgMax<keepdims=0>", "ArgMax<axis=1, keepdims=0>")
    probe = take_probe(parse(text, s=np.float32(1)))
    assert probe.difference(parse(text, s=np.float32(3))) == ""
    assert probe.difference(parse(text, s=np.float32(-1))) != ""


def test_integers_that_hang_on_no_rounding_are_exact() -> None:
    text = "(int64[1000] x, int64[1000] s) => (int64[1000] y) { y = Add(x, s) }"
    right = np.zeros(1000, np.int64)
    wrong = right.copy()
    wrong[7] = 1
    assert take_probe(parse(text, s=right)).difference(parse(text, s=wrong)) != ""


def test_a_model_is_compared_on_inputs_that_it_allows() -> None:
    text = "(int64[4] a, int64[4] b) => (int64[4] y) { q = Div(b, k) y = Div(a, q) }"
    text = text.replace("int64[4] b)", "int64[4] b, int64[1] k)")
    probe = take_probe(parse(text, k=np.array([2])))
    assert probe.step.fired == 1
    assert np.all(probe.inputs["b"] // 2 != 0)


def test_outputs_near_zero_are_judged_by_how_they_move_with_the_input() -> None:
    # The large terms cancel but for rounding: 2 (x + 1e4) - 2e4 - 2x
    def model(order: str) -> ir.Model:
        return parse(
            f"(float[256] x, float k) => (float[256] y) {{ a = Add(x, k) {order} }}",
            k=np.float32(1e4),
        )

    probe = take_probe(model("b = Sub(a, k) y = Sub(b, x)"))
    assert probe.difference(model("b = Sub(a, x) y = Sub(b, k)")) != ""  # all noise
    assert probe.difference(model("b = Sub(a, k) y = Sub(b, x)")) == ""


def test_what_cannot_be_compared_says_why() -> None:
    probe = take_probe(parse("(float[2] x) => (float[2] y) { y = RandomNormalLike(x) }"))
    assert reasons(probe.step) == [
        "outputs not compared: RandomNormalLike gives other numbers each time"
    ]
    probe = take_probe(parse("(float[2] x) => (float[2] y) { y = NoSuch(x) }"))
    assert "ONNX Runtime cannot run this model" in reasons(probe.step)[0]
    probe = take_probe(
        parse(
            "(float[2] x, float z) => (float[2] y) { a = Div(z, z) y = Add(x, a) }", z=np.float32(0)
        )
    )
    assert "not numbers" in reasons(probe.step)[0]
    assert probe.difference(parse(SUM)) == ""


def test_behind_a_sigmoid_what_goes_in_counts() -> None:
    # 5e-8 and 1e-7 differ by nothing next to 1, -17 and -16 by much.
    text = "(float[64] x, float k) => (float[64] y) { a = Abs(x) b = Sub(k, a) y = Sigmoid(b) }"
    probe = take_probe(parse(text, k=np.float32(-16)))
    assert max(probe.results["y"]) < 2e-7
    assert probe.difference(parse(text, k=np.float32(-16.00001))) == ""
    assert "`y before Sigmoid`" in probe.difference(parse(text, k=np.float32(-17)))


def test_integers_must_be_equal() -> None:
    probe = take_probe(parse("(int64[64] x) => (int64[64] y) { y = Add(x, x) }"))
    assert probe.difference(parse("(int64[64] x) => (int64[64] y) { y = Mul(x, x) }")) != ""


def test_interface_changes_are_seen() -> None:
    model = parse("(float[n, 2] x) => (float[n, 2] y) { y = Abs(x) }")
    for text, words in [
        ("(float[n, 2] z) => (float[n, 2] y) { y = Abs(z) }", "the inputs were ['x'] and are"),
        ("(float[n, 2] x) => (float[n, 2] z) { z = Abs(x) }", "the outputs were ['y'] and are"),
        ("(double[n, 2] x) => (double[n, 2] y) { y = Abs(x) }", "input `x` was FLOAT"),
        ("(float[n, 2] x) => (float[n, 3] y) { y = Abs(x) }", "output `y` had the shape"),
        ("(float[n, 2, 1] x) => (float[n, 2] y) { y = Abs(x) }", "input `x` had the shape"),
        ("(float[4, 2] x) => (float[4, 2] y) { y = Abs(x) }", ""),
    ]:
        change = interface_change(model, parse(text))
        assert change.startswith(words)
        assert bool(change) == bool(words)


def test_a_model_that_never_ends_is_left_uncompared() -> None:
    told: list[str] = []
    model = ir.from_onnx_text(
        f"""<ir_version: 8, opset_import: ["" : 17]> g (float[3] x) => (float[3] y)
        <int64 n = {{{2**63 - 1}}}, bool c = {{1}}> {{
          y = Loop (n, c, x) <body = b (int64 i, bool go, float[3] v)
            => (bool on, float[3] w) {{ on = Identity (go) w = Sub (v, x) }}>
        }}"""
    )
    probe = take_probe(model, lambda stage, done, total: told.append(f"{stage} {total}"))
    assert not probe.results
    assert "ran longer than 5 s" in probe.step.refusals[0][1].reason
    assert "literal run, at most 5" in told


def test_squashed_bfloat16_is_compared_too() -> None:
    text = """(bfloat16[64] x, bfloat16 s) => (bfloat16[64] y) {
        a = Mul(x, s)
        y = Sigmoid(a)
    }"""
    one = np.array(1, ml_dtypes.bfloat16)
    probe = take_probe(parse(text, s=one))
    assert probe.difference(parse(text, s=one)) == ""
    assert probe.difference(parse(text, s=np.array(2, ml_dtypes.bfloat16))) != ""


def test_a_number_of_rank_0_is_moved_by_a_hair_too() -> None:
    text = (
        "(float x, float s) => (float y, int64 k) { y = Mul(x, s) a = Floor(y) k = Cast<to=7>(a) }"
    )
    probe = take_probe(parse(text, s=np.float32(1)))
    assert probe.difference(parse(text, s=np.float32(1))) == ""
    assert "output" in probe.difference(parse(text, s=np.float32(3)))
