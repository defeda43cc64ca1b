"""Which nodes the kernels compute, and how they walk over what they read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.ir.attributes import Window, integer, number, window_of
from vermilion.quantize.native_run.tensors import Border, Picture, Shape, pixels_of


@dataclass(frozen=True)
class Product:
    """A convolution or a matrix product with constant weights.

    `channelwise`, each channel of the source makes the channel of the result. Units: `run` and
    `taps` count numbers and places that a pixel of the result reads.
    """

    node: ir.Node
    channels: int
    taps: int
    run: int
    window: Window | None  # None: each pixel reads itself
    lengths: tuple[int, int]  # of the source: H, W
    channelwise: bool

    @property
    def source(self) -> str:
        """Name of the tensor that is read."""
        value = self.node.inputs[0]
        assert value is not None, "a product reads something"
        return str(value.name)

    @property
    def result(self) -> str:
        """Name of the node's own result."""
        return str(self.node.outputs[0].name)

    @property
    def border(self) -> Border:
        """What has to be around the source."""
        if self.window is None:
            return (0, 0, 0, 0)
        top, left, bottom, right = self.window.explicit_pads(self.lengths)
        return top, left, bottom, right

    def weights(self) -> NDArray[np.float32]:
        """Return (O, taps, run), in the order in which a pixel reads."""
        value = self.node.inputs[1]
        assert value is not None, "a product has weights"
        assert value.const_value is not None, "they are constant"
        weights: NDArray[np.float32] = value.const_value.numpy()
        if self.window is not None:
            last = weights.transpose(0, 2, 3, 1)
            return last.reshape(self.channels, self.taps, self.run)
        if not integer(self.node, "transB", 0):
            weights = weights.T
        alpha = np.float32(number(self.node, "alpha", 1.0))
        return (weights if alpha == 1.0 else weights * alpha)[:, None, :]

    def bias(self) -> NDArray[np.float32]:
        """Return (O,), zeros where the node has none."""
        value = self.node.inputs[2] if len(self.node.inputs) > 2 else None
        if value is None or value.const_value is None:
            return np.zeros(self.channels, np.float32)
        bias = value.const_value.numpy().reshape(-1) * np.float32(number(self.node, "beta", 1.0))
        return np.broadcast_to(bias, self.channels).astype(np.float32)

    def first_bytes(self, picture: Picture, shape: Shape) -> NDArray[np.int64]:
        """Return the byte at which each pixel of a result of this shape begins to read."""
        images, rows, columns, _ = pixels_of(shape)
        image, row, column = np.ogrid[:images, :rows, :columns]
        if self.window is not None:
            top, left = self.border[:2]
            row = row * self.window.strides[0] - top
            column = column * self.window.strides[1] - left
        return (2 * picture.element_at(image, row, column)).reshape(-1)

    def tap_bytes(self, picture: Picture) -> NDArray[np.int64]:
        """Return how far behind a pixel's first byte each run begins."""
        if self.window is None:
            return np.zeros(1, np.int64)
        _, _, width, channels = picture.shape
        rows, columns = self.window.kernel
        down, along = self.window.dilations
        taps = np.arange(rows)[:, None] * down * width
        if self.taps != rows:
            taps = taps + np.arange(columns) * along
        return taps.reshape(-1) * channels * 2


def product_of(node: ir.Node, shapes: Mapping[str, Shape]) -> Product | None:
    """Return `node` as a product, None where the kernels cannot compute it."""
    if node.domain not in ("", "ai.onnx") or node.op_type not in {"Conv", "Gemm", "MatMul"}:
        return None
    source, weight = node.inputs[:2]
    if source is None or source.const_value is not None or weight is None:
        return None
    if weight.const_value is None or weight.const_value.dtype != ir.DataType.FLOAT:
        return None
    shape, weights = shapes[str(source.name)], tuple(weight.const_value.shape.numpy())
    if node.op_type == "Conv":
        product = _convolution(node, weights, shape)
    else:
        product = _matrix(node, weights, shape)
    return product if product is not None and _has_plain_bias(product) else None


def _convolution(node: ir.Node, weights: Shape, shape: Shape) -> Product | None:
    groups = integer(node, "group", 1)
    if len(shape) != 4 or groups not in (1, shape[1]) or (groups > 1 and groups != weights[0]):
        return None
    channels, run, rows, columns = weights
    window = window_of(node, (rows, columns))
    lengths = (shape[2], shape[3])
    if groups > 1:
        return Product(node, channels, rows * columns, 1, window, lengths, channelwise=True)
    if window.dilations[1] == 1 or columns == 1:  # what a row of the kernel reads are neighbours
        return Product(node, channels, rows, columns * run, window, lengths, channelwise=False)
    return Product(node, channels, rows * columns, run, window, lengths, channelwise=False)


def _matrix(node: ir.Node, weights: Shape, shape: Shape) -> Product | None:
    if len(weights) != 2 or len(shape) not in (2, 3) or integer(node, "transA", 0):
        return None
    channels = weights[0] if integer(node, "transB", 0) else weights[1]
    return Product(node, channels, 1, shape[-1], None, (1, 1), channelwise=False)


def _has_plain_bias(product: Product) -> bool:
    """Say whether what is added is a constant, and the same for every pixel."""
    value = product.node.inputs[2] if len(product.node.inputs) > 2 else None
    if value is None:
        return True
    if value.const_value is None:
        return False
    shape = value.const_value.shape.numpy()
    return value.const_value.size in (1, product.channels) and (
        not shape or shape[-1] == value.const_value.size
    )
