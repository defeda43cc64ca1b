"""Code objects: ELF files with machine code, read and laid out in memory.

Formats: ELF-64; LLVM AMDGPUUsage, "Code object". What assembly text says is held against the bytes
of a code object by assembling it again.
"""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vermilion.amdgpu.memory_image import Memory
from vermilion.errors import UnsupportedError

_LOCAL = re.compile(r"(?<![\w$.])\.L([\w$.]+)(?=@rel32)")
_PADDING = re.compile(r"\t\.p2alignl \d+, \d+\n\t\.fill \d+, 4, \d+\n")
# A kernel descriptor's field for the distance to its code, which moves with the sections.
_ENTRY = slice(16, 24)
# Of the header: class, system and version; kind and machine; flags, in which the GPU is.
_IDENTITY, _KIND, _FLAGS = slice(0, 9), slice(16, 20), slice(0x30, 0x34)
_VERSION = 5
_DESCRIPTOR = ".kd"
_LOAD, _SYMBOLS, _NO_BITS = 1, 2, 8
_NOTES, _NOTE_SEGMENT, _NOTE_HEADER = 7, 4, 12
_LIMIT_S = 120.0


@dataclass(frozen=True)
class Section:
    """A section: where it lies in memory, and its bytes."""

    address: int
    data: bytes


@dataclass(frozen=True)
class CodeObject:
    """An ELF file, read."""

    data: bytes
    sections: Mapping[str, Section]
    symbols: Mapping[str, int]
    segments: tuple[tuple[int, int, int, int], ...]  # offset, address, bytes in file, in memory

    def place(self, memory: Memory) -> int:
        """Copy it into memory; return the address that its addresses count from, 0: no room."""
        size = max((address + wide for _, address, _, wide in self.segments), default=1)
        base = memory.allocate(size)
        if base:
            for offset, address, length, _ in self.segments:
                start = base - memory.base + address
                piece = self.data[offset : offset + length]
                memory.bytes[start : start + length] = memoryview(piece)
        return base


def read_code_object(data: bytes) -> CodeObject:
    """Read it. Raises: UnsupportedError where it is no ELF file as it should be."""
    try:
        return _read(data)
    except (struct.error, IndexError, ValueError) as error:
        raise UnsupportedError(
            f"the code object is not an ELF file as it should be: {error}"
        ) from None


def size_of_elf(head: bytes) -> int:
    """Return the size of a file whose last part is the table of its sections."""
    (table,) = struct.unpack_from("<Q", head, 0x28)
    entry, count = struct.unpack_from("<HH", head, 0x3A)
    return int(table + entry * count)


def _read(data: bytes) -> CodeObject:
    if data[:5] != b"\x7fELF\x02":
        raise ValueError("no ELF-64 at its beginning")
    program, table = struct.unpack_from("<QQ", data, 0x20)
    program_entry, program_count, entry, count, names_in = struct.unpack_from("<5H", data, 0x36)
    rows = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * entry) for i in range(count)]
    names_at = rows[names_in][4]
    sections, symbols = {}, dict[str, int]()
    for name_at, kind, _, address, offset, size, link, *_ in rows:
        name = _text(data, names_at + name_at)
        sections[name] = Section(address, b"" if kind == _NO_BITS else data[offset : offset + size])
        if kind in (_SYMBOLS, 11):
            for at in range(offset, offset + size, 24):
                symbol, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", data, at)
                if section:
                    symbols[_text(data, rows[link][4] + symbol)] = value
    segments = []
    for at in range(program_count):
        kind, _, offset, address, _, length, wide = struct.unpack_from(
            "<IIQQQQQ", data, program + at * program_entry
        )
        if kind == _LOAD:
            segments.append((offset, address, length, wide))
    return CodeObject(data, sections, symbols, tuple(segments))


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()


def local_places(
    code: CodeObject, text: str, linker: Sequence[str], folder: Path
) -> dict[str, int]:
    """Assemble `text` again and hold it against the code object; return what its labels stand for.

    The result is by label (`.L…`), in the code object's addresses.

    Raises: UnsupportedError where the text is not that of the code object's bytes.
    """
    named = _LOCAL.sub(r"vm.\1", text)
    for label in set(_LOCAL.findall(text)):
        named = re.sub(rf"(?<![\w$.])\.L{re.escape(label)}(?![\w$.])", f"vm.{label}", named)
    again = read_code_object(assemble(named, linker, folder))
    _check_text(code, again)
    _check_data(code, again)
    shift = code.sections[".rodata"].address - again.sections[".rodata"].address
    return {
        f".L{name.removeprefix('vm.')}": address + shift
        for name, address in again.symbols.items()
        if name.startswith("vm.")
    }


