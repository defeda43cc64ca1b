"""Compiled bundles kept by what they were compiled from; the cache as `vermilion cache` shows it.

A key is the name of a folder; whether the folder holds what is asked for is decided by the
digest inside, and by this user's signature: what somebody else put there is compiled again.
Whoever compiles holds the key's lock, works in a folder of its own, and renames it into place: a
process that dies leaves a folder that nobody looks at, swept by the next one.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from vermilion.errors import ArtifactError, OptionError
from vermilion.runtime.artifact import ArtifactReader, is_replaceable, open_artifact, swap_in
from vermilion.runtime.digest import model_digest
from vermilion.runtime.engine_cache import kept_entries, kept_problem, remove_kept, sweep_kept
from vermilion.runtime.foreign import refuse_foreign_folder
from vermilion.runtime.keys import cache_digest
from vermilion.runtime.manifest import MANIFEST_FILE, Manifest, is_ours
from vermilion.runtime.names import check_key
from vermilion.store.cache_dir import default_root

__all__ = [
    "Cache",
    "CacheCheck",
    "CacheRow",
    "Entry",
    "Pruned",
    "cache_digest",
    "default_root",
    "model_digest",
]

_LOCKS = ".locks"
_BUILDING = ".building"
_KEY_DIGITS = 32  # 128 bits name a folder; all 256 inside decide
_NOT_OURS = "it was not written by this user here, or was changed since"
_SECONDS_PER_DAY = 86400.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """What `get_or_build` gives: the bundle's folder, whether it was there, and why not."""

    path: Path
    key: str
    digest: str
    hit: bool
    reason: str

    def open(self, *, verify: bool = False) -> ArtifactReader:
        """Open the bundle; it was verified a moment ago.

        Raises: ArtifactError where another process has put another model under this key since.
        """
        reader = open_artifact(self.path, verify=verify)
        if reader.manifest.cache_digest != self.digest:
            raise ArtifactError(
                f"the cache key `{self.key}` was given to another model meanwhile",
                where=str(self.path),
                hint="give each model its own `--cache-key`, or none",
            )
        return reader


@dataclass(frozen=True)
class CacheRow:
    """One entry as `cache ls` shows it. `problem` says why the rest is not known.

    `kind` is empty for a compiled bundle, and says what anything else is.
    """

    key: str
    path: Path
    size_bytes: int
    last_used: float  # seconds since 1970
    digest: str = ""
    target: str = ""
    created: str = ""
    parts: int = 0
    problem: str = ""
    kind: str = ""


