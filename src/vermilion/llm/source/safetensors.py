"""Safetensors files, mapped: headers that are believed only as far as the file goes.

Source: huggingface/safetensors, `README.md` (format): eight bytes with the length of a JSON header,
the header, then the numbers.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from vermilion.errors import ModelError, OptionError
from vermilion.files import read_object

# The format's own limit.
_MOST_HEADER_BYTES = 100_000_000
_SIZES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2,
    "U16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
_INDEX = "model.safetensors.index.json"
_MOST_DIMENSIONS = 8


@dataclass(frozen=True, eq=False)
class SafeTensor:
    """A tensor where it lies: its type, shape, and bytes."""

    type: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]

    @property
    def rows(self) -> NDArray[np.uint8]:
        """Its bytes by rows: (…, bytes of the last dimension)."""
        return self.data.reshape(*self.shape[:-1], self.shape[-1] * _SIZES[self.type])


def read_folder(folder: Path) -> dict[str, SafeTensor]:
    """Return the tensors of a folder: of one file, or of those that its index names.

    Raises: ModelError for what is damaged; OptionError for what cannot be read.
    """
    index = folder / _INDEX
    if not index.is_file():
        files = sorted(folder.glob("*.safetensors"))
        found = [read_safetensors(file) for file in files]
        return _united(files, found)
    listed = read_object(index).get("weight_map")
    if not isinstance(listed, Mapping) or not all(isinstance(one, str) for one in listed.values()):
        raise _damaged(index, "`weight_map` names no files")
    names = sorted(set(listed.values()))
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise _damaged(index, f"`{name}` is no file of this folder")
    files = [folder / name for name in names]
    tensors = _united(files, [read_safetensors(file) for file in files])
    missing = [name for name in listed if name not in tensors]
    if missing:
        raise _damaged(index, f"`{missing[0]}` is in none of the files")
    return tensors


def _united(files: list[Path], parts: list[dict[str, SafeTensor]]) -> dict[str, SafeTensor]:
    whole: dict[str, SafeTensor] = {}
    for file, part in zip(files, parts, strict=True):
        twice = whole.keys() & part.keys()
        if twice:
            raise _damaged(file, f"the tensor `{min(twice)}` stands in another file, too")
        whole |= part
    return whole


def read_safetensors(path: Path) -> dict[str, SafeTensor]:
    """Return the tensors of a file, mapped.

    Raises: ModelError for a damaged one; OptionError for one that cannot be read.
    """
    try:
        with path.open("rb") as stream:
            size = path.stat().st_size
            if size < 8:
                raise _damaged(path, "it is cut short")
            data = np.frombuffer(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except OSError as error:
        raise OptionError(
            f"the file cannot be read: {error.strerror or error}", where=str(path),
            hint="check the path",
        ) from error  # fmt: skip
    length = int(data[:8].view(np.uint64)[0])
    if not 2 <= length <= min(size - 8, _MOST_HEADER_BYTES):
        raise _damaged(path, f"a header of {length:,} bytes in a file of {size:,}")
    try:
        header = json.loads(data[8 : 8 + length].tobytes())
    except (ValueError, RecursionError) as error:
        raise _damaged(path, "its header is no JSON") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is no object")
    header.pop("__metadata__", None)
    body = data[8 + length :]
    return {name: _tensor(path, name, about, body) for name, about in header.items()}


def _tensor(path: Path, name: str, about: object, body: NDArray[np.uint8]) -> SafeTensor:
    given = about if isinstance(about, dict) else {}
    type_ = given.get("dtype")
    if not isinstance(type_, str) or type_ not in _SIZES:
        raise _damaged(path, f"`{name}` has the type {type_!r}")
    shape, places = _counts(given.get("shape")), _counts(given.get("data_offsets"))
    if shape is None or len(shape) > _MOST_DIMENSIONS or places is None:
        raise _damaged(path, f"`{name}` has no shape, or no place")
    if len(places) != 2 or not places[0] <= places[1] <= len(body):
        raise _damaged(path, f"`{name}` lies at {places!r} of {len(body):,} bytes: it is cut short")
    if math.prod(shape) * _SIZES[type_] != places[1] - places[0]:
        raise _damaged(path, f"`{name}` has another size than its shape {shape!r}")
    return SafeTensor(type_, tuple(shape), body[places[0] : places[1]])


def _counts(given: object) -> list[int] | None:
    is_sound = isinstance(given, list) and all(
        isinstance(one, int) and not isinstance(one, bool) and 0 <= one < 1 << 48 for one in given
    )
    return cast("list[int]", given) if is_sound else None


def _damaged(path: Path, reason: str) -> ModelError:
    return ModelError(
        f"the file is damaged: {reason}", where=str(path), hint="download the file again"
    )
