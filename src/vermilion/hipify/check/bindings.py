"""C headers of AMD's libraries, made from the declarations that AMD's Python bindings carry.

The Cython files of rocm-bindings-libraries hold each function of hipBLAS and its like with its
parameters. What they do not hold is the values of enumerators; a check of types needs none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

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
