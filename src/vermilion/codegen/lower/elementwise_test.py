"""Every elementwise operator of the table equals ONNX Runtime, on floats and on integers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from float_graphs import run_native
from kernels import TARGETS
from native_text import differences, normal, read, refusals
from vermilion.codegen.lower.elementwise import layout_like
from vermilion.codegen.tensor import allocate

UNARY = [
    "Neg", "Abs", "Sqrt", "Exp", "Log", "Tanh", "Erf", "Sigmoid", "Floor", "Ceil", "Round",
    "Reciprocal", "Sign", "Softplus", "Relu", "LeakyRelu<alpha = 0.2>", "Elu<alpha = 0.5>",
    "HardSigmoid<alpha = 0.3, beta = 0.4>", "HardSwish", "Identity",
]  # fmt: skip
BINARY = ["Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu"]
COMPARISONS = ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("operator", UNARY)
def test_functions_of_one_number(operator: str, target: str) -> None:
    x = np.linspace(-6, 6, 157, dtype=np.float32) + np.float32(0.013)
    x = np.abs(x) if operator in ("Sqrt", "Log") else x
    model = read(f"(float[157] x) => (float[157] y) {{ y = {operator}(x) a = Neg(x) }}")
    assert differences(model, {"x": x}, target)["y"] < 1e-6


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("operator", BINARY)
def test_functions_of_two_numbers(operator: str, target: str) -> None:
    inputs = {"x": normal(3, 5, 21), "z": normal(3, 1, 21, seed=1) + np.float32(3)}
    model = read(
        f"(float[3,5,21] x, float[3,1,21] z) => (float[3,5,21] y) {{ y = {operator}(x, z) }}"
    )
    assert differences(model, inputs, target)["y"] < 1e-6


@pytest.mark.parametrize("kind", ["float", "int32", "int64"])
@pytest.mark.parametrize("operator", COMPARISONS)
def test_comparisons(operator: str, kind: str) -> None:
    dtype = {"float": np.float32, "int32": np.int32, "int64": np.int64}[kind]
    random = np.random.default_rng(0)
    inputs = {name: random.integers(-3, 3, 50).astype(dtype) for name in "xz"}
    model = read(
        f"""({kind}[50] x, {kind}[50] z) => (bool[50] y, {kind}[50] w) {{
            y = {operator}(x, z)
            n = Not(y)
            w = Where(n, x, z)
        }}"""
    )
    assert set(differences(model, inputs).values()) == {0.0}


@pytest.mark.parametrize("operator", ["And", "Or", "Xor"])
def test_logic(operator: str) -> None:
    x, z = np.array([0, 0, 1, 1], np.bool_), np.array([0, 1, 0, 1], np.bool_)
    model = read(f"(bool[4] x, bool[4] z) => (bool[4] y) {{ y = {operator}(x, z) }}")
    assert differences(model, {"x": x, "z": z})["y"] == 0.0


@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Div", "Max", "Min"])
def test_integers(operator: str, kind: str) -> None:
    random = np.random.default_rng(0)
    x, z = random.integers(-1000, 1000, 70), random.integers(1, 30, 70)
    model = read(f"({kind}[70] x, {kind}[70] z) => ({kind}[70] y) {{ y = {operator}(x, z) }}")
    inputs = {"x": x.astype(kind), "z": z.astype(kind)}
    assert differences(model, inputs)["y"] == 0.0


@pytest.mark.parametrize("exponent", [0.5, -1.0, 1.0, 2.0, 3.0, 4.0, 2.5, -0.75])
def test_powers(exponent: float) -> None:
    x = np.linspace(0.1, 5, 100, dtype=np.float32)
    model = read(
        "(float[100] x, float e) => (float[100] y) { y = Pow(x, e) }", e=np.float32(exponent)
    )
    assert differences(model, {"x": x})["y"] < 2e-6


@pytest.mark.parametrize("bounds", ["low, high", ", high", "low"])
def test_clip(bounds: str) -> None:
    model = read(
        f"(float[50] x, float low, float high) => (float[50] y) {{ y = Clip(x, {bounds}) }}",
        low=np.float32(-0.5),
        high=np.float32(0.7),
    )
    assert differences(model, {"x": normal(50)})["y"] == 0.0


@pytest.mark.parametrize("operator", ["Sum", "Mean", "Max", "Min"])
def test_any_number_of_inputs(operator: str) -> None:
    inputs = {name: normal(30, seed=i) for i, name in enumerate("xzw")}
    model = read(
        f"(float[30] x, float[30] z, float[30] w) => (float[30] y) {{ y = {operator}(x, z, w) }}"
    )
    assert differences(model, inputs)["y"] < 1e-6


@pytest.mark.parametrize(
    ("source", "code", "result"),
    [
        ("float", 6, "int32"), ("float", 7, "int64"), ("float", 9, "bool"), ("int32", 1, "float"),
        ("int64", 6, "int32"), ("bool", 1, "float"), ("uint8", 1, "float"), ("int8", 7, "int64"),
        ("float", 10, "float16"), ("bool", 7, "int64"), ("int32", 3, "int8"),
    ],
)  # fmt: skip
def test_casts(source: str, code: int, result: str) -> None:
    x = np.random.default_rng(0).integers(0, 100, 40)
    dtype = {"float": "float32"}.get(source, source)
    model = read(f"({source}[40] x) => ({result}[40] y) {{ y = Cast<to = {code}>(x) }}")
    assert differences(model, {"x": x.astype(dtype)})["y"] == 0.0


def test_the_result_lies_as_the_largest_operand_does() -> None:
    image = allocate("x", "f32", (2, 3, 4, 5), (0, 2, 3, 1))
    row = allocate("r", "f32", (5,))
    assert layout_like([row, image], 4) == (0, 2, 3, 1)
    assert layout_like([row], 4) is None
    assert layout_like([image.broadcast((2, 3, 4, 5)).sliced(0, 0, 1)], 4) == (0, 2, 3, 1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(float[2] x, float[2] z) => (float[2] y) { y = Mod<fmod = 1>(x, z) }", "Mod of floats"),
        ("(int32[2] x) => (int32[2] y) { r = Relu(x) s = Sign(r) y = Neg(s) }", ""),
        ("(bool[2] x, bool[2] z) => (float[2] y) { m = Equal(x, z) y = Cast<to = 1>(m) }", ""),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, reason: str) -> None:
    assert refusals(read(text)) == ([reason] if reason else [])


def test_a_cast_to_bfloat16_rounds_inside_an_expression() -> None:
    """Half to even: 1 + 2^-8 lies between 1 and 1 + 2^-7, 1 + 3·2^-8 above it."""
    model = read(
        """(float[40] x, float one) => (float[40] y) {
            a = Add(x, one) b = Cast<to = 16>(a) c = Cast<to = 1>(b) y = Sub(c, one)
        }""",
        one=np.array(1.0, np.float32),
    )
    x = np.resize(np.array([2.0**-8, 3 * 2.0**-8, -(2.0**-9), 0.3], np.float32), 40)
    assert differences(model, {"x": x})["y"] == 0.0


def test_images_among_the_operands_of_a_result_of_five_dimensions() -> None:
    text = """(float[1,3,4,9] x, float[1,1,1,1,1] z) => (float[1,1,3,4,9] y) {
        y = Add(x, z)
    }"""
    model = read(text, z=np.full((1, 1, 1, 1, 1), 0.5, np.float32))
    assert differences(model, {"x": normal(1, 3, 4, 9)})["y"] == 0.0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "nodes",
    [
        "y = Transpose<perm = [1, 0]>(x)", "y = Neg(x)", "y = Relu(x)", "y = Max(x, x)",
        "a = Concat<axis = 0>(x, x)  y = Transpose<perm = [1, 0]>(a)",
        "a = Cast<to = 1>(x)  b = Ceil(a)  y = Cast<to = 16>(b)",
        "a = Cast<to = 1>(x)  b = Abs(a)  y = Cast<to = 16>(b)",
    ],
)  # fmt: skip
def test_subnormal_bfloat16_is_kept_by_what_does_not_compute(nodes: str, target: str) -> None:
    tiny = np.array([1e-40, -1e-40, 1e-39, 3e-38, 0.0, 1.5] * 9, np.float32).reshape(6, 9)
    x = tiny.astype(ml_dtypes.bfloat16)
    model = read(f"(bfloat16[6,9] x) => (bfloat16[a,b] y) {{ {nodes} }}", 20)
    wide = np.concatenate([tiny, tiny]) if "Concat" in nodes else tiny
    wide = wide.astype(ml_dtypes.bfloat16).astype(np.float32)
    for name, function in {
        "Neg": np.negative, "Abs": np.abs, "Relu": lambda v: np.maximum(v, 0), "Ceil": np.ceil,
    }.items():  # fmt: skip
        wide = function(wide) if name in nodes else wide
    wanted = (wide.T if "Transpose" in nodes else wide).astype(ml_dtypes.bfloat16)
    got = run_native(model, {"x": x}, target, "fp32")["y"]
    np.testing.assert_array_equal(got.astype(np.float32), wanted.astype(np.float32))
