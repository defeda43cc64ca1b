"""Tensors as KServe's version 2 has them: JSON lists, or bytes behind the JSON (its extension).

Source: KServe's `open_inference_rest.yaml` and Triton's `extension_binary_data.md`, as documented.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from vermilion.errors import UnsupportedError
from vermilion.runtime.feeds import nearest, shape_text
from vermilion.runtime.manifest import Dimension
from vermilion.serve.refusals import WrongRequestError

Array = NDArray[Any]

# KServe's names of data types, by ONNX Runtime's.
_TYPES: Mapping[str, tuple[str, Any]] = {
    "tensor(bool)": ("BOOL", np.bool_),
    "tensor(uint8)": ("UINT8", np.uint8),
    "tensor(uint16)": ("UINT16", np.uint16),
    "tensor(uint32)": ("UINT32", np.uint32),
    "tensor(uint64)": ("UINT64", np.uint64),
    "tensor(int8)": ("INT8", np.int8),
    "tensor(int16)": ("INT16", np.int16),
    "tensor(int32)": ("INT32", np.int32),
    "tensor(int64)": ("INT64", np.int64),
    "tensor(float16)": ("FP16", np.float16),
    "tensor(float)": ("FP32", np.float32),
    "tensor(double)": ("FP64", np.float64),
    "tensor(bfloat16)": ("BF16", ml_dtypes.bfloat16),
    "tensor(string)": ("BYTES", np.object_),
}
_LENGTH = struct.Struct("<I")
_MOST_AXES = 32
_MOST_ELEMENTS = 1 << 31
# What numpy makes of JSON numbers may become each kind of type.
_FROM = {"b": "biu", "i": "iu", "u": "iu", "f": "iuf", "V": "iuf"}


@dataclass(frozen=True)
class Tensor:
    """An input or output of a model. `shape` is None where even its length is open."""

    name: str
    type: str  # ONNX Runtime's spelling
    shape: tuple[Dimension, ...] | None

    @property
    def datatype(self) -> str:
        """KServe's name of the type."""
        return _TYPES[self.type][0]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of numpy's arrays."""
        found: np.dtype[Any] = np.dtype(_TYPES[self.type][1])
        return found

    def metadata(self) -> dict[str, object]:
        """Return the tensor as KServe describes it: -1 is any size."""
        sizes = [size if isinstance(size, int) else -1 for size in self.shape or ()]
        return {"name": self.name, "datatype": self.datatype, "shape": sizes}


def tensor_of(row: Mapping[str, Any]) -> Tensor:
    """Return what a worker told of an input or output.

    Raises: UnsupportedError for a type that the API has no name for.
    """
    name, type_, shape = str(row["name"]), str(row["type"]), row["shape"]
    if type_ not in _TYPES:
        raise UnsupportedError(
            f"`{name}` is a {type_}, which KServe's API has no name for",
            hint=f"there are {', '.join(_TYPES)}",
        )
    return Tensor(name, type_, None if shape is None else tuple(shape))


def read_tensors(
    given: object, binary: memoryview, wanted: Mapping[str, Tensor]
) -> dict[str, Array]:
    """Return the arrays of a request's `inputs`; those that are bytes lie in `binary`, in order.

    Raises: WrongRequestError that names the input.
    """
    if not isinstance(given, list) or not all(isinstance(row, dict) for row in given):
        raise WrongRequestError("`inputs` is a list of objects", hint=_FORM)
    found: dict[str, Array] = {}
    at = 0
    for row in given:
        tensor = _named(row.get("name"), wanted)
        if tensor.name in found:
            raise WrongRequestError(f"input `{tensor.name}` comes twice")
        shape = _shape(row.get("shape"), tensor)
        if row.get("datatype") != tensor.datatype:
            raise WrongRequestError(
                f"input `{tensor.name}` is {row.get('datatype')!r:.40}, the model wants "
                f"{tensor.datatype}"
            )
        size = _binary_size(row.get("parameters"), tensor.name)
        if size is None:
            found[tensor.name] = _of_json(row.get("data"), shape, tensor)
            continue
        if at + size > len(binary):
            raise WrongRequestError(f"the bytes of input `{tensor.name}` are not all there")
        found[tensor.name] = _of_bytes(binary[at : at + size], shape, tensor)
        at += size
    if at != len(binary):
        raise WrongRequestError(f"{len(binary) - at} bytes follow that belong to no input")
    missing = [name for name in wanted if name not in found]
    if missing:
        raise WrongRequestError(
            f"input `{missing[0]}` is missing",
            hint=f"it is {wanted[missing[0]].datatype} of shape "
            f"{shape_text(wanted[missing[0]].shape)}",
        )
    return found


