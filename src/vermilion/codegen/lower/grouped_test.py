"""Convolutions in groups: which become depthwise kernels, which one product a group."""

from __future__ import annotations

import numpy as np
import pytest

from float_graphs import families
from native_text import differences, normal, read, refusals


def model_of(channels: int, outputs: int, group: int):  # type: ignore[no-untyped-def]
    w = normal(outputs, channels // group, 3, 3, seed=1)
    return read(
        f"""(float[1,{channels},8,9] x, float[{outputs},{channels // group},3,3] w,
            float[{outputs}] b, float[1,{outputs},8,9] r) => (float[1,{outputs},8,9] y) {{
            c = Conv<group = {group}, pads = [1, 1, 1, 1]>(x, w, b)
            y = Add(c, r)
        }}""",
        w=w,
        b=normal(outputs, seed=2),
    )


@pytest.mark.parametrize("target", ["cpu", "x86-64-v3"])
@pytest.mark.parametrize(
    ("channels", "outputs", "group", "family"),
    [
        (37, 37, 37, "depthwise"),
        (300, 300, 300, "depthwise"),
        (8, 16, 8, "product"),  # two results for each channel
        (12, 20, 4, "product"),
        (64, 64, 2, "product"),
    ],
)
def test_groups(channels: int, outputs: int, group: int, family: str, target: str) -> None:
    model = model_of(channels, outputs, group)
    inputs = {"x": normal(1, channels, 8, 9), "r": normal(1, outputs, 8, 9, seed=3)}
    assert differences(model, inputs, target)["y"] < 4e-6
    count = families(model).count(family)
    assert count == (1 if family == "depthwise" else group)


def test_many_groups_are_refused() -> None:
    assert refusals(model_of(256, 256, 128)) == ["Conv in 128 groups of several channels"]
    reason = "depthwise Conv that gives 2 channels for each"
    assert refusals(model_of(100, 200, 100)) == [reason]


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
