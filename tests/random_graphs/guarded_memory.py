"""Arrays beside a page that nobody may touch: one byte too far ends the process (Linux)."""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Side = Literal["end", "start"]

_PAGE = mmap.PAGESIZE
_NONE, _READ, _WRITE = 0, 1, 2
# What is there before anybody writes: NaN in every float, -1 in every integer.
_LEFT_OVER = 0xFF

if sys.platform == "linux":
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    _libc.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
    )  # fmt: skip
    _libc.mmap.restype = ctypes.c_void_p
    _libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def _protect(address: int, size: int, how: int) -> None:
    if _libc.mprotect(address, size, how):
        raise OSError(ctypes.get_errno(), "mprotect failed")


@dataclass(frozen=True)
class GuardedMemory:
    """Where arrays begin or end: at a page that can be neither read nor written."""

    side: Side

    def _bytes(self, size: int) -> tuple[NDArray[np.uint8], int, int]:
        """Return bytes at the guard, and address and size of the pages that hold them."""
        pages = max(1, math.ceil(size / _PAGE)) * _PAGE
        private, anonymous = 0x02, 0x20
        whole = _libc.mmap(None, pages + 2 * _PAGE, _READ | _WRITE, private | anonymous, -1, 0)
        if whole in (None, ctypes.c_void_p(-1).value):
            raise MemoryError("mmap failed")
        first = whole + _PAGE
        _protect(whole, _PAGE, _NONE)
        _protect(first + pages, _PAGE, _NONE)
        start = first if self.side == "start" else first + pages - size
        buffer = (ctypes.c_uint8 * size).from_address(start)
        array: NDArray[np.uint8] = np.ctypeslib.as_array(buffer)
        weakref.finalize(buffer, _libc.munmap, whole, pages + 2 * _PAGE)
        array[:] = _LEFT_OVER
        return array, first, pages

    def aligned(self, size: int) -> NDArray[np.uint8]:
        """Return a buffer; its address is a multiple of 64 where `size` is."""
        return self._bytes(size)[0]

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """Return an array that nobody has written yet."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        return self._bytes(size)[0].view(dtype).reshape(tuple(shape))

    def read_only(self, array: Array) -> Array:
        """Return a copy that ends the process of who writes to it."""
        raw, first, pages = self._bytes(array.nbytes)
        copy = raw.view(array.dtype).reshape(array.shape)
        copy[...] = array
        _protect(first, pages, _READ)
        return copy
