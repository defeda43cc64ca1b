"""Windows over images in any number of dimensions: what Conv and the poolings share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from vermilion.ir.literal.call import Call

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
