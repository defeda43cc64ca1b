"""Arrays as an entry: one file that is mapped.

The arrays lie one behind the other in `arrays.bin`, each at a multiple of 64 bytes, with room
behind the last for kernels that read a whole vector. The entry's index names them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from vermilion.store.digest import ChunkedHash
from vermilion.store.entry import Entry, EntryWriter

if TYPE_CHECKING:
    from concurrent.futures import Future

DATA_FILE = "arrays.bin"
ALIGNMENT = 64
# Behind the last array, which kernels may read as they read the beginning of the next one.
SLACK_BYTES = 64
# Arrays that are made at once: the memory that is held is a few of these.
_AT_ONCE = 4
# What is written at a time, from a multiple of it on: Linux keeps a file in pages of 2 MiB where
# whole ones are written, and maps them as such.
_CHUNK_BYTES = 8 << 20

Bytes = NDArray[np.uint8]
Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, eq=False)
class NewArray:
    """An array to be kept: its form, and who writes its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    fill: Callable[[Bytes], None] = field(repr=False)
    values: NDArray[np.generic] | None = field(default=None, repr=False)  # where they are there

    @property
    def size_bytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def new_array(name: str, values: NDArray[np.generic]) -> NewArray:
    """Return an array that is there already."""

    def fill(out: Bytes) -> None:
        out.view(values.dtype).reshape(values.shape)[:] = values

    dtype = values.dtype.newbyteorder("<").str
    return NewArray(name, dtype, values.shape, fill, values)


def in_memory(wanted: Sequence[NewArray], threads: int) -> Arrays:
    """Make the arrays in one piece of memory instead of a file; what is there stays where it is."""
    from concurrent.futures import ThreadPoolExecutor

    made = [one for one in wanted if one.values is None]
    places, total = _places(made)
    raw = np.zeros(total + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    pieces = [
        raw[start + at : start + at + one.size_bytes] for one, at in zip(made, places, strict=True)
    ]
    with ThreadPoolExecutor(threads) as pool:
        work = [pool.submit(one.fill, out) for one, out in zip(made, pieces, strict=True)]
        for done in work:
            done.result()
    found = {one.name: one.values for one in wanted if one.values is not None}
    shaped = [
        piece.view(one.dtype).reshape(one.shape) for one, piece in zip(made, pieces, strict=True)
    ]
    return found | dict(zip([one.name for one in made], shaped, strict=True))


def write_arrays(
    entry: EntryWriter, wanted: Sequence[NewArray], about: Mapping[str, object], threads: int
) -> Mapping[str, object]:
    """Write arrays into an entry; return what is to be known of it, for `arrays_of`.

    Raises: OSError.
    """
    places, total = _places(wanted)
    with (entry.folder / DATA_FILE).open("wb") as file:
        chunks = _Chunks(file)
        at = 0
        for place, data in zip(places, _filled(wanted, threads), strict=True):
            chunks.put(np.zeros(place - at, np.uint8))
            chunks.put(data)
            at = place + data.size
        chunks.put(np.zeros(total - at, np.uint8))
        chunks.end()
    entry.add_mapped(DATA_FILE, chunks.digest.hexdigest())
    rows = [
        [one.name, one.dtype, list(one.shape), at] for one, at in zip(wanted, places, strict=True)
    ]
    return {"arrays": rows, "about": about}


def arrays_of(entry: Entry) -> tuple[Arrays, Mapping[str, Any]]:
    """Return the arrays of an entry, mapped and read only, and what was said about them."""
    whole = np.frombuffer(entry.files[DATA_FILE], np.uint8)
    found: dict[str, NDArray[np.generic]] = {}
    for name, dtype, shape, at in entry.about["arrays"]:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        found[name] = whole[at : at + size].view(dtype).reshape(shape)
    return found, entry.about["about"]


def _places(wanted: Sequence[NewArray]) -> tuple[list[int], int]:
    places, at = [], 0
    for one in wanted:
        places.append(at)
        at = -(-(at + one.size_bytes) // ALIGNMENT) * ALIGNMENT
    return places, at + SLACK_BYTES


def _filled(wanted: Sequence[NewArray], threads: int) -> Iterator[Bytes]:
    """Yield the bytes of each in turn; a few are made at once, and no more are held."""
    from concurrent.futures import ThreadPoolExecutor

    def made(one: NewArray) -> Bytes:
        if one.values is not None and one.values.flags.c_contiguous:
            return one.values.reshape(-1).view(np.uint8)
        out = np.zeros(one.size_bytes, np.uint8)
        one.fill(out)
        return out

    with ThreadPoolExecutor(threads) as pool:
        waiting: list[Future[Bytes]] = []
        for one in wanted:
            waiting.append(pool.submit(made, one))
            if len(waiting) >= min(_AT_ONCE, threads + 1):
                yield waiting.pop(0).result()
        for left in waiting:
            yield left.result()


class _Chunks:
    """Writes a file a whole chunk at a time, and knows the digest of what it wrote."""

    def __init__(self, file: BinaryIO) -> None:
        self.digest = ChunkedHash()
        self._file = file
        self._chunk = np.empty(_CHUNK_BYTES, np.uint8)
        self._used = 0

    def put(self, data: Bytes) -> None:
        """Append bytes."""
        at = 0
        while at < data.size:
            count = min(_CHUNK_BYTES - self._used, data.size - at)
            self._chunk[self._used : self._used + count] = data[at : at + count]
            self._used += count
            at += count
            if self._used == _CHUNK_BYTES:
                self.end()

    def end(self) -> None:
        """Write what is left."""
        chunk = memoryview(self._chunk[: self._used].data)
        self._file.write(chunk)
        self.digest.update(chunk)
        self._used = 0
