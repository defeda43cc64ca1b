"""One product as calls of kernels, cut into shares for the threads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vermilion.quantize.native_code import LANES
from vermilion.quantize.native_run.epilogue import Ending
from vermilion.quantize.native_run.kernels import (
    ARGUMENTS,
    PIXEL_WORDS,
    Kernel,
    functions,
    pack,
    pack_channelwise,
)
from vermilion.quantize.native_run.product import Product
from vermilion.quantize.native_run.tensors import Picture, Shape, pixels_of

Real = NDArray[np.float32]

# A kernel looks at the pixels of a whole tile, also behind the last one.
_PIXELS_BEHIND = 8


@dataclass(frozen=True)
class Call:
    """A kernel with its arguments, in the order of `ARGUMENTS`."""

    function: Callable[..., None]
    arguments: NDArray[np.int64]

    def __call__(self) -> None:
        """Run it; other threads may run meanwhile."""
        self.function(self.arguments.ctypes.data)


@dataclass(frozen=True)
class Places:
    """Where a product reads and writes: buffers of float32 as they lie, pixel by pixel."""

    source: Picture
    residual: Real | None
    sums: Real | None
    results: Real | None
    narrow: Picture | None


@dataclass(frozen=True)
class _Share:
    """What one call computes of a kernel's blocks and of all pixels."""

    first_block: int
    blocks: int
    first_pixel: int
    pixels: int


def calls_of(
    product: Product, ending: Ending, places: Places, shape: Shape, shares: int
) -> tuple[list[Call], list[object]]:
    """Return calls that may run side by side, and what has to live as long as they do.

    `shape` is that of the result; each kernel is called at most `shares` times.
    """
    channels, pixel_count = product.channels, math.prod(pixels_of(shape)[:3])
    lanes = (-(-channels // LANES) + 1) * LANES  # a block of two vectors may need one only
    bias = np.zeros(lanes, np.float32)
    bias[:channels] = product.bias()
    masks = np.packbits(np.arange(lanes) < channels, bitorder="little").view(np.uint16)
    pixels = _pixels(product, places, shape)
    taps = np.ascontiguousarray(product.tap_bytes(places.source), np.int64)
    steps = -(-product.run // 2)
    panels = (pack_channelwise if product.channelwise else pack)(product.weights())
    calls = []
    for panel in panels:
        kernel = panel.kernel
        for share in _shares(kernel, panel.blocks, pixel_count, shares):
            channel = (panel.first_vector + share.first_block * kernel.vectors) * LANES
            block_bytes = kernel.step_bytes * len(taps) * steps
            values = {
                "input": _at(places.source.memory, channel if product.channelwise else 0),
                "weights": panel.packed.ctypes.data + share.first_block * block_bytes,
                "bias": _at(bias, channel),
                "masks": _at(masks, channel // LANES),
                "taps": _at(taps, 0),
                "pixels": _at(pixels, share.first_pixel * PIXEL_WORDS),
                "pixel_count": share.pixels,
                "tap_count": len(taps),
                "steps": steps,
                "blocks": share.blocks,
                "residual": _at(places.residual, channel),
                "sums": _at(places.sums, channel),
                "results": _at(places.results, channel),
                "narrow": _at(places.narrow.memory if places.narrow else None, channel),
                "lowest": _bits(ending.lowest),
                "highest": _bits(ending.highest),
            }
            arguments = np.array([values[name] for name in ARGUMENTS], np.int64)
            calls.append(Call(functions()[kernel.name], arguments))
    return calls, [bias, masks, pixels, taps, places, panels]


def _pixels(product: Product, places: Places, shape: Shape) -> NDArray[np.int64]:
    images, rows, columns, channels = pixels_of(shape)
    reads = product.first_bytes(places.source, shape)
    pixels = np.empty((len(reads) + _PIXELS_BEHIND, PIXEL_WORDS), np.int64)
    # What is read for the pixels behind is thrown away, but it has to be there.
    pixels[:, 0] = reads[-1]
    pixels[: len(reads), 0] = reads
    pixels[:, 1] = np.arange(len(pixels)) * channels
    if places.narrow is not None:
        image, row, column = np.ogrid[:images, :rows, :columns]
        writes = places.narrow.element_at(image, row, column)
        pixels[: len(reads), 2] = writes.reshape(-1)
    return pixels


def _shares(kernel: Kernel, blocks: int, pixels: int, shares: int) -> Iterator[_Share]:
    """Cut along channels, where each share reads weights of its own, or else along pixels."""
    tiles = -(-pixels // kernel.pixels)
    if blocks >= shares or blocks >= tiles:
        for first, last in _ends(blocks, shares):
            yield _Share(first, last - first, 0, pixels)
        return
    for first, last in _ends(tiles, shares):
        start, stop = first * kernel.pixels, min(pixels, last * kernel.pixels)
        yield _Share(0, blocks, start, stop - start)


def _ends(whole: int, shares: int) -> Iterator[tuple[int, int]]:
    count = min(whole, shares)
    for share in range(count):
        yield whole * share // count, whole * (share + 1) // count


def _at(array: NDArray[np.generic] | None, element: int) -> int:
    """Return an address, 0 for what is not there."""
    return 0 if array is None else array.ctypes.data + element * array.itemsize


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))
