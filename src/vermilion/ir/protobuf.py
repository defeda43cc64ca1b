"""A model file's protobuf before it is trusted: its size in memory, texts, graphs, functions.

A protobuf of a few megabytes can hold millions of empty messages, each of which becomes objects
of hundreds of bytes. Nothing below looks at contents; weights are stepped over.

Source of the layout: protobuf.dev, "Encoding".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import Any

import onnx
import onnx_ir as ir
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from vermilion.errors import ModelError

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


MAX_NODES = 1_000_000
"""After functions have been put in place of their calls. No known model has a tenth of it."""

_FunctionKey = tuple[str, str, str]  # domain, name, overload
_TEXTS = (onnx.AttributeProto.STRING, onnx.AttributeProto.STRINGS)
_DAMAGED = "the file is damaged; export or download it again"


def check_texts(model: onnx.ModelProto, where: str) -> None:
    """Raise ModelError for a name or text that is not UTF-8, wherever it stands."""
    pending: list[Any] = [model]
    while pending:
        message = pending.pop()
        if isinstance(message, onnx.TensorProto):
            # Not all fields: listing them would copy the weights.
            _check_text(message.name, "a tensor's name", where)
            for text in message.string_data:
                _check_text(text, f"a text of the tensor `{message.name}`", where, undecoded=True)
            pending.extend(message.external_data)
            continue
        for field, value in message.ListFields():
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                pending.extend(value if field.is_repeated else (value,))
            elif field.type == FieldDescriptor.TYPE_STRING:
                for text in value if field.is_repeated else (value,):
                    _check_text(text, f"a `{field.name}` of a {message.DESCRIPTOR.name}", where)
        if isinstance(message, onnx.AttributeProto) and message.type in _TEXTS:
            for text in (message.s, *message.strings):
                _check_text(text, f"the attribute `{message.name}`", where, undecoded=True)


def _check_text(text: str | bytes, what: str, where: str, *, undecoded: bool = False) -> None:
    if isinstance(text, str):
        return
    # protobuf gives a string as bytes where it cannot decode it.
    try:
        text.decode("utf-8")
        broken = not undecoded
    except UnicodeDecodeError:
        broken = True
    if broken:
        raise ModelError(f"{what} is not UTF-8 text: {text[:40]!r}", where=where, hint=_DAMAGED)


def inner_graphs(node: onnx.NodeProto) -> Iterable[onnx.GraphProto]:
    """Yield the bodies of a node (If, Loop, Scan)."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all that are inside of it."""
    pending = [graph]
    while pending:
        current = pending.pop()
        yield current
        for node in current.node:
            pending.extend(inner_graphs(node))


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield the nodes and those in their bodies."""
    pending = [nodes]
    while pending:
        for node in pending.pop():
            yield node
            pending.extend(graph.node for graph in inner_graphs(node))


def inner_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    """Yield every tensor in attributes and bodies, not those of the graph around the nodes."""
    for node in all_nodes(nodes):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
        for graph in inner_graphs(node):
            yield from graph.initializer


def check_attribute_names(model: onnx.ModelProto, where: str) -> None:
    """Raise ModelError where a node has two attributes of one name: either might be taken."""
    for nodes in (model.graph.node, *(function.node for function in model.functions)):
        for node in all_nodes(nodes):
            names = [attribute.name for attribute in node.attribute]
            if len(set(names)) < len(names):
                twice = Counter(names).most_common(1)[0][0]
                name = node.name or (node.output[0] if node.output else "?")
                raise ModelError(
                    f"its attribute `{twice}` stands twice",
                    where=f"{where}, node `{name}`, {node.op_type}",
                    hint="export the model again",
                )


def check_functions(model: onnx.ModelProto, where: str) -> None:
    """Raise ModelError where a function calls itself, stands twice, or unfolds without end.

    Ten functions of ten calls each unfold into ten billion nodes.
    """
    bodies: dict[_FunctionKey, onnx.FunctionProto] = {}
    for function in model.functions:
        key = (function.domain, function.name, function.overload)
        if key in bodies:
            raise ModelError(
                f"the function `{function.domain}::{function.name}` is defined twice",
                where=where,
                hint=_DAMAGED,
            )
        bodies[key] = function
    calls = {key: _calls(function.node, bodies) for key, function in bodies.items()}
    sizes: dict[_FunctionKey, int] = {}
    for key in _callees_first(calls, where):
        own = sum(1 for _ in all_nodes(bodies[key].node))
        sizes[key] = own + sum(sizes[other] * count for other, count in calls[key].items())
    called = _calls(model.graph.node, bodies)
    unfolded = sum(sizes[key] * count for key, count in called.items())
    if unfolded > MAX_NODES:
        raise ModelError(
            f"the model's functions unfold into {unfolded:.3g} nodes",
            where=where,
            hint="no exporter writes this: do not trust the file",
        )


def _calls(
    nodes: Iterable[onnx.NodeProto], bodies: dict[_FunctionKey, onnx.FunctionProto]
) -> Counter[_FunctionKey]:
    keys = ((node.domain, node.op_type, node.overload) for node in all_nodes(nodes))
    return Counter(key for key in keys if key in bodies)


def _callees_first(
    calls: dict[_FunctionKey, Counter[_FunctionKey]], where: str
) -> list[_FunctionKey]:
    try:
        return list(TopologicalSorter(calls).static_order())
    except CycleError as error:
        domain, name, _ = error.args[1][0]
        raise ModelError(
            f"the function `{domain}::{name}` calls itself, directly or through others",
            where=where,
            hint="no exporter writes this: do not trust the file",
        ) from error


def paired_graphs(
    graph: ir.Graph, proto: onnx.GraphProto
) -> Iterator[tuple[ir.Graph, onnx.GraphProto]]:
    """Yield a graph and those inside its nodes, each with the message that was made of it."""
    yield graph, proto
    for node, other in zip(graph, proto.node, strict=True):
        for attribute in other.attribute:
            mine = node.attributes[attribute.name]
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from paired_graphs(mine.as_graph(), attribute.g)
            elif attribute.type == onnx.AttributeProto.GRAPHS:
                for inner, inner_proto in zip(mine.as_graphs(), attribute.graphs, strict=True):
                    yield from paired_graphs(inner, inner_proto)
