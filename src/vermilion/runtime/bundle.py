"""The files of a bundle by name, from a folder or the single file; other tools' are named."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from typing import Literal, NoReturn, Protocol

import numpy as np

from vermilion.errors import ArtifactError
from vermilion.runtime.archive import first_name, map_archive
from vermilion.runtime.manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    SIGNATURE_FILE,
    WEIGHTS_FILE,
    Manifest,
    Member,
    read_manifest,
)
from vermilion.store.digest import digest_of

_FOREIGN_HINT = (
    "give the ONNX model to `vermilion compile`; a cache of AMD's provider is used by opening "
    "the model with its `cache_dir` and `cache_key` options"
)


def refuse_foreign_folder(folder: Path) -> NoReturn:
    """Raise ArtifactError where a folder without our manifest is recognised, or is none of ours.

    Source of the signs: the public VAIP code (`context.json`, `*.xmodel`) and AMD's page on the
    compiled model's folder (`vaiml_par_0/`, the single file of the cache key's name).
    """
    sign = _vendor_sign(folder)
    if sign:
        raise ArtifactError(
            f"this is a cache folder of AMD's VitisAI provider (it has `{sign}`), not a Vermilion "
            "bundle",
            where=str(folder),
            hint=_FOREIGN_HINT,
        )
    raise ArtifactError(
        "this folder is not a compiled model: it has no `manifest.json`",
        where=str(folder),
        hint="compile a model with `vermilion compile MODEL --target T`",
    )


def refuse_foreign_archive(path: Path, first_name: str | None) -> NoReturn:
    """Raise ArtifactError for a file that does not begin with our manifest.

    `first_name` is that of the first file inside, None where the file is no ZIP at all.
    """
    is_vendors = first_name is not None and any(
        _is_vendor_name(part) for part in (first_name, first_name.partition("/")[2])
    )
    if is_vendors or (path.suffix == ".rai" and first_name is None):
        sign = f" (it has `{first_name}`)" if is_vendors else ""
        raise ArtifactError(
            f"this file is not a Vermilion bundle{sign}; AMD's VitisAI provider writes `.rai` "
            "files too",
            where=str(path),
            hint=_FOREIGN_HINT,
        )
    kind = "another kind of file"
    if first_name is not None:
        kind = "a ZIP that does not begin with `manifest.json`"
    raise ArtifactError(
        f"this is not a compiled model but {kind}",
        where=str(path),
        hint="compile a model with `vermilion compile MODEL -o NAME.rai`",
    )


def _vendor_sign(folder: Path) -> str:
    for entry in sorted(folder.iterdir()):
        if _is_vendor_name(entry.name) or entry.name == f"{folder.name}.rai":
            return entry.name
        if entry.name.startswith("vaiml_par_") and (entry / "0").is_dir():
            return f"{entry.name}/0"
    return ""


def _is_vendor_name(name: str) -> bool:
    first, _, rest = name.partition("/")
    return (
        first in {"context.json", "preliminary-vaiml-pass-summary.txt"}
        or first.startswith("vaiml_partition_fe")
        or name.endswith(".xmodel")
        or (first.startswith("vaiml_par_") and rest.startswith("0/"))
    )


_HINT = "the bundle is damaged or incomplete: compile the model again"
# Of the model, and of a part that our own code computes (`backends.native`).
_WEIGHTS = (WEIGHTS_FILE, "packed.bin")
_MAPPED_FROM_BYTES = 16 * 1024
# Windows opens text unless told otherwise, and has no such thing as refusing links, or pipes that
# lie in a folder, which are waited for.
_OPEN_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
)


class Bundle(Protocol):
    """Read access to a bundle's files, mapped."""

    def view(self, name: str) -> memoryview:
        """Return the bytes of a file."""

    def has(self, name: str) -> bool:
        """Return whether there is a file of that name."""


