"""Model files with their large weights apart, so that each is copied once: out of the file, or in.

A parsed message has a copy of them, and gives another one each time that it is asked for their
numbers; a message that is written has one and becomes another. Here the message is put together
without what is in large weights; a file that is out of the ordinary is left to the parser.

Source of the layout: protobuf.dev, "Encoding"; the numbers of fields are those of `onnx.proto`.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx_ir as ir

APART_BYTES = 1 << 16
"""Weights from this size on are kept apart."""

# Fields, each with its wire type, as they are written.
_GRAPH, _INITIALIZER = 7 << 3 | 2, 5 << 3 | 2
_DATA_TYPE, _RAW_DATA = 2 << 3, 9 << 3 | 2

# Of a tensor: dims, data_type, name, raw_data, doc_string, metadata_props. The others are
# further places for its numbers.
_ORDINARY = frozenset({1, 2, 8, 9, 12, 16})

# Types that NumPy has itself, in whole bytes.
_PLAIN = frozenset(
    int(kind)
    for kind in (
        *(ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16),
        *(ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64),
        *(ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64),
    )
)


class _OutOfOrder(Exception):
    """Something that the parser shall look at."""


@dataclass
class _Reader:
    """A file from one field to the next; `end` is where the message around it ends."""

    stream: BinaryIO
    end: int
    at: int = 0
    fields: int = 0
    initializers: int = 0
    most_fields: int = 1 << 18  # a model of ten thousand nodes has a fifth; a hostile file is full
    apart: dict[int, bytes] = field(default_factory=dict)

    def number(self) -> int:
        """Read a variable-length number."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise _OutOfOrder

    def take(self, size: int) -> bytes:
        """Read so many bytes."""
        if self.at + size > self.end:
            raise _OutOfOrder
        data = self.stream.read(size)
        if len(data) != size:
            raise _OutOfOrder
        self.at += size
        return data

    def tag(self) -> int:
        """Read which field comes next."""
        self.fields += 1
        if self.fields > self.most_fields:
            raise _OutOfOrder
        return self.number()

    def rest(self, tag: int) -> bytes:
        """Read a field whose tag was read; give all of it."""
        wire_type = tag & 7
        if wire_type == 0:
            return _encoded(tag) + _encoded(self.number())
        if wire_type == 2:
            size = self.number()
            return b"".join((_encoded(tag), _encoded(size), self.take(size)))
        if wire_type in (1, 5):
            return _encoded(tag) + self.take(8 if wire_type == 1 else 4)
        raise _OutOfOrder


def read_apart(stream: BinaryIO, size: int) -> tuple[bytes, dict[int, bytes]] | None:
    """Read a serialized ModelProto of `size` bytes; give it without large weights, and those.

    Weights are told by their place among the graph's initializers; in the message an empty
    `raw_data` is left of each. None where the file is for the parser to judge.
    """
    if sys.byteorder != "little":
        return None
    reader = _Reader(stream, size)
    pieces = []
    try:
        while reader.at < size:
            tag = reader.tag()
            pieces.append(_graph(reader) if tag == _GRAPH else reader.rest(tag))
    except _OutOfOrder:
        return None
    return b"".join(pieces), reader.apart


def write_model(model: ir.Model, path: Path) -> None:
    """Write the file that `ir.save` would write, byte for byte."""
    initializers = model.graph.initializers
    tensors = {
        name: value.const_value
        for name, value in initializers.items()
        if value.const_value is not None and _is_apart(value.const_value)
    }
    try:
        for name, tensor in tensors.items():
            initializers[name].const_value = _placeholder(tensor)
        proto = ir.to_proto(model)
    finally:
        for name, tensor in tensors.items():
            initializers[name].const_value = tensor
    filled: dict[int, memoryview] = {}
    for number, left in enumerate(proto.graph.initializer):
        if left.name in tensors:
            left.ClearField("external_data")
            left.ClearField("data_location")
            left.raw_data = b""
            array = np.ascontiguousarray(tensors[left.name].numpy())
            filled[number] = array.reshape(-1).view(np.uint8).data
    serialized = proto.SerializeToString()
    reader = _Reader(io.BytesIO(serialized), len(serialized), most_fields=len(serialized))
    with path.open("wb") as stream:
        stream.writelines(_filled(reader, filled))


