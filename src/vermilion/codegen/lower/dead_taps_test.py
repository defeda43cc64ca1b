"""Taps that only read the border: cut off, equal to ONNX Runtime, and left where they matter."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from float_graphs import steps
from kernels import TARGETS
from native_text import differences, normal, read
from vermilion.codegen.emit.product import ProductSpec
from vermilion.codegen.lower.dead_taps import drop_dead_taps
from vermilion.ir.opset import static_shape


def model_of(window: str, kernel: tuple[int, ...], size: tuple[int, ...], w=None):  # type: ignore[no-untyped-def]
    shape = ",".join(map(str, (1, 20, *size)))
    weights = normal(24, 20, *kernel, seed=1) if w is None else w
    return read(
        f"""(float[{shape}] x, float[{",".join(map(str, weights.shape))}] w, float[24] b)
            => (float[{",".join(["1", "24", *(f"s{n}" for n in range(len(size)))])}] y) {{
            c = Conv<{window}>(x, w, b)
            y = Relu(c)
        }}""",
        w=weights,
        b=normal(24, seed=2),
    )


def kernel_of(model: ir.Model) -> tuple[int, ...]:
    conv = next(node for node in drop_dead_taps(model).graph if node.op_type == "Conv")
    shape = static_shape(conv.inputs[1])
    assert shape is not None
    return shape[2:]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("window", "kernel", "size", "left"),
    [
        ("dilations = [24, 24], pads = [24, 24, 24, 24]", (3, 3), (20, 20), (1, 1)),
        ("dilations = [12, 9], pads = [12, 9, 12, 9]", (3, 3), (20, 9), (3, 1)),
        ("pads = [16, 16]", (33,), (9,), (17,)),
        ("pads = [1, 1, 1, 1]", (3, 3), (1, 7), (1, 3)),
        ("strides = [2, 2], pads = [5, 5, 5, 5]", (11, 11), (4, 4), (6, 6)),
        ('auto_pad = "SAME_UPPER"', (11, 2), (4, 6), (7, 2)),
        ("pads = [6, 0, 0, 6]", (7, 7), (7, 7), (7, 7)),
    ],
)
def test_results_are_those_of_the_whole_kernel(
    window: str, kernel: tuple[int, ...], size: tuple[int, ...], left: tuple[int, ...], target: str
) -> None:
    model = model_of(window, kernel, size)
    before = model.graph.num_nodes()
    assert kernel_of(model) == left
    assert model.graph.num_nodes() == before
    assert differences(model, {"x": normal(1, 20, *size)}, target)["y"] < 4e-6


def test_a_weight_that_is_not_finite_stays() -> None:
    w = normal(24, 20, 3, 3)
    w[3, 4, 0, 0] = np.inf
    window = "dilations = [9, 9], pads = [9, 9, 9, 9]"
    assert kernel_of(model_of(window, (3, 3), (9, 9), w)) == (3, 3)
    assert kernel_of(model_of(window, (3, 3), (9, 9))) == (1, 1)


@pytest.mark.parametrize(
    ("window", "size"),
    [
        ("dilations = [6, 6], pads = [6, 6, 6, 6]", (10, 10)),
        ("dilations = [6, 6], pads = [6, 6, 6, 6], strides = [2, 1]", (13, 15)),
        ("dilations = [1, 7], pads = [1, 7, 1, 7]", (7, 12)),
    ],
)
@pytest.mark.parametrize("target", TARGETS)
def test_patches_leave_out_taps_in_the_border(
    window: str, size: tuple[int, int], target: str
) -> None:
    model = model_of(window, (3, 3), size)
    spec = next(s.spec for s in steps(model, target) if isinstance(s.spec, ProductSpec))
    assert spec.window_x is not None
    assert differences(model, {"x": normal(1, 20, *size)}, target)["y"] < 4e-6


def test_long_kernels_on_short_signals() -> None:
    model = model_of("pads = [20, 20]", (41,), (30,))
    spec = next(s.spec for s in steps(model) if isinstance(s.spec, ProductSpec))
    assert spec.window_x is not None
    assert differences(model, {"x": normal(1, 20, 30)})["y"] < 4e-6
