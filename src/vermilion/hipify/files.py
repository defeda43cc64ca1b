"""The files of a tree that hipify reads, and what in CMake's and setup.py's is nvcc's."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vermilion.errors import OptionError
from vermilion.files import resolved
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
        files = _walk(path) if path.is_dir() else [SourceFile(resolved(path), path.name)]
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
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return _problem(file, "file-utf16", "it begins with UTF-16's byte order mark")
    if b"\0" in data[:_LOOKED_AT_BYTES]:
        return _problem(file, "file-binary", "it holds zero bytes")
    return decode(data)


def decode(data: bytes) -> str:
    """Return a source's text; bytes that are no UTF-8 are kept, one character each."""
    return data.decode("utf-8", errors="surrogateescape")


def encode(text: str) -> bytes:
    """Return the bytes of a source's text, as `decode` read them."""
    return text.encode("utf-8", errors="surrogateescape")


def _problem(file: SourceFile, rule: str, message: str, line: int = 1) -> Finding:
    row = RULES[rule]
    return Finding(rule, row.level, file.name, line, 1, message, row.fix)


_NVCC = (
    (r"--?use_fast_math", "use -ffast-math, and compare results with a tolerance"),
    (r"-?-(?:gencode|arch|code)[ =][^\s\"')]*|-arch=sm_\w+", "write --offload-arch=gfx942"),
    (r"--expt-(?:relaxed-constexpr|extended-lambda)", "remove it: HIP's compiler does so always"),
    (r"-Xcompiler|-Xptxas|-Xcudafe|--ptxas-options\S*", "remove it, or give the option itself"),
    (r"-maxrregcount\S*", "use __launch_bounds__ in the source"),
    (r"find_package\(\s*CUDA(?:Toolkit)?\b", "find_package(hip REQUIRED)"),
    (r"enable_language\(\s*CUDA\b|LANGUAGES[^)]*\bCUDA\b", "enable the language HIP"),
    (r"CMAKE_CUDA_\w+", "use the CMAKE_HIP_ variable of the same end"),
    (r"CUDA::\w+|\$\{CUDA_\w+\}|cuda_add_\w+", "link hip::host and AMD's libraries"),
    (r"\bnvcc\b", "call hipcc, or CMake's HIP language"),
)  # fmt: skip

# Library of AMD → what CMake finds, what it links, what a linker is told.
_LIBRARIES = {
    "hipBLAS": ("hipblas", "roc::hipblas", "hipblas"),
    "hipBLASLt": ("hipblaslt", "roc::hipblaslt", "hipblaslt"),
    "hipFFT": ("hipfft", "hip::hipfft", "hipfft"),
    "hipRAND": ("hiprand", "hip::hiprand", "hiprand"),
    "hipSPARSE": ("hipsparse", "roc::hipsparse", "hipsparse"),
    "hipSOLVER": ("hipsolver", "roc::hipsolver", "hipsolver"),
    "hipRTC": ("hiprtc", "hiprtc::hiprtc", "hiprtc"),
    "MIOpen": ("miopen", "MIOpen", "MIOpen"),
    "RCCL": ("rccl", "rccl", "rccl"),
    "rocTX": ("", "roctx64", "roctx64"),
    "hipCUB": ("hipcub", "hip::hipcub", ""),
    "rocThrust": ("rocthrust", "roc::rocthrust", ""),
}
_HEADERS = {"rccl/": "RCCL", "hipcub/": "hipCUB", "thrust/": "rocThrust", "roctracer/": "rocTX"}


def lint_build_file(text: str, file: str) -> list[Finding]:
    """Return what in a build file only nvcc understands, one finding an option and line."""
    row = RULES["nvcc-option"]
    findings = []
    for number, line in enumerate(text.splitlines(), 1):
        if "hipify: allow(nvcc-option)" in line:
            continue
        code = line.split("#", 1)[0]
        for pattern, hint in _NVCC:
            if found := re.search(pattern, code):
                what = f"`{found[0]}` is nvcc's"
                column = found.start() + 1
                findings.append(Finding(row.id, row.level, file, number, column, what, hint))
    return findings


