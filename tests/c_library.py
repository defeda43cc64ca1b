"""The C library for tests: built once, opened by ctypes, and a C program that uses it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.clib.build import INCLUDE, Compiler, compiler
from vermilion.clib.library import library
from vermilion.runtime.session import Session

Array = NDArray[Any]
PROGRAMS = Path(__file__).parent / "c_programs"


@cache
def host_compiler() -> Compiler:
    """Return the compiler of programs that run here."""
    return compiler("linux")


def compile_program(output: Path, *arguments: str) -> None:
    """Compile a C program with all that it is linked with.

    As the library is, without symbols: ziglang would make what it links with once more for others.
    """
    words = ["-std=gnu11", "-O2", "-s", "-Wall", "-Wextra", f"-I{INCLUDE}", *arguments]
    host_compiler().run("linux", [*words, "-o", str(output), "-lpthread"])


@cache
def check_program() -> Path:
    """Return `c_programs/check.c`, linked with the library, beside it."""
    file = library().with_name("check")
    source = PROGRAMS / "check.c"
    if not file.is_file() or file.stat().st_mtime < source.stat().st_mtime:
        aside = file.with_name(f"check-{os.getpid()}")
        compile_program(aside, str(source), str(library()), f"-Wl,-rpath,{library().parent}")
        aside.replace(file)
    return file


@dataclass(frozen=True)
class Ended:
    """How the C program ended, and the outputs that it wrote."""

    code: int
    out: str
    err: str


def check(
    mode: str,
    model: Path,
    feeds: Mapping[str, Array],
    folder: Path,
    *,
    count: int = 1,
    environment: Mapping[str, str] | None = None,
    before: tuple[str, ...] = (),
) -> Ended:
    """Run the C program on a model in a folder; `before` is what starts it."""
    words = []
    for number, array in enumerate(feeds.values()):
        (folder / f"in{number}.bin").write_bytes(array.tobytes())
        words.append(f"in{number}.bin:{'x'.join(map(str, array.shape))}")
    done = subprocess.run(
        [*before, str(check_program()), mode, str(model), str(count), *words],
        cwd=folder, env={**os.environ, **(environment or {})}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, done.stderr)


def written(folder: Path, like: list[Array]) -> list[Array]:
    """Return the outputs that the program wrote, as arrays like those."""
    return [
        np.frombuffer((folder / f"out{n}.bin").read_bytes(), one.dtype).reshape(one.shape)
        for n, one in enumerate(like)
    ]


def same_bits(one: list[Array], other: list[Array]) -> bool:
    """Say whether arrays have the same types, shapes and bits."""
    return len(one) == len(other) and all(
        (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
        for a, b in zip(one, other, strict=True)
    )


def wanted(model: Path, feeds: Mapping[str, Array]) -> list[Array]:
    """Return what the session of this package computes."""
    with Session(model) as session:
        return session.run(None, dict(feeds))
