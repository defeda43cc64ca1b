"""One `weights.bin` for a whole bundle: each large tensor once, wherever it is used.

The models of a bundle (`model.onnx` and every `part.onnx`) name their large initializers by
offset and length in that file, so the file is mapped once and lent to all.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from vermilion.backends.base import Array
from vermilion.errors import ArtifactError
from vermilion.runtime.digest import array_bytes
from vermilion.runtime.manifest import WEIGHTS_FILE
from vermilion.store.digest import ChunkedHash

ALIGNMENT = 64

_HINT = "the bundle is damaged or was changed by hand: compile the model again"

Slot = tuple[int, int]  # offset and length in bytes


class WeightsWriter:
    """Writes `weights.bin`; tensors with the same bytes share their place."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = ChunkedHash()
        self._slots: dict[tuple[int, str], Slot] = {}
        # By address, so that a tensor which several models share is read once. The arrays are
        # kept, or another could come to lie at the same address.
        self._seen: dict[tuple[int, int], tuple[Slot, Array]] = {}
        self.size = 0

    def add(self, array: Array) -> Slot:
        """Return the place of an array's bytes, written now if they are new."""
        address = (array.ctypes.data, array.nbytes)
        if array.flags.c_contiguous and address in self._seen:
            return self._seen[address][0]
        data = array_bytes(array)
        content = (len(data), hashlib.sha256(data).hexdigest())
        if content not in self._slots:
            self._write(bytes(-self.size % ALIGNMENT))
            self._slots[content] = (self.size, len(data))
            self._write(data)
        self._seen[address] = (self._slots[content], array)
        return self._slots[content]

    @property
    def sha256(self) -> str:
        """Digest of all that was written, as `pieces` makes it."""
        return self._hash.hexdigest()

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.size += len(data)


def point_at_weights(
    serialized: bytes, arrays: Mapping[str, Array], writer: WeightsWriter
) -> bytes:
    """Return the model with each external initializer naming its place in `weights.bin`."""
    model = onnx.ModelProto.FromString(serialized)
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        offset, length = writer.add(arrays[tensor.name])
        del tensor.external_data[:]
        entries = {"location": WEIGHTS_FILE, "offset": str(offset), "length": str(length)}
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)
    rewritten: bytes = model.SerializeToString(deterministic=True)
    return rewritten


def lent_weights(serialized: memoryview, weights: memoryview, where: str) -> dict[str, Array]:
    """Return views into `weights.bin` for the initializers that a model keeps there, by name.

    Raises: ArtifactError for a reference to another file, out of range, of another size than
    the tensor has, or anywhere but in the main graph's initializers.
    """
    model = parse_model(serialized, where)
    found: dict[str, Array] = {}
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            found[tensor.name] = _view(tensor, weights, where)
    for tensor in _inner_tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ArtifactError(
                f"tensor `{tensor.name}` inside a node lies outside the model",
                where=where,
                hint=_HINT,
            )
    return found


def parse_model(serialized: memoryview, where: str) -> onnx.ModelProto:
    """Return the model's protobuf, not looked at any further."""
    try:
        model: onnx.ModelProto = onnx.ModelProto.FromString(bytes(serialized))
    except DecodeError as error:
        raise ArtifactError(
            f"this is not an ONNX model: {error}", where=where, hint=_HINT
        ) from error
    return model


def _view(tensor: onnx.TensorProto, weights: memoryview, where: str) -> Array:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if entries.get("location") != WEIGHTS_FILE or len(entries) != len(tensor.external_data):
        location = entries.get("location", "")[:80]
        raise _refuse(tensor, f"lies in `{location}`, not in `{WEIGHTS_FILE}`", where)
    offset, length = _number(entries.get("offset", "")), _number(entries.get("length", ""))
    if offset is None or length is None or offset % ALIGNMENT:
        raise _refuse(tensor, "has an offset or a length that is none", where)
    if offset + length > len(weights):
        raise _refuse(tensor, f"ends after the end of `{WEIGHTS_FILE}`", where)
    dtype = _dtype(tensor, where)
    dimensions = tuple(tensor.dims)
    if any(size < 0 for size in dimensions) or math.prod(dimensions) * dtype.itemsize != length:
        raise _refuse(tensor, f"has {length} bytes, which does not fit its shape and type", where)
    array = np.frombuffer(weights, np.uint8, length, offset).view(dtype)
    return array.reshape(dimensions)


def _dtype(tensor: onnx.TensorProto, where: str) -> np.dtype[np.generic]:
    try:
        kind = ir.DataType(tensor.data_type)
        if kind in (ir.DataType.STRING, ir.DataType.UNDEFINED) or kind.bitwidth < 8:
            raise _refuse(tensor, f"is of a type ({kind.name}) that is kept in the model", where)
        return kind.numpy()
    except (ValueError, TypeError) as error:
        raise _refuse(tensor, f"has no known type: {tensor.data_type}", where) from error


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _inner_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor but the main graph's initializers."""
    for sparse in model.graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    waiting: list[Iterable[onnx.NodeProto]] = [model.graph.node]
    waiting.extend(function.node for function in model.functions)
    while waiting:
        for node in waiting.pop():
            for attribute in node.attribute:
                yield from (attribute.t, *attribute.tensors)
                for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                    yield from (sparse.values, sparse.indices)
                for graph in (attribute.g, *attribute.graphs):
                    yield from graph.initializer
                    waiting.append(graph.node)


def _refuse(tensor: onnx.TensorProto, problem: str, where: str) -> ArtifactError:
    return ArtifactError(f"weight `{tensor.name[:80]}` {problem}", where=where, hint=_HINT)
