"""Transposed convolutions: phases cover the output once, and equal ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import TARGETS
from native_text import differences, normal, read, refusals
from vermilion.codegen.lower.transposed import phases


@settings(max_examples=200, deadline=None)
@given(
    stride=st.integers(1, 4), extra=st.integers(0, 3), pad=st.integers(0, 3),
    source=st.integers(1, 9), more=st.integers(0, 2),
)  # fmt: skip
def test_phases_read_what_the_definition_says(
    stride: int, extra: int, pad: int, source: int, more: int
) -> None:
    kernel = stride + extra
    target = (source - 1) * stride + kernel - 2 * pad + more
    if target < 1:
        return
    seen: dict[int, set[tuple[int, int]]] = {}
    for phase in phases(stride, kernel, pad, source, target):
        for number in range(phase.count):
            read_at = {(number - phase.before + step, tap) for step, tap in enumerate(phase.taps)}
            seen[phase.start + number * stride] = {
                (at, tap) for at, tap in read_at if 0 <= at < source
            }
            assert all(-phase.before <= at < source + max(0, phase.after) for at, _ in read_at)
    wanted = {
        out: {
            (at, tap)
            for at in range(source)
            for tap in range(kernel)
            if at * stride + tap - pad == out
        }
        for out in range(target)
    }
    assert seen == wanted


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("channels", "kernel", "attributes", "result"),
    [
        ((3, 20), (2, 2), "strides = [2, 2]", (12, 14)),
        ((16, 5), (3, 3), "strides = [2, 2], pads = [1, 1, 1, 1]", (11, 13)),
        ((7, 33), (4, 3), "strides = [3, 2], pads = [0, 1, 1, 0]", (18, 14)),
        ((2, 1), (3, 3), "strides = [1, 1]", (8, 9)),
        ((1, 2), (3, 3), "strides = [3, 2], pads = [1, 2, 1, 2]", (16, 11)),
        ((1, 2), (5, 4), "strides = [1, 1], pads = [4, 3, 4, 3]", (2, 4)),
        ((9, 4), (3, 3), "strides = [2, 2], output_padding = [1, 1]", (14, 16)),
        ((9, 4), (3, 3), "strides = [2, 2], output_shape = [12, 14]", (12, 14)),
        ((2, 3), (4, 4), "strides = [1, 1], output_shape = [6, 8]", (6, 8)),
        ((2, 3), (4, 3), "strides = [2, 3], output_shape = [11, 18]", (11, 18)),
        ((2, 3), (1, 2), "strides = [1, 2]", (6, 14)),
        # The first pixels are only read by what the pads cut off.
        ((2, 3), (2, 3), "strides = [2, 1], pads = [1, 2, 0, 1]", (11, 6)),
        ((2, 3), (2, 2), "pads = [3, 2, 2, 1]", (2, 5)),
    ],
)
def test_convolutions(
    channels: tuple[int, int], kernel: tuple[int, int], attributes: str,
    result: tuple[int, int], target: str,
) -> None:  # fmt: skip
    c, o = channels
    w, b, r = normal(c, o, *kernel, seed=1), normal(o, seed=2), normal(1, o, *result, seed=3)
    model = read(
        f"""(float[1,{c},6,7] x, float[{c},{o},{kernel[0]},{kernel[1]}] w, float[{o}] b,
            float[1,{o},{result[0]},{result[1]}] r) => (float[1,{o},{result[0]},{result[1]}] y) {{
            t = ConvTranspose<{attributes}>(x, w, b)
            a = Add(t, r)
            y = Relu(a)
        }}""",
        w=w,
        b=b,
    )
    assert differences(model, {"x": normal(1, c, 6, 7), "r": r}, target)["y"] < 4e-6


@pytest.mark.parametrize(
    ("attributes", "shape", "reason"),
    [
        ("strides = [3, 3]", (4, 3, 2, 2), "ConvTranspose that leaves holes between its results"),
        ('auto_pad = "SAME_UPPER"', (4, 3, 2, 2), "ConvTranspose with auto_pad"),
    ],
)
def test_what_is_refused(attributes: str, shape: tuple[int, ...], reason: str) -> None:
    stride = int(attributes.split("[")[1][0]) if "[" in attributes else 1
    size = 5 if "auto" in attributes else 4 * stride + 2
    model = read(
        f"""(float[1,4,5,5] x, float[{",".join(map(str, shape))}] w)
            => (float[1,3,{size},{size}] y) {{
            y = ConvTranspose<{attributes}>(x, w)
        }}""",
        w=np.ones(shape, np.float32),
    )
    assert refusals(model) == [reason]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("channels", "outputs", "kernel", "attributes"),
    [
        (40, 40, (4, 4), "strides = [2, 2], pads = [1, 1, 1, 1], group = 40"),
        (12, 4, (3, 4), "strides = [2, 3], group = 3"),
        (48, 24, (2, 2), "strides = [2, 2], group = 2"),
        (6, 5, (3, 4), "dilations = [2, 3], pads = [1, 0, 2, 3]"),
        (6, 5, (3, 3), "strides = [2, 2], dilations = [3, 1], output_padding = [1, 0]"),
        (20, 7, (4,), "strides = [2], pads = [1, 1]"),
        (20, 20, (16,), "strides = [8], pads = [4, 4], group = 20"),
        (16, 8, (5,), "strides = [3], dilations = [2], group = 4"),
    ],
)
def test_groups_dilations_and_signals(
    channels: int, outputs: int, kernel: tuple[int, ...], attributes: str, target: str
) -> None:
    group = int(attributes.partition("group = ")[2] or 1)
    size = (6, 7)[: len(kernel)]
    w = normal(channels, outputs // group if group > 1 else outputs, *kernel, seed=1)
    result = ",".join(["1", str(w.shape[1] * group), *"hw"[: len(kernel)]])
    model = read(
        f"""(float[{",".join(map(str, (1, channels, *size)))}] x,
            float[{",".join(map(str, w.shape))}] w, float[{w.shape[1] * group}] b)
            => (float[{result}] y) {{
            t = ConvTranspose<{attributes}>(x, w, b)
            y = Relu(t)
        }}""",
        w=w,
        b=normal(w.shape[1] * group, seed=2),
    )
    assert differences(model, {"x": normal(1, channels, *size)}, target)["y"] < 4e-6
