"""CMake and setup.py: what in them is nvcc's, and the same build for HIP."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vermilion.hipify.finding import Finding
from vermilion.hipify.rules.catalogue import RULES

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
