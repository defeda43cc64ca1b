"""A GGUF file: its header, bounded against hostile files, and its tensors where they lie.

Source: ggml-org/ggml, docs/gguf.md (versions 2 and 3); type numbers and block sizes from
`gguf/constants.py` 0.19.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vermilion.errors import ModelError, OptionError, UnsupportedError

_MAGIC = b"GGUF"
_MAX_KEYS = 4096
_MAX_TENSORS = 1 << 16
_MAX_NAME_BYTES = 1 << 16
_MAX_TEXT_BYTES = 4 << 20
_MAX_ITEMS = 1 << 22  # the largest vocabularies have a quarter of a million words
_MAX_DIMENSIONS = 8
_KEPT_ITEMS = 1024

# Type number → format of one value.
_SCALARS: Mapping[int, str] = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_TEXT, _ARRAY = 8, 9

# Tensor type → name, values in a block, bytes of a block.
_TENSOR_TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}


@dataclass(frozen=True)
class GgufArray:
    """A list in the header that is too long to be kept: its length is."""

    length: int


@dataclass(frozen=True)
class GgufTensor:
    """One tensor; its shape has the innermost dimension first, as the file has it.

    `place` is its first byte in the file; `size_bytes` is 0 where the type is not known.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    place: int = 0
    size_bytes: int = 0


@dataclass(frozen=True)
class GgufHeader:
    """What stands before the weights."""

    path: Path
    version: int
    metadata: Mapping[str, object]
    tensors: tuple[GgufTensor, ...]


class _Reader:
    """Takes values from the front of the file; every length is held against what is left."""

    def __init__(self, data: mmap.mmap, path: Path, *, is_whole: bool) -> None:
        self._data = data
        self._path = path
        self._is_whole = is_whole
        self.at = 0

    def skip(self, count: int) -> None:
        if count > len(self._data) - self.at:
            raise self.damaged("it is cut short")
        self.at += count

    def scalar(self, layout: str) -> int | float | bool:
        size = struct.calcsize(layout)
        start = self.at
        self.skip(size)
        value: int | float | bool = struct.unpack_from(layout, self._data, start)[0]
        return value

    def whole(self, layout: str, most: int, what: str) -> int:
        value = int(self.scalar(layout))
        if value > most:
            raise self.damaged(f"{value:,} {what}; at most {most:,} are believed")
        return value

    def text(self, most: int) -> str:
        length = self.whole("<Q", most, "bytes in one text")
        start = self.at
        self.skip(length)
        return self._data[start : self.at].decode("utf-8", errors="replace")

    def value(self, kind: int) -> object:
        if kind == _TEXT:
            return self.text(_MAX_TEXT_BYTES)
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise self.damaged(f"a value of the unknown type {kind}")
        return self.scalar(_SCALARS[kind])

    def _array(self) -> object:
        kind = int(self.scalar("<I"))
        length = self.whole("<Q", _MAX_ITEMS, "items in one list")
        if kind == _ARRAY:
            raise self.damaged("a list of lists, which no writer makes")
        if kind in _SCALARS and length > _KEPT_ITEMS:
            start, layout = self.at, _SCALARS[kind]
            self.skip(length * struct.calcsize(layout))
            if self._is_whole:
                return np.frombuffer(self._data, np.dtype(layout), length, start).tolist()
            return GgufArray(length)
        if kind == _TEXT and length > _KEPT_ITEMS and not self._is_whole:
            for _ in range(length):
                self.skip(self.whole("<Q", _MAX_TEXT_BYTES, "bytes in one text"))
            return GgufArray(length)
        return tuple(self.value(kind) for _ in range(length))

    def damaged(self, reason: str) -> ModelError:
        return ModelError(
            f"the GGUF header is damaged at byte {self.at:,}: {reason}",
            where=str(self._path),
            hint="download the file again",
        )


