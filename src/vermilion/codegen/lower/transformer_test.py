"""Softmax, layer norms and gathers run natively and equal ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from float_graphs import TOLERANCE, WAYS, Array, error_of, families, graph, node, run_native
from kernels import TARGETS
from native_text import read
from vermilion.errors import UnsupportedError

ALL_WAYS = pytest.mark.parametrize("way", WAYS, ids="-".join)


def normal(shape: tuple[int, ...], seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@ALL_WAYS
@pytest.mark.parametrize("shape", [(7,), (3, 33), (2, 3, 67), (1, 1), (4, 1000)], ids=str)
def test_softmax_over_each_axis(shape: tuple[int, ...], way: tuple[str, str]) -> None:
    x = 3 * normal(shape)
    for axis in range(-len(shape), 0):
        for op_type in ("Softmax", "LogSoftmax"):
            model = graph([node(op_type, "x", "y", axis=axis)], {"x": x}, shape)
            assert error_of(model, {"x": x}, *way) < TOLERANCE[way[1]]


@pytest.mark.parametrize("axis", range(4))
@pytest.mark.parametrize("order", [(0, 2, 3, 1), (0, 3, 1, 2)], ids=str)
def test_softmax_of_any_layout(order: tuple[int, ...], axis: int) -> None:
    x = normal((2, 3, 4, 35))
    shape = tuple(x.shape[at] for at in order)
    nodes = [node("Transpose", "x", "t", perm=order), node("Softmax", "t", "y", axis=axis)]
    model = graph(nodes, {"x": x}, shape)
    assert error_of(model, {"x": x}, "cpu", "fp32") < TOLERANCE["fp32"]


@pytest.mark.parametrize("target", TARGETS)
def test_softmax_of_what_is_masked_out(target: str) -> None:
    x = normal((4, 20))
    x[0, 3:] = -np.inf
    x[1] = -np.inf  # nothing is left: NaN, as the definition gives
    x[2, 5] = np.inf
    x[3, 7] = np.nan
    model = graph([node("Softmax", "x", "y", axis=-1)], {"x": x}, x.shape)
    assert error_of(model, {"x": x}, target, "fp32") < TOLERANCE["fp32"]


@ALL_WAYS
@pytest.mark.parametrize(
    "case",
    [((3, 33), -1), ((2, 5, 64), -2), ((2, 3, 4, 130), 2), ((4, 7), 0), ((1, 1, 768), 2)],
    ids=str,
)
def test_layer_norm(case: tuple[tuple[int, ...], int], way: tuple[str, str]) -> None:
    shape, axis = case
    x, inner = 2 * normal(shape) + 1, shape[axis:]
    scale, shift = normal(inner, 2), normal(inner, 3)
    norm: dict[str, Any] = {"axis": axis, "epsilon": 1e-5}
    for inputs, constants, names in (
        ({"x": x}, {"s": scale, "b": shift}, "x s b"),
        ({"x": x}, {"s": scale}, "x s"),
        ({"x": x, "s": scale, "b": shift}, {}, "x s b"),
    ):
        model = graph([node("LayerNormalization", names, "y", **norm)], inputs, shape, constants)
        assert error_of(model, inputs, *way) < TOLERANCE[way[1]]


@pytest.mark.parametrize(
    ("kind", "way"), [(np.int64, WAYS[0]), (np.int32, WAYS[1]), (np.int32, WAYS[-2])], ids=str
)
@pytest.mark.parametrize(
    "case",
    [
        ((30, 33), 0, (4,)), ((30, 33), 1, (4, 2)), ((2, 5, 64), 1, (3,)), ((5, 6), 0, ()),
        ((2, 3, 4, 13), 2, (2, 5)), ((7,), 0, (3,)), ((100, 768), 0, (1, 12)), ((5, 6), 1, (1, 1)),
    ],
    ids=str,
)  # fmt: skip
def test_gather(
    case: tuple[tuple[int, ...], int, tuple[int, ...]], kind: type, way: tuple[str, str]
) -> None:
    shape, axis, places = case
    x = normal(shape)
    index = np.random.default_rng(2).integers(-shape[axis], shape[axis], places).astype(kind)
    gather = [node("Gather", "x i", "y", axis=axis)]
    result = shape[:axis] + places + shape[axis + 1 :]
    for inputs, constants in (({"x": x, "i": index}, {}), ({"i": index}, {"x": x})):
        model = graph(gather, inputs, result, constants)
        assert error_of(model, inputs, *way) < TOLERANCE[way[1]]


@pytest.mark.parametrize("index", [9, 5, -6, -12])
def test_gather_never_reads_beyond_the_table(index: int) -> None:
    x, indices = normal((5, 8)), np.array([4, index, -5], np.int64)
    model = graph([node("Gather", "x i", "y", axis=0)], {"x": x, "i": indices}, (3, 8))
    with pytest.raises(UnsupportedError, match=rf"idx={index} must be within .* \[-5,4\]"):
        run_native(model, {"x": x, "i": indices}, "cpu", "fp32")


def test_gather_from_a_transposed_table() -> None:
    x, index = normal((33, 30)), np.array([3, -1, 7], np.int64)
    nodes = [node("Transpose", "x", "t", perm=[1, 0]), node("Gather", "t i", "y", axis=0)]
    inputs = {"x": x, "i": index}
    model = graph(nodes, inputs, (3, 33))
    assert families(model) == ["check", "gather"]
    assert error_of(model, inputs, "cpu", "fp32") < TOLERANCE["fp32"]


MASKS = {
    "added": "a = Sub (one, m) b = Mul (a, low) c = Unsqueeze (b, at) s = Add (x, c)",
    "chosen": "n = Equal (m, one) c = Where (n, m, low) d = Unsqueeze (c, at) s = Add (x, d)",
    "a constant": "a = Mul (x, one) s = Add (a, rows)",
}


@pytest.mark.parametrize("way", WAYS[1::2], ids="-".join)
@pytest.mark.parametrize("kind", MASKS)
def test_a_row_that_is_masked_throughout_is_no_row_of_infinities(
    kind: str, way: tuple[str, str]
) -> None:
    """-3.4e38 is a number in float32, and above the largest one of bfloat16."""
    low = np.finfo(np.float32).min
    mask = np.ones((2, 5), np.float32)
    mask[0] = 0.0
    text = f"(float[2,5] m, float[2,3,5] x, float low, float one, int64[1] at, float[2,1,5] rows) => (float[2,3,5] y) {{ {MASKS[kind]} y = Softmax (s) }}"  # noqa: E501
    constants = {
        "low": low, "one": np.array(1.0, np.float32), "at": np.array([1]),
        "rows": np.where(mask == 0, low, 0).astype(np.float32)[:, None],
    }  # fmt: skip
    model = read(text, **constants)
    x = normal((2, 3, 5))
    wanted = {value.name for value in model.graph.inputs}
    inputs = {name: array for name, array in {"m": mask, "x": x}.items() if name in wanted}
    got = run_native(model, inputs, *way)["y"]
    assert np.isfinite(got).all()
    assert error_of(model, inputs, *way) < TOLERANCE["bf16"]


def test_a_table_that_is_added_keeps_its_digits_in_bfloat16() -> None:
    """Positions of Swin v2 lie between 7.9 and 8.1, where bfloat16 has steps of 0.06."""
    table = (8.0 + 0.01 * np.arange(40, dtype=np.float32)).reshape(1, 40)
    text = "(float[4,40] x, float[1,40] t, float e) => (float[4,40] y) { s = Add (x, t) y = Sub (s, e) }"  # noqa: E501
    model = read(text, t=table, e=np.array(8.0, np.float32))
    x = np.zeros((4, 40), np.float32)
    assert error_of(model, {"x": x}, "cpu", "bf16") < 4e-3


def test_a_mean_keeps_its_digits_in_bfloat16() -> None:
    """Of two pixels that are 0.023 apart, three digits of their mean leave half of the distance."""
    text = """(float[1,1,1,2] x, float[1] s, float[1] b) => (float[1,1,1,2] y)
        { y = InstanceNormalization (x, s, b) }"""
    model = read(text, s=np.ones(1, np.float32), b=np.zeros(1, np.float32))
    x = np.array([-1.6328125, -1.609375], np.float32).reshape(1, 1, 1, 2)  # both are bfloat16
    assert error_of(model, {"x": x}, "cpu", "bf16") < TOLERANCE["bf16"]
