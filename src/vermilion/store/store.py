"""One folder of everything that is kept: entries found, written, listed, checked and removed.

An entry is a folder, ROOT/NAMESPACE/KEY. Who writes one holds its lock, works in a folder of its
own and renames it into place: a process that dies leaves a folder that nobody looks at, swept by
the next one. A reader needs no lock.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from vermilion.errors import ArtifactError, OptionError, Refusal, is_full
from vermilion.store.cache_dir import default_root
from vermilion.store.entry import (
    MISSING,
    Entry,
    EntryWriter,
    entry_files,
    entry_problem,
    read_entry,
    swap_in,
)
from vermilion.store.namespaces import SIGNED, Facts, Namespace
from vermilion.store.signature import signature_of

_LOCKS, _BUILDING = ".locks", ".building"
_SECONDS_PER_DAY = 86400.0

T = TypeVar("T")
Make = Callable[[EntryWriter], Mapping[str, Any] | None]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EntryRow:
    """One entry as `cache ls` shows it. `problem` says why the rest is not known."""

    namespace: Namespace
    path: Path
    size_bytes: int
    last_used: float  # seconds since 1970
    facts: Facts = field(default_factory=dict)
    problem: str = ""

    @property
    def key(self) -> str:
        """The key with its namespace."""
        return self.namespace.key_of(self.path)

    @property
    def kind(self) -> str:
        """What it is, for people."""
        return self.namespace.title


@dataclass(frozen=True)
class EntryCheck:
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
    """What `cache prune` removed, and what it left because a process is writing there."""

    keys: tuple[str, ...]
    freed_bytes: int
    busy: tuple[str, ...]


class Store:
    """A folder of entries. Safe for several threads and processes at once."""

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        namespaces: Sequence[Namespace] = SIGNED,
    ) -> None:
        self.root = Path(root) if root is not None else default_root()
        self.namespaces = tuple(namespaces)

    def place(self, namespace: Namespace, key: str) -> Path:
        """Return where an entry lies, or would."""
        return self.root / namespace.name / key

    def find(self, namespace: Namespace, key: str) -> Entry | None:
        """Return an entry that is whole and this user's, None where there is none."""
        found = read_entry(self.place(namespace, key))
        if isinstance(found, Refusal):
            return None
        self.touch(namespace, key)
        return found

    def get_or_make(self, namespace: Namespace, key: str, make: Make) -> Entry | None:
        """Return an entry, written by `make` where there is none; None where it cannot be kept.

        `make` writes the files and returns what is to be known beside them, or None where the
        entry is not worth keeping. An entry that is damaged is made again, and a line says so.

        Raises: whatever `make` raises but OSError.
        """
        place = self.place(namespace, key)
        if not signature_of(key):
            return None  # nothing could be told from what somebody else put there

        def write(folder: Path) -> bool:
            folder.mkdir()
            writer = EntryWriter(folder)
            about = make(writer)
            if about is not None:
                writer.finish(place, about)
            return about is not None

        try:
            found, reason = self.get_or_write(namespace, key, read_entry, write)
        except (OSError, ArtifactError) as error:
            _log.warning("`%s` cannot be kept: %s", namespace.key_of(place), error)
            return None
        if reason not in ("", MISSING.reason):
            _log.warning("`%s` is made again: %s", place, reason)
        return found or self.find(namespace, key)

    def get_or_write(
        self,
        namespace: Namespace,
        key: str,
        read: Callable[[Path], T | Refusal],
        write: Callable[[Path], bool],
    ) -> tuple[T | None, str]:
        """Return what `read` finds at an entry's place; where it refuses, write it, and say why.

        `write` gets a folder that does not exist yet, and returns whether it is to be kept.
        What was there before stays until the new one is whole.

        Raises: ArtifactError where the cache cannot be written, and whatever `write` raises.
        """
        place = self.place(namespace, key)
        # Without the lock first: a hit waits for nobody, and needs no more than to read.
        found = read(place)
        if isinstance(found, Refusal):
            with self.locked(namespace.lock_name(key)):
                # Another process may have written it while this one waited.
                found = read(place)
                if isinstance(found, Refusal):
                    self._write(place, namespace.lock_name(key), write)
                    return None, found.reason
        self.touch(namespace, key)
        return found, ""

    def adopt(self, namespace: Namespace, key: str, source: Path) -> str:
        """Copy an entry that this user wrote elsewhere; return why it is not, empty if it is."""

        def write(folder: Path) -> bool:
            folder.mkdir()
            for name in entry_files(source):
                shutil.copyfile(source / name, folder / name)
            return True

        problem = entry_problem(source)
        if problem:
            return problem
        try:
            self.get_or_write(namespace, key, read_entry, write)
        except (OSError, ArtifactError) as error:
            return str(error)
        return ""

    def free_bytes(self) -> int:
        """Return the room on the disk."""
        self.root.mkdir(parents=True, exist_ok=True)
        return shutil.disk_usage(self.root).free

    def remove(self, namespace: Namespace, key: str) -> Literal["removed", "busy", "gone"]:
        """Remove one entry unless a process is writing it, or has it open on Windows."""
        from filelock import Timeout

        name, place = namespace.lock_name(key), self.place(namespace, key)
        try:
            with self.locked(name, wait=False):
                workplace = self.root / _BUILDING / name
                workplace.mkdir(parents=True, exist_ok=True)
                # Renamed first, so that nobody finds half an entry.
                place.rename(workplace / uuid.uuid4().hex)
                shutil.rmtree(workplace, ignore_errors=True)
        except Timeout:
            return "busy"
        except FileNotFoundError:
            return "gone"
        except PermissionError as error:
            _log.warning("`%s` stays: %s", place, error)
            return "busy"
        return "removed"

    def ls(self) -> tuple[EntryRow, ...]:
        """List the entries, those used last first."""
        rows = [row for namespace in self._listed() for row in self._rows(namespace)]
        return tuple(sorted(rows, key=lambda row: (-row.last_used, row.key)))

    def verify(self) -> tuple[EntryCheck, ...]:
        """Read every byte of every entry and compare it with what was written."""
        return tuple(
            EntryCheck(namespace.key_of(path), path, namespace.problem(path))
            for namespace in self._listed()
            for path in self._entries(namespace)
        )

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
        doomed = _doomed(self.ls(), older_than_days, max_bytes, everything=everything)
        self._sweep_workplaces()
        removed: list[EntryRow] = []
        busy: list[str] = []
        for row in doomed:
            match self.remove(row.namespace, row.path.name):
                case "removed":
                    removed.append(row)
                case "busy":
                    busy.append(row.key)
        self._sweep_references()
        freed = sum(row.size_bytes for row in removed)
        return Pruned(tuple(row.key for row in removed), freed, tuple(busy))

    def _write(self, place: Path, name: str, write: Callable[[Path], bool]) -> None:
        """Write an entry aside and rename it. The caller holds its lock."""
        workplace = self.root / _BUILDING / name
        # With the lock in hand, whatever lies here was left by a process that died.
        shutil.rmtree(workplace, ignore_errors=True)
        folder = workplace / uuid.uuid4().hex
        try:
            workplace.mkdir(parents=True, exist_ok=True)
            if write(folder):
                place.parent.mkdir(parents=True, exist_ok=True)
                swap_in(folder, place, workplace / uuid.uuid4().hex)
        except OSError as error:
            if not is_full(error):
                raise
            raise ArtifactError(
                "the cache cannot be written: no space left on the disk",
                where=str(self.root),
                hint="make room there (`vermilion cache prune`), or choose another folder with "
                "`--cache-dir` or the variable VERMILION_CACHE",
            ) from error
        finally:
            shutil.rmtree(workplace, ignore_errors=True)

    @contextmanager
    def locked(self, name: str, *, wait: bool = True) -> Iterator[None]:
        """Hold a lock, of an entry or by a name of its own; it ends with the process.

        Raises: filelock.Timeout without `wait`, where another holds it.
        """
        from filelock import FileLock, Timeout  # who only reads does without

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
                hint="choose another folder with `--cache-dir`, or the variable VERMILION_CACHE",
            ) from error
        try:
            yield
        finally:
            lock.release()

    def touch(self, namespace: Namespace, key: str) -> None:
        """Note that an entry was used: what `prune` goes by."""
        place = self.place(namespace, key)
        try:
            os.utime(place / namespace.index_file)
        except OSError as error:
            # A cache that may only be read works as well; it is just not pruned by use.
            _log.debug("the use of `%s` could not be noted: %s", place, error)

    def _listed(self) -> Iterator[Namespace]:
        return (namespace for namespace in self.namespaces if not namespace.refers_to)

    def _entries(self, namespace: Namespace) -> Iterator[Path]:
        folder = self.root / namespace.name
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            is_folder = not path.name.startswith(".") and not path.is_symlink() and path.is_dir()
            if is_folder and namespace.is_entry(path):
                yield path

    def _rows(self, namespace: Namespace) -> Iterator[EntryRow]:
        for path in self._entries(namespace):
            index = path / namespace.index_file
            try:
                used = (index if index.exists() else path).stat().st_mtime
                size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            except FileNotFoundError:
                continue  # removed by another process while this one looked
            try:
                yield EntryRow(namespace, path, size, used, namespace.facts(path))
            except ArtifactError as error:
                yield EntryRow(namespace, path, size, used, problem=error.message)

    def _sweep_workplaces(self) -> None:
        from filelock import Timeout

        building = self.root / _BUILDING
        for workplace in sorted(building.iterdir()) if building.is_dir() else ():
            try:
                with self.locked(workplace.name, wait=False):
                    shutil.rmtree(workplace, ignore_errors=True)
            except Timeout:
                _log.info("`%s` is being written", workplace.name)

    def _sweep_references(self) -> None:
        """Remove entries that refer to entries that are gone."""
        for namespace in self.namespaces:
            if not namespace.refers_to:
                continue
            known = {path.name for path in (self.root / namespace.refers_to).glob("*")}
            for path in self._entries(namespace):
                found = read_entry(path)
                if isinstance(found, Refusal) or found.about["key"] not in known:
                    self.remove(namespace, path.name)


def _doomed(
    rows: Sequence[EntryRow],
    older_than_days: float | None,
    max_bytes: int | None,
    *,
    everything: bool,
) -> list[EntryRow]:
    """Return what is to be removed of entries in the order of their last use."""
    limits = [value for value in (older_than_days, max_bytes) if value is not None]
    if any(value < 0 for value in limits):
        raise OptionError("a limit of less than nothing makes no sense")
    if not limits and not everything:
        raise OptionError(
            "nothing says what to remove",
            hint="give an age, a size to keep to, or say that all of it goes",
        )
    if everything:
        return list(rows)
    oldest = time.time() - (older_than_days or 0) * _SECONDS_PER_DAY
    doomed, left_bytes = [], 0
    for row in rows:
        too_old = older_than_days is not None and row.last_used < oldest
        too_much = max_bytes is not None and left_bytes + row.size_bytes > max_bytes
        if too_old or too_much:
            doomed.append(row)
        else:
            left_bytes += row.size_bytes
    return doomed
