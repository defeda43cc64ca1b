"""Windows over images in any number of dimensions, which Conv shares, and the poolings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from vermilion.ir.literal.call import Call, Table, computes
from vermilion.ir.literal.reduce import mean

Array = NDArray[Any]


@dataclass(frozen=True)
class Windows:
    """Sizes of windows along each spatial axis, and how many there are of them."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    counts: tuple[int, ...]
    image: tuple[int, ...]

    @property
    def reach(self) -> tuple[int, ...]:
        """The padded length that the windows read, along each axis."""
        return tuple(
            max((n - 1) * s + (k - 1) * d + 1, b + i)
            for n, s, k, d, b, i in zip(
                self.counts,
                self.strides,
                self.kernel,
                self.dilations,
                self.before,
                self.image,
                strict=True,
            )
        )

    def padded(self, x: Array, fill: Any) -> Array:
        """Return (N, C, …) in a border of `fill`, as long as the windows read."""
        if x.shape[2:] == self.reach and not any(self.before):
            return x
        whole = np.full(x.shape[:2] + self.reach, fill, x.dtype)
        inner = tuple(slice(b, b + i) for b, i in zip(self.before, self.image, strict=True))
        whole[(slice(None), slice(None), *inner)] = x
        return whole

    def unfolded(self, padded: Array) -> Array:
        """Return a view of (N, C, …) as (N, C, kernel…, counts…)."""
        steps = padded.strides[2:]
        return as_strided(
            padded,
            padded.shape[:2] + self.kernel + self.counts,
            (
                *padded.strides[:2],
                *(step * d for step, d in zip(steps, self.dilations, strict=True)),
                *(step * s for step, s in zip(steps, self.strides, strict=True)),
            ),
            writeable=False,
        )

    def taps(self) -> Iterator[tuple[Any, Any]]:
        """Yield for each place in the kernel the index of it, and of what the windows read there.

        Both are indices of the last axes of a tensor.
        """
        for tap in np.ndindex(*self.kernel):
            yield (
                (..., *tap),
                (
                    ...,
                    *(
                        slice(t * d, t * d + (n - 1) * s + 1, s)
                        for t, d, n, s in zip(
                            tap, self.dilations, self.counts, self.strides, strict=True
                        )
                    ),
                ),
            )