@dataclass(frozen=True)
class CacheCheck:
    """What `cache verify` found of one entry; `problem` is empty where it is whole."""

    key: str
    path: Path
    problem: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether every byte is what was written."""
        return not self.problem


@dataclass(frozen=True)
class Pruned:
    """What `cache prune` removed, and what it left because a process is compiling there."""

    keys: tuple[str, ...]
    freed_bytes: int
    busy: tuple[str, ...]


class Cache:
    """A folder of compiled bundles. Safe for several threads and processes at once."""

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self.root = Path(root) if root is not None else default_root()

    def get_or_build(
        self,
        digest: str,
        key: str | None,
        build: Callable[[Path], None],
        *,
        parts: Mapping[str, str] | None = None,
    ) -> Entry:
        """Return the bundle that was compiled from what `digest` stands for; make it if need be.

        `build` gets a folder that does not exist yet and must write a bundle there. `parts`, the
        mapping that `digest` is of, lets the reason name what has changed.

        Raises: OptionError for a key that cannot be a folder, ArtifactError where the folder of
        that name holds something else, and whatever `build` raises; what was there before stays.
        """
        name = digest[:_KEY_DIGITS] if key is None else check_key(key)
        path = self.root / name
        # Without the lock first: a hit waits for nobody, and needs no more than to read.
        if not _holds(path, digest):
            with self._locked(name):
                # Another process may have compiled it while this one waited.
                miss = _miss(path, digest, named=key is not None, parts=parts)
                if miss:
                    self._build(name, digest, build)
                    return Entry(path, name, digest, hit=False, reason=miss)
        _touch(path)
        return Entry(path, name, digest, hit=True, reason="compiled before from the same inputs")

    def forget(self, key: str) -> None:
        """Remove the entry of a key, or of a digest's own key, if it is there."""
        path = self.root / check_key(key[:_KEY_DIGITS] if len(key) == 64 else key)
        if (path / MANIFEST_FILE).is_file():
            self._remove(path)

    def ls(self) -> tuple[CacheRow, ...]:
        """List the entries, those used last first; what the language engine keeps among them."""
        rows = [*filter(None, map(_row, self._entries()))]
        rows += [
            CacheRow(one.key, one.path, one.size_bytes, one.last_used, kind=one.title)
            for one in kept_entries(self.root)
        ]
        return tuple(sorted(rows, key=lambda row: (-row.last_used, row.key)))

    def verify(self) -> tuple[CacheCheck, ...]:
        """Read every byte of every entry and compare it with what was written."""
        bundles = [CacheCheck(path.name, path, _problem(path)) for path in self._entries()]
        kept = [CacheCheck(one.key, one.path, kept_problem(one)) for one in kept_entries(self.root)]
        return (*bundles, *kept)

    def prune(
        self,
        *,
        older_than_days: float | None = None,
        max_bytes: int | None = None,
        everything: bool = False,
    ) -> Pruned:
        """Remove entries not used for so long, then the longest unused down to a size, or all.

        Leftovers of dead processes go in any case.
        """
        self._sweep_all()
        removed: list[CacheRow] = []
        busy: list[str] = []
        for row in self._doomed(older_than_days, max_bytes, everything=everything):
            match remove_kept(row.path) if row.kind else self._remove(row.path):
                case "removed":
                    removed.append(row)
                case "busy":
                    busy.append(row.key)
        sweep_kept(self.root)
        freed = sum(row.size_bytes for row in removed)
        return Pruned(tuple(row.key for row in removed), freed, tuple(busy))

    def _doomed(
        self, older_than_days: float | None, max_bytes: int | None, *, everything: bool
    ) -> list[CacheRow]:
        limits = [value for value in (older_than_days, max_bytes) if value is not None]
        if any(value < 0 for value in limits):
            raise OptionError("a limit of less than nothing makes no sense")
        if not limits and not everything:
            raise OptionError(
                "nothing says what to remove",
                hint="give an age, a size to keep to, or say that all of it goes",
            )
        rows = self.ls()
        if everything:
            return list(rows)
        oldest = time.time() - (older_than_days or 0) * _SECONDS_PER_DAY
        doomed, kept_bytes = [], 0
        for row in rows:
            too_old = older_than_days is not None and row.last_used < oldest
            too_much = max_bytes is not None and kept_bytes + row.size_bytes > max_bytes
            if too_old or too_much:
                doomed.append(row)
            else:
                kept_bytes += row.size_bytes
        return doomed

    def _build(self, name: str, digest: str, build: Callable[[Path], None]) -> None:
        """Compile into a folder of its own and rename. The caller holds the key's lock."""
        workplace = self.root / _BUILDING / name
        # With the lock in hand, whatever lies here was left by a process that died.
        shutil.rmtree(workplace, ignore_errors=True)
        folder = workplace / uuid.uuid4().hex
        try:
            workplace.mkdir(parents=True, exist_ok=True)
            build(folder)
            written = open_artifact(folder, verify=False).manifest.cache_digest
            if written != digest:
                raise ArtifactError(
                    "the bundle that was compiled has another digest than was asked for",
                    where=name,
                    hint="report this as a bug of Vermilion",
                )
            swap_in(folder, self.root / name, workplace / uuid.uuid4().hex)
        finally:
            shutil.rmtree(workplace, ignore_errors=True)

    def _entries(self) -> Iterator[Path]:
        if not self.root.is_dir():
            return
        for path in sorted(self.root.iterdir()):
            if path.is_symlink() or not (path / MANIFEST_FILE).is_file():
                continue
            if is_replaceable(path):  # not any folder that has a file of that name
                yield path

    def _remove(self, path: Path) -> Literal["removed", "busy", "gone"]:
        """Remove one entry unless a process is compiling it, or has it open on Windows."""
        try:
            with self._locked(path.name, wait=False):
                workplace = self.root / _BUILDING / path.name
                workplace.mkdir(parents=True, exist_ok=True)
                # Renamed first, so that nobody finds half an entry.
                path.rename(workplace / uuid.uuid4().hex)
                shutil.rmtree(workplace, ignore_errors=True)
        except Timeout:
            return "busy"
        except FileNotFoundError:
            return "gone"
        except PermissionError as error:
            _log.warning("`%s` stays: %s", path, error)
            return "busy"
        return "removed"

    def _sweep_all(self) -> None:
        building = self.root / _BUILDING
        if not building.is_dir():
            return
        for workplace in building.iterdir():
            try:
                with self._locked(workplace.name, wait=False):
                    shutil.rmtree(workplace, ignore_errors=True)
            except Timeout:
                _log.info("`%s` is being compiled", workplace.name)

    @contextmanager
    def _locked(self, name: str, *, wait: bool = True) -> Iterator[None]:
        """Hold a key's lock; the system lets go of it when the process dies.

        Raises: filelock.Timeout without `wait`, where another holds it.
        """
        folder = self.root / _LOCKS
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder / f"{name}.lock")
            lock.acquire(timeout=-1 if wait else 0)
        except Timeout:
            raise
        except OSError as error:
            raise ArtifactError(
                f"the cache cannot be written: {error.strerror or error}",
                where=str(self.root),
                hint="choose another folder with `--cache-dir`",
            ) from error
        try:
            yield
        finally:
            lock.release()


