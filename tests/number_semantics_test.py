"""What generated code computes at the edges of the standard: NaN, infinities, casts, powers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from float_graphs import WAYS, run_native
from kernels import TARGETS
from native_text import read, refusals
from vermilion.ir.execute import open_session, run_session

Array = NDArray[Any]
EXAMPLES = settings(max_examples=12, deadline=None, derandomize=True)
NAN = float("nan")
# numpy warns of what is tested here: casts of NaN, powers of 0.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def with_nans(*shape: int) -> Array:
    """Return whole numbers with a NaN here and there: at the start, in the middle, at the end."""
    x = np.random.default_rng(3).integers(-4, 5, shape).astype(np.float32)
    flat = x.reshape(-1)
    flat[[0, 5, 17, flat.size // 2, flat.size - 1]] = NAN
    return x


def one(text: str, x: Array, way: tuple[str, str], opset: int = 18, **weights: Array) -> Array:
    """Run a model with the input `x` and the result `y`, all of it generated."""
    model = read(text, opset, **weights)
    assert not refusals(model)
    return run_native(model, {"x": x}, *way)["y"]


_SIDES = {
    "Max": np.maximum, "Min": np.minimum,
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("operator", ["Max", "Min"])
def test_nan_of_either_side(operator: str, way: tuple[str, str]) -> None:
    x = with_nans(3, 40)
    other = x[::-1, ::-1].copy()
    text = f"(float[3,40] x, float[3,40] z) => (float[3,40] y) {{ y = {operator}(x, z) }}"
    model = read(text)
    found = run_native(model, {"x": x, "z": other}, *way)["y"]
    assert np.array_equal(found, _SIDES[operator](x, other), equal_nan=True)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(
    ("operator", "wanted"),
    [
        ("Max(x, k)", lambda x: np.maximum(x, 1)),
        ("Max(k, x)", lambda x: np.maximum(x, 1)),
        ("Min(k, x)", lambda x: np.minimum(x, 1)),
        ("Max(x, none)", lambda x: x * np.float32(NAN)),
        ("Clip(x, k, v)", lambda x: np.clip(x, 1, 2)),
        ("Relu(x)", lambda x: np.maximum(x, 0)),
        ("LeakyRelu<alpha = 0.5>(x)", lambda x: np.where(x < 0, x * 0.5, x)),
        ("Sign(x)", np.sign),
        ("HardSigmoid<alpha = 0.25, beta = 0.5>(x)", lambda x: np.clip(x * 0.25 + 0.5, 0, 1)),
        ("Pow(x, v)", lambda x: x * x),
        ("Abs(x)", np.abs),
        ("Floor(x)", np.floor),
    ],
)
def test_nan_goes_through(operator: str, wanted: Any, way: tuple[str, str]) -> None:
    x = with_nans(3, 40)
    text = f"""(float[3,40] x, float k, float v, float none) => (float[3,40] y) {{
        y = {operator}
    }}"""
    weights = {"k": np.float32(1), "v": np.float32(2), "none": np.float32(NAN)}
    assert np.array_equal(one(text, x, way, **weights), wanted(x), equal_nan=True)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_nan_in_what_is_reduced(operator: str, axis: int, way: tuple[str, str]) -> None:
    x = with_nans(4, 5, 39)
    reduce = np.max if operator == "ReduceMax" else np.min
    wanted = reduce(x, axis=axis, keepdims=True)
    shape = ",".join(map(str, wanted.shape))
    text = f"""(float[4,5,39] x) => (float[{shape}] y) {{
        y = {operator}<axes = [{axis}]>(x)
    }}"""
    assert np.array_equal(one(text, x, way, opset=17), wanted, equal_nan=True)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_nan_in_a_window(way: tuple[str, str]) -> None:
    x = with_nans(1, 17, 6, 6)
    text = """(float[1,17,6,6] x) => (float[1,17,3,3] y) {
        y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)
    }"""
    wanted = x.reshape(1, 17, 3, 2, 3, 2).max((3, 5))
    assert np.array_equal(one(text, x, way), wanted, equal_nan=True)
    text = "(float[1,17,6,6] x) => (float[1,17,1,1] y) { y = GlobalMaxPool(x) }"
    assert np.array_equal(one(text, x, way), x.max((2, 3), keepdims=True), equal_nan=True)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_nan_behind_a_product(way: tuple[str, str]) -> None:
    x = np.eye(8, dtype=np.float32)
    x[3, 4] = NAN
    text = """(float[8,8] x, float[8,20] w, float low, float high) => (float[8,20] y) {
        p = MatMul(x, w)
        r = Relu(p)
        y = Clip(r, low, high)
    }"""
    weights = {"w": np.ones((8, 20), np.float32), "low": np.float32(0), "high": np.float32(6)}
    found = one(text, x, way, **weights)
    assert np.array_equal(np.isnan(found).all(1), np.arange(8) == 3)
    assert not np.isnan(found[[0, 1, 2, 4, 5, 6, 7]]).any()


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_nan_takes_its_row_of_a_softmax_along(way: tuple[str, str]) -> None:
    x = np.zeros((4, 37), np.float32)
    x[1, 20] = NAN
    found = one("(float[4,37] x) => (float[4,37] y) { y = Softmax<axis = -1>(x) }", x, way)
    assert np.array_equal(np.isnan(found), np.repeat([[False], [True], [False], [False]], 37, 1))


@pytest.mark.parametrize("target", TARGETS)
def test_quantized_nan_is_the_lowest(target: str) -> None:
    """As ONNX Runtime has it."""
    x = np.array([NAN, -np.inf, np.inf, 0.5, 1.5, -0.5, -1.5, 2.5, 1e20] * 5, np.float32)
    for kind, zero in ((np.uint8, 100), (np.int8, -10)):
        name = np.dtype(kind).name
        text = f"""(float[45] x, float s, {name} z) => ({name}[45] y) {{
            y = QuantizeLinear(x, s, z)
        }}"""
        model = read(text, s=np.float32(1), z=kind(zero))
        wanted = run_session(open_session(model, threads=1, optimize=False), {"x": x})["y"]
        found = run_native(model, {"x": x}, target, "fp32")["y"]
        assert np.array_equal(found, wanted)
        assert found[0] == np.iinfo(kind).min


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("axis", [0, 1])
def test_nan_where_an_extreme_is_looked_for(operator: str, axis: int, target: str) -> None:
    """As ONNX Runtime has it: one that comes first stays, any other is passed over."""
    x = np.random.default_rng(0).standard_normal((20, 40)).astype(np.float32)
    x[0, 3] = x[5, 0] = x[7, 11] = x[19, 39] = NAN
    shape = "1,40" if axis == 0 else "20,1"
    text = f"(float[20,40] x) => (int64[{shape}] y) {{ y = {operator}<axis = {axis}>(x) }}"
    model = read(text)
    wanted = run_session(open_session(model, threads=1, optimize=False), {"x": x})["y"]
    assert np.array_equal(run_native(model, {"x": x}, target, "fp32")["y"], wanted)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [1, 2, 37, 64, 769])
def test_layer_norm_of_equal_and_of_far_numbers(size: int, target: str) -> None:
    """The mean is rounded: what is off by it is not divided by a deviation of almost 0."""
    random = np.random.default_rng(0).standard_normal(size)
    x = np.stack([np.full(size, 1234.567), np.full(size, -7e7), 1e4 + random]).astype(np.float32)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(1, keepdims=True)
    exact = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) + 0.25
    text = f"""(float[3,{size}] x, float[{size}] s, float[{size}] b) => (float[3,{size}] y) {{
        y = LayerNormalization(x, s, b)
    }}"""
    weights = {"s": np.ones(size, np.float32), "b": np.full(size, 0.25, np.float32)}
    found = one(text, x, (target, "fp32"), **weights)
    np.testing.assert_allclose(found, exact, atol=2e-5)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_instance_norm_of_one_pixel_is_its_bias(way: tuple[str, str]) -> None:
    x = np.array([[[[3e4]], [[-7.0]], [[1e-3]]]], np.float32)
    text = """(float[1,3,1,1] x, float[3] s, float[3] b) => (float[1,3,1,1] y) {
        y = InstanceNormalization(x, s, b)
    }"""
    weights = {"s": np.array([2, 3, -4], np.float32), "b": np.array([0.5, -0.25, 2], np.float32)}
    assert np.array_equal(one(text, x, way, **weights).ravel(), weights["b"])


# Functions ------------------------------------------------------------------------------------


def _softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


_EXACT: dict[str, Any] = {
    "Elu": lambda x: np.where(x < 0, np.expm1(np.minimum(x, 0)), x),
    "Celu<alpha = 2.0>": lambda x: np.where(x < 0, 2 * np.expm1(np.minimum(x, 0) / 2), x),
    "Selu<alpha = 1.5, gamma = 2.0>": (
        lambda x: 2 * np.where(x < 0, 1.5 * np.expm1(np.minimum(x, 0)), x)
    ),
    "Softplus": _softplus,
    "Mish": lambda x: x * np.tanh(_softplus(x)),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("operator", _EXACT)
def test_functions_keep_small_results(operator: str, target: str) -> None:
    """e^x - 1 beside 0, ln(1 + e^x) far below it: nothing cancels."""
    small = np.geomspace(1e-30, 80, 200)
    edges = [0.0, NAN, 89.0, 1e10, 1e38, -88.0, -1e10]
    x = np.concatenate([small, -small, edges]).astype(np.float32)
    text = f"(float[{x.size}] x) => (float[{x.size}] y) {{ y = {operator}(x) }}"
    found = one(text, x, (target, "fp32"))
    exact = _EXACT[operator](x.astype(np.float64))
    np.testing.assert_allclose(found, exact, rtol=5e-7, atol=1e-37)


# Powers ---------------------------------------------------------------------------------------

BASES = [
    0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, NAN, 2.0, -2.0, 0.5, -0.5, 1e-40, -1e-40, 3e38, -3e38,
    3.0, -3.0, 1.0000001, 0.99999994, 7.25, -7.25,
]  # fmt: skip
EXPONENTS = [
    *(float(n) for n in range(-8, 13)), 16.0, 33.0, 64.0, -64.0, 0.5, -0.5, 0.25, 0.75, -0.75, 1.5,
    -1.5, 2.5, 1 / 3, 2.4, NAN, np.inf, -np.inf, 16777217.0, 33554434.0,
]  # fmt: skip


def powers(x: Array, y: Array) -> tuple[Array, Array]:
    """Return x^y, and the error that a float32 may have: 5 units in the last place."""
    exact = np.power(x.astype(np.float64), y.astype(np.float64))
    return exact, 5 * np.spacing(np.maximum(np.abs(exact), 1.2e-38).astype(np.float32))


def assert_power(found: Array, x: Array, y: Array) -> None:
    exact, allowed = powers(x, y)
    ends = exact.astype(np.float32)
    is_end = ~np.isfinite(ends) | (ends == 0)
    assert np.array_equal(found[is_end], ends[is_end], equal_nan=True)
    assert (np.abs(found - exact)[~is_end] <= allowed[~is_end]).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("exponent", EXPONENTS)
def test_power_of_a_constant(exponent: float, target: str) -> None:
    random = np.random.default_rng(0).standard_normal(200).astype(np.float32) * 3
    x = np.concatenate([np.array(BASES, np.float32), random])
    y = np.array(exponent, np.float32)
    text = f"(float[{x.size}] x, float e) => (float[{x.size}] y) {{ y = Pow(x, e) }}"
    assert_power(one(text, x, (target, "fp32"), e=y), x, np.full(x.shape, y))


@pytest.mark.parametrize("target", TARGETS)
def test_power_of_a_tensor(target: str) -> None:
    x, y = (a.reshape(-1) for a in np.meshgrid(BASES, EXPONENTS))
    x, y = x.astype(np.float32), y.astype(np.float32)
    text = f"(float[{x.size}] x, float[{x.size}] e) => (float[{x.size}] y) {{ y = Pow(x, e) }}"
    model = read(text)
    assert not refusals(model)
    assert_power(run_native(model, {"x": x, "e": y}, target, "fp32")["y"], x, y)


@pytest.mark.parametrize("target", TARGETS)
def test_power_of_a_whole_number_type(target: str) -> None:
    x = np.array([-2.5, 3.0, NAN, 0.0] * 5, np.float32)
    y = np.array([3, -2, 0, 0] * 5)
    model = read("(float[20] x, int64[20] e) => (float[20] y) { y = Pow(x, e) }")
    found = run_native(model, {"x": x, "e": y}, target, "fp32")["y"]
    np.testing.assert_allclose(found[:4], [-15.625, 1 / 9, 1, 1], rtol=1e-6)


# Casts ----------------------------------------------------------------------------------------

FLOATS = [
    1.0009, 70000.0, -66000.0, 2e-8, 2051.0, 0.3, -7e-6, 65519.9, 6e-8, 3e-8, NAN, np.inf, -np.inf,
    -0.0, 1e-40, 3e38, 0.1,
]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("number", "kind"), [(10, np.float16), (16, ml_dtypes.bfloat16)])
@pytest.mark.parametrize(
    ("before", "between"),
    [
        ("Identity(x)", "Identity(h)"),
        ("Neg(x)", "Relu(h)"),
        ("Identity(x)", "Neg(h)"),
        ("Abs(x)", "Transpose<perm = [1, 0]>(h)"),
        ("Mul(x, x)", "Sqrt(h)"),
    ],
)
def test_there_and_back_rounds(
    number: int, kind: Any, before: str, between: str, target: str
) -> None:
    x = np.array([FLOATS * 2], np.float32)
    narrow = {10: "float16", 16: "bfloat16"}[number]
    shape = [34, 1] if "Transpose" in between else [1, 34]
    text = f"""(float[1,34] x) => (float[{shape[0]},{shape[1]}] y) {{
        a = {before}
        h = Cast<to = {number}>(a)
        b = {between}
        y = Cast<to = 1>(b)
    }}"""
    a = {"N": -x, "A": np.abs(x), "M": x * x}.get(before[0], x)
    h = a.astype(kind).astype(np.float32)
    b = {"R": np.maximum(h, 0), "N": -h, "T": h.T, "S": np.sqrt(h)}.get(between[0], h)
    wanted = b.astype(kind).astype(np.float32)
    found = one(text, x, (target, "fp32"))
    if narrow == "bfloat16":  # processors that round to it make 0 of what is below 2^-126
        found, wanted = (np.where(np.abs(v) < 2.0**-126, 0.0, v) for v in (found, wanted))
    assert np.array_equal(found, wanted, equal_nan=True), narrow


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("number", "kind"), [(2, "uint8"), (3, "int8"), (4, "uint16"),
                                              (5, "int16"), (6, "int32"), (7, "int64"),
                                              (9, "bool")])  # fmt: skip
def test_floats_as_whole_numbers(number: int, kind: str, target: str) -> None:
    """NaN, infinities and what is too large too, as ONNX Runtime has them on x86."""
    special = [NAN, np.inf, -np.inf, 300.7, -1.9, 3e9, -3e9, 1e19, 70000, -200, 255.5, 0.5, 2.5]
    x = np.array([*special, -0.5, 128.0, 127.6, -0.0, 1e-40] * 2, np.float32)
    text = f"(float[36] x) => ({kind}[36] y) {{ y = Cast<to = {number}>(x) }}"
    model = read(text)
    assert not refusals(model)
    wanted = run_session(open_session(model, threads=1, optimize=False), {"x": x})["y"]
    assert np.array_equal(run_native(model, {"x": x}, target, "fp32")["y"], wanted)


# Pools ----------------------------------------------------------------------------------------


@st.composite
def pools(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a pool of one or two dimensions whose result is not empty."""
    rank = draw(st.sampled_from([1, 2, 2]))
    sizes, kernel, strides, dilations, pads, result = [], [], [], [], [], []
    mode = draw(st.sampled_from(["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    ceil = draw(st.booleans())
    for _ in range(rank):
        length, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 3))
        stride = draw(st.integers(1, 4))
        if mode.startswith("SAME"):
            dilation, stride = 1, min(stride, length)
        reach = (length - 1) * dilation + 1
        before, after = (
            draw(st.integers(0, length - 1)) if mode == "NOTSET" else 0 for _ in range(2)
        )
        size = draw(st.integers(max(1, reach - before - after), 13))
        if mode.startswith("SAME"):
            places = -(-size // stride)
            total = max(0, (places - 1) * stride + reach - size)
            before = total // 2 if mode == "SAME_UPPER" else total - total // 2
            after = total - before
        else:
            room = size + before + after - reach
            places = (-(-room // stride) if ceil else room // stride) + 1
            places -= (places - 1) * stride >= size + before
        for where, value in zip(
            (sizes, kernel, strides, dilations, pads, result),
            (size, length, stride, dilation, (before, after), places), strict=True,
        ):  # fmt: skip
            where.append(value)
    return {
        "mode": mode, "ceil": ceil, "size": sizes, "kernel": kernel, "strides": strides,
        "dilations": dilations, "pads": pads, "result": result,
        "channels": draw(st.integers(1, 36)), "whole": draw(st.booleans()),
        "is_max": draw(st.booleans()),
    }  # fmt: skip


def literal_pool(case: dict[str, Any], x: Array) -> Array:
    """Return every window of the standard's definition in float64."""
    padded = np.pad(
        x.astype(np.float64), [(0, 0), (0, 0), *case["pads"]], constant_values=NAN
    )  # fmt: skip
    result = np.zeros((*x.shape[:2], *case["result"]))
    for at in np.ndindex(*case["result"]):
        window = padded[
            :, :,
            *(
                slice(i * stride, i * stride + (length - 1) * dilation + 1, dilation)
                for i, stride, length, dilation in zip(
                    at, case["strides"], case["kernel"], case["dilations"], strict=True
                )
            ),
        ].reshape(*x.shape[:2], -1)  # fmt: skip
        inside = ~np.isnan(window)
        if case["is_max"]:
            found = np.where(inside, window, -np.inf).max(-1)
        else:
            count = window.shape[-1] if case["whole"] else inside.sum(-1)
            found = np.where(inside, window, 0).sum(-1) / count
        result[(slice(None), slice(None), *at)] = found
    return result


@settings(EXAMPLES, max_examples=40)
@given(case=pools(), way=st.sampled_from(WAYS))
def test_pools_by_their_definition(case: dict[str, Any], way: tuple[str, str]) -> None:
    shape, result = (
        ",".join(map(str, (2, case["channels"], *case[name]))) for name in ("size", "result")
    )
    attributes = [
        f"{name} = {case[key]}"
        for name, key in (("kernel_shape", "kernel"), ("strides", "strides"))
    ]
    attributes.append(f"dilations = {case['dilations']}")
    attributes.append(f"ceil_mode = {int(case['ceil'])}")
    if case["mode"] == "NOTSET":
        ends = [pair[side] for side in (0, 1) for pair in case["pads"]]
        attributes.append(f"pads = {ends}")
    else:
        attributes.append(f'auto_pad = "{case["mode"]}"')
    if not case["is_max"]:
        attributes.append(f"count_include_pad = {int(case['whole'])}")
    operator = "MaxPool" if case["is_max"] else "AveragePool"
    text = f"""(float[{shape}] x) => (float[{result}] y) {{
        t = Neg(x)
        y = {operator}<{", ".join(attributes)}>(t)
    }}"""
    x = np.random.default_rng(1).standard_normal((2, case["channels"], *case["size"]))
    x = (x + 0.5).astype(ml_dtypes.bfloat16).astype(np.float32)
    tolerance = 5e-6 if way[1] == "fp32" else 1e-2
    found = one(text, x, way, opset=19)
    np.testing.assert_allclose(found, literal_pool(case, -x), rtol=tolerance, atol=tolerance)
