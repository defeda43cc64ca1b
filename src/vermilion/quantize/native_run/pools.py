"""Pooling in numpy, one axis after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from vermilion.ir.attributes import integer, window_of
from vermilion.ir.execute import Array
from vermilion.quantize.native_run.tensors import Shape

Fill = Callable[[Sequence[Array], Array], None]


@dataclass(frozen=True)
class _Walk:
    """How windows walk along one axis, and how many there are."""

    axis: int
    kernel: int
    stride: int
    dilation: int
    before: int
    length: int
    windows: int

    def taps(self) -> list[tuple[slice, slice]]:
        """Return for each tap the windows in which it is inside, and what it reads there."""
        found = []
        for tap in range(self.kernel):
            at = tap * self.dilation - self.before
            first = max(0, -(at // self.stride))
            last = min(self.windows, (self.length - 1 - at) // self.stride + 1)
            if first < last:
                read = slice(first * self.stride + at, (last - 1) * self.stride + at + 1)
                found.append((slice(first, last), slice(read.start, read.stop, self.stride)))
        return found

    def combine(self, ufunc: np.ufunc, read: Array, out: Array) -> None:
        """Combine what each window reads with what is in `out` already."""
        before = (slice(None),) * self.axis
        for windows, places in self.taps():
            there = out[(*before, windows)]
            ufunc(there, read[(*before, places)], out=there)

    def counts(self) -> Array:
        """Return how many taps of each window are inside."""
        counts = np.zeros(self.windows, np.float32)
        for windows, _ in self.taps():
            counts[windows] += 1
        return counts


def max_pool(node: ir.Node, shapes: Sequence[Shape], result: Shape) -> Fill | None:
    """Return what fills the result with the largest of each window."""
    walks = _walks(node, shapes, result)
    return None if walks is None else _pooled(walks, np.maximum, -math.inf, None)


def average_pool(node: ir.Node, shapes: Sequence[Shape], result: Shape) -> Fill | None:
    """Return what fills the result with the mean of each window."""
    walks = _walks(node, shapes, result)
    if walks is None or integer(node, "ceil_mode", 0):
        return None
    rows, columns = walks
    sizes: Array = np.multiply.outer(rows.counts(), columns.counts())
    if integer(node, "count_include_pad", 0):
        sizes = np.full_like(sizes, rows.kernel * columns.kernel)
    return _pooled(walks, np.add, 0.0, sizes)


def _walks(node: ir.Node, shapes: Sequence[Shape], result: Shape) -> tuple[_Walk, _Walk] | None:
    if len(result) != 4 or len(node.outputs) != 1:
        return None
    window = window_of(node, tuple(node.attributes["kernel_shape"].as_ints()))
    lengths = shapes[0][2:]
    pads = window.explicit_pads(lengths)
    rows, columns = (
        _Walk(
            2 + axis,
            window.kernel[axis],
            window.strides[axis],
            window.dilations[axis],
            pads[axis],
            lengths[axis],
            result[2 + axis],
        )
        for axis in (0, 1)
    )
    return rows, columns


def _pooled(walks: tuple[_Walk, _Walk], ufunc: np.ufunc, start: float, sizes: Array | None) -> Fill:
    rows, columns = walks

    def fill(given: Sequence[Array], out: Array) -> None:
        images, channels, height, _ = out.shape
        # Channels last in memory, as in what is read and in what is filled.
        last = np.full((images, height, columns.length, channels), start, np.float32)
        between = last.transpose(0, 3, 1, 2)
        rows.combine(ufunc, given[0], between)
        out.fill(start)
        columns.combine(ufunc, between, out)
        if sizes is not None:
            np.divide(out, sizes, out=out)

    return fill