class FolderBundle:
    """A bundle that is a folder. Files that the manifest does not list are never looked at."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._views: dict[str, memoryview] = {}

    def view(self, name: str) -> memoryview:
        """Return the bytes of a file; refuses links and whatever else is not a file."""
        if name not in self._views:
            self._views[name] = self._map(name)
        return self._views[name]

    def has(self, name: str) -> bool:
        """Return whether there is a file of that name."""
        return os.path.lexists(self._root / name)

    def _map(self, name: str) -> memoryview:
        path = self._root
        for segment in name.split("/"):
            path = path / segment
            if path.is_symlink():
                raise self._refuse(name, "is a link, and links may lead out of the bundle")
        try:
            descriptor = os.open(path, _OPEN_FLAGS)
        except OSError as error:
            raise self._refuse(name, f"cannot be read: {error.strerror or error}") from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise self._refuse(name, "is not a file")
            return _contents(descriptor, status.st_size)
        except OSError as error:
            raise self._refuse(name, f"cannot be read: {error.strerror or error}") from error
        finally:
            os.close(descriptor)

    def _refuse(self, name: str, problem: str) -> ArtifactError:
        return ArtifactError(f"`{name}` {problem}", where=str(self._root), hint=_HINT)


def _contents(descriptor: int, size_bytes: int) -> memoryview:
    """Map a file; a small one is read, because each mapping keeps a file open."""
    if size_bytes > _MAPPED_FROM_BYTES:
        return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
    with os.fdopen(os.dup(descriptor), "rb") as file:
        return memoryview(file.read(size_bytes))


class ArchiveBundle:
    """A bundle that is one file."""

    def __init__(self, path: Path, views: dict[str, memoryview]) -> None:
        self._path = path
        self._views = views

    def view(self, name: str) -> memoryview:
        """Return the bytes of a file."""
        found = self._views.get(name)
        if found is None:
            raise ArtifactError(f"`{name}` is missing", where=str(self._path), hint=_HINT)
        return found

    def has(self, name: str) -> bool:
        """Return whether there is a file of that name."""
        return name in self._views


class CheckedBundle:
    """A bundle whose files are held to the manifest's digests when they are first read.

    Without `weights`, those are taken as they are. Whatever else is read is checked always: the
    manifest's signature says whose machine code it is only together with the digest of the file.
    """

    def __init__(self, bundle: Bundle, manifest: Manifest, where: str, *, weights: bool) -> None:
        self._bundle = bundle
        self._unchecked = {
            member.name: member
            for member in manifest.members
            if weights or member.name.rpartition("/")[2] not in _WEIGHTS
        }
        self._where = where

    def view(self, name: str) -> memoryview:
        """Return the bytes of a file, which are what was written."""
        data = self._bundle.view(name)
        member = self._unchecked.get(name)
        if member is not None:
            _check_member(data, member, self._where, verify=True, keep=True)
            del self._unchecked[name]
        return data

    def has(self, name: str) -> bool:
        """Return whether there is a file of that name."""
        return self._bundle.has(name)


Verify = Literal["all", "as read", "nothing"]


def open_bundle(path: Path, *, verify: Verify) -> tuple[Bundle, Manifest]:
    """Return the files and the manifest of a folder or a single file, checked against each other.

    Sizes are checked always. With `all`, every file is read once and must have the digest that the
    manifest states; with `as read`, each file when it is first asked for; with `nothing`, so is
    each file but those of weights.
    """
    if not path.exists():
        raise ArtifactError(
            "there is no compiled model",
            where=str(path),
            hint="check the path, or make one with `vermilion compile`",
        )
    if not path.is_dir() and not path.is_file():  # a pipe or a device would be waited for
        raise ArtifactError(
            "this is neither a file nor a folder",
            where=str(path),
            hint="name a `.rai` file, or a folder that was compiled",
        )
    try:
        bundle, manifest = _open_folder(path) if path.is_dir() else _open_archive(path)
        _check_members(bundle, manifest, str(path), verify=verify == "all")
    except OSError as error:
        raise ArtifactError(
            f"the bundle cannot be read: {error.strerror or error}",
            where=str(path),
            hint="check that the file is there and that you may read it",
        ) from error
    if verify == "all":
        return bundle, manifest
    return CheckedBundle(bundle, manifest, str(path), weights=verify == "as read"), manifest


def _open_folder(path: Path) -> tuple[Bundle, Manifest]:
    manifest_path = path / MANIFEST_FILE
    if not manifest_path.is_file() or manifest_path.is_symlink():
        refuse_foreign_folder(path)
    bundle = FolderBundle(path)
    return bundle, _manifest(bundle, path)


def _open_archive(path: Path) -> tuple[Bundle, Manifest]:
    first = first_name(path)
    if first != MANIFEST_FILE:
        refuse_foreign_archive(path, first)
    views = map_archive(path)
    bundle = ArchiveBundle(path, views)
    manifest = _manifest(bundle, path)
    own = {MANIFEST_FILE, SIGNATURE_FILE}
    unlisted = set(views) - {member.name for member in manifest.members} - own
    if unlisted:
        raise ArtifactError(
            f"`{min(unlisted)}` is in the bundle and not in its manifest",
            where=str(path),
            hint=_HINT,
        )
    return bundle, manifest


def _manifest(bundle: Bundle, path: Path) -> Manifest:
    data = bundle.view(MANIFEST_FILE)
    where = str(path / MANIFEST_FILE) if path.is_dir() else f"{path}, {MANIFEST_FILE}"
    # Measured before it is copied: the file may be of any size.
    if len(data) > MAX_MANIFEST_BYTES:
        raise ArtifactError(f"the manifest has {len(data)} bytes", where=where, hint=_HINT)
    return read_manifest(bytes(data), where)


def _check_members(bundle: Bundle, manifest: Manifest, where: str, *, verify: bool) -> None:
    for member in manifest.members:
        _check_member(bundle.view(member.name), member, where, verify=verify)


def _check_member(
    data: memoryview, member: Member, where: str, *, verify: bool, keep: bool = False
) -> None:
    if len(data) != member.size:
        raise ArtifactError(
            f"`{member.name}` has {len(data)} bytes, the manifest says {member.size}",
            where=where,
            hint=_HINT,
        )
    if verify and _digest(data, keep=keep) != member.sha256:
        raise ArtifactError(
            f"`{member.name}` is not what was written: its sha256 does not match the manifest",
            where=where,
            hint=_HINT,
        )


def _digest(data: memoryview, *, keep: bool) -> str:
    """Return the digest of mapped bytes, and let go of their pages as they have been read.

    A bundle keeps the model as it came beside the compiled parts; checking it must not make a
    process as large as both. What is used next is kept.
    """
    mapped = data.obj
    if not keep and isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        return digest_of(data, lambda piece: _let_go(mapped, piece))
    return digest_of(data)


def _let_go(mapped: mmap.mmap, piece: memoryview) -> None:
    base = np.frombuffer(mapped, np.uint8).ctypes.data
    first = np.frombuffer(piece, np.uint8).ctypes.data - base
    start = first // mmap.PAGESIZE * mmap.PAGESIZE
    mapped.madvise(mmap.MADV_DONTNEED, start, first + len(piece) - start)
