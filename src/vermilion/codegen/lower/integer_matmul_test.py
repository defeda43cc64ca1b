"""MatMulInteger: every form of both sides and of their zero points, exact against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from float_graphs import run_native
from native_text import read, refusals
from vermilion.codegen.isa import isa_of
from vermilion.codegen.lower.part import lower_part
from vermilion.errors import VermilionError
from vermilion.hardware.targets.find import find_target
from vermilion.ir.literal.run import run_literally

Array = NDArray[Any]
NAMES = {np.dtype(np.uint8): "uint8", np.dtype(np.int8): "int8"}
KINDS = (np.uint8, np.int8)


def codes(kind: Any, *shape: int, seed: int = 0) -> Array:
    """Return integers of all of a type's range, its ends among them."""
    info = np.iinfo(kind)
    found = np.random.default_rng(seed).integers(info.min, info.max, shape, kind, endpoint=True)
    found.reshape(-1)[:2] = (info.min, info.max)[: found.size]
    return np.asarray(found)


def multiplied(a: Array, b: Array, za: Array | None, zb: Array | None) -> Array:
    """Return the product as the standard has it, by int64; int32 wraps."""
    left, right = a.astype(np.int64), b.astype(np.int64)
    if za is not None:
        left = left - (za.astype(np.int64)[:, None] if za.ndim == 1 and za.size > 1 else za)
    if zb is not None:
        right = right - zb.astype(np.int64)
    return np.asarray((left @ right).astype(np.int32))


def held(
    a: Array, b: Array, za: Array | None, zb: Array | None, constants: str, target: str
) -> None:
    """Run natively with the named inputs as constants; compare with numpy and the literal run."""
    given = {name: one for name, one in zip("abst", (a, b, za, zb), strict=True) if one is not None}
    wanted = multiplied(a, b, za, zb)
    inputs = ", ".join(f"{NAMES[v.dtype]}{list(v.shape) or ''} {k}" for k, v in given.items())
    used = ["a", "b", *(("s" if za is not None else "", "t") if zb is not None else ("s",))]
    used = used if za is not None or zb is not None else used[:2]
    text = (
        f"({inputs}) => (int32{list(wanted.shape)} y) {{ y = MatMulInteger ({', '.join(used)}) }}"
    )
    weights = {name: one for name, one in given.items() if name in constants}
    fed = {name: one for name, one in given.items() if name not in constants}
    model = read(text, 13, **weights)
    assert not refusals(model)
    assert [node.op_type for node in model.graph] == ["MatMulInteger"]
    got = run_native(model, fed, target, "fp32", 2)["y"]
    np.testing.assert_array_equal(got, wanted)
    try:
        theirs = run_literally(model, fed).outputs["y"]
    except VermilionError:  # ONNX Runtime takes no zero point for each row
        assert za is not None
        assert za.size > 1
        return
    np.testing.assert_array_equal(theirs, wanted)


@pytest.mark.parametrize("left", KINDS)
@pytest.mark.parametrize("right", KINDS)
@pytest.mark.parametrize("constants", ["b", "bt", "bst", "", "s"])
def test_types_and_who_is_constant(left: Any, right: Any, constants: str, target: str) -> None:
    a, b = codes(left, 5, 37), codes(right, 37, 21, seed=1)
    held(a, b, codes(left, seed=2), codes(right, seed=3), constants, target)


@pytest.mark.parametrize("constants", ["bt", "b", ""])
@pytest.mark.parametrize("right", KINDS)
def test_a_zero_point_for_each_column_or_row(constants: str, right: Any, target: str) -> None:
    a, b = codes(np.uint8, 6, 19), codes(right, 19, 35, seed=1)
    for za in (codes(np.uint8, seed=4), codes(np.uint8, 6, seed=5), None):
        held(a, b, za, codes(right, 35, seed=2), constants, target)


@pytest.mark.parametrize("constants", ["b", ""])
def test_no_zero_points(constants: str, target: str) -> None:
    for kind in KINDS:
        a, b = codes(kind, 3, 8), codes(kind, 8, 16, seed=1)
        held(a, b, None, None, constants, target)
        held(a, b, codes(kind, seed=2), None, constants, target)


