"""Generated code against ONNX Runtime over random shapes, strides, pads, broadcasts and layouts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from float_graphs import run_native
from native_text import differences, normal, read, refusals

Array = NDArray[Any]
Draw = st.DrawFn

# float32: sums of up to a thousand products, in another order than ONNX Runtime's.
TOLERANCE = 5e-6
TARGETS = st.sampled_from(["cpu", "zen3"])
EXAMPLES = settings(max_examples=15, deadline=None, derandomize=True)


def declared(**shapes: tuple[int, ...]) -> str:
    return ", ".join(f"float[{','.join(map(str, shape))}] {name}" for name, shape in shapes.items())


@st.composite
def convolutions(draw: Draw) -> dict[str, Any]:
    """Draw a two- or one-dimensional convolution whose result is not empty."""
    rank = draw(st.sampled_from([2, 2, 1]))
    group = draw(st.sampled_from([1, 1, 2, 3, "depthwise"]))
    per_group = (draw(st.integers(1, 20)), draw(st.integers(1, 40)))
    if group == "depthwise":
        group, per_group = draw(st.integers(1, 37)), (1, 1)
    kernel = [draw(st.integers(1, 4)) for _ in range(rank)]
    dilations = [draw(st.integers(1, 2)) for _ in range(rank)]
    pads = [draw(st.integers(0, 2)) for _ in range(2 * rank)]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    size = [
        draw(st.integers(max(1, r - pads[i] - pads[rank + i]), 14)) for i, r in enumerate(reach)
    ]
    return {
        "batch": draw(st.integers(1, 2)), "group": group, "inputs": per_group[0] * group,
        "outputs": per_group[1] * group, "kernel": kernel, "dilations": dilations, "pads": pads,
        "strides": [draw(st.integers(1, 3)) for _ in range(rank)], "size": size,
        "bias": draw(st.booleans()), "relu": draw(st.booleans()), "residual": draw(st.booleans()),
    }  # fmt: skip


@EXAMPLES
@given(case=convolutions(), target=TARGETS)
def test_convolutions(case: dict[str, Any], target: str) -> None:
    rank = len(case["size"])
    x = normal(case["batch"], case["inputs"], *case["size"])
    w = normal(case["outputs"], case["inputs"] // case["group"], *case["kernel"], seed=1)
    out = [
        (s + case["pads"][i] + case["pads"][rank + i] - (k - 1) * d - 1) // stride + 1
        for i, (s, k, d, stride) in enumerate(
            zip(case["size"], case["kernel"], case["dilations"], case["strides"], strict=True)
        )
    ]
    shape = (case["batch"], case["outputs"], *out)
    inputs, weights = {"x": x}, {"w": w}
    if case["bias"]:
        weights["b"] = normal(case["outputs"], seed=2)
    if case["residual"]:
        inputs["r"] = normal(*shape, seed=3)
    lines = [
        f"""c = Conv<group = {case["group"]}, kernel_shape = {case["kernel"]},
            dilations = {case["dilations"]}, pads = {case["pads"]}, strides = {case["strides"]}>
            (x, w{", b" if case["bias"] else ""})"""
    ]
    lines.append("d = Add(c, r)" if case["residual"] else "d = Identity(c)")
    lines.append("y = Relu(d)" if case["relu"] else "y = Neg(d)")
    given_names = {**inputs, **weights}
    text = f"""({declared(**{k: v.shape for k, v in given_names.items()})})
        => ({declared(y=shape)}) {{ {" ".join(lines)} }}"""
    model = read(text, **weights)
    assert differences(model, inputs, target)["y"] < TOLERANCE


@st.composite
def views(draw: Draw) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draw a shape and the order in which a Transpose gives it."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=5)))
    return shape, tuple(draw(st.permutations(range(len(shape)))))


@EXAMPLES
@given(view=views(), kept=st.lists(st.booleans(), min_size=5, max_size=5), target=TARGETS)
def test_elementwise_on_broadcasts_and_transposed_views(
    view: tuple[tuple[int, ...], tuple[int, ...]], kept: list[bool], target: str
) -> None:
    shape, order = view
    small = tuple(size if keep else 1 for size, keep in zip(shape, kept, strict=False))
    stored = tuple(small[axis] for axis in order)  # turned back by the inverse of the order
    back = [order.index(axis) for axis in range(len(shape))]
    inputs = {"a": normal(*shape), "b": normal(*stored, seed=1), "c": normal(shape[-1], seed=2)}
    text = f"""({declared(**{k: v.shape for k, v in inputs.items()})}) => ({declared(y=shape)}) {{
        t = Transpose<perm = {back}>(b)
        s = Sigmoid(t)
        m = Mul(a, s)
        n = Sub(m, c)
        y = Tanh(n)
    }}"""
    assert differences(read(text), inputs, target)["y"] < TOLERANCE


@EXAMPLES
@given(
    view=views(), data=st.data(), keep=st.booleans(), target=TARGETS,
    operation=st.sampled_from(["ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceL1"]),
)  # fmt: skip
def test_reductions_over_any_axes(
    view: tuple[tuple[int, ...], tuple[int, ...]], data: st.DataObject, keep: bool,
    target: str, operation: str,
) -> None:  # fmt: skip
    shape, order = view
    rank = len(shape)
    axes = sorted(data.draw(st.sets(st.integers(0, rank - 1), min_size=1), label="axes"))
    turned = [shape[axis] for axis in order]
    result = [1 if i in axes else n for i, n in enumerate(turned) if keep or i not in axes]
    text = f"""({declared(x=shape)}) => ({declared(y=tuple(result))}) {{
        t = Transpose<perm = {list(order)}>(x)
        y = {operation}<axes = {axes}, keepdims = {int(keep)}>(t)
    }}"""
    # Away from 0: a mean that nearly cancels says nothing of the sums.
    x = normal(*shape) + np.float32(3.0)
    assert differences(read(text), {"x": x}, target)["y"] < TOLERANCE


@EXAMPLES
@given(
    size=st.tuples(st.integers(3, 12), st.integers(3, 12)), channels=st.integers(1, 40),
    kernel=st.integers(1, 3), stride=st.integers(1, 3), pad=st.integers(0, 1),
    whole=st.booleans(), is_max=st.booleans(), target=TARGETS,
)  # fmt: skip
def test_pools(
    size: tuple[int, int], channels: int, kernel: int, stride: int, pad: int, whole: bool,
    is_max: bool, target: str,
) -> None:  # fmt: skip
    pad = min(pad, kernel - 1)
    out = tuple((s + 2 * pad - kernel) // stride + 1 for s in size)
    which = "MaxPool" if is_max else "AveragePool"
    extra = "" if is_max else f", count_include_pad = {int(whole)}"
    text = f"""({declared(x=(2, channels, *size))}) => ({declared(y=(2, channels, *out))}) {{
        y = {which}<kernel_shape = [{kernel}, {kernel}], strides = [{stride}, {stride}],
            pads = [{pad}, {pad}, {pad}, {pad}]{extra}>(x)
    }}"""
    assert differences(read(text), {"x": normal(2, channels, *size)}, target)["y"] < TOLERANCE


@EXAMPLES
@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4), data=st.data(), target=TARGETS,
    mode=st.sampled_from(["constant", "reflect", "edge"]), turned=st.booleans(),
)  # fmt: skip
def test_pads(shape: list[int], data: st.DataObject, target: str, mode: str, turned: bool) -> None:
    amounts: list[tuple[int, int]] = []
    for size in shape:
        low, high = (-(size // 3), size - 1 if mode == "reflect" else 4)
        before, after = (data.draw(st.integers(low, high)) for _ in range(2))
        if mode == "reflect":  # what is cut off is not reflected
            before, after = (max(0, a) for a in (before, after))
        amounts.append((before, after))
    result = tuple(size + sum(pair) for size, pair in zip(shape, amounts, strict=True))
    if min(result) <= 0:
        return
    pads = np.array([pair[0] for pair in amounts] + [pair[1] for pair in amounts])
    stored = tuple(shape[::-1]) if turned else tuple(shape)
    rank = len(shape)
    source = f"t = Transpose<perm = {list(range(rank))[::-1]}>(x)" if turned else "t = Neg(x)"
    text = f"""({declared(x=stored)}, int64[{2 * rank}] p, float v) => ({declared(y=result)}) {{
        {source}
        y = Pad<mode = "{mode}">(t, p, v)
    }}"""
    model = read(text, p=pads, v=np.float32(1.5))
    assert differences(model, {"x": normal(*stored)}, target)["y"] == 0.0


@EXAMPLES
@given(
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=3), data=st.data(), target=TARGETS,
    operation=st.sampled_from(["ArgMax", "ArgMin"]), last=st.booleans(), turned=st.booleans(),
)  # fmt: skip
def test_places_of_extremes(
    shape: list[int], data: st.DataObject, target: str, operation: str, last: bool, turned: bool
) -> None:
    rank = len(shape)
    axis = data.draw(st.integers(0, rank - 1), label="axis")
    seen = shape[::-1] if turned else shape
    result = tuple(1 if i == axis else n for i, n in enumerate(seen))
    order = list(range(rank))[::-1] if turned else list(range(rank))
    text = f"""({declared(x=tuple(shape))}) => (int64[{",".join(map(str, result))}] y) {{
        t = Transpose<perm = {order}>(x)
        y = {operation}<axis = {axis}, select_last_index = {int(last)}>(t)
    }}"""
    # Few different values, so that equal ones decide.
    x = np.round(normal(*shape) * 2)
    assert differences(read(text), {"x": x}, target)["y"] == 0.0


@pytest.mark.parametrize("target", ["cpu", "zen3"])
def test_any_number_of_workers_gives_the_same_run_after_run(target: str) -> None:
    """A small network with every family that splits its work."""
    weights = {
        "w1": normal(40, 3, 3, 3, seed=1), "w2": normal(40, 40, 3, 3, seed=2),
        "w3": normal(40, 1, 3, 3, seed=3), "w4": normal(40, 30, seed=4),
        "s": np.array([1.0, 1.0, 2.0, 2.0], np.float32),
    }  # fmt: skip
    text = f"""(float[2,3,40,40] x, {declared(**{k: v.shape for k, v in weights.items()})})
        => (float[2,30] y, float[2,40,40,40] z) {{
        a = Conv<pads = [1, 1, 1, 1]>(x, w1)
        b = Conv<pads = [1, 1, 1, 1]>(a, w2)
        c = Conv<pads = [1, 1, 1, 1], group = 40>(b, w3)
        d = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(c)
        z = Resize<mode = "linear">(d, , s)
        e = GlobalAveragePool(z)
        f = Flatten(e)
        g = MatMul(f, w4)
        y = Softmax<axis = -1>(g)
    }}"""
    model = read(text, **weights)
    assert not refusals(model)
    inputs = {"x": normal(2, 3, 40, 40)}
    one = run_native(model, inputs, target, "fp32", 1)
    assert math.isfinite(float(one["z"].sum()))
    for threads in (1, 2, 2, 4, 4):
        again = run_native(model, inputs, target, "fp32", threads)
        assert all(np.array_equal(again[name], one[name]) for name in one), f"{threads} workers"
