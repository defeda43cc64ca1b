"""C sources → libraries, with the compiler of `ziglang` or the system's own.

The package's build runs this file as it is, before the package can be imported: it needs the
standard library alone.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

System = Literal["linux", "windows"]

FOLDER = Path(__file__).parent
INCLUDE, SOURCE = FOLDER / "include", FOLDER / "source"
LIBRARY_FILES: dict[System, str] = {"linux": "libvermilion.so", "windows": "vermilion.dll"}
# The plugin execution provider for ONNX Runtime has the library inside, and exports two functions.
PLUGIN_FILES: dict[System, str] = {"linux": "libvermilion_ep.so", "windows": "vermilion_ep.dll"}
# The oldest C library that what is built runs with: that of `manylinux_2_28`, 2018.
_ZIG_TARGETS: dict[System, str] = {
    "linux": "x86_64-linux-gnu.2.28",
    "windows": "x86_64-windows-gnu",
}
# Symbols are hidden but for those that the header exports. The sources are C11.
FLAGS = (
    "-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing",
    "-Wall", "-Wextra", "-Werror=implicit-function-declaration",
)  # fmt: skip
HINT = "`pip install ziglang` has a compiler; so has `apt install gcc`"


class NoCompilerError(Exception):
    """There is no C compiler here."""


class CompileFailedError(Exception):
    """A compiler refused; the text is what it said."""


@dataclass(frozen=True)
class Compiler:
    """A C compiler by the words that start it. `has_target` says that it takes any system."""

    name: str
    words: tuple[str, ...]
    has_target: bool = False

    def command(self, system: System, arguments: Sequence[str]) -> list[str]:
        """Return the command that compiles for a system."""
        target = ["-target", _ZIG_TARGETS[system]] if self.has_target else []
        return [*self.words, *target, *arguments]

    def run(self, system: System, arguments: Sequence[str]) -> None:
        """Compile or link.

        Raises: CompileFailedError.
        """
        done = subprocess.run(
            self.command(system, arguments), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise CompileFailedError(
                f"{self.name} refused ({done.returncode}): {done.stderr[-4000:]}"
            )


def compiler(system: System = "linux") -> Compiler:
    """Return what compiles C for a system here: `$VERMILION_CC`, ziglang, else the system's own.

    Raises: NoCompilerError.
    """
    named = os.environ.get("VERMILION_CC")
    if named:
        return Compiler(named, tuple(named.split()), named.endswith("ziglang cc"))
    if importlib.util.find_spec("ziglang") is not None:
        return Compiler("ziglang", (sys.executable, "-m", "ziglang", "cc"), has_target=True)
    if system == "linux" and sys.platform == "linux":
        for name in ("cc", "gcc", "clang"):
            if found := shutil.which(name):
                return Compiler(name, (found,))
    raise NoCompilerError(f"there is no C compiler for {system} here")


def wanted_systems() -> tuple[System, ...]:
    """Return the systems that a wheel's build makes libraries for: its own, or those named.

    `VERMILION_BUILD_SYSTEMS=linux,windows` is for wheels that are published. ziglang builds all of
    Windows' C library first, two minutes of a processor; Linux takes seven seconds.
    """
    named = os.environ.get("VERMILION_BUILD_SYSTEMS", "")
    if named:
        return tuple(system for system in LIBRARY_FILES if system in named.split(","))
    own: dict[str, System] = {"linux": "linux", "win32": "windows"}
    has_library = sys.platform in own and platform.machine() in ("x86_64", "AMD64")
    return (own[sys.platform],) if has_library else ()


def build_library(
    output: Path,
    *,
    system: System = "linux",
    version: str,
    sources: Sequence[Path] = (SOURCE / "vermilion.c",),
    flags: Sequence[str] = (),
) -> None:
    """Write a shared library, aside first.

    Raises: NoCompilerError, CompileFailedError.
    """
    chosen = compiler(system)
    output.parent.mkdir(parents=True, exist_ok=True)
    links = ["-Wl,-soname," + output.name, "-lpthread"] if system == "linux" else []
    about = [f'-DVERMILION_VERSION="{version}"', "-DVERMILION_BUILD", f"-I{INCLUDE}", f"-I{SOURCE}"]
    # Under its own name: a DLL has the name that it is linked as inside, and programs look for it.
    # ziglang leaves a `.pdb` and a `.lib` beside it.
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".building-") as folder:
        aside = Path(folder) / output.name
        chosen.run(
            system,
            [
                *FLAGS, *about, *flags, "-shared", "-s", "-o", str(aside),
                *map(str, sources), *links,
            ],
        )  # fmt: skip
        aside.replace(output)


def build_plugin(output: Path, *, system: System = "linux", version: str) -> None:
    """Write the plugin for ONNX Runtime.

    Raises: NoCompilerError, CompileFailedError.
    """
    build_library(
        output,
        system=system,
        version=version,
        sources=(SOURCE / "ep.c", SOURCE / "vermilion.c"),
        flags=("-DVERMILION_API=",),
    )
