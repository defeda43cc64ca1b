"""The single-file form of a bundle: a ZIP whose files are stored whole, aligned, without holes.

The standard library's reader makes an object for each of however many entries a file claims to
have, follows entries that overlap, and forgives much. This one reads what `write_archive` writes
and nothing else, so what it accepts can be mapped and used in place.

Source of the layout: PKWARE APPNOTE 6.3.10.
"""

from __future__ import annotations

import mmap
import stat
import struct
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from vermilion.errors import ArtifactError
from vermilion.runtime.names import MAX_MEMBERS, MAX_NAME_BYTES, check_member_names

ALIGNMENT = 64

_END = struct.Struct("<IHHHHIIH")
_END_SIGNATURE = 0x06054B50
_END64_LOCATOR = struct.Struct("<IIQI")
_END64_LOCATOR_SIGNATURE = 0x07064B50
_END64_LOCATOR_BYTES = _END64_LOCATOR_SIGNATURE.to_bytes(4, "little")
_END64 = struct.Struct("<IQHHIIQQQQ")
_END64_SIGNATURE = 0x06064B50
_ENTRY = struct.Struct("<IBBHHHHHIIIHHHHHII")
_ENTRY_SIGNATURE = 0x02014B50
_LOCAL = struct.Struct("<IHHHHHIIIHH")
_LOCAL_SIGNATURE = 0x04034B50

_ZIP64_EXTRA = 1
_ZIP64_LOCAL_BYTES = 20  # what `zipfile` adds to a local header where a size may pass 4 GiB
_ZIP64_FROM_BYTES = 1 << 30
_UTF8_FLAG = 0x800
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
# Android's zipalign marks its padding with this number; readers skip what they do not know.
_PADDING_EXTRA = 0xD935
# A name, and the padding, for each of the files there may be.
_MAX_DIRECTORY_BYTES = MAX_MEMBERS * (_ENTRY.size + MAX_NAME_BYTES + 128)
_UNIX = 3
_EPOCH = (1980, 1, 1, 0, 0, 0)
_COPY_BYTES = 1 << 20
_HINT = "make the file again with `vermilion compile -o NAME.rai`; do not use this one"


@dataclass(frozen=True)
class _Entry:
    name: str
    size: int
    header_offset: int


@dataclass(frozen=True)
class _Directory:
    entries: int
    offset: int
    size: int
    end: int  # where the directory must stop


