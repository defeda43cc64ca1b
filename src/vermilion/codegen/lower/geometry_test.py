"""Attributes of convolutions made explicit, and tensors seen as images."""

from __future__ import annotations

import numpy as np
import pytest

from native_text import read
from vermilion.codegen.lower.geometry import as_image, conv_geometry, pads_of
from vermilion.codegen.tensor import allocate
from vermilion.ir.attributes import window_of


def conv(attributes: str, size: tuple[int, ...], kernel: tuple[int, ...]):  # type: ignore[no-untyped-def]
    dims = ",".join(map(str, (1, 2, *size)))
    weights = np.ones((3, 2, *kernel), np.float32)
    shape = ",".join(map(str, weights.shape))
    names = ",".join("abc"[: len(size)])
    model = read(
        f"(float[{dims}] x, float[{shape}] w) => (float[1,3,{names}] y) "
        f"{{ y = Conv<{attributes}>(x, w) }}",
        w=weights,
    )
    return next(node for node in model.graph if node.op_type == "Conv")


def test_defaults() -> None:
    geometry = conv_geometry(conv("group = 1", (5, 6), (3, 2)))
    assert (geometry.kernel, geometry.strides, geometry.dilations) == ((3, 2), (1, 1), (1, 1))
    assert geometry.border.is_empty


def test_a_row_has_a_height_of_one() -> None:
    geometry = conv_geometry(conv("pads = [2, 1], strides = [3], dilations = [2]", (9,), (4,)))
    assert (geometry.kernel, geometry.strides, geometry.dilations) == ((1, 4), (1, 3), (1, 2))
    assert geometry.pads == (0, 2, 0, 1)


@pytest.mark.parametrize(
    ("mode", "size", "kernel", "stride", "pads"),
    [
        ("SAME_UPPER", 7, 3, 2, (1, 1)),
        ("SAME_UPPER", 8, 3, 2, (0, 1)),
        ("SAME_LOWER", 8, 3, 2, (1, 0)),
        ("SAME_UPPER", 5, 2, 1, (0, 1)),
        ("SAME_UPPER", 9, 1, 4, (0, 0)),
        ("VALID", 9, 3, 1, (0, 0)),
    ],
)
def test_padding_that_is_worked_out(
    mode: str, size: int, kernel: int, stride: int, pads: tuple[int, int]
) -> None:
    node = conv(f'auto_pad = "{mode}", strides = [{stride}]', (size,), (kernel,))
    assert pads_of(node, window_of(node, [kernel])) == pads


def test_rows_of_pixels_are_images() -> None:
    view = as_image(allocate("x", "f32", (2, 3, 5), (0, 2, 1)))
    assert (view.shape, view.strides) == ((2, 3, 1, 5), (15, 1, 0, 3))
    image = allocate("x", "f32", (2, 3, 4, 5))
    assert as_image(image) == image
