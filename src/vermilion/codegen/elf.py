"""Loading the generator's own object files on Linux: a page of ELF instead of a whole LLVM.

An object is laid into memory section by section, its references are filled in, and the pages are
made executable and read-only. What is not expected of our objects is refused.

Source: System V ABI, AMD64 supplement, chapter 4 (object files) and table 4.9 (relocations).
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vermilion.errors import DeviceError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")

_RELOCATABLE, _X86_64 = 1, 62
_ALLOCATED = 0x2
_PROGRAM_BITS, _SYMBOLS, _RELOCATIONS, _NO_BITS = 1, 2, 4, 8
_UNDEFINED, _COMMON = 0, 0xFFF2
_R_64, _R_PC32, _R_PLT32 = 1, 2, 4
# `jmp *0(%rip)` and the address that it reads: a call reaches any library from here.
_JUMP = b"\xff\x25\x00\x00\x00\x00"
_STUB_BYTES = 16


@dataclass(frozen=True)
class _Section:
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int


@dataclass(frozen=True)
class _Symbol:
    name: str
    section: int
    value: int


class LoadedObject:
    """Machine code in this process, for as long as this is held."""

    def __init__(self, memory: mmap.mmap, addresses: Mapping[str, int]) -> None:
        self._memory = memory
        self.addresses = addresses


def load_elf(data: bytes, wanted: Iterable[str]) -> LoadedObject:
    """Load a relocatable object and give the addresses of the functions that are wanted.

    Raises: DeviceError for anything that the generator does not write.
    """
    sections = _sections(data)
    symbols = _symbols(data, sections)
    places, size = _layout(sections)
    outside = sorted({s.name for s in symbols if s.section == _UNDEFINED and s.name})
    stubs = {name: size + index * _STUB_BYTES for index, name in enumerate(outside)}
    total = size + len(outside) * _STUB_BYTES
    memory = mmap.mmap(-1, max(total, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for index, place in places.items():
        section = sections[index]
        if section.kind != _NO_BITS:
            memory[place : place + section.size] = data[
                section.offset : section.offset + section.size
            ]
    for name, place in stubs.items():
        memory[place : place + _STUB_BYTES] = (
            _JUMP + struct.pack("<Q", _outside(name)) + b"\xcc\xcc"
        )

    def offset_of(symbol: _Symbol) -> int:
        if symbol.section == _UNDEFINED:
            return stubs[symbol.name]
        return places[symbol.section] + symbol.value

    _relocate(data, sections, symbols, places, memory, base, offset_of)
    _make_executable(base, len(memory))
    defined = {s.name: base + offset_of(s) for s in symbols if s.section in places and s.name}
    missing = [name for name in wanted if name not in defined]
    if missing:
        raise _refuse(f"it has no function `{missing[0]}`")
    return LoadedObject(memory, {name: defined[name] for name in wanted})


def _sections(data: bytes) -> list[_Section]:
    if len(data) < _HEADER.size:
        raise _refuse("it is too short")
    head = _HEADER.unpack_from(data)
    if head[0][:6] != b"\x7fELF\x02\x01" or head[1] != _RELOCATABLE or head[2] != _X86_64:
        raise _refuse("it is no object file for x86-64")
    start, entry, count = head[6], head[11], head[12]
    if entry != _SECTION.size or start + entry * count > len(data):
        raise _refuse("its table of sections is damaged")
    found = []
    for index in range(count):
        _, kind, flags, _, offset, size, link, info, alignment, _ = _SECTION.unpack_from(
            data, start + index * entry
        )
        if kind != _NO_BITS and offset + size > len(data):
            raise _refuse("a section lies outside the file")
        found.append(_Section(kind, flags, offset, size, link, info, max(1, alignment)))
    return found


def _symbols(data: bytes, sections: list[_Section]) -> list[_Symbol]:
    table = next((s for s in sections if s.kind == _SYMBOLS), None)
    if table is None:
        raise _refuse("it has no symbols")
    names = sections[table.link]
    found = []
    for at in range(table.offset, table.offset + table.size, _SYMBOL.size):
        name_at, _, _, section, value, _ = _SYMBOL.unpack_from(data, at)
        if section == _COMMON:
            raise _refuse("it has common symbols")
        end = data.index(b"\0", names.offset + name_at)
        found.append(_Symbol(data[names.offset + name_at : end].decode(), section, value))
    return found


def _layout(sections: list[_Section]) -> tuple[dict[int, int], int]:
    places: dict[int, int] = {}
    size = 0
    for index, section in enumerate(sections):
        if section.flags & _ALLOCATED and section.kind in (_PROGRAM_BITS, _NO_BITS):
            size = -(-size // section.alignment) * section.alignment
            places[index] = size
            size += section.size
    return places, -(-size // _STUB_BYTES) * _STUB_BYTES


def _relocate(
    data: bytes,
    sections: list[_Section],
    symbols: list[_Symbol],
    places: Mapping[int, int],
    memory: mmap.mmap,
    base: int,
    offset_of: object,
) -> None:
    assert callable(offset_of)
    for section in sections:
        if section.kind != _RELOCATIONS or section.info not in places:
            continue
        for at in range(section.offset, section.offset + section.size, _RELOCATION.size):
            offset, info, addend = _RELOCATION.unpack_from(data, at)
            kind, symbol = info & 0xFFFFFFFF, symbols[info >> 32]
            place = places[section.info] + offset
            target = offset_of(symbol) + addend
            if kind in (_R_PC32, _R_PLT32):
                struct.pack_into("<i", memory, place, target - place)
            elif kind == _R_64:
                struct.pack_into("<Q", memory, place, base + target)
            else:
                raise _refuse(f"it has a reference of kind {kind}")


def _outside(name: str) -> int:
    """Return the address of a function of the C library."""
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError) as error:
        raise _refuse(f"this system has no `{name}`") from error
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


def _make_executable(base: int, size: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    rounded = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    if library.mprotect(base, rounded, mmap.PROT_READ | mmap.PROT_EXEC):
        raise DeviceError(
            f"this system does not let generated code run (mprotect: error {ctypes.get_errno()})",
            hint="allow executable memory for this program, or compile on another machine",
        )


def _refuse(reason: str) -> DeviceError:
    return DeviceError(
        f"the compiled code cannot be loaded: {reason}",
        hint="compile the model again on this machine",
    )