def code_of(code: bytes, text: str, linker: Sequence[str], folder: Path) -> bytes:
    """Return the code object of a text: `code` where it is that one already.

    A compiler that makes code and text one after the other may give registers otherwise.

    Raises: UnsupportedError where the text is for something else than the code object.
    """
    old = read_code_object(code)
    found = re.search(r"\.amdhsa_code_object_version (\d+)", text)
    version = int(found[1]) if found else _VERSION
    again = read_code_object(assemble(text, linker, folder, version=version))
    try:
        _check_text(old, again)
        _check_data(old, again)
    except UnsupportedError:
        made = assemble(without_padding(text), linker, folder, version=version, strip=True)
        for what in (_IDENTITY, _KIND, _FLAGS):
            if made[what] != code[what]:
                raise UnsupportedError(
                    "the assembly is for another GPU than the code object"
                ) from None
        return made
    return code


def without_padding(text: str) -> str:
    """Return assembly without the room for prefetching after the code: the assembler adds it."""
    return _PADDING.sub("", text)


def assemble(
    text: str,
    linker: Sequence[str],
    folder: Path,
    *,
    version: int = _VERSION,
    strip: bool = False,
) -> bytes:
    """Return the code object of assembly text, made by LLVM's assembler, which is in its linker.

    `linker` are the words that start it; `strip` leaves out the names of what is local.

    Raises: UnsupportedError with its words.
    """
    import llvmlite.binding as llvm

    target = re.search(r'\.amdgcn_target\s+"(\w[\w.]*-amd-amdhsa)[^"]*-(gfx[\w-]+)"', text)
    if target is None:
        raise UnsupportedError("the assembly names no target")
    escaped = "".join(
        letter if " " <= letter <= "~" and letter not in '"\\' else f"\\{ord(letter):02X}"
        for letter in text
    )
    module = llvm.parse_assembly(
        f'target triple = "{target[1]}"\nmodule asm "{escaped}"\n'
        "!llvm.module.flags = !{!0}\n"
        f'!0 = !{{i32 1, !"amdhsa_code_object_version", i32 {version}00}}\n'
    )
    source, result = folder / "again.bc", folder / "again.hsaco"
    source.write_bytes(module.as_bitcode())
    words = [*linker, "-flavor", "gnu", "-shared", f"-plugin-opt=mcpu={target[2]}"]
    words += ["-s"] if strip else []
    done = subprocess.run(
        [*words, str(source), "-o", str(result)],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        raise UnsupportedError(f"the assembly is refused: {(errors or [done.stderr])[0][:200]}")
    return _with_first_note(result.read_bytes())


def _with_first_note(data: bytes) -> bytes:
    """Return a code object whose notes end after the first, which is the text's.

    Behind it the linker writes that of a module without kernels, in which the text came.
    """
    found = bytearray(data)
    program, table = struct.unpack_from("<QQ", data, 0x20)
    program_entry, program_count, entry, count, _ = struct.unpack_from("<5H", data, 0x36)
    for number in range(count):
        at = table + number * entry
        _, kind, _, _, offset, size = struct.unpack_from("<IIQQQQ", data, at)
        if kind != _NOTES or not size:
            continue
        name, description, _ = struct.unpack_from("<III", data, offset)
        length = _NOTE_HEADER + -(-name // 4) * 4 + -(-description // 4) * 4
        struct.pack_into("<Q", found, at + 0x20, length)
        for header in range(program, program + program_count * program_entry, program_entry):
            piece, _, where = struct.unpack_from("<IIQ", data, header)
            if piece == _NOTE_SEGMENT and where == offset:
                struct.pack_into("<QQ", found, header + 0x20, length, length)
    return bytes(found)


def _check_text(code: CodeObject, again: CodeObject) -> None:
    """Hold machine code against machine code: equal but for distances between sections."""
    mine, its = code.sections[".text"], again.sections[".text"]
    if len(its.data) < len(mine.data):
        raise UnsupportedError("the assembly is shorter than the code object's machine code")
    distance = code.sections[".rodata"].address - mine.address
    shift = distance - (again.sections[".rodata"].address - its.address)
    count = len(mine.data) // 4
    old = struct.unpack_from(f"<{count}I", mine.data)
    new = struct.unpack_from(f"<{count}I", its.data)
    for at, (a, b) in enumerate(zip(old, new, strict=True)):
        if a != b and (a - b - shift) & 0xFFFFFFFF:
            raise UnsupportedError(
                f"the assembly is not the code object's machine code: word {at} is another"
            )


def _check_data(code: CodeObject, again: CodeObject) -> None:
    mine, its = code.sections[".rodata"], again.sections[".rodata"]
    old, new = bytearray(mine.data), bytearray(its.data)
    for name, address in code.symbols.items():
        if name.endswith(_DESCRIPTOR):
            for raw, section in ((old, mine), (new, its)):
                found = code.symbols if raw is old else again.symbols
                at = found.get(name, address) - section.address
                raw[at + _ENTRY.start : at + _ENTRY.stop] = bytes(8)
    if old != new:
        raise UnsupportedError("the assembly has other constants than the code object")
