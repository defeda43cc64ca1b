"""Convolutions in groups: which are depthwise, which share vectors, which are products."""

from __future__ import annotations

import numpy as np
import pytest

from float_graphs import families
from kernels import TARGETS
from native_text import differences, normal, read


def model_of(channels: int, outputs: int, group: int, window: str = "", kernel: int = 3):  # type: ignore[no-untyped-def]
    w = normal(outputs, channels // group, kernel, kernel, seed=1)
    window = window or f"pads = [{', '.join([str(kernel // 2)] * 4)}]"
    return read(
        f"""(float[1,{channels},8,9] x, float[{outputs},{channels // group},{kernel},{kernel}] w,
            float[{outputs}] b) => (float[1,{outputs},h,v] y) {{
            c = Conv<group = {group}, {window}>(x, w, b)
            y = Relu(c)
        }}""",
        w=w,
        b=normal(outputs, seed=2),
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("channels", "outputs", "group", "family"),
    [
        (37, 37, 37, "depthwise"),
        (300, 300, 300, "depthwise"),
        (8, 16, 8, "grouped"),  # two results for each channel
        (100, 200, 100, "grouped"),
        (64, 64, 16, "grouped"),
        (18, 18, 9, "grouped"),
        (27, 18, 9, "product"),
        (12, 12, 3, "grouped"),
        (128, 128, 4, "product"),
        (64, 64, 2, "product"),
    ],
)
def test_groups(channels: int, outputs: int, group: int, family: str, target: str) -> None:
    model = model_of(channels, outputs, group)
    assert differences(model, {"x": normal(1, channels, 8, 9)}, target)["y"] < 4e-6
    count = families(model, target).count(family)
    assert count == 1


def test_groups_are_as_many_as_they_like() -> None:
    model = model_of(130 * 12, 130 * 12, 130, kernel=1)
    assert differences(model, {"x": normal(1, 130 * 12, 8, 9)})["y"] < 4e-6


def test_several_pictures_are_one_product_a_group() -> None:
    w = normal(64, 32, 3, 3, seed=1)
    model = read(
        """(float[2,64,5,6] x, float[64,32,3,3] w) => (float[2,64,5,6] y) {
            y = Conv<group = 2, pads = [1, 1, 1, 1]>(x, w)
        }""",
        w=w,
    )
    assert families(model).count("product") == 2
    assert differences(model, {"x": normal(2, 64, 5, 6)})["y"] < 4e-6


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("kernel", "window"),
    [
        (7, ""),
        (13, ""),  # longer than the picture: taps and lines that only border pixels would read
        (9, "strides = [2, 2], pads = [4, 3, 4, 5]"),
        (6, "dilations = [2, 1], pads = [5, 3, 5, 2]"),
    ],
)
def test_large_depthwise_kernels(kernel: int, window: str, target: str) -> None:
    model = model_of(37, 37, 37, window, kernel)
    assert "depthwise" in families(model, target)
    assert differences(model, {"x": normal(1, 37, 8, 9)}, target)["y"] < 4e-6


def test_a_number_for_all_channels_is_an_operand_of_every_group() -> None:
    w = normal(6, 2, 1, 1, seed=1)
    model = read(
        """(float[1,6,4,5] x, float[6,2,1,1] w, float[1,1,4,5] m) => (float[1,6,4,5] y) {
            c = Conv<group = 3>(x, w)
            y = Mul(c, m)
        }""",
        w=w,
    )
    inputs = {"x": normal(1, 6, 4, 5), "m": np.abs(normal(1, 1, 4, 5, seed=2))}
    assert differences(model, inputs)["y"] < 4e-6