def find_windows(
    call: Call, image: Sequence[int], kernel: Sequence[int], *, pools: bool = False
) -> Windows:
    """Return the windows that the node's attributes describe.

    Raises: ModelError where they do not fit the image.
    """
    rank = len(image)
    strides = call.integers("strides") or [1] * rank
    dilations = call.integers("dilations") or [1] * rank
    pads = call.integers("pads") or [0] * (2 * rank)
    if not rank == len(kernel) == len(strides) == len(dilations) == len(pads) // 2:
        raise call.error(f"its attributes do not fit an image of {rank} dimensions")
    if min((*strides, *dilations, *kernel), default=1) < 1:
        raise call.error("a stride, dilation or kernel size is below 1")
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    automatic = call.text("auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        counts = [-(-i // s) for i, s in zip(image, strides, strict=True)]
        total = [
            max(0, (n - 1) * s + span - i)
            for n, s, span, i in zip(counts, strides, spans, image, strict=True)
        ]
        small = [t // 2 for t in total]
        large = [t - t // 2 for t in total]
        before, after = (small, large) if automatic == "SAME_UPPER" else (large, small)
    else:
        before, after = pads[:rank], pads[rank:]
        if automatic == "VALID":
            before, after = [0] * rank, [0] * rank
        rounds_up = pools and bool(call.integer("ceil_mode", 0))
        counts = [
            _count(i, b, a, span, s, rounds_up)
            for i, b, a, span, s in zip(image, before, after, spans, strides, strict=True)
        ]
    if min(counts, default=1) < 1:
        raise call.error(f"windows of {list(kernel)} do not fit into an image of {list(image)}")
    return Windows(
        tuple(kernel),
        tuple(strides),
        tuple(dilations),
        tuple(before),
        tuple(after),
        tuple(counts),
        tuple(image),
    )


def _count(image: int, before: int, after: int, span: int, stride: int, rounds_up: bool) -> int:
    room = image + before + after - span
    if room < 0 and not (rounds_up and room > -stride):
        return 0
    count = -(-room // stride) + 1 if rounds_up else room // stride + 1
    # Source: ONNX AveragePool-22, MaxPool-22: windows that would start in the right padded
    # region are ignored.
    if rounds_up and (count - 1) * stride >= image + before:
        count -= 1
    return count


def _windows(call: Call, x: Array) -> Windows:
    kernel = call.integers("kernel_shape")
    if kernel is None or x.ndim < 3:
        raise call.error(f"a pooling of {x.ndim} dimensions with `kernel_shape` {kernel}")
    return find_windows(call, x.shape[2:], kernel, pools=True)


def _least(x: Array) -> Any:
    return -math.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min


def _max_pool(call: Call) -> Any:
    x = call[0]
    windows = _windows(call, x)
    padded = windows.padded(x, _least(x))
    result: Array | None = None
    for _, places in windows.taps():
        tap = padded[places]
        result = tap.copy() if result is None else np.maximum(result, tap)
    return (result, _places(call, x, windows)) if call.reads(1) else result


def _places(call: Call, x: Array, windows: Windows) -> Array:
    """Return for each window where the first of its largest lies in the whole tensor."""
    # Rows first within an image, or columns first; images one after the other.
    order: Literal["F", "C"] = "F" if call.integer("storage_order", 0) else "C"
    size = math.prod(windows.image)
    numbers = np.arange(size).reshape(windows.image, order=order)
    own = windows.unfolded(windows.padded(numbers[None, None], -1))
    values = windows.unfolded(windows.padded(x, _least(x)))
    taps = math.prod(windows.kernel)
    own = own.reshape(1, 1, taps, *windows.counts)
    values = values.reshape(*x.shape[:2], taps, *windows.counts)
    # What lies in the border never wins, not even over the least of all values.
    rank = np.where(own >= 0, values, _least(x))
    is_first = (rank == rank.max(axis=2, keepdims=True)) & (own >= 0)
    best = np.argmax(is_first, axis=2)[:, :, None]
    found = np.take_along_axis(np.broadcast_to(own, values.shape), best, 2)[:, :, 0]
    images = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *[1] * len(windows.counts))
    return np.asarray((found + images * size).astype(np.int64))


def _sums(padded: Array, windows: Windows) -> Array:
    total = np.zeros(padded.shape[:2] + windows.counts)
    for _, places in windows.taps():
        total += padded[places]
    return total


def _average_pool(call: Call) -> Array:
    return average_pooled(call, call[0])


def average_pooled(call: Call, x: Array) -> Array:
    """Return the means of the windows that the node's attributes describe."""
    windows = _windows(call, x)
    total = _sums(windows.padded(x, 0.0), windows)
    # How many of each window's places count: those of the image, or those of its border too,
    # but never what lies behind the border.
    counted = windows.padded(np.ones((1, 1, *windows.image)), 0.0)
    if call.integer("count_include_pad", 0):
        counted[...] = 0.0
        inner = tuple(
            slice(0, b + i + a)
            for b, i, a in zip(windows.before, windows.image, windows.after, strict=True)
        )
        counted[(slice(None), slice(None), *inner)] = 1.0
    # ONNX Runtime gives 0 where no place counts.
    return total / np.maximum(_sums(counted, windows), 1.0)


def _lp_pool(call: Call) -> Array:
    x, p = call[0], _order(call)
    windows = _windows(call, x)
    return _root(_sums(windows.padded(np.abs(x) ** p, 0.0), windows), p)


def _order(call: Call) -> float:
    # Version 1 has a float here, all later ones a whole number.
    return call.number("p", 2.0) if call.version < 2 else call.integer("p", 2)


def _root(total: Array, p: float) -> Array:
    if p == 1:
        return total
    return np.sqrt(total) if p == 2 else total ** (1.0 / p)


def _spatial(x: Array) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


def _global_average_pool(call: Call) -> Array:
    return mean(call[0], _spatial(call[0]))


def _global_max_pool(call: Call) -> Array:
    return np.asarray(np.max(call[0], axis=_spatial(call[0]), keepdims=True))


def _global_lp_pool(call: Call) -> Array:
    p = _order(call)
    return _root(np.sum(np.abs(call[0]) ** p, axis=_spatial(call[0]), keepdims=True), p)


def _max_unpool(call: Call) -> Array:
    x, indices = call[0], call[1].astype(np.int64)
    if call.has(2):
        shape = tuple(call.ints(2))
    else:
        rank = x.ndim - 2
        kernel = call.integers("kernel_shape") or []
        strides = call.integers("strides") or [1] * rank
        pads = call.integers("pads") or [0] * (2 * rank)
        sizes = (
            (x.shape[2 + at] - 1) * strides[at] + kernel[at] - pads[at] - pads[at + rank]
            for at in range(rank)
        )
        shape = (*x.shape[:2], *sizes)
    result = np.zeros(math.prod(shape))
    if indices.size and (indices.min() < 0 or indices.max() >= result.size):
        raise call.error(f"an index is not in a tensor of {result.size} elements")
    result[indices.reshape(-1)] = x.reshape(-1)
    return result.reshape(shape)


OPERATORS: Table = {
    "MaxPool": computes(_max_pool),
    "AveragePool": computes(_average_pool),
    "LpPool": computes(_lp_pool),
    "GlobalAveragePool": computes(_global_average_pool),
    "GlobalMaxPool": computes(_global_max_pool),
    "GlobalLpPool": computes(_global_lp_pool),
    "MaxUnpool": computes(_max_unpool),
}
