"""The plugin's file: `NAME.zip` with a manifest, one object an operator, and a seal.

```
manifest.json        format, name, versions, every operator and program with sizes and digests
objects/KEY.o        machine code of one operator
programs/NAME        files of the engine's cache: what it would compile for an architecture
seal                 this machine's, over the manifest
```

The ZIP is written and read by the bundle's own code: stored, aligned, no hole, nothing that leads
out. Equal operators give equal bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vermilion.errors import ArtifactError, OptionError
from vermilion.llm.plugins.identity import (
    DECODE,
    Identity,
    Number,
    generator_digest,
    key_of,
    llvm_version,
    parse_number,
)
from vermilion.llm.plugins.programs import Programs
from vermilion.runtime.archive import map_archive, write_archive
from vermilion.runtime.fields import Fields, parse_json
from vermilion.runtime.names import check_key
from vermilion.store.signature import is_signed_here, signature_of
from vermilion.version import VERSION

KIND, VERSION_OF_FORMAT = "vermilion operators", 1
MANIFEST, SEAL, OBJECTS, PROGRAMS = "manifest.json", "seal", "objects", "programs"

# An operator's object has kilobytes, its row in the manifest a few hundred bytes.
_MAX_MANIFEST_BYTES = 8 << 20
_MAX_OBJECT_BYTES = 4 << 20
# The engine's tables have a few kilobytes a layer.
_MAX_PROGRAM_BYTES = 64 << 20
_KEY = re.compile(r"[0-9a-f]{64}")
_HINT = "compile the operators again with `vermilion onnx_utils vaiml … --compile`"


@dataclass(frozen=True)
class Entry:
    """One operator of a plugin: what it is, and the digest of its object."""

    identity: Identity
    key: str
    size_bytes: int
    sha256: str

    @property
    def member(self) -> str:
        """Its file in the archive."""
        return f"{OBJECTS}/{self.key}.o"

    @property
    def is_current(self) -> bool:
        """Whether this version of the generator would write the same."""
        return key_of(self.identity) == self.key


@dataclass(frozen=True)
class Plugin:
    """A plugin that was read and checked."""

    path: Path
    name: str
    made_by: str
    entries: tuple[Entry, ...]
    programs: tuple[Programs, ...]
    is_signed_here: bool
    _objects: Mapping[str, bytes] = field(repr=False)

    def object_of(self, entry: Entry) -> bytes:
        """Return an operator's machine code."""
        return self._objects[entry.key]


def write_plugin(
    path: Path,
    objects: Iterable[tuple[Identity, bytes]],
    programs: Sequence[Programs] = (),
) -> Plugin:
    """Write a plugin beside its place, then rename it there; give it as it is read back.

    Raises: OptionError for a name that no file can have, and where the file cannot be written.
    """
    name = check_key(path.stem)
    rows = sorted(
        ((key_of(identity), identity, data) for identity, data in objects), key=lambda row: row[0]
    )
    manifest = {
        "kind": KIND,
        "format": VERSION_OF_FORMAT,
        "name": name,
        "vermilion": VERSION,
        "generator": generator_digest(),
        "llvm": llvm_version(),
        "operators": [
            {
                **identity.as_json(),
                "key": key,
                "bytes": len(data),
                "sha256": _digest(data),
            }
            for key, identity, data in rows
        ],
        "programs": [
            {
                "architecture": one.architecture,
                "number": one.number,
                "target": one.target,
                "files": [
                    {"name": name, "bytes": len(data), "sha256": _digest(data)}
                    for name, data in sorted(one.files.items())
                ],
            }
            for one in sorted(programs, key=lambda one: one.architecture)
        ],
    }
    text = json.dumps(manifest, indent=1, sort_keys=True).encode()
    files = [(MANIFEST, text), (SEAL, signature_of(_digest(text)).encode())]
    files += [(f"{OBJECTS}/{key}.o", data) for key, _, data in rows]
    kept = {f"{PROGRAMS}/{name}": data for one in programs for name, data in one.files.items()}
    files += sorted(kept.items())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".plugin.") as folder:
            members = []
            for number, (member, data) in enumerate(files):
                source = Path(folder) / str(number)
                source.write_bytes(data)
                members.append((member, source))
            made = Path(folder) / "made.zip"
            write_archive(made, members)
            made.replace(path)
    except OSError as error:
        raise OptionError(
            f"the plugin cannot be written: {error.strerror or error}", where=str(path)
        ) from error
    return read_plugin(path)


def read_plugin(path: Path) -> Plugin:
    """Read a plugin; everything in it is held against its manifest.

    Raises: OptionError where there is no such file; ArtifactError for one that is damaged, was
    changed, or was not written by Vermilion.
    """
    where = str(path)
    try:
        return _read(path, where)
    except OSError as error:
        raise OptionError(
            f"the plugin cannot be read: {error.strerror or error}",
            where=where,
            hint="check the path",
        ) from error
    except ArtifactError as error:
        # The readers below speak of bundles.
        hint = error.hint if error.hint == _FOREIGN_HINT else _HINT
        raise ArtifactError(error.message, where=error.where or where, hint=hint) from error


