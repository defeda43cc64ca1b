"""Where a source's includes lead: into the project, to a header of CUDA's, or elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from vermilion.files import resolved
from vermilion.hipify.tokens import BETWEEN, Tokens

INCLUDE = re.compile(rf'(#{BETWEEN}\w+{BETWEEN}[<"])([^>"]+)([>"])')


def find_header(
    header: str, quoted: bool, own: Path | None, folders: Sequence[Path]
) -> Path | None:
    """Return the project's file that an include names, None if the project has none.

    As compilers do: one in quotes is looked for beside the source first.
    """
    places = [own, *folders] if quoted and own is not None else folders
    for folder in places:
        if folder is None:
            continue
        path = folder / header
        try:
            if path.is_file():
                return resolved(path)
        except (OSError, ValueError):  # a name that no file can have
            return None
    return None


def project_headers(tokens: Tokens, own: Path | None, folders: Sequence[Path]) -> Iterator[Path]:
    """Yield the files of the project that a source includes."""
    for index, kind in enumerate(tokens.kinds):
        found = INCLUDE.match(tokens.raw(index)) if kind == "include" else None
        if found is not None:
            path = find_header(found[2], found[3] == '"', own, folders)
            if path is not None:
                yield path


def include_folders(paths: Sequence[Path], given: Sequence[Path]) -> tuple[Path, ...]:
    """Return the folders that includes are looked for in: those given, then those of the sources.

    A project most often compiles with its root and its `include` folder in the search path.
    """
    found = list(given)
    for path in paths:
        if path.is_dir():
            found += [path, path / "include", path / "src", path / "csrc"]
    return tuple(dict.fromkeys(resolved(folder) for folder in found if folder.is_dir()))


def torch_header(header: str) -> str:
    """Return PyTorch's name of a header for HIP, empty where it is none of PyTorch's for CUDA.

    `c10/cuda/CUDAStream.h` → `c10/hip/HIPStream.h`.
    """
    tree, _, rest = header.partition("/cuda/")
    if tree not in {"ATen", "c10"} or not rest:
        return ""
    name = re.sub(r"(^|/)CUDA(?=\w)", r"\1HIP", rest).replace("cuda_cmake", "hip_cmake")
    return f"{tree}/hip/{name}"