def libraries_used(texts: Sequence[str]) -> list[str]:
    """Return the AMD libraries that translated sources include or call."""
    headers = {
        "hipblas/": "hipBLAS", "hipblaslt/": "hipBLASLt", "hipfft/": "hipFFT",
        "hiprand/": "hipRAND", "hipsparse/": "hipSPARSE", "hipsolver/": "hipSOLVER",
        "hip/hiprtc.h": "hipRTC", "miopen/": "MIOpen", **_HEADERS,
    }  # fmt: skip
    included = {
        name
        for text in texts
        for header in re.findall(r'#[ \t]*include[ \t]*[<"]([^>"]+)', text)
        for prefix, name in headers.items()
        if header.startswith(prefix)
    }
    return sorted(included)


def cmake_fragment(
    sources: Sequence[str], libraries: Sequence[str], architectures: Sequence[str]
) -> str:
    """Return a CMakeLists.txt that builds the sources into one shared library."""
    packages = [_LIBRARIES[name][0] for name in libraries if _LIBRARIES[name][0]]
    targets = ["hip::host", *(_LIBRARIES[name][1] for name in libraries)]
    lines = [
        "# Builds the translated sources with ROCm: cmake -B build && cmake --build build",
        "cmake_minimum_required(VERSION 3.21)",
        "project(hip_operators LANGUAGES CXX HIP)",
        "set(CMAKE_CXX_STANDARD 17)",
        "set(CMAKE_HIP_STANDARD 17)",
        "if(NOT CMAKE_HIP_ARCHITECTURES)",
        f'  set(CMAKE_HIP_ARCHITECTURES "{";".join(architectures)}")',
        "endif()",
        "find_package(hip REQUIRED)",
        *(f"find_package({name} REQUIRED)" for name in packages),
        "add_library(hip_operators SHARED",
        *(f"  {source}" for source in sources),
        ")",
        "set_source_files_properties(",
        *(f"  {source}" for source in sources),
        "  PROPERTIES LANGUAGE HIP",
        ")",
        "target_include_directories(hip_operators PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})",
        "# nvcc includes its runtime's header by itself.",
        "target_compile_options(hip_operators PRIVATE "
        "$<$<COMPILE_LANGUAGE:HIP>:-include hip/hip_runtime.h>)",
        f"target_link_libraries(hip_operators PRIVATE {' '.join(targets)})",
        "",
    ]
    return "\n".join(lines)


def setup_fragment(
    sources: Sequence[str], libraries: Sequence[str], architectures: Sequence[str]
) -> str:
    """Return a setup.py that builds the sources with hipcc into one shared library."""
    linked = [_LIBRARIES[name][2] for name in libraries if _LIBRARIES[name][2]]
    return _SETUP.format(
        sources=_listed(sources), libraries=_listed(linked), architectures=_listed(architectures)
    )


def _listed(words: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{word}"' for word in words) + "]"


_SETUP = '''\
"""Builds the translated sources with ROCm: python hip_setup.py build"""

import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build import build

SOURCES = {sources}
LIBRARIES = {libraries}
ARCHITECTURES = {architectures}


class BuildHip(build):
    def run(self):
        target = Path(self.build_base) / "libhip_operators.so"
        target.parent.mkdir(parents=True, exist_ok=True)
        options = ["-O3", "-fPIC", "-shared", "-std=c++17", "-I.", "-include", "hip/hip_runtime.h"]
        options += [f"--offload-arch={{name}}" for name in ARCHITECTURES]
        options += ["-x", "hip", *SOURCES, "-x", "none"]
        options += [f"-l{{name}}" for name in LIBRARIES]
        subprocess.run(["hipcc", *options, "-o", str(target)], check=True)


setup(name="hip-operators", version="0.1", packages=[], cmdclass={{"build": BuildHip}})
'''