def _holds(path: Path, digest: str) -> bool:
    """Say whether an entry is there, whole, of that digest, and this user's."""
    try:
        manifest = open_artifact(path).manifest
    except ArtifactError:
        return False
    return manifest.cache_digest == digest and is_ours(manifest)


def _miss(path: Path, digest: str, *, named: bool, parts: Mapping[str, str] | None) -> str:
    """Say why an entry cannot be used; nothing where it can. The caller holds the key's lock.

    Raises: ArtifactError where what is there is not ours to replace.
    """
    if not path.exists():
        return "not compiled before"
    if not path.is_dir():
        raise ArtifactError(
            f"there is something called `{path.name}` that is not a folder",
            where=str(path.parent),
            hint="choose another `--cache-key`",
        )
    if named and not is_replaceable(path):
        refuse_foreign_folder(path)
    try:
        manifest = open_artifact(path).manifest
    except ArtifactError as error:
        return f"the entry could not be used: {error.message}"
    if not is_ours(manifest):
        return f"the entry could not be used: {_NOT_OURS}"
    if manifest.cache_digest == digest:
        return ""
    return f"key `{path.name}` {_difference(manifest, parts)}"


def _difference(manifest: Manifest, parts: Mapping[str, str] | None) -> str:
    """Say what the entry was compiled from that is not what is asked for."""
    stored = manifest.cache_parts
    changed = sorted(
        part for part in {*stored, *(parts or {})} if stored.get(part) != (parts or {}).get(part)
    )
    if parts is None or "model" in changed:
        return "held another model"
    return f"held this model compiled with another {', '.join(f'`{part}`' for part in changed)}"


def _touch(path: Path) -> None:
    """Note that an entry was used: what `prune` goes by."""
    try:
        os.utime(path / MANIFEST_FILE)
    except OSError as error:
        # A cache that may only be read works as well; it is just not pruned by use.
        _log.debug("the use of `%s` could not be noted: %s", path, error)


def _row(path: Path) -> CacheRow | None:
    try:
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        used = (path / MANIFEST_FILE).stat().st_mtime
    except FileNotFoundError:
        return None  # removed by another process while this one looked
    try:
        manifest = open_artifact(path, verify=False).manifest
    except ArtifactError as error:
        return CacheRow(path.name, path, size, used, problem=error.message)
    return CacheRow(
        path.name,
        path,
        size,
        used,
        digest=manifest.cache_digest,
        target=manifest.target,
        created=manifest.created,
        parts=len(manifest.parts),
    )


def _problem(path: Path) -> str:
    try:
        manifest = open_artifact(path).manifest
    except ArtifactError as error:
        return error.message
    return "" if is_ours(manifest) else _NOT_OURS
