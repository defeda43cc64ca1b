"""The geometry of convolutions and pools, and images as kernels walk them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from vermilion.codegen.emit.walk import Access
from vermilion.codegen.lower.context import Border
from vermilion.codegen.tensor import View
from vermilion.ir.attributes import Window, integer, integers, window_of
from vermilion.ir.opset import static_shape


@dataclass(frozen=True)
class ConvGeometry:
    """The attributes of a two-dimensional convolution, all explicit."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int, int, int]  # top, left, bottom, right
    group: int

    @property
    def border(self) -> Border:
        """The border that its input needs."""
        top, left, bottom, right = self.pads
        return Border(top, left, bottom, right)

    def first_window(self, source: View) -> View:
        """Return an input from where its first window begins, which is in its border."""
        top, left, _, _ = self.pads
        return replace(
            source, offset=source.offset - top * source.strides[2] - left * source.strides[3]
        )


def conv_geometry(node: ir.Node) -> ConvGeometry:
    """Read a Conv's attributes; one-dimensional ones get a height of 1."""
    weights = static_shape(node.inputs[1])
    assert weights is not None, "a claimed Conv has constant weights"
    window = window_of(node, integers(node, "kernel_shape", weights[2:]))
    kernel, strides, dilations = window.kernel, window.strides, window.dilations
    pads, group = pads_of(node, window), integer(node, "group", 1)
    if len(kernel) == 1:
        return ConvGeometry(
            (1, kernel[0]), (1, strides[0]), (1, dilations[0]), (0, pads[0], 0, pads[1]), group
        )
    return ConvGeometry(
        (kernel[0], kernel[1]), (strides[0], strides[1]), (dilations[0], dilations[1]),
        (pads[0], pads[1], pads[2], pads[3]), group,
    )  # fmt: skip


def pads_of(node: ir.Node, window: Window) -> tuple[int, ...]:
    """Return begin and end padding of a node's input, `auto_pad` worked out."""
    return window.explicit_pads((static_shape(node.inputs[0]) or ())[2:])


def as_image(view: View) -> View:
    """Return a tensor of any rank as (N, C, H, W): leading dimensions become rows and columns."""
    shape, strides = list(view.shape), list(view.strides)
    if len(shape) == 3:  # (N, C, W): one row
        return replace(
            view,
            shape=(shape[0], shape[1], 1, shape[2]),
            strides=(strides[0], strides[1], 0, strides[2]),
        )
    return view


def as_rows(view: View, width: int) -> View:
    """Return a row-major tensor (…, width) as an image (1, width, 1, rows)."""
    rows = view.elements // width
    return replace(view, shape=(1, width, 1, rows), strides=(0, 1, 0, width))


def channels_last_order(rank: int) -> tuple[int, ...]:
    """Return the order of dimensions that has channels last, for images or rows of pixels."""
    return (0, 2, 3, 1) if rank == 4 else (0, 2, 1)


def access(view: View, output: View) -> Access:
    """Return how the epilogue walks a tensor that broadcasts to the output image."""
    wide = view.broadcast(output.shape)
    n, c, h, w = wide.strides
    assert c in (0, 1), "channels of an epilogue's operand lie side by side or repeat"
    return Access(view.storage, (n, h, w, c))


def conv_shape(node: ir.Node) -> tuple[int, int, int, int, int]:
    """Return images, rows, columns, channels in and out of a two-dimensional convolution."""
    data, result = static_shape(node.inputs[0]), static_shape(node.outputs[0])
    assert data is not None
    assert result is not None
    return result[0], result[2], result[3], data[1], result[1]
