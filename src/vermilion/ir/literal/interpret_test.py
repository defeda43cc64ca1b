"""The interpreter: types, roundings, names, errors, subgraphs; operators are in tests/."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from vermilion.errors import ModelError, OptionError, UnsupportedError
from vermilion.ir.limits import TimeLimitError
from vermilion.ir.literal import control
from vermilion.ir.literal.interpret import interpret

Array = NDArray[Any]


def parsed(text: str, opset: int = 21, ir_version: int = 10) -> ir.Model:
    header = f'<ir_version: {ir_version}, opset_import: ["" : {opset}, "com.microsoft" : 1]>\n'
    return ir.from_proto(onnx.parser.parse_model(header + text))


def test_floats_are_rounded_once_to_their_type() -> None:
    model = parsed("g (bfloat16[2] x, bfloat16[2] y) => (bfloat16[2] z) { z = Add(x, y) }")
    # 1 + 2⁻⁸ + 2⁻¹⁶: above the middle of two bfloat16, and a tie once it was rounded to float32.
    x = np.array([1.0, 1.0], ml_dtypes.bfloat16)
    y = np.array([2.0**-8, 2.0**-8 + 2.0**-15], ml_dtypes.bfloat16)
    z = interpret(model, {"x": x, "y": y})["z"]
    assert z.dtype == ml_dtypes.bfloat16
    assert z.astype(np.float64).tolist() == [1.0, 1.0 + 2.0**-7]


def test_a_number_before_version_7_is_laid_along_no_axis() -> None:
    model = parsed(
        "g (float[2,3] x) => (float[2,3] z) <float one = {1}> { z = Add<broadcast = 1>(x, one) }",
        opset=6,
        ir_version=3,
    )
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert interpret(model, {"x": x})["z"].tolist() == (x + 1).tolist()


def test_a_wide_run_does_not_round() -> None:
    model = parsed("g (float[1] x) => (float[1] z) { y = Add(x, x) z = Sqrt(y) }")
    given = {"x": np.ones(1, np.float32)}
    assert interpret(model, given, wide=True)["z"][0] == np.sqrt(2.0)
    narrow = interpret(model, given, ["y", "z"])
    assert narrow["z"].dtype == np.float32
    assert narrow["z"][0] == np.float32(np.sqrt(2.0))
    assert narrow["y"][0] == 2


def test_a_wide_run_rounds_where_a_cast_says_so() -> None:
    model = parsed(
        "g (float[1] x) => (float16[1] a, float[1] b, float[1] c)"
        "{ r = Sqrt(x) a = Cast<to = 10>(r) b = Cast<to = 1>(a) c = Cast<to = 1>(r) }"
    )
    found = interpret(model, {"x": np.full(1, 2.0, np.float32)}, wide=True)
    assert found["a"].dtype == np.float64
    assert found["a"][0] == found["b"][0] == float(np.float16(np.sqrt(2.0)))
    assert found["c"][0] == np.sqrt(2.0)


def test_a_cast_like_knows_the_declared_type_of_what_is_held_in_float64() -> None:
    model = parsed(
        "g (float[1] x, float16[1] y) => (float16[1] z)"
        "{ s = Neg(y) r = Sqrt(x) z = CastLike(r, s) }"
    )
    given = {"x": np.full(1, 2.0, np.float32), "y": np.ones(1, np.float16)}
    assert interpret(model, given, wide=True)["z"][0] == float(np.float16(np.sqrt(2.0)))
    assert interpret(model, given)["z"].dtype == np.float16


def test_one_pixel_is_normalized_to_the_bias() -> None:
    model = parsed(
        "g (float[1,2,1,1] x, float[2] s, float[2] b) => (float[1,2,1,1] y)"
        "{ y = InstanceNormalization(x, s, b) }"
    )
    given = {
        "x": np.array([3e7, -1.23456789e9], np.float32).reshape(1, 2, 1, 1),
        "s": np.array([100, -7], np.float32),
        "b": np.array([0.1, -0.3], np.float32),
    }
    for wide in (False, True):
        y = interpret(model, given, wide=wide)["y"]
        assert np.array_equal(y.reshape(-1), given["b"])


def test_equal_values_are_normalized_to_the_bias() -> None:
    model = parsed(
        "g (float[1,777] x, float[777] s, float[777] b) => (float[1,777] y)"
        "{ y = LayerNormalization(x, s, b) }",
        opset=17,
    )
    bias = np.linspace(-1, 1, 777, dtype=np.float32)
    given = {
        "x": np.full((1, 777), 12345.678, np.float32),
        "s": np.full(777, 50, np.float32),
        "b": bias,
    }
    assert np.array_equal(interpret(model, given)["y"][0], bias)


def test_what_is_not_there_is_named() -> None:
    model = parsed("g (float[1] x) => (float[1] y) { y = Neg(x) }")
    x = np.ones(1, np.float32)
    with pytest.raises(OptionError, match="no value `z`"):
        interpret(model, {"x": x}, ["z"])
    with pytest.raises(OptionError, match="no input `w`"):
        interpret(model, {"x": x, "w": x})
    with pytest.raises(OptionError, match="`x` was not given"):
        interpret(model, {})


def test_an_unknown_operator_is_named() -> None:
    model = parsed("g (float[1] x) => (float[1] y) { y = com.microsoft.Nonesuch(x) }")
    with pytest.raises(UnsupportedError, match=r"com\.microsoft::Nonesuch") as caught:
        interpret(model, {"x": np.ones(1, np.float32)})
    assert "Nonesuch" in caught.value.where


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("y = Gather(x, i)", "out of data bounds, idx=9"),
        ("j = Sub(i, i) y = Div(i, j)", "integer division by zero"),
        ("y = MatMul(x, x)", "mismatch"),
        ("s = Constant<value_ints = [7]>() y = Reshape(x, s)", "cannot have the shape"),
        ("y = Concat<axis = 5>(x, x)", "axis 5"),
    ],
)
def test_data_that_does_not_fit_is_a_model_error(text: str, words: str) -> None:
    model = parsed(f"g (float[2,3] x, int64[1] i) => (float[a] y) {{ {text} }}")
    with pytest.raises(ModelError, match=words) as caught:
        interpret(model, {"x": np.ones((2, 3), np.float32), "i": np.array([9])})
    assert "node" in caught.value.where


def test_a_long_chain_is_no_deep_one() -> None:
    count = 5000
    text = " ".join(f"x{i + 1} = Neg(x{i})" for i in range(count))
    model = parsed(f"g (float[1] x0) => (float[1] x{count}) {{ {text} }}")
    assert interpret(model, {"x0": np.ones(1, np.float32)})[f"x{count}"][0] == 1


def test_functions_of_the_model_are_run() -> None:
    text = (
        '<ir_version: 10, opset_import: ["" : 21, "own" : 1]>\n'
        "g (float[2] x) => (float[2] y) { y = own.twice<by = 3.0>(x) }\n"
        '<domain: "own", opset_import: ["" : 21]> twice <by> (a) => (c)'
        "{ f = Constant<value_float: float = @by>() c = Mul(a, f) }"
    )
    model = ir.from_proto(onnx.parser.parse_model(text))
    assert interpret(model, {"x": np.ones(2, np.float32)})["y"].tolist() == [3, 3]


def test_a_wide_run_gives_all_floats_in_float64() -> None:
    model = parsed(
        "g (float[2] x) => (float[4] y, float[1] c) <float[2] w = {0.1, 0.2}>"
        "{ z = Sqrt(x) y = Concat<axis = 0>(z, w)"
        "  i = Constant<value_ints = [1]>() c = Gather(w, i) }"
    )
    found = interpret(model, {"x": np.full(2, 2, np.float32)}, ["y", "c", "w", "x"], wide=True)
    assert {array.dtype for array in found.values()} == {np.dtype(np.float64)}
    assert found["y"].tolist() == [2**0.5, 2**0.5, *np.float32([0.1, 0.2]).tolist()]


def test_bodies_read_what_lies_outside() -> None:
    model = parsed(
        "g (float[1] x, int64 n) => (float[1] y, float[k,1] all)"
        "{ t = Constant<value = bool {1}>()"
        "  y, all = Loop(n, t, x) <body = b (int64 i, bool c, float[1] a) => "
        "(bool d, float[1] s, float[1] o) { d = Identity(c) s = Add(a, x) o = Sqrt(s) }> }"
    )
    given = {"x": np.ones(1, np.float32), "n": np.array(3)}
    for wide in (False, True):
        found = interpret(model, given, wide=wide)
        assert found["y"].tolist() == [4]
        assert np.allclose(found["all"][:, 0], np.sqrt([2, 3, 4]), atol=0 if wide else 1e-7, rtol=0)
    none = interpret(model, {**given, "n": np.array(0)})
    assert none["all"].shape[0] == 0


def test_a_loop_without_an_end_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MOST_ITERATIONS", 2_000)
    model = parsed(
        "g (float[1] x) => (float[1] y)"
        '{ t = Constant<value = bool {1}>()  y = Loop("", t, x) <body = b '
        "(int64 i, bool c, float[1] a) => (bool d, float[1] s) { d = Identity(c) s = Neg(a) }> }"
    )
    with pytest.raises(UnsupportedError, match="2,000 iterations"):
        interpret(model, {"x": np.ones(1, np.float32)})


def test_block_floating_point_shares_an_exponent() -> None:
    model = ir.from_proto(
        onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["" : 21, "vermilion.numbers" : 1]>\n'
            "g (float[9] x) => (float[9] y) { y = vermilion.numbers.RoundToBlocks<axis = 0>(x) }"
        )
    )
    x = np.array([1.0, 0.01, 127.4 / 64, 0.5 / 64, 1.5 / 64, -3, 0, 0.1, 0.1], np.float32)
    y = interpret(model, {"x": x})["y"]
    # The exponent of 3 is 1: steps of 2⁻⁵. The ninth value is a block of its own.
    step = 2.0**-5
    assert y.tolist()[:8] == (np.rint(x[:8].astype(np.float64) / step) * step).tolist()
    assert y[8] == np.rint(0.1 * 2**10) / 2**10


def test_after_so_many_seconds_no_further_node_is_begun() -> None:
    model = parsed("g (float[4] x) => (float[4] y) { a = Sin (x) y = Cos (a) }")
    with pytest.raises(TimeLimitError):
        interpret(model, {"x": np.ones(4, np.float32)}, seconds=-1.0)
