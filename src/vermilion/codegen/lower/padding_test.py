"""Pad in every mode, from any layout, with what is cut off; `tests/` has random ones."""

from __future__ import annotations

import numpy as np
import pytest

from float_graphs import run_native
from kernels import TARGETS
from native_text import differences, normal, read, refusals


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("is_last", [False, True], ids=["planes", "channels last"])
def test_images(mode: str, is_last: bool, target: str) -> None:
    shape = (1, 5, 6, 3) if is_last else (1, 3, 5, 6)
    source = "t = Transpose<perm = [0, 3, 1, 2]>(x)" if is_last else "t = Neg(x)"
    model = read(
        f"""(float[{",".join(map(str, shape))}] x, int64[8] p) => (float[1,3,10,8] y) {{
            {source}
            y = Pad<mode = "{mode}">(t, p)
        }}""",
        19,
        p=np.array([0, 0, 2, 0, 0, 0, 3, 2]),
    )
    assert differences(model, {"x": normal(*shape)}, target)["y"] == 0.0


def test_some_axes_and_a_value_of_another_type() -> None:
    model = read(
        """(int64[3,4] x, int64[2] p, int64 v, int64[1] a) => (int64[3,7] y) {
            y = Pad(x, p, v, a)
        }""",
        18,
        p=np.array([2, 1]),
        v=np.array(-9),
        a=np.array([-1]),
    )
    assert differences(model, {"x": np.arange(12).reshape(3, 4)})["y"] == 0.0


@pytest.mark.parametrize("value", [-np.inf, np.inf, np.nan])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_a_value_that_is_not_finite(kind: type, value: float) -> None:
    name = {np.float32: "float", np.float16: "float16"}[kind]
    model = read(
        f"({name}[3,4] x, int64[4] p, {name} v) => ({name}[4,5] y) {{ y = Pad(x, p, v) }}",
        18,
        p=np.array([1, 0, 0, 1]),
        v=np.array(value, kind),
    )
    x = np.arange(12, dtype=kind).reshape(3, 4)
    got = run_native(model, {"x": x}, "cpu", "fp32")["y"]
    np.testing.assert_array_equal(got, np.pad(x, [(1, 0), (0, 1)], constant_values=value))


def test_what_is_padded_feeds_a_convolution() -> None:
    model = read(
        """(float[1,4,6,6] x, int64[8] p, float[8,4,3,3] w) => (float[1,8,7,7] y) {
            t = Pad<mode = "reflect">(x, p)
            y = Conv<pads = [1, 1, 0, 0]>(t, w)
        }""",
        p=np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        w=normal(8, 4, 3, 3, seed=1),
    )
    assert differences(model, {"x": normal(1, 4, 6, 6)})["y"] < 4e-6


@pytest.mark.parametrize(
    ("mode", "amounts", "size", "reason"),
    [
        ("reflect", [4, 0], 8, "Pad with mode reflect by more than there is"),
        ("wrap", [0, 5], 9, "Pad with mode wrap by more than there is"),
        ("constant", None, 6, "Pad with amounts that are not known"),
    ],
)
def test_what_is_refused(mode: str, amounts: list[int] | None, size: int, reason: str) -> None:
    known = {} if amounts is None else {"p": np.array(amounts)}
    model = read(
        f"""(float[4] x, int64[2] p) => (float[{size}] y) {{ y = Pad<mode = "{mode}">(x, p) }}""",
        19,
        **known,
    )
    assert refusals(model) == [reason]


def test_zeros_beside_nothing() -> None:
    model = read(
        "(float[3,2] x, int64[4] p) => (float[3,1] y) { y = Pad(x, p) }",
        p=np.array([0, -2, 0, 1]),
    )
    assert differences(model, {"x": normal(3, 2)})["y"] == 0.0
