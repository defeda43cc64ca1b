"""Where the C library lies: in the installed package, or made once from its sources."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from vermilion.clib.build import (
    FLAGS,
    FOLDER,
    HINT,
    INCLUDE,
    LIBRARY_FILES,
    PLUGIN_FILES,
    SOURCE,
    CompileFailedError,
    NoCompilerError,
    System,
    build_library,
    build_plugin,
    compiler,
)
from vermilion.errors import DeviceError
from vermilion.store.cache_dir import default_root
from vermilion.version import VERSION

# What the plugin is called in ONNX Runtime: `source/ep.h` says the same.
PROVIDER = "VermilionExecutionProvider"
_BUILT = FOLDER / "lib"


def library(system: System = "linux") -> Path:
    """Return the library's file; a checkout has none, and builds it into the cache.

    Raises: DeviceError where it is neither there nor can be built.
    """
    return _file(LIBRARY_FILES[system], partial(build_library, system=system, version=VERSION))


def plugin_library() -> Path:
    """Return the file of the plugin for ONNX Runtime on this system, built as the library is.

    Raises: DeviceError where it is neither there nor can be built.
    """
    system: System = "windows" if sys.platform == "win32" else "linux"
    return _file(PLUGIN_FILES[system], partial(build_plugin, system=system, version=VERSION))


def _file(name: str, build: Callable[[Path], None]) -> Path:
    built = _BUILT / name
    if built.is_file():
        return built
    place = default_root() / "clib" / _source_digest() / name
    if not place.is_file():
        try:
            build(place)
        except NoCompilerError as error:
            raise DeviceError(
                f"`{name}` was not built when this package was installed, and {error}",
                where=str(built),
                hint=HINT,
            ) from error
        except CompileFailedError as error:
            raise DeviceError(f"`{name}` cannot be built: {error}", where=str(SOURCE)) from error
    return place


def linked_object() -> Path:
    """Return the library as one object for what is linked with it, compiled once into the cache.

    Its functions are hidden; `source/linked.h` is what it has beside the header.

    Raises: NoCompilerError, CompileFailedError.
    """
    chosen = compiler("linux")
    name = Path(chosen.name).name.replace(" ", "-")
    place = default_root() / "clib" / _source_digest() / f"linked-{name}.o"
    if not place.is_file():
        place.parent.mkdir(parents=True, exist_ok=True)
        aside = place.with_name(f"{os.getpid()}-{place.name}")
        about = ["-DVERMILION_LINKED", '-DVERMILION_API=__attribute__((visibility("hidden")))']
        about += [f'-DVERMILION_VERSION="{VERSION}"', f"-I{INCLUDE}", f"-I{SOURCE}"]
        source = str(SOURCE / "vermilion.c")
        chosen.run("linux", [*FLAGS, *about, "-c", source, "-o", str(aside)])
        aside.replace(place)
    return place


def _source_digest() -> str:
    state = hashlib.sha256(VERSION.encode())
    for file in sorted([*SOURCE.iterdir(), *INCLUDE.iterdir()]):
        state.update(file.name.encode())
        state.update(file.read_bytes())
    return state.hexdigest()[:32]
