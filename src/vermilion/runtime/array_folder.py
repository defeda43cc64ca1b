"""Arrays kept in a folder of the cache: one file that is mapped, and one that says what is in it.

The arrays lie one behind the other in `arrays.bin`, each at a multiple of 64 bytes, with room
behind the last for kernels that read a whole vector. `arrays.json` names them and holds the
digest of the file, its stamp and this machine's seal: machine code lies in such folders too.

Opening compares the stamp, which takes microseconds. Where it differs (the cache was copied, or
somebody wrote into the file) every byte is read and compared with the digest.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from vermilion.store.chunked_digest import ChunkedHash, digest_of
from vermilion.store.file_fingerprint import Fingerprint, fingerprint_of
from vermilion.store.signature import is_signed_here, signature_of

if TYPE_CHECKING:
    from concurrent.futures import Future

FORMAT = 1
TABLE_FILE, DATA_FILE = "arrays.json", "arrays.bin"
ALIGNMENT = 64
# Behind the last array, which kernels may read as they read the beginning of the next one.
SLACK_BYTES = 64
# Arrays that are made at once: the memory that is held is a few of these.
_AT_ONCE = 4
# What is written at a time, from a multiple of it on: Linux keeps a file in pages of 2 MiB where
# whole ones are written, and maps them as such.
_PIECE_BYTES = 8 << 20
_TYPES = ("|u1", "<u2", "<f2", "<i4", "<f4", "<i8")
_log = logging.getLogger(__name__)

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
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


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
    folder: Path, wanted: Sequence[NewArray], about: Mapping[str, object], threads: int
) -> None:
    """Write the arrays into a folder that is there; `about` is what the reader gets with them.

    Raises: OSError.
    """
    places, total = _places(wanted)
    with (folder / DATA_FILE).open("wb") as file:
        pieces = _Pieces(file)
        at = 0
        for place, data in zip(places, _filled(wanted, threads), strict=True):
            pieces.put(np.zeros(place - at, np.uint8))
            pieces.put(data)
            at = place + data.size
        pieces.put(np.zeros(total - at, np.uint8))
        pieces.end()
    rows = [
        [one.name, one.dtype, list(one.shape), at] for one, at in zip(wanted, places, strict=True)
    ]
    table = {"format": FORMAT, "sha256": pieces.digest.hexdigest(), "about": about, "arrays": rows}
    _write_table(folder, table)


def open_arrays(folder: Path) -> tuple[Arrays, Mapping[str, Any]] | None:
    """Map a folder's arrays, read only, and give what was said about them.

    None where there is none, it was not written here, or it is not what was written.
    """
    try:
        with (folder / DATA_FILE).open("rb") as file:
            table = _read_table(folder)
            if table is None:
                return None
            status = os.fstat(file.fileno())
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            _ask_for_large_pages(data)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _log.warning("`%s` cannot be read (%s): it is made again", folder, error)
        return None
    if list(fingerprint_of(status)) != table["stamp"]:
        if digest_of(memoryview(data)) != table["sha256"]:
            _log.warning("`%s` is not what was written: it is made again", folder)
            return None
        _stamp_again(folder, table)
    whole = np.frombuffer(data, np.uint8)
    found: dict[str, NDArray[np.generic]] = {}
    for name, dtype, shape, at in table["arrays"]:
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if dtype not in _TYPES or at % ALIGNMENT or at + size + SLACK_BYTES > whole.size:
            _log.warning("`%s` names arrays that are not in it: it is made again", folder)
            return None
        found[name] = whole[at : at + size].view(dtype).reshape(shape)
    return found, table["about"]


def _ask_for_large_pages(data: mmap.mmap) -> None:
    """Let what is not in memory yet be read into pages of 2 MiB (Linux)."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel that has none
            data.madvise(mmap.MADV_HUGEPAGE)


def touch(folder: Path) -> None:
    """Note that a folder was used: what pruning goes by."""
    try:
        os.utime(folder / TABLE_FILE)
    except OSError as error:  # a cache that may only be read works as well
        _log.debug("the use of `%s` cannot be noted: %s", folder, error)


def problem_of(folder: Path) -> str:
    """Read every byte; say what is wrong, nothing if all is as it was written."""
    table = _read_table(folder)
    if table is None:
        return f"`{TABLE_FILE}` is damaged, or was not written by this user here"
    try:
        with (folder / DATA_FILE).open("rb") as file:
            state = ChunkedHash()
            while data := file.read(1 << 20):
                state.update(data)
    except OSError as error:
        return f"`{DATA_FILE}` cannot be read: {error.strerror or error}"
    return "" if state.hexdigest() == table["sha256"] else f"`{DATA_FILE}` was changed"


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


class _Pieces:
    """Writes a file a whole piece at a time, and knows the digest of what it wrote."""

    def __init__(self, file: BinaryIO) -> None:
        self.digest = ChunkedHash()
        self._file = file
        self._piece = np.empty(_PIECE_BYTES, np.uint8)
        self._used = 0

    def put(self, data: Bytes) -> None:
        """Append bytes."""
        at = 0
        while at < data.size:
            count = min(_PIECE_BYTES - self._used, data.size - at)
            self._piece[self._used : self._used + count] = data[at : at + count]
            self._used += count
            at += count
            if self._used == _PIECE_BYTES:
                self.end()

    def end(self) -> None:
        """Write what is left."""
        piece = memoryview(self._piece[: self._used].data)
        self._file.write(piece)
        self.digest.update(piece)
        self._used = 0


def _write_table(folder: Path, table: Mapping[str, object]) -> None:
    stamped = {**table, "stamp": _stamp(folder)}
    sealed = {**stamped, "seal": signature_of(_digest(stamped))}
    new = folder / f".{TABLE_FILE}.{os.getpid()}"
    new.write_text(json.dumps(sealed), encoding="utf-8")
    new.replace(folder / TABLE_FILE)


def _stamp(folder: Path) -> Fingerprint:
    return fingerprint_of((folder / DATA_FILE).stat())


def _stamp_again(folder: Path, table: Mapping[str, object]) -> None:
    try:
        _write_table(folder, {key: table[key] for key in table if key not in ("seal", "stamp")})
    except OSError as error:  # a cache that may only be read is read whole each time
        _log.debug("`%s` cannot be stamped: %s", folder, error)


def _read_table(folder: Path) -> Mapping[str, Any] | None:
    try:
        table = json.loads((folder / TABLE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        return None
    rest = {key: value for key, value in table.items() if key != "seal"}
    # What carries the seal was written here, so its parts are as this file writes them.
    return table if is_signed_here(_digest(rest), str(table.get("seal"))) else None


def _digest(table: Mapping[str, object]) -> str:
    return sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()
