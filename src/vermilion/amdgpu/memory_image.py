"""The memory that kernels see: one range of addresses, in which everything lies."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.errors import DeviceError

_GRANULE = 256  # bytes; allocations begin and end on one
# What memory holds before anything is written: not a number in any floating-point format.
_UNWRITTEN = 0xFF


class WildAccessError(DeviceError):
    """A kernel reads or writes where nothing was allocated."""


class Memory:
    """A range of addresses, handed out in pieces.

    `base` is where it begins, for whoever has the addresses: another process may have mapped it
    elsewhere than this one.
    """

    def __init__(self, size: int, file: Path | None = None) -> None:
        """Reserve so many bytes, in a file that is made where one is named.

        Raises: OSError where there is no room. The system has the bytes lie in memory once they
        are touched.
        """
        if file is None:
            self._map = mmap.mmap(-1, size)
        else:
            with file.open("w+b") as made:
                # What is written into the map of a sparse file on a full disk ends the process.
                os.posix_fallocate(made.fileno(), 0, size)
                self._map = mmap.mmap(made.fileno(), size)
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self.words: NDArray[np.uint32] = self.bytes.view(np.uint32)
        self.base = int(self.bytes.ctypes.data)
        self._size = size
        self._is_live = np.zeros(size // _GRANULE, np.bool_)
        self._sizes: dict[int, int] = {}
        self._free: dict[int, list[int]] = {}
        self._next = _GRANULE  # an address of nothing is no address

    def allocate(self, size: int, *, clean: bool = False) -> int:
        """Return the address of so many bytes, 0 where there is no room.

        They are no numbers until they are written, or left as they are with `clean`.
        """
        wanted = max(1, -(-size // _GRANULE)) * _GRANULE
        again = self._free.get(wanted)
        if again:
            start = again.pop()
        elif self._next + wanted + _GRANULE > self._size:
            return 0
        else:
            start, self._next = self._next, self._next + wanted + _GRANULE
        self._sizes[start] = wanted
        self._is_live[start // _GRANULE : (start + wanted) // _GRANULE] = True
        if not clean:
            self.bytes[start : start + wanted] = _UNWRITTEN
        return self.base + start

    def free(self, address: int) -> None:
        """Take back what `allocate` gave; anything else is not ours."""
        start = address - self.base
        size = self._sizes.pop(start, 0)
        if size:
            self._is_live[start // _GRANULE : (start + size) // _GRANULE] = False
            self._free.setdefault(size, []).append(start)

    def holds(self, address: int, size: int) -> bool:
        """Say whether so many bytes at an address are in this memory."""
        return self.base <= address and address + size <= self.base + self._size

    def load(self, addresses: NDArray[np.uint64], size: int, on: NDArray[Any]) -> NDArray[np.uint8]:
        """Return `size` bytes at each address, zeros where a lane is off.

        Raises: WildAccessError.
        """
        at = self._places(addresses, size, on, "reads")
        if size % 4 == 0 and not np.any(at & 3):
            word = (at >> 2)[..., None] + np.arange(size // 4)
            found = self.words[word]
            found[~on] = 0
            return np.asarray(found.view(np.uint8))
        narrow: NDArray[np.uint8] = self.bytes[at[..., None] + np.arange(size)]
        narrow[~on] = 0
        return narrow

    def store(
        self, addresses: NDArray[np.uint64], data: NDArray[np.uint8], on: NDArray[Any]
    ) -> None:
        """Write bytes at each address where a lane is on. Raises: WildAccessError."""
        size = data.shape[-1]
        at = self._places(addresses, size, on, "writes")[on]
        if size % 4 == 0 and not np.any(at & 3):
            words = np.ascontiguousarray(data[on]).view(np.uint32)
            self.words[(at >> 2)[..., None] + np.arange(size // 4)] = words
            return
        self.bytes[at[..., None] + np.arange(size)] = data[on]

    def _places(
        self, addresses: NDArray[np.uint64], size: int, on: NDArray[Any], does: str
    ) -> NDArray[np.int64]:
        at = np.where(on, addresses.astype(np.int64) - self.base, _GRANULE)
        low, high = int(at.min(initial=_GRANULE)), int(at.max(initial=_GRANULE))
        wild = low < 0 or high + size > self._size
        if not wild and on.any():
            first, last = at[on] // _GRANULE, (at[on] + size - 1) // _GRANULE
            wild = not (self._is_live[first].all() and self._is_live[last].all())
        if wild:
            raise WildAccessError(f"a kernel {does} where no memory was allocated")
        return at