_FORM = '`{"inputs": [{"name": …, "shape": […], "datatype": "FP32", "data": […]}]}`'


def _named(name: object, wanted: Mapping[str, Tensor]) -> Tensor:
    if not isinstance(name, str) or name not in wanted:
        words = name if isinstance(name, str) else repr(name)
        raise WrongRequestError(
            f"the model has no input `{words[:100]}`", hint=nearest(words[:100], wanted, "input")
        )
    return wanted[name]


def _shape(given: object, tensor: Tensor) -> tuple[int, ...]:
    if not isinstance(given, list) or not all(type(n) is int and n >= 0 for n in given):
        raise WrongRequestError(f"input `{tensor.name}` needs a `shape`, a list of sizes")
    # An empty array has no bytes that would keep its other sizes small.
    if len(given) > _MOST_AXES or math.prod(max(n, 1) for n in given) > _MOST_ELEMENTS:
        raise WrongRequestError(f"the `shape` of input `{tensor.name}` is too large")
    return tuple(given)


def _binary_size(parameters: object, name: str) -> int | None:
    if parameters is None:
        return None
    if not isinstance(parameters, dict):
        raise WrongRequestError(f"`parameters` of input `{name}` is no object")
    if any(key.startswith("shared_memory") for key in parameters):
        raise WrongRequestError(f"input `{name}` is in shared memory, which is not read here")
    size = parameters.get("binary_data_size")
    if size is not None and (type(size) is not int or size < 0):
        raise WrongRequestError(f"`binary_data_size` of input `{name}` is a number of bytes")
    return size


def _of_json(data: object, shape: tuple[int, ...], tensor: Tensor) -> Array:
    if not isinstance(data, list):
        raise WrongRequestError(f"input `{tensor.name}` needs `data`, a list")
    if tensor.dtype.kind == "O":
        return _shaped(_texts(data, tensor.name), shape, tensor)
    try:
        found = np.asarray(data)
    except (ValueError, OverflowError, TypeError) as error:
        raise WrongRequestError(
            f"`data` of input `{tensor.name}` has rows of several lengths"
        ) from (error)
    if not found.size:
        found = found.astype(tensor.dtype)
    if found.dtype.kind not in _FROM[tensor.dtype.kind]:
        raise WrongRequestError(
            f"`data` of input `{tensor.name}` is not all numbers of type {tensor.datatype}"
        )
    if tensor.dtype.kind in "iu" and found.size:
        limits = np.iinfo(tensor.dtype)
        if int(found.min()) < limits.min or int(found.max()) > limits.max:
            raise WrongRequestError(f"a number of input `{tensor.name}` is no {tensor.datatype}")
    with np.errstate(all="ignore"):  # what is too large for a float is infinite
        return _shaped(found.astype(tensor.dtype).reshape(-1), shape, tensor)


def _texts(data: list[Any], name: str) -> Array:
    texts: list[str] = []
    left: list[Any] = [data]
    while left:
        one = left.pop()
        if isinstance(one, list):
            left += reversed(one)
        elif isinstance(one, str):
            if not _is_text(one):
                raise WrongRequestError(f"a text of input `{name}` has a lone surrogate")
            texts.append(one)
        else:
            raise WrongRequestError(f"`data` of input `{name}` is not all strings")
    found = np.empty(len(texts), object)
    found[:] = texts
    return found


