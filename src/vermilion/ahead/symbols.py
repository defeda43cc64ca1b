"""Names in an object file: those of its functions get a prefix, and stay inside of what is linked.

Source: System V ABI, chapter 4 (section headers, symbol table).
"""

from __future__ import annotations

import struct

from vermilion.errors import UnsupportedError

_HEADER_SECTIONS = struct.Struct("<Q")  # at 40: where the section headers are
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOL_TABLE = 2
_UNDEFINED, _LOCAL, _HIDDEN = 0, 0, 2


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
    (sections_at,) = _HEADER_SECTIONS.unpack_from(data, 40)
    entry, count = struct.unpack_from("<HH", data, 58)
    heads = [_SECTION.unpack_from(data, sections_at + entry * at) for at in range(count)]
    table = next(head for head in heads if head[1] == _SYMBOL_TABLE)
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