@pytest.mark.parametrize("constants", ["b", ""])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((2, 3, 5, 9), (9, 33)),
        ((2, 3, 5, 9), (2, 3, 9, 17)),
        ((3, 5, 9), (2, 1, 9, 17)),
        ((9,), (9, 4)),
        ((5, 9), (9,)),
        ((2, 5, 9), (9,)),
        ((1, 1), (1, 1)),
        ((130, 258), (258, 50)),
    ],
)
def test_shapes(left: tuple[int, ...], right: tuple[int, ...], constants: str, target: str) -> None:
    a, b = codes(np.uint8, *left), codes(np.uint8, *right, seed=1)
    held(a, b, np.array(130, np.uint8), np.array(120, np.uint8), constants, target)


def test_sums_that_wrap_do_so(target: str) -> None:
    a, b = np.full((2, 40_000), 255, np.uint8), np.full((40_000, 3), 255, np.uint8)
    held(a, b, None, None, "b", target)
    held(a, b, np.array(0, np.uint8), np.array(0, np.uint8), "", target)


def test_a_transposed_right_side_of_a_run(target: str) -> None:
    a, b = codes(np.uint8, 2, 7, 20), codes(np.uint8, 2, 11, 20, seed=1)
    text = """(uint8[2,7,20] a, uint8[2,11,20] b, uint8 s, uint8 t) => (int32[2,7,11] y)
        { c = Transpose <perm = [0, 2, 1]> (b)  y = MatMulInteger (a, c, s, t) }"""
    model = read(text, 13)
    assert not refusals(model)
    zeros = {"s": np.array(9, np.uint8), "t": np.array(250, np.uint8)}
    got = run_native(model, {"a": a, "b": b, **zeros}, target, "fp32")["y"]
    wanted = multiplied(a, b.transpose(0, 2, 1), zeros["s"], zeros["t"])
    np.testing.assert_array_equal(got, wanted)


def test_what_follows_is_one_kernel_with_the_product(target: str) -> None:
    text = """(uint8[4,32] a, uint8 s, float x, float[4,48] r, int8[32,48] b, int8[48] t,
               float[48] w, float[48] v) => (float[4,48] y) {
        i = MatMulInteger (a, b, s, t)  f = Cast <to = 1> (i)
        c = Mul (x, w)  m = Mul (f, c)  n = Add (m, v)  o = Add (n, r)  y = Relu (o) }"""
    random = np.random.default_rng(0)
    weights = {
        "b": codes(np.int8, 32, 48), "t": np.zeros(48, np.int8),
        "w": random.uniform(0.01, 0.1, 48).astype(np.float32),
        "v": random.standard_normal(48, np.float32),
    }  # fmt: skip
    model = read(text, 13, **weights)
    fed = {
        "a": codes(np.uint8, 4, 32, seed=1), "s": np.array(99, np.uint8),
        "x": np.array(0.03, np.float32), "r": random.standard_normal((4, 48), np.float32),
    }  # fmt: skip
    got = run_native(model, fed, target, "fp32")["y"]
    wanted = run_literally(model, fed).outputs["y"]
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)
    steps = lower_part(model, isa_of(find_target(target))).steps
    products = [step for step in steps if step.spec.family == "product"]
    assert len(products) == 1
    assert set(products[0].nodes) >= {node.name for node in model.graph if node.op_type == "Relu"}


@pytest.mark.parametrize("function", ["Erf", "Tanh", "Sigmoid", "Gelu"])
def test_a_long_function_follows_sums_of_integers(function: str, target: str) -> None:
    text = f"""(uint8[8,13] a, uint8 s, float x, int8[13,31] b) => (float[8,31] y) {{
        i = MatMulInteger (a, b, s)  f = Cast <to = 1> (i)  m = Mul (f, x)  y = {function} (m) }}"""
    model = read(text, 20)
    fed = {
        "a": codes(np.uint8, 8, 13), "s": np.array(99, np.uint8), "b": codes(np.int8, 13, 31),
        "x": np.array(1e-4, np.float32),
    }  # fmt: skip
    got = run_native(model, fed, target, "fp32")["y"]
    wanted = run_literally(model, fed).outputs["y"]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
