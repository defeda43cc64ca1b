"""The files of a tree that hipify reads, and what is wrong with those it does not."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vermilion.errors import OptionError
from vermilion.hipify.finding import Finding
from vermilion.hipify.rules.catalogue import RULES

CUDA_SUFFIXES = frozenset({".cu", ".cuh", ".hip"})
SOURCE_SUFFIXES = CUDA_SUFFIXES | {
    ".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".hxx", ".inc", ".inl", ".ipp", ".tpp",
}  # fmt: skip
BUILD_NAMES = frozenset({"CMakeLists.txt", "setup.py"})

# A file over this was not written by a person; 200,000 lines of source have about 8 MB.
MAX_SOURCE_BYTES = 16 * 1024 * 1024
_LOOKED_AT_BYTES = 8192


@dataclass(frozen=True)
class SourceFile:
    """A file to read, and its name below the folder that it was found in."""

    path: Path
    name: str

    @property
    def is_build_file(self) -> bool:
        """Say whether it tells how to build, rather than what."""
        return self.path.name in BUILD_NAMES or self.path.suffix == ".cmake"


def collect(paths: Sequence[Path]) -> list[SourceFile]:
    """Return the files named, and the sources below the folders named, in order of their names.

    Raises: OptionError for a path that is not there, or two files of one name.
    """
    found: dict[str, SourceFile] = {}
    for path in paths:
        if not path.exists():
            raise OptionError(f"there is no `{path}`")
        files = _walk(path) if path.is_dir() else [SourceFile(path.resolve(), path.name)]
        for file in files:
            if file.name in found and found[file.name].path != file.path:
                raise OptionError(
                    f"two sources are called `{file.name}`",
                    hint="name the folder that holds both, so that they keep their places",
                )
            found[file.name] = file
    if not found:
        raise OptionError(
            "there is no source among these paths",
            hint=f"sources end in {', '.join(sorted(SOURCE_SUFFIXES))}",
        )
    return [found[name] for name in sorted(found)]


def _walk(folder: Path) -> Iterator[SourceFile]:
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(where) / name
            file = SourceFile(path, path.relative_to(folder).as_posix())
            if path.suffix in SOURCE_SUFFIXES or file.is_build_file:
                yield file


def read_source(file: SourceFile) -> str | Finding:
    """Return a file's text, with its line ends as they are, or what is wrong with it."""
    try:
        if file.path.is_symlink():
            return _problem(file, "file-symlink", f"a link to `{file.path.readlink()}`")
        size = file.path.stat().st_size
        if size > MAX_SOURCE_BYTES:
            what = f"{size} bytes, and the limit is {MAX_SOURCE_BYTES}"
            return _problem(file, "file-huge", what)
        data = file.path.read_bytes()
    except OSError as error:
        return _problem(file, "file-unreadable", error.strerror or str(error))
    if b"\0" in data[:_LOOKED_AT_BYTES]:
        return _problem(file, "file-binary", "it holds zero bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = f"byte 0x{data[error.start]:02x} is not UTF-8"
        return _problem(file, "file-not-utf8", what, line)


def _problem(file: SourceFile, rule: str, message: str, line: int = 1) -> Finding:
    row = RULES[rule]
    return Finding(rule, row.level, file.name, line, 1, message, row.fix)
