"""Elementwise operators made of others, and integers that wrap where their type does."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import TARGETS
from native_text import differences, read, refusals

FLOATS = [
    "Celu<alpha = 0.7>", "Selu", "ThresholdedRelu<alpha = 0.5>", "Softsign",
    "Shrink<bias = 0.3, lambd = 0.6>", "Mish", "HardSwish", "Elu<alpha = 1.5>", "LeakyRelu",
]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("operator", FLOATS)
def test_functions_of_floats(operator: str, target: str) -> None:
    x = np.linspace(-9, 9, 203, dtype=np.float32)
    model = read(f"(float[203] x) => (float[203] y) {{ y = {operator}(x) }}", opset=18)
    assert differences(model, {"x": x}, target)["y"] < 1e-6


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "operator", ["IsNaN", "IsInf", "IsInf<detect_negative = 0>", "IsInf<detect_positive = 0>"]
)
def test_what_is_no_number(operator: str, target: str) -> None:
    x = np.array([0, 1, np.nan, np.inf, -np.inf, -np.nan, 3e38] * 5, np.float32)
    model = read(f"(float[35] x) => (bool[35] y) {{ y = {operator}(x) }}")
    assert differences(model, {"x": x}, target)["y"] == 0.0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("fmod", [0, 1])
@pytest.mark.parametrize("kind", ["int32", "int64", "int8", "uint8"])
def test_remainders(kind: str, fmod: int, target: str) -> None:
    x = np.array([7, 8, 100, 3, 0, 1, 5] + ([0] * 7 if kind[0] == "u" else [-7, -8, -100, -3] * 2),
                 kind)  # fmt: skip
    y = np.resize(np.array([3, 5, 7] if kind[0] == "u" else [3, -5, 7, -2], kind), x.shape)
    model = read(
        f"({kind}[{x.size}] x, {kind}[{x.size}] z) => ({kind}[{x.size}] y) "
        f"{{ y = Mod<fmod = {fmod}>(x, z) }}"
    )
    assert differences(model, {"x": x, "z": y}, target)["y"] == 0.0


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16"])
def test_small_integers_wrap_inside_a_kernel(kind: str) -> None:
    info = np.iinfo(kind)
    x = np.array([info.max, info.max - 1, info.min, 5, 100], kind)
    model = read(
        f"""({kind}[5] x, {kind}[5] z) => (int32[5] y) {{
            s = Add(x, z)
            p = Mul(s, z)
            d = Sub(p, x)
            y = Cast<to = 6>(d)
        }}""",
        opset=18,
    )
    z = np.array([1, 3, 7, 9, 100], kind)
    with np.errstate(over="ignore"):
        wanted = ((x + z) * z - x).astype(np.int32)
    from float_graphs import run_native

    got = run_native(model, {"x": x, "z": z}, "cpu", "fp32")["y"]
    assert np.array_equal(got, wanted)


def test_large_constants_are_exact() -> None:
    big = 2**62 + 12345
    model = read(
        """(int64[3] x, int64 c) => (int64[3] y, bool[3] z) {
            y = Add(x, c)
            z = Less(x, c)
        }""",
        c=np.array(big),
    )
    inputs = {"x": np.array([1, -5, big - 1])}
    assert set(differences(model, inputs).values()) == {0.0}


@pytest.mark.parametrize("kind", ["int64", "int32", "int8", "uint8"])
def test_signs_of_whole_numbers(kind: str) -> None:
    model = read(f"({kind}[19] x) => ({kind}[19] y) {{ y = Sign(x) }}")
    least = np.iinfo(kind).min
    x = np.array([least, least + 1, np.iinfo(kind).max, 0, 1, 2, 127, *range(12)], kind)
    x[10:] *= np.array(-1 if least else 1, kind)
    assert differences(model, {"x": x})["y"] == 0.0


@pytest.mark.parametrize("operation", ["And", "Or", "Xor"])
def test_bits(operation: str) -> None:
    x, z = np.arange(-20, 20, dtype=np.int32), np.arange(40, dtype=np.int32) * 77
    model = read(
        f"(int32[40] x, int32[40] z) => (int32[40] y) {{ y = Bitwise{operation}(x, z) }}", opset=18
    )
    assert differences(model, {"x": x, "z": z})["y"] == 0.0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(float[2] x, float[2] z) => (float[2] y) { y = Mod<fmod = 1>(x, z) }", "Mod of floats"),
        ("(bool[2] x, bool[2] z) => (bool[2] y) { a = Cast<to = 6>(x) b = Cast<to = 6>(z) "
         "c = Pow(a, b) y = Cast<to = 9>(c) }", "Pow of integers"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, reason: str) -> None:
    assert refusals(read(text)) == [reason]