def is_gguf(path: Path) -> bool:
    """Say whether a file begins as GGUF does; a pipe or a device, which would be waited for, no."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(4) == _MAGIC


def read_gguf(path: Path) -> GgufHeader:
    """Return the header of a GGUF file whose weights are all there; of long lists their length.

    Raises: OptionError if it cannot be read; ModelError if it is damaged; UnsupportedError for
    versions and byte orders that are not read here.
    """
    with _mapped(path) as data:
        return _header(_Reader(data, path, is_whole=False), path, len(data))


def _mapped(path: Path) -> mmap.mmap:
    try:
        if path.exists() and not path.is_file():
            raise OptionError("this is no file", where=str(path), hint="name a `.gguf` file")
        with path.open("rb") as stream:
            if stream.read(4) != _MAGIC:
                raise ModelError(
                    "this is not a GGUF file", where=str(path), hint="name a `.gguf` file"
                )
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise OptionError(
            f"the file cannot be read: {error.strerror or error}",
            where=str(path),
            hint="check the path",
        ) from error


@dataclass(frozen=True, eq=False)
class GgufFile:
    """A file that is mapped: its whole header, and tensors as they lie in it."""

    header: GgufHeader
    data: NDArray[np.uint8] = field(repr=False)

    def tensor(self, name: str) -> GgufTensor | None:
        """Return what the header says of a tensor."""
        return self._tensors.get(name)

    def rows(self, tensor: GgufTensor) -> NDArray[np.uint8]:
        """Return the bytes of a tensor, a row of its innermost dimension in each: (…, bytes).

        Raises: UnsupportedError for a type whose bytes are not known; ModelError where its rows
        are no whole blocks.
        """
        _, block, block_bytes = next(
            (row for row in _TENSOR_TYPES.values() if row[0] == tensor.type), ("", 0, 0)
        )
        where = f"{self.header.path}, tensor `{tensor.name}`"
        if not block:
            raise UnsupportedError(f"a tensor of {tensor.type} is not known here", where=where)
        width = tensor.shape[0] if tensor.shape else 1
        if not width or width % block:
            raise ModelError(
                f"rows of {width} values are no whole blocks of {block} ({tensor.type})",
                where=where,
                hint="download the file again",
            )
        shape = (*reversed(tensor.shape[1:]), width // block * block_bytes)
        return self.data[tensor.place : tensor.place + math.prod(shape)].reshape(shape)

    @cached_property
    def _tensors(self) -> dict[str, GgufTensor]:
        return {tensor.name: tensor for tensor in self.header.tensors}


def open_gguf(path: Path) -> GgufFile:
    """Map a GGUF file; see `read_gguf`, whose errors it raises."""
    data = _mapped(path)
    header = _header(_Reader(data, path, is_whole=True), path, len(data))
    return GgufFile(header, np.frombuffer(data, np.uint8))


def _header(reader: _Reader, path: Path, size_bytes: int) -> GgufHeader:
    reader.skip(len(_MAGIC))
    version = int(reader.scalar("<I"))
    if version not in (2, 3):
        words = "is big-endian" if version & 0xFFFF == 0 else f"has version {version}"
        raise UnsupportedError(
            f"the GGUF file {words}; versions 2 and 3 are read, little-endian", where=str(path)
        )
    tensor_count = reader.whole("<Q", _MAX_TENSORS, "tensors")
    key_count = reader.whole("<Q", _MAX_KEYS, "keys")
    metadata: dict[str, object] = {}
    for _ in range(key_count):
        key = reader.text(_MAX_NAME_BYTES)
        if key in metadata:
            raise reader.damaged(f"the key `{key}` stands there twice")
        metadata[key] = reader.value(int(reader.scalar("<I")))
    placed = [_tensor(reader) for _ in range(tensor_count)]
    begin = _check_places(reader, placed, metadata, size_bytes)
    tensors = tuple(replace(one, place=begin + one.place) for one in placed)
    return GgufHeader(path, version, metadata, tensors)


def _tensor(reader: _Reader) -> GgufTensor:
    """Return one tensor, whose place is one among the weights."""
    name = reader.text(_MAX_NAME_BYTES)
    rank = reader.whole("<I", _MAX_DIMENSIONS, "dimensions")
    shape = tuple(reader.whole("<Q", 1 << 40, "elements along one side") for _ in range(rank))
    kind = int(reader.scalar("<I"))
    offset = int(reader.scalar("<Q"))
    title, block, block_bytes = _TENSOR_TYPES.get(kind, (f"type {kind}", 0, 0))
    size = -(-math.prod(shape) // block) * block_bytes if block else 0
    return GgufTensor(name, shape, title, offset, size)


def _check_places(
    reader: _Reader,
    placed: list[GgufTensor],
    metadata: Mapping[str, object],
    size_bytes: int,
) -> int:
    """Check that every tensor lies inside the file: a download that broke off is found here.

    Return where the weights begin.
    """
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
        raise reader.damaged(f"an alignment of {alignment!r}")
    begin = -(-reader.at // alignment) * alignment
    names: set[str] = set()
    for tensor in placed:
        end = begin + tensor.place + tensor.size_bytes
        if tensor.name in names:
            raise reader.damaged(f"the tensor `{tensor.name}` stands there twice")
        names.add(tensor.name)
        if end > size_bytes:
            raise ModelError(
                f"the file is cut short: `{tensor.name}` ends at byte {end:,},"
                f" the file at {size_bytes:,}",
                where=str(reader._path),
                hint="download the file again",
            )
    return begin