def write_archive(path: Path, members: Iterable[tuple[str, Path]]) -> None:
    """Write the files, each under its name, to a new archive. Same files, same bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, source in members:
            _write_member(archive, name, source)


def first_name(path: Path) -> str | None:
    """Return the name of the first file in an archive, None where it is no archive."""
    with path.open("rb") as file:
        head = file.read(_LOCAL.size + MAX_NAME_BYTES)
    if len(head) < _LOCAL.size:
        return None
    fields = _LOCAL.unpack_from(head)
    if fields[0] != _LOCAL_SIGNATURE:
        return None
    return head[_LOCAL.size : _LOCAL.size + fields[9]].decode("utf-8", "replace")


def map_archive(path: Path) -> dict[str, memoryview]:
    """Return the archive's files by name, mapped.

    Raises: ArtifactError for anything that `write_archive` would not have written.
    """
    where = str(path)
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size < _END.size:
            raise _refuse("the file is too short to be a bundle", where)
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    directory = _read_end(data, where)
    entries = _read_directory(data, directory, where)
    check_member_names([entry.name for entry in entries], where)
    return _place(data, entries, directory.offset, where)


def _write_member(archive: zipfile.ZipFile, name: str, source: Path) -> None:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.create_system = _UNIX
    info.external_attr = (stat.S_IFREG | 0o644) << 16
    info.file_size = source.stat().st_size
    wide = info.file_size >= _ZIP64_FROM_BYTES
    start = archive.start_dir + _LOCAL.size + len(name.encode()) + _ZIP64_LOCAL_BYTES * wide
    # Four bytes are the extra field's own header; a multiple of 64 may follow them.
    padding = -(start + 4) % ALIGNMENT
    info.extra = struct.pack("<HH", _PADDING_EXTRA, padding) + bytes(padding)
    with source.open("rb") as file, archive.open(info, "w", force_zip64=wide) as member:
        while chunk := file.read(_COPY_BYTES):
            member.write(chunk)


def _read_end(data: memoryview, where: str) -> _Directory:
    end = len(data) - _END.size
    signature, disk, start_disk, here, entries, size, offset, comment = _END.unpack_from(data, end)
    if signature != _END_SIGNATURE or comment:
        raise _refuse("the file is not a bundle: a ZIP's end is not where it must be", where)
    locator = end - _END64_LOCATOR.size
    if locator >= 0 and data[locator : locator + 4] == _END64_LOCATOR_BYTES:
        # The 64-bit end may be there although 32 bits would do: `zipfile` writes it from 2 GiB on.
        wide = _read_end64(data, locator, where)
        fits = (
            entries in (wide.entries, _FULL16)
            and size in (wide.size, _FULL32)
            and offset in (wide.offset, _FULL32)
        )
        if not fits:
            raise _refuse("the archive's two ends disagree", where)
        return wide
    if disk or start_disk or here != entries:
        raise _refuse("the archive says that it has several volumes", where)
    return _checked(_Directory(entries, offset, size, end), where)


def _read_end64(data: memoryview, locator: int, where: str) -> _Directory:
    if locator < _END64.size:
        raise _refuse("the archive's 64-bit end is missing", where)
    signature, disk, end, disks = _END64_LOCATOR.unpack_from(data, locator)
    if signature != _END64_LOCATOR_SIGNATURE or disk or disks != 1:
        raise _refuse("the archive's 64-bit end is missing", where)
    if end != locator - _END64.size:
        raise _refuse("the archive's 64-bit end is not where it must be", where)
    fields = _END64.unpack_from(data, end)
    signature, length, _, _, disk, start_disk, here, entries, size, offset = fields
    if signature != _END64_SIGNATURE or length != _END64.size - 12:
        raise _refuse("the archive's 64-bit end is damaged", where)
    if disk or start_disk or here != entries:
        raise _refuse("the archive says that it has several volumes", where)
    return _checked(_Directory(entries, offset, size, end), where)


def _checked(directory: _Directory, where: str) -> _Directory:
    if directory.entries > MAX_MEMBERS or directory.size > _MAX_DIRECTORY_BYTES:
        raise _refuse(
            f"the archive says that it has {directory.entries} files in a directory of "
            f"{directory.size} bytes; at most {MAX_MEMBERS} files are allowed",
            where,
        )
    if directory.offset + directory.size != directory.end:
        raise _refuse("the archive's directory is not where it must be", where)
    return directory


def _read_directory(data: memoryview, directory: _Directory, where: str) -> list[_Entry]:
    entries, at = [], directory.offset
    for _ in range(directory.entries):
        entry, at = _read_entry(data, at, directory.end, where)
        entries.append(entry)
    if at != directory.end:
        raise _refuse("the archive's directory has another length than it says", where)
    return entries


def _read_entry(data: memoryview, at: int, end: int, where: str) -> tuple[_Entry, int]:
    if at + _ENTRY.size > end:
        raise _refuse("the archive's directory has fewer files than it says", where)
    fields = _ENTRY.unpack_from(data, at)
    signature, _, system, _, flags, method, _, _, _, stored, size = fields[:11]
    name_bytes, extra_bytes, comment_bytes, disk, _, attributes, header_offset = fields[11:]
    names_at = at + _ENTRY.size
    next_at = names_at + name_bytes + extra_bytes + comment_bytes
    if signature != _ENTRY_SIGNATURE or next_at > end or comment_bytes or disk:
        raise _refuse("the archive's directory is damaged", where)
    name = _name(bytes(data[names_at : names_at + name_bytes]), where)
    if method != zipfile.ZIP_STORED or stored != size:
        raise _refuse(f"`{name}` is compressed; a bundle's files are stored as they are", where)
    if flags & ~_UTF8_FLAG:
        raise _refuse(f"`{name}` is encrypted or has no sizes before its data", where)
    mode = attributes >> 16
    if system == _UNIX and mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        raise _refuse(f"`{name}` is a link or another thing that is not a file", where)
    if _FULL32 in (size, header_offset):
        extra = bytes(data[names_at + name_bytes : names_at + name_bytes + extra_bytes])
        size, header_offset = _wide(extra, size, header_offset, name, where)
    return _Entry(name, size, header_offset), next_at


def _wide(extra: bytes, size: int, header_offset: int, name: str, where: str) -> tuple[int, int]:
    """Return size and offset from the extra field that holds what 32 bits could not."""
    at = 0
    while at + 4 <= len(extra):
        number, length = struct.unpack_from("<HH", extra, at)
        if number == _ZIP64_EXTRA:
            wanted = 2 * (size == _FULL32) + (header_offset == _FULL32)
            if length != 8 * wanted or at + 4 + length > len(extra):
                break
            values = list(struct.unpack_from(f"<{wanted}Q", extra, at + 4))
            if size == _FULL32:
                size, stored = values.pop(0), values.pop(0)
                if stored != size:
                    break
            if header_offset == _FULL32:
                header_offset = values.pop(0)
            return size, header_offset
        at += 4 + length
    raise _refuse(f"`{name}` has sizes that are damaged", where)


def _place(
    data: memoryview, entries: list[_Entry], directory_offset: int, where: str
) -> dict[str, memoryview]:
    """Return each file's bytes, once it is sure that they follow one another without a gap."""
    found: dict[str, memoryview] = {}
    at = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if entry.header_offset != at:
            raise _refuse(f"`{entry.name}` overlaps another file, or there is a hole", where)
        start = _check_local(data, entry, directory_offset, where)
        at = start + entry.size
        if at > directory_offset:
            raise _refuse(f"`{entry.name}` is longer than the archive", where)
        if start % ALIGNMENT:
            raise _refuse(f"`{entry.name}` is not aligned to {ALIGNMENT} bytes", where)
        found[entry.name] = data[start:at]
    if at != directory_offset:
        raise _refuse("the archive has bytes that belong to no file", where)
    return found


def _check_local(data: memoryview, entry: _Entry, limit: int, where: str) -> int:
    """Return where the file's bytes begin; its own header must agree with the directory."""
    if entry.header_offset + _LOCAL.size > limit:
        raise _refuse(f"`{entry.name}` begins outside the archive", where)
    fields = _LOCAL.unpack_from(data, entry.header_offset)
    signature, _, flags, method, _, _, _, stored, size, name_bytes, extra_bytes = fields
    names_at = entry.header_offset + _LOCAL.size
    start: int = names_at + name_bytes + extra_bytes
    agrees = (
        signature == _LOCAL_SIGNATURE
        and method == zipfile.ZIP_STORED
        and not flags & ~_UTF8_FLAG
        and size in (entry.size, _FULL32)
        and stored == size
        and bytes(data[names_at : names_at + name_bytes]) == entry.name.encode()
    )
    if not agrees or start > limit:
        raise _refuse(f"`{entry.name}` has a header that disagrees with the directory", where)
    return start


def _name(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refuse("the archive has a name that is not text", where) from error


def _refuse(message: str, where: str) -> ArtifactError:
    return ArtifactError(message, where=where, hint=_HINT)
