"""How much memory a model file will need once it is read, told from its bytes alone.

A protobuf of a few megabytes can hold millions of empty messages, each of which becomes objects
of hundreds of bytes. Nothing below looks at contents; weights are stepped over.

Source of the layout: protobuf.dev, "Encoding".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import onnx
from google.protobuf.descriptor import Descriptor, FieldDescriptor

MAX_GRAPH_BYTES = 512 << 20
"""About 100,000 ordinary nodes with names, attributes and shapes; weights are not counted."""

# Bytes that one message takes in protobuf and onnx_ir together: measured with 100,000 empty ones
# (onnx 1.23, onnx_ir 1.1; 1785, 655, 758, 288, 326) and rounded up.
_MESSAGE_BYTES: Mapping[str, int] = {
    "GraphProto": 2000,
    "NodeProto": 1000,
    "TensorProto": 800,
    "AttributeProto": 500,
    "ValueInfoProto": 400,
}
_OTHER_MESSAGE_BYTES = 150
# A name that a node reads (212) or makes (305) costs the most; a number costs little.
_TEXT_BYTES = 200
_NUMBER_BYTES = 16  # also for each byte of a packed list, where a number may take one byte

# What a file of this many bytes can hold stays below the limit whatever it is: no message is
# shorter than two bytes and none takes more than a graph.
_HARMLESS_BYTES = 2 * MAX_GRAPH_BYTES // max(_MESSAGE_BYTES.values())

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


class WireError(ValueError):
    """The bytes are no protobuf."""


def graph_bytes(data: bytes, limit_bytes: int = MAX_GRAPH_BYTES) -> int:
    """Estimate what a serialized ModelProto takes in memory, weights apart.

    Stops counting soon after `limit_bytes`; gives 0 for a file too small to reach it.

    Raises: WireError where the bytes end inside of a field.
    """
    if len(data) <= _HARMLESS_BYTES:
        return 0
    total = 0
    pending = [(0, len(data), onnx.ModelProto.DESCRIPTOR)]
    while pending and total <= limit_bytes:
        at, end, kind = pending.pop()
        inner, lists = _inner_messages(kind), _number_lists(kind)
        while at < end and total <= limit_bytes:
            tag, at = _varint(data, at, end)
            if tag & 7 != _LENGTH:
                total += _NUMBER_BYTES
                at = _after_number(data, tag & 7, at, end)
                continue
            length, at = _varint(data, at, end)
            if at + length > end:
                raise WireError("a field is longer than what is around it")
            message = inner.get(tag >> 3)
            if message is not None:
                total += _MESSAGE_BYTES.get(message.name, _OTHER_MESSAGE_BYTES)
                pending.append((at, at + length, message))
            else:
                total += _TEXT_BYTES + _NUMBER_BYTES * length * (tag >> 3 in lists)
            at += length
    return total


def _after_number(data: bytes, wire_type: int, at: int, end: int) -> int:
    if wire_type == _VARINT:
        return _varint(data, at, end)[1]
    return at + {_FIXED64: 8, _FIXED32: 4}.get(wire_type, 0)


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    if at < end and data[at] < 0x80:
        return data[at], at + 1
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise WireError("a number is cut short or too long")


@cache
def _inner_messages(kind: Descriptor) -> Mapping[int, Descriptor]:
    """Return the fields of a message that hold messages, by number, and what these are."""
    return {field.number: field.message_type for field in kind.fields if field.message_type}


@cache
def _number_lists(kind: Descriptor) -> frozenset[int]:
    """Return the fields that become a Python tuple of numbers: not the contents of weights."""
    text = (FieldDescriptor.CPPTYPE_STRING, FieldDescriptor.CPPTYPE_MESSAGE)
    return frozenset(
        field.number
        for field in kind.fields
        if field.is_repeated and field.cpp_type not in text and not field.name.endswith("_data")
    )
