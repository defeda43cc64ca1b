"""Object files: names with a prefix that stay inside of what is linked, and static libraries.

Sources: System V ABI, chapter 4 (section headers, symbol table); the System V archive format with
GNU's names, as ar(5) describes it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from vermilion.errors import UnsupportedError

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOL_TABLE = 2
_UNDEFINED, _LOCAL, _HIDDEN = 0, 0, 2
_ARCHIVE = b"!<arch>\n"


def _sections(data: bytes) -> list[tuple[int, ...]]:
    """Return the section headers of an object file."""
    first, entry, count = _section_table(data)
    return [_SECTION.unpack_from(data, first + entry * at) for at in range(count)]


def _section_table(data: bytes) -> tuple[int, int, int]:
    """Return where the section headers begin, the size of one and how many there are."""
    (first,) = struct.unpack_from("<Q", data, 40)
    entry, count = struct.unpack_from("<HH", data, 58)
    return first, entry, count


def _symbol_table(heads: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return next(head for head in heads if head[1] == _SYMBOL_TABLE)


def with_prefix(data: bytes, prefix: str) -> bytes:
    """Return an object whose own global symbols have a prefix, and are hidden.

    The driver has the same names in every program, and kernels of two targets may have.

    Raises: UnsupportedError for what is no ELF object of 64 bits.
    """
    if data[:6] != b"\x7fELF\x02\x01":
        raise UnsupportedError(
            "the compiled code is no ELF object",
            hint="libraries are made on Linux; on Windows, use the C library with a `.rai` file",
        )
    made = bytearray(data)
    sections_at, entry, _ = _section_table(data)
    heads = _sections(data)
    table = _symbol_table(heads)
    names_number = table[6]
    names_at, names_size = heads[names_number][4:6]
    names = bytearray(data[names_at : names_at + names_size])
    for at in range(table[4], table[4] + table[5], _SYMBOL.size):
        name_at, about, other, section, value, size = _SYMBOL.unpack_from(data, at)
        if section == _UNDEFINED or about >> 4 == _LOCAL:
            continue
        end = names.index(b"\0", name_at)
        name, place = bytes(names[name_at:end]), len(names)
        names += prefix.encode() + name + b"\0"
        _SYMBOL.pack_into(made, at, place, about, (other & ~3) | _HIDDEN, section, value, size)
    # The new names lie behind all else; the old ones, which sections may share, among them.
    head = list(heads[names_number])
    head[4], head[5] = len(made), len(names)
    _SECTION.pack_into(made, sections_at + entry * names_number, *head)
    return bytes(made + names)


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
    first = len(_ARCHIVE) + len(_member("/", bytes(4 + 4 * len(symbols)) + texts)) + len(long_names)
    places = [first + sum(map(len, members[:number])) for number in range(len(members))]
    index = struct.pack(f">I{len(symbols)}I", len(symbols), *(places[n] for n, _ in symbols))
    path.write_bytes(b"".join([_ARCHIVE, _member("/", index + texts), long_names, *members]))


def _member(name: str, data: bytes) -> bytes:
    head = f"{name:<16}{0:<12}{0:<6}{0:<6}{'644':<8}{len(data):<10}`\n".encode()
    return head + data + b"\n" * (len(data) % 2)


def _defined(file: Path) -> list[bytes]:
    """Return the global symbols that an object defines."""
    data = file.read_bytes()
    heads = _sections(data)
    table = _symbol_table(heads)
    names_at = heads[table[6]][4]
    found = []
    for at in range(table[4], table[4] + table[5], _SYMBOL.size):
        name_at, about, _, section, _, _ = _SYMBOL.unpack_from(data, at)
        if section != _UNDEFINED and about >> 4 != _LOCAL:
            end = data.index(b"\0", names_at + name_at)
            found.append(data[names_at + name_at : end])
    return found
