"""Where tensors lie while a network runs: float32 for who looks at them, bfloat16 for products.

Whatever has four axes lies with its channels last; the arrays that are shown have the axes of
ONNX all the same. A buffer is used again once its tensor has been read for the last time, so
that a sample passes through few megabytes, most of them in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from vermilion.ir.execute import Array
from vermilion.quantize.native_run.kernels import round_rows

Shape = tuple[int, ...]
Border = tuple[int, int, int, int]  # top, left, bottom, right

NO_BORDER: Border = (0, 0, 0, 0)

# A kernel reads whole vectors, and pairs where a run is odd: up to so many numbers too far.
_BEHIND = 64

Buffer = TypeVar("Buffer")


@dataclass(frozen=True)
class Picture:
    """A tensor in bfloat16, (N, H, W, C) with a border of zeros; a matrix is one row of pixels."""

    memory: NDArray[np.uint16]
    shape: tuple[int, int, int, int]  # with the border
    border: Border

    def element_at(self, image: Array, row: Array, column: Array) -> Array:
        """Return where the pixel begins; rows and columns count from inside the border."""
        _, height, width, channels = self.shape
        top, left = self.border[:2]
        place: Array = ((image * height + row + top) * width + column + left) * channels
        return place

    def fill(self, array: Array) -> None:
        """Round what is inside the border from an array (N, H, W, C)."""
        images, height, width, channels = array.shape
        top, left = self.border[:2]
        whole = self.memory[: math.prod(self.shape)].reshape(*self.shape[:2], -1)
        inside = np.ascontiguousarray(array, np.float32).reshape(images, height, -1)
        for image in range(images):
            start = left * channels
            target = whole[image, top : top + height, start : start + width * channels]
            round_rows(inside[image], target)


@dataclass
class _Shelf(Generic[Buffer]):
    """Buffers by what they are made for, to be taken, given back and taken again."""

    make: Callable[[Any], Buffer]
    free: dict[Any, list[Buffer]] = field(default_factory=dict)
    taken: dict[str, tuple[Any, Buffer]] = field(default_factory=dict)

    def take(self, name: str, key: Any) -> Buffer:
        waiting = self.free.setdefault(key, [])
        found = waiting.pop() if waiting else self.make(key)
        self.taken[name] = key, found
        return found

    def give(self, name: str) -> None:
        if name in self.taken:
            key, found = self.taken.pop(name)
            self.free[key].append(found)


class Tensors:
    """The buffers of a network while its steps are laid out, tensor by tensor."""

    def __init__(self, shapes: Mapping[str, Shape], borders: Mapping[str, Border]) -> None:
        self.shapes, self._borders = shapes, borders
        self.arrays: dict[str, Array] = {}
        """Each tensor in float32 that has one, with the axes of ONNX."""
        self._reals: _Shelf[NDArray[np.float32]] = _Shelf(lambda size: np.empty(size, np.float32))
        self._pictures: _Shelf[Picture] = _Shelf(_new_picture)

    def real(self, name: str) -> NDArray[np.float32]:
        """Return the tensor's buffer, taken now if it has none."""
        if name in self._reals.taken:
            return self._reals.taken[name][1]
        shape = self.shapes[name]
        memory = self._reals.take(name, math.prod(shape))
        self.arrays[name] = _with_axes_of_onnx(memory, shape)
        return memory

    def has_picture(self, name: str) -> bool:
        """Say whether the tensor lies there in bfloat16."""
        return name in self._pictures.taken

    def picture(self, name: str) -> Picture:
        """Return the tensor in bfloat16, its place taken now if it has none."""
        if self.has_picture(name):
            return self._pictures.taken[name][1]
        border = self._borders.get(name, NO_BORDER)
        return self._pictures.take(name, (pixels_of(self.shapes[name]), border))

    def release(self, name: str) -> None:
        """Let others have the buffers of a tensor that nobody will read."""
        self._reals.give(name)
        self._pictures.give(name)


def pixels_of(shape: Shape) -> tuple[int, int, int, int]:
    """Return (N, H, W, C): of a matrix, or rows of matrices, each row is a pixel."""
    if len(shape) == 4:
        images, channels, height, width = shape
        return images, height, width, channels
    return 1, 1, math.prod(shape[:-1]), shape[-1]


def channels_last(array: Array) -> Array:
    """Return `pixels_of` an array, without a copy where it lies so."""
    if array.ndim == 4:
        return array.transpose(0, 2, 3, 1)
    return array.reshape(pixels_of(array.shape))


def _with_axes_of_onnx(memory: NDArray[np.float32], shape: Shape) -> Array:
    if len(shape) == 4:
        images, channels, height, width = shape
        return memory.reshape(images, height, width, channels).transpose(0, 3, 1, 2)
    return memory.reshape(shape)


def _new_picture(key: tuple[tuple[int, int, int, int], Border]) -> Picture:
    (images, height, width, channels), border = key
    top, left, bottom, right = border
    shape = (images, height + top + bottom, width + left + right, channels)
    return Picture(np.zeros(math.prod(shape) + _BEHIND, np.uint16), shape, border)
