"""Pools and reductions as nodes: padding rules, rows of pixels, axes in every spelling."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import TARGETS
from native_text import differences, normal, read, refusals

POOLS = {
    "same upper": ("MaxPool", 'kernel_shape = [3, 3], strides = [2, 2], auto_pad = "SAME_UPPER"',
                   (2, 19, 8, 7), (2, 19, 4, 4)),
    "same lower": ("AveragePool", 'kernel_shape = [2, 2], auto_pad = "SAME_LOWER"',
                   (1, 5, 6, 5), (1, 5, 6, 5)),
    "valid": ("MaxPool", 'kernel_shape = [3, 2], auto_pad = "VALID"', (1, 16, 6, 5), (1, 16, 4, 4)),
    "ceil": ("MaxPool", "kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1",
             (1, 4, 6, 6), (1, 4, 3, 3)),
    "ceil over less than a window": ("MaxPool", "kernel_shape = [3, 3], strides = [3, 3], "
                                     "ceil_mode = 1", (1, 4, 1, 7), (1, 4, 1, 3)),
    "ceil of an average over less": ("AveragePool", "kernel_shape = [3, 3], strides = [3, 3], "
                                     "ceil_mode = 1", (1, 4, 2, 7), (1, 4, 1, 3)),
    "ceil of an average": ("AveragePool",
                           "kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1, pads = "
                           "[1, 1, 1, 1]", (1, 4, 6, 6), (1, 4, 4, 4)),
    "dilated": ("MaxPool", "kernel_shape = [2, 2], dilations = [2, 3]", (1, 4, 7, 7), (1, 4, 5, 4)),
    "a row": ("MaxPool", "kernel_shape = [3], strides = [2], pads = [1, 0]", (2, 9, 12), (2, 9, 6)),
    "the average of a row": ("AveragePool", "kernel_shape = [4], pads = [2, 1], "
                             "count_include_pad = 1", (1, 33, 10), (1, 33, 10)),
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", POOLS)
def test_pools(name: str, target: str) -> None:
    operator, attributes, shape, result = POOLS[name]
    model = read(
        f"""(float[{",".join(map(str, shape))}] x) => (float[{",".join(map(str, result))}] y) {{
            y = {operator}<{attributes}>(x)
        }}"""
    )
    assert differences(model, {"x": normal(*shape)}, target)["y"] < 1e-6


@pytest.mark.parametrize("operator", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("is_last", [False, True], ids=["planes", "channels last"])
def test_whole_images(operator: str, is_last: bool) -> None:
    shape = (2, 5, 7, 35) if is_last else (2, 35, 5, 7)
    source = "t = Transpose<perm = [0, 3, 1, 2]>(x)" if is_last else "t = Abs(x)"
    model = read(
        f"""(float[{",".join(map(str, shape))}] x) => (float[2,35,1,1] y) {{
            {source}
            y = {operator}(t)
        }}"""
    )
    assert differences(model, {"x": normal(*shape) + 2})["y"] < 2e-6


# An attribute cannot be an empty list.
@pytest.mark.parametrize(
    ("opset", "axes"),
    [(17, None), (17, [1]), (17, [-1, 0]), (18, None), (18, []), (18, [1]), (18, [-1, 0])],
)
def test_axes_as_attribute_or_input(axes: list[int] | None, opset: int) -> None:
    whole = (3, 4, 5)
    gone = [0, 1, 2] if not axes else [a % 3 for a in axes]
    result = ",".join("1" if i in gone else str(n) for i, n in enumerate(whole))
    if opset == 17:
        words = "" if axes is None else f"<axes = {axes}>"
        model = read(f"(float[3,4,5] x) => (float[{result}] y) {{ y = ReduceMean{words}(x) }}")
    else:
        given = {} if axes is None else {"a": np.array(axes, np.int64)}
        declared = "" if axes is None else f", int64[{len(axes)}] a"
        model = read(
            f"""(float[3,4,5] x{declared}) => (float[{result}] y) {{
                y = ReduceMean(x{", a" if given else ""})
            }}""",
            opset,
            **given,
        )
    assert differences(model, {"x": normal(*whole) + 2})["y"] < 1e-6


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(float[1,2,4,4] x) => (float[1,2,3,3] y, int64[1,2,3,3] i) "
         "{ y, i = MaxPool<kernel_shape = [2, 2]>(x) }", "MaxPool that also gives indices"),
        ("(float[1,2,4,4,4] x) => (float[1,2,3,3,3] y) "
         "{ y = MaxPool<kernel_shape = [2, 2, 2]>(x) }", "MaxPool that is not over images"),
        ("(int32[3] x) => (int32[1] y) { y = ReduceMax(x) }", "ReduceMax of integers"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, reason: str) -> None:
    assert refusals(read(text)) == [reason]


def test_a_window_with_no_pixel_in_it_gives_zero() -> None:
    attributes = "kernel_shape = [2,3], dilations = [3,1], strides = [3,2], pads = [1,1,1,1]"
    text = f"(float[1,3,2,9] x) => (float[1,3,1,5] y) {{ y = AveragePool<{attributes}> (x) }}"
    assert differences(read(text, 22), {"x": normal(1, 3, 2, 9)}) == {"y": 0.0}
