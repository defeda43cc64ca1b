"""Where the C library lies: in the installed package, or made once from its sources."""

from __future__ import annotations

import hashlib
from pathlib import Path

from vermilion.clib.build import (
    FOLDER,
    HINT,
    INCLUDE,
    LIBRARY_FILES,
    SOURCE,
    CompileFailedError,
    NoCompilerError,
    System,
    build_library,
)
from vermilion.errors import DeviceError
from vermilion.store.cache_dir import default_root
from vermilion.version import VERSION

_BUILT = FOLDER / "lib"


def library(system: System = "linux") -> Path:
    """Return the library's file; a checkout has none, and builds it into the cache.

    Raises: DeviceError where it is neither there nor can be built.
    """
    built = _BUILT / LIBRARY_FILES[system]
    if built.is_file():
        return built
    place = default_root() / "clib" / _source_digest() / LIBRARY_FILES[system]
    if not place.is_file():
        try:
            build_library(place, system=system, version=VERSION)
        except NoCompilerError as error:
            raise DeviceError(
                f"the C library was not built when this package was installed, and {error}",
                where=str(built),
                hint=HINT,
            ) from error
        except CompileFailedError as error:
            raise DeviceError(
                f"the C library cannot be built: {error}", where=str(SOURCE)
            ) from error
    return place


def _source_digest() -> str:
    state = hashlib.sha256(VERSION.encode())
    for file in sorted([*SOURCE.iterdir(), *INCLUDE.iterdir()]):
        state.update(file.name.encode())
        state.update(file.read_bytes())
    return state.hexdigest()[:32]
