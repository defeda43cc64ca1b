"""Protobuf as bytes: a message taken apart into fields, and put together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Payload = int | bytes | list["Field"]

# Deeper than a model nests where nobody means harm.
_DEEPEST = 12


@dataclass
class Field:
    """A field: its number, how it is written (0 varint, 1 and 5 fixed, 2 bytes), what it holds."""

    number: int
    kind: int
    payload: Payload


def parse(data: bytes, depth: int = 0) -> list[Field] | None:
    """Return the fields of a message, messages in it taken apart too; None where it is none."""
    fields: list[Field] = []
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if number == 0 or at < 0:
            return None
        if kind == 0:
            value, at = _varint(data, at)
            if at < 0:
                return None
            fields.append(Field(number, kind, value))
            continue
        if kind == 2:
            size, at = _varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(kind, -1)
        if at < 0 or size < 0 or at + size > len(data):
            return None
        raw = data[at : at + size]
        at += size
        inner = parse(raw, depth + 1) if kind == 2 and raw and depth < _DEEPEST else None
        is_text = all(32 <= byte < 127 for byte in raw)
        fields.append(Field(number, kind, raw if inner is None or is_text else inner))
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
    return 0, -1


def written(fields: Sequence[Field]) -> bytes:
    """Return the bytes of a message."""
    out = bytearray()
    for field in fields:
        out += _as_varint(field.number << 3 | field.kind)
        if isinstance(field.payload, int):
            out += _as_varint(field.payload)
            continue
        raw = written(field.payload) if isinstance(field.payload, list) else field.payload
        if field.kind == 2:
            out += _as_varint(len(raw))
        out += raw
    return bytes(out)


def _as_varint(number: int) -> bytes:
    number &= 2**64 - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def every(fields: Sequence[Field]) -> list[tuple[list[Field], int]]:
    """Return each field of a message, at any depth, as (the list that holds it, position)."""
    found: list[tuple[list[Field], int]] = []
    pending = [list(fields)] if not isinstance(fields, list) else [fields]
    while pending:
        here = pending.pop()
        for at, field in enumerate(here):
            found.append((here, at))
            if isinstance(field.payload, list):
                pending.append(field.payload)
    return found
