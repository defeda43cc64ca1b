"""The provider's folder as one file: it is deeper and has more files than a bundle allows."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

from vermilion.errors import ArtifactError

_DAMAGED = "the bundle is damaged: compile the model again"
_FORBIDDEN = frozenset('\\:*?"<>|\0')


def pack_folder(folder: Path, target: Path) -> None:
    """Move what is in a folder, which need not exist, into a TAR."""
    with tarfile.open(target, "w") as archive:
        for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
            if path.is_file() and not path.is_symlink():
                archive.add(path, path.relative_to(folder).as_posix(), filter=_plain)
    shutil.rmtree(folder, ignore_errors=True)


def unpack_folder(data: memoryview, folder: Path) -> None:
    """Write the files of a TAR below a folder.

    Raises: ArtifactError for a damaged one, or one whose files lead elsewhere.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                _write_member(archive, member, folder)
    except (tarfile.TarError, EOFError) as error:
        raise ArtifactError(
            f"the provider's files cannot be unpacked: {error}", hint=_DAMAGED
        ) from error


def _write_member(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    segments = member.name.split("/")
    content = archive.extractfile(member) if member.isfile() else None
    if content is None or any(s in ("", ".", "..") or set(s) & _FORBIDDEN for s in segments):
        raise ArtifactError(
            f"the provider's files cannot be unpacked: `{member.name}` is no plain file below them",
            hint=_DAMAGED,
        )
    path = folder.joinpath(*segments)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.read())


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out what differs from run to run: times, owners."""
    member.mtime = 0
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