def _read(path: Path, where: str) -> Plugin:
    members = _members(path, where)
    text = _bounded(members[MANIFEST], MANIFEST, _MAX_MANIFEST_BYTES, where)
    fields = Fields(parse_json(text, where), f"{where}, {MANIFEST}")
    if fields.text("kind") != KIND:
        raise ArtifactError(_FOREIGN, where=where, hint=_FOREIGN_HINT)
    number = fields.integer("format")
    if number != VERSION_OF_FORMAT:
        raise ArtifactError(
            f"the plugin has format {number}, this version reads {VERSION_OF_FORMAT}", where=where
        )
    name, made_by = fields.text("name"), fields.text("vermilion")
    fields.text("generator"), fields.text("llvm")
    entries = tuple(_entry(row, where) for row in fields.objects("operators"))
    programs = tuple(_programs(row, members, where) for row in fields.objects("programs"))
    fields.finish()
    listed = [entry.member for entry in entries]
    named = {f"{PROGRAMS}/{name}" for one in programs for name in one.files}
    expected = {MANIFEST, SEAL, *listed, *named}
    if expected != set(members) or len(listed) != len(set(listed)):
        odd = sorted(expected ^ set(members))
        what = f"`{odd[0]}` is on one side only" if odd else "an operator stands there twice"
        raise ArtifactError(
            f"the plugin's files are not those that its manifest lists: {what}", where=where
        )
    objects = {
        entry.key: _checked(
            members[entry.member], _Expected(entry.member, entry.size_bytes, entry.sha256),
            _MAX_OBJECT_BYTES, where,
        )
        for entry in entries
    }  # fmt: skip
    seal = bytes(members[SEAL][:256]).decode("ascii", "replace")
    is_sealed = is_signed_here(_digest(text), seal)
    return Plugin(path, name, made_by, entries, programs, is_sealed, objects)


def _members(path: Path, where: str) -> Mapping[str, memoryview]:
    try:
        members = map_archive(path)
    except ArtifactError as error:
        if _is_foreign(path):
            raise ArtifactError(_FOREIGN, where=where, hint=_FOREIGN_HINT) from error
        raise ArtifactError(
            f"the plugin is damaged, or no ZIP: {error.message}", where=where
        ) from error
    if MANIFEST not in members or SEAL not in members:
        raise ArtifactError(_FOREIGN, where=where, hint=_FOREIGN_HINT)
    return members


def _is_foreign(path: Path) -> bool:
    """Say whether it is a ZIP that somebody else's program wrote: whole, and without our names."""
    try:
        with zipfile.ZipFile(path) as archive:
            return not {MANIFEST, SEAL} <= set(archive.namelist())
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        return False


_FOREIGN = "this is no plugin of Vermilion"
_FOREIGN_HINT = (
    "the layout of the vendor's plugins is not published: `--with vendor` hands over to the"
    " vendor's tools; or compile the operators with `vermilion onnx_utils vaiml`"
)


def _bounded(data: memoryview, name: str, most: int, where: str) -> bytes:
    if len(data) > most:
        raise ArtifactError(
            f"`{name}` has {len(data):,} bytes, more than any plugin's", where=where
        )
    return bytes(data)


def _entry(row: Fields, where: str) -> Entry:
    shape = row.nested("shape")
    sizes = {name: shape.integer(name) for name in shape.keys_left()}
    word = row.text("number")
    number: Number | Literal["int4"] = DECODE if word == DECODE else _number(word, where)
    identity = Identity(
        row.text("operator"), sizes, row.integer("rows"), number, row.text("target")
    )
    entry = Entry(identity, row.text("key"), row.integer("bytes"), row.text("sha256"))
    row.finish()
    if not identity.is_sound or not _KEY.fullmatch(entry.key):
        raise ArtifactError("the plugin's manifest names an operator that cannot be", where=where)
    return entry


def _programs(row: Fields, members: Mapping[str, memoryview], where: str) -> Programs:
    architecture, target = row.text("architecture"), row.text("target")
    number = _number(row.text("number"), where)
    files: dict[str, bytes] = {}
    for file in row.objects("files"):
        name = file.text("name")
        expected = _Expected(f"{PROGRAMS}/{name}", file.integer("bytes"), file.text("sha256"))
        file.finish()
        if expected.member not in members:
            raise ArtifactError(f"`{expected.member}` is not in the plugin", where=where)
        files[name] = _checked(members[expected.member], expected, _MAX_PROGRAM_BYTES, where)
    row.finish()
    return Programs(architecture, number, target, files)


def _number(text: str, where: str) -> Number:
    try:
        return parse_number(text)
    except OptionError as error:
        raise ArtifactError(f"the plugin has what is {error.message}", where=where) from error


@dataclass(frozen=True)
class _Expected:
    member: str
    size_bytes: int
    sha256: str


def _checked(data: memoryview, expected: _Expected, most: int, where: str) -> bytes:
    code = _bounded(data, expected.member, most, where)
    if len(code) != expected.size_bytes or _digest(code) != expected.sha256:
        raise ArtifactError(f"`{expected.member}` is not the one that was written", where=where)
    return code


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
