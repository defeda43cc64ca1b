"""Resize as a node: every mode, rule of coordinates and rounding that is taken."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import TARGETS
from native_text import differences, normal, read, refusals

MODES = (
    "nearest", 'nearest", nearest_mode = "floor', 'nearest", nearest_mode = "ceil',
    'nearest", nearest_mode = "round_prefer_ceil', "linear", "cubic",

)  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("scales", [(2.0, 2.0), (0.5, 1.5), (3.0, 0.6), (1.0, 1.0)])
@pytest.mark.parametrize("rule", ["half_pixel", "asymmetric", "pytorch_half_pixel"])
@pytest.mark.parametrize("mode", MODES[:6])
def test_factors(mode: str, rule: str, scales: tuple[float, float], target: str) -> None:
    result = [int(n * s) for n, s in zip((8, 10), scales, strict=True)]
    model = read(
        f"""(float[2,19,8,10] x, float[4] s) => (float[2,19,{result[0]},{result[1]}] y) {{
            y = Resize<mode = "{mode}", coordinate_transformation_mode = "{rule}">(x, , s)
        }}""",
        s=np.array([1, 1, *scales], np.float32),
    )
    assert differences(model, {"x": normal(2, 19, 8, 10)}, target)["y"] < 4e-6


@pytest.mark.parametrize("rule", ["align_corners", "half_pixel"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_sizes(mode: str, rule: str) -> None:
    model = read(
        f"""(float[1,4,5,7] x, int64[4] z) => (float[1,4,9,3] y) {{
            y = Resize<mode = "{mode}", coordinate_transformation_mode = "{rule}">(x, , , z)
        }}""",
        z=np.array([1, 4, 9, 3]),
    )
    assert differences(model, {"x": normal(1, 4, 5, 7)})["y"] < 4e-6


def test_axes_in_another_order() -> None:
    model = read(
        """(float[1,4,6,5] x, float[2] s) => (float[1,4,18,10] y) {
            y = Resize<mode = "linear", axes = [3, 2]>(x, , s)
        }""",
        18,
        s=np.array([2, 3], np.float32),
    )
    assert differences(model, {"x": normal(1, 4, 6, 5)})["y"] < 4e-6


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ('coordinate_transformation_mode = "tf_crop_and_resize"', "Resize with crop"),
        ('mode = "linear", coordinate_transformation_mode = "align_corners"',
         "Resize with aligned corners to a size that is rounded"),
    ],
)  # fmt: skip
def test_what_is_refused(attributes: str, reason: str) -> None:
    model = read(
        f"""(float[1,2,5,5] x, float[8] r, float[4] s) => (float[1,2,3,3] y) {{
            y = Resize<{attributes}>(x, r, s)
        }}""",
        r=np.zeros(8, np.float32),
        s=np.array([1, 1, 0.7, 0.7], np.float32),
    )
    assert refusals(model) == [reason]


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_integers_are_not_mixed(mode: str) -> None:
    text = f"""(uint8[1,2,5,5] x, float[4] s) => (uint8[1,2,10,10] y) {{
        y = Resize<mode = "{mode}">(x, , s)
    }}"""
    model = read(text, s=np.array([1, 1, 2, 2], np.float32))
    assert refusals(model) == [f"Resize of integers with mode {mode}"]