def _is_apart(tensor: ir.TensorProtocol) -> bool:
    own = isinstance(tensor, ir.Tensor | ir.TensorProtoTensor)
    return (
        own
        and sys.byteorder == "little"
        and int(tensor.dtype) in _PLAIN
        and tensor.nbytes >= APART_BYTES
    )


def _placeholder(tensor: ir.TensorProtocol) -> ir.ExternalTensor:
    shape = ir.Shape(tensor.shape.numpy())
    left = ir.ExternalTensor("apart", 0, 0, tensor.dtype, shape=shape, name=tensor.name or "")
    left.doc_string = tensor.doc_string
    left.metadata_props.update(tensor.metadata_props)
    return left


def _filled(reader: _Reader, weights: Mapping[int, memoryview]) -> list[bytes | memoryview]:
    """Return a message of our own making piece by piece, weights in their places."""
    pieces: list[bytes | memoryview] = []
    while reader.at < reader.end:
        tag = reader.tag()
        if tag != _GRAPH:
            pieces.append(reader.rest(tag))
            continue
        outer, reader.end = reader.end, _end_of_inner(reader)
        graph: list[bytes | memoryview] = []
        while reader.at < reader.end:
            inner = reader.tag()
            if inner == _INITIALIZER:
                graph += _initializer_filled(reader, weights)
                reader.initializers += 1
            else:
                graph.append(reader.rest(inner))
        reader.end = outer
        pieces += _framed(_GRAPH, graph)
    return pieces


def _initializer_filled(
    reader: _Reader, weights: Mapping[int, memoryview]
) -> list[bytes | memoryview]:
    end = _end_of_inner(reader)
    pieces: list[bytes | memoryview] = []
    data = weights.get(reader.initializers)
    while reader.at < end:
        tag = reader.tag()
        if tag == _RAW_DATA and data is not None:
            reader.number()
            pieces += _framed(tag, [data])
        else:
            pieces.append(reader.rest(tag))
    return _framed(_INITIALIZER, pieces)


def _framed(tag: int, pieces: list[bytes | memoryview]) -> list[bytes | memoryview]:
    return [_encoded(tag) + _encoded(sum(map(len, pieces))), *pieces]


def _graph(reader: _Reader) -> bytes:
    outer, reader.end = reader.end, _end_of_inner(reader)
    pieces = []
    while reader.at < reader.end:
        tag = reader.tag()
        if tag == _INITIALIZER:
            pieces.append(_initializer(reader))
            reader.initializers += 1
        else:
            pieces.append(reader.rest(tag))
    reader.end = outer
    return _message(_GRAPH, pieces)


def _initializer(reader: _Reader) -> bytes:
    outer, end = reader.end, _end_of_inner(reader)
    if end - reader.at < APART_BYTES:
        return _message(_INITIALIZER, [reader.take(end - reader.at)])
    reader.end = end
    pieces, numbers = [], set[int]()
    kind = 0
    while reader.at < reader.end:
        tag = reader.tag()
        numbers.add(tag >> 3)
        if tag == _DATA_TYPE:
            kind = reader.number()
            pieces.append(_encoded(tag) + _encoded(kind))
        elif tag == _RAW_DATA and kind in _PLAIN:
            if reader.initializers in reader.apart:
                raise _OutOfOrder
            reader.apart[reader.initializers] = reader.take(reader.number())
            pieces.append(_message(tag, []))
        else:
            pieces.append(reader.rest(tag))
    is_apart = reader.initializers in reader.apart
    if is_apart and not (numbers <= _ORDINARY and kind in _PLAIN):
        raise _OutOfOrder
    reader.end = outer
    return _message(_INITIALIZER, pieces)


def _end_of_inner(reader: _Reader) -> int:
    size = reader.number()
    if reader.at + size > reader.end:
        raise _OutOfOrder
    return reader.at + size


def _message(tag: int, pieces: list[bytes]) -> bytes:
    content = b"".join(pieces)
    return b"".join((_encoded(tag), _encoded(len(content)), content))


def _encoded(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
