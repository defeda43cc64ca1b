"""Where tensors lie in memory: buffers, and strided views of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vermilion.ir.symbolic import same

Storage = Literal["f32", "bf16", "f16", "u8", "s8", "u16", "s16", "i32", "i64", "bool"]
Place = Literal["arena", "weights", "input", "output", "checks"]

STORAGE_BYTES: dict[Storage, int] = {
    "f32": 4,
    "bf16": 2,
    "f16": 2,
    "u8": 1,
    "s8": 1,
    "u16": 2,
    "s16": 2,
    "i32": 4,
    "i64": 8,
    "bool": 1,
}

# Room behind every buffer: kernels read the last pair or quad of a run as a whole.
SLACK_BYTES = 64


@dataclass(eq=False)
class Buffer:
    """A piece of memory. Arena buffers get an offset from the memory plan.

    `data` holds the bytes of a weight; `name` is the tensor's, for people. A weight that is
    `by_channel` has one number for each channel of a product's result, whatever its rank.
    """

    name: str
    size_bytes: int
    place: Place
    data: NDArray[np.uint8] | None = None
    by_channel: bool = False


@dataclass(frozen=True)
class View:
    """A strided window on a buffer. Strides and offset count elements; dimensions are logical."""

    buffer: Buffer
    storage: Storage
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return STORAGE_BYTES[self.storage]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Whether elements follow each other in logical order without holes."""
        dense = contiguous_strides(self.shape)
        if self.elements > 1 and any(
            int(a) != int(b) for a, b in zip(self.strides, dense, strict=True)
        ):
            return False  # at other sizes they may: what is copied then is right all the same
        return self.strides == dense or self.elements <= 1

    def permuted(self, order: Sequence[int]) -> View:
        """Return the view with its dimensions in another order."""
        return replace(
            self,
            shape=tuple(self.shape[axis] for axis in order),
            strides=tuple(self.strides[axis] for axis in order),
        )

    def sliced(self, axis: int, start: int, size: int, step: int = 1) -> View:
        """Return `size` entries of one dimension from `start` on."""
        shape, strides = list(self.shape), list(self.strides)
        offset = self.offset + start * strides[axis]
        shape[axis] = size
        strides[axis] *= step
        return replace(self, shape=tuple(shape), strides=tuple(strides), offset=offset)

    def broadcast(self, shape: Sequence[int]) -> View:
        """Return the view stretched to `shape` by numpy's rules: stride 0 where it repeats."""
        missing = len(shape) - len(self.shape)
        strides = [0] * missing
        for size, stride, wanted in zip(self.shape, self.strides, shape[missing:], strict=True):
            assert size in (1, wanted), f"{self.shape} does not broadcast to {tuple(shape)}"
            strides.append(0 if size == 1 and wanted != 1 else stride)
        return replace(self, shape=tuple(shape), strides=tuple(strides))

    def reshaped(self, shape: Sequence[int]) -> View | None:
        """Return the view under another shape, None where that needs a copy."""
        strides = reshaped_strides(self.shape, self.strides, tuple(shape))
        if strides is None:
            return None
        return replace(self, shape=tuple(shape), strides=strides)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return row-major strides."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def reshaped_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the strides under which the same memory has the shape `wanted`, None if none do."""
    # What lies side by side is one dimension; then each is cut into the sizes that are wanted.
    merged: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if merged and same(merged[-1][1], size * stride):
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    result: list[int] = []
    rest, stride = 1, 0
    pending = iter(merged)
    for size in wanted:
        if size == 1:
            result.append(0)
            continue
        if rest == 1:
            rest, stride = next(pending, (1, 0))
        left = rest % size
        # Whether it comes out even is asked of a run only if it does at the examples: a copy, which
        # is what None means, is right at every size.
        if int(left) or left:
            return None
        rest //= size
        result.append(stride * rest)
    if rest != 1 or next(pending, None) is not None:
        return None
    return tuple(result)


def allocate(
    name: str,
    storage: Storage,
    shape: Sequence[int],
    order: Sequence[int] | None = None,
    place: Place = "arena",
) -> View:
    """Return a view of a new buffer, its dimensions laid out in `order` (outermost first)."""
    order = tuple(order) if order is not None else tuple(range(len(shape)))
    physical = contiguous_strides([shape[axis] for axis in order])
    strides = [0] * len(shape)
    for axis, stride in zip(order, physical, strict=True):
        strides[axis] = stride
    size = max(1, math.prod(shape)) * STORAGE_BYTES[storage]
    return View(Buffer(name, size, place), storage, tuple(shape), tuple(strides))


def weight(
    name: str, array: NDArray[np.generic], storage: Storage, *, by_channel: bool = False
) -> View:
    """Return a view of a constant."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    buffer = Buffer(name, max(1, flat.size), "weights", flat, by_channel)
    return View(buffer, storage, array.shape, contiguous_strides(array.shape))
