"""Static libraries: object files in one, with an index of the symbols that they define.

Source: the System V archive format with GNU's names, as ar(5) describes it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

_MAGIC = b"!<arch>\n"
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOL_TABLE = 2


def write_static(path: Path, objects: Sequence[Path]) -> None:
    """Write an archive. The same files give the same bytes."""
    names = b"".join(file.name.encode() + b"/\n" for file in objects)
    members, name_at = [], 0
    for file in objects:
        members.append(_member(f"/{name_at}", file.read_bytes()))
        name_at += len(file.name.encode()) + 2
    symbols = [(number, name) for number, file in enumerate(objects) for name in _defined(file)]
    texts = b"".join(name + b"\0" for _, name in symbols)
    long_names = _member("//", names)
    # The index lies before all it points at, and its length does not depend on where that is.
    first = len(_MAGIC) + len(_member("/", bytes(4 + 4 * len(symbols)) + texts)) + len(long_names)
    places = [first + sum(map(len, members[:number])) for number in range(len(members))]
    index = struct.pack(f">I{len(symbols)}I", len(symbols), *(places[n] for n, _ in symbols))
    path.write_bytes(b"".join([_MAGIC, _member("/", index + texts), long_names, *members]))


def _member(name: str, data: bytes) -> bytes:
    head = f"{name:<16}{0:<12}{0:<6}{0:<6}{'644':<8}{len(data):<10}`\n".encode()
    return head + data + b"\n" * (len(data) % 2)


def _defined(file: Path) -> list[bytes]:
    """Return the global symbols that an object defines."""
    data = file.read_bytes()
    (sections_at,) = struct.unpack_from("<Q", data, 40)
    entry, count = struct.unpack_from("<HH", data, 58)
    heads = [_SECTION.unpack_from(data, sections_at + entry * at) for at in range(count)]
    table = next(head for head in heads if head[1] == _SYMBOL_TABLE)
    names_at = heads[table[6]][4]
    found = []
    for at in range(table[4], table[4] + table[5], _SYMBOL.size):
        name_at, about, _, section, _, _ = _SYMBOL.unpack_from(data, at)
        if section and about >> 4:  # neither another object's nor local
            end = data.index(b"\0", names_at + name_at)
            found.append(data[names_at + name_at : end])
    return found