def _is_text(text: str) -> bool:
    """Say whether a text has an encoding: JSON's escapes can name halves of letters."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _of_bytes(data: memoryview, shape: tuple[int, ...], tensor: Tensor) -> Array:
    if tensor.dtype.kind == "O":
        return _shaped(_byte_texts(data, tensor.name), shape, tensor)
    if len(data) % tensor.dtype.itemsize:
        raise WrongRequestError(f"input `{tensor.name}` has {len(data)} bytes of {tensor.datatype}")
    found = np.frombuffer(data, np.uint8)
    if tensor.dtype.kind == "b":
        return _shaped(found != 0, shape, tensor)
    return _shaped(found.view(tensor.dtype), shape, tensor)


def _byte_texts(data: memoryview, name: str) -> Array:
    """Return elements that each have their length before them."""
    texts: list[str] = []
    at = 0
    while at < len(data):
        end = at + _LENGTH.size
        size = _LENGTH.unpack(data[at:end])[0] if end <= len(data) else len(data)
        if end + size > len(data):
            raise WrongRequestError(f"the bytes of input `{name}` end within an element")
        try:
            texts.append(str(data[end : end + size], "utf-8"))
        except UnicodeDecodeError as error:
            raise WrongRequestError(f"an element of input `{name}` is no UTF-8") from error
        at = end + size
    found = np.empty(len(texts), object)
    found[:] = texts
    return found


def _shaped(flat: Array, shape: tuple[int, ...], tensor: Tensor) -> Array:
    if flat.size != math.prod(shape):
        raise WrongRequestError(
            f"input `{tensor.name}` has {flat.size} elements for the shape {shape_text(shape)}"
        )
    wanted = tensor.shape
    fits = wanted is None or (
        len(wanted) == len(shape)
        and all(not isinstance(w, int) or w == n for w, n in zip(wanted, shape, strict=True))
    )
    if not fits:
        raise WrongRequestError(
            f"input `{tensor.name}` has shape {shape_text(shape)}, the model wants "
            f"{shape_text(wanted)}"
        )
    return flat.reshape(shape)


def write_bytes(array: Array, tensor: Tensor) -> bytes:
    """Return an output's bytes."""
    if tensor.dtype.kind != "O":
        return np.ascontiguousarray(array, tensor.dtype).tobytes()
    pieces = []
    for item in array.reshape(-1).tolist():
        text = item if isinstance(item, bytes) else str(item).encode("utf-8", "surrogateescape")
        pieces += [_LENGTH.pack(len(text)), text]
    return b"".join(pieces)


def write_list(array: Array, tensor: Tensor) -> list[Any]:
    """Return an output's numbers or texts, side by side; NaN is null, which NumPy reads as NaN.

    Raises: WrongRequestError for infinities, which JSON has no words for.
    """
    if tensor.dtype.kind == "O":
        return [_text_of(item) for item in array.reshape(-1).tolist()]
    flat = array.reshape(-1)
    if tensor.dtype.kind not in "fV":
        return list(flat.tolist())
    plain = flat.astype(np.float32) if array.itemsize < 4 else flat
    if np.isfinite(plain).all():
        return list(plain.tolist())
    if np.isinf(plain).any():
        raise WrongRequestError(
            f"output `{tensor.name}` has infinities, which JSON has no words for",
            hint="ask for its bytes: `binary_data`",
        )
    return [None if number != number else number for number in plain.tolist()]


def _text_of(item: object) -> str:
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item)


def classes_of(array: Array, count: int) -> Array:
    """Return the `count` largest of each row as `value:index` texts, the largest first."""
    count_of_rows = array.shape[0] if array.ndim > 1 else 1
    rows = array.reshape(count_of_rows, math.prod(array.shape[1:]) if array.ndim > 1 else -1)
    if rows.dtype.kind == "b":
        rows = rows.astype(np.uint8)
    if rows.dtype.kind not in "iu":
        rows = rows.astype(np.float64)
    # `~` turns the order of whole numbers around, whatever their type, as `-` does that of others.
    turned = ~rows if rows.dtype.kind in "iu" else -rows
    order = np.argsort(turned, axis=1, kind="stable")[:, :count]
    texts = np.empty(order.shape, object)
    for at, picked in enumerate(order):
        texts[at] = [f"{float(rows[at, index]):f}:{index}" for index in picked]
    return texts[0] if array.ndim < 2 else texts
