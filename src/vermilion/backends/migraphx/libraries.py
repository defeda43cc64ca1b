"""Which shared libraries a provider's file asks for, which of them are not here, what brings them.

A provider's name in ONNX Runtime's list says how it was built, and a session without the libraries
silently runs on the CPU: the file itself is read instead. Format: System V ABI, chapter 5, "Dynamic
Section".
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from vermilion.hardware.environment import missing_libraries

_STRINGS, _NEEDED = 5, 1  # DT_STRTAB, DT_NEEDED
_LOAD, _DYNAMIC = 1, 2  # program headers

# The package of ROCm's repository that a library lies in.
# Source: rocm.docs.amd.com, "ROCm package structure", and MIGraphX's installation page.
_PACKAGES: Mapping[str, str] = {
    "libamdhip64": "hip-runtime-amd",
    "libhipblas": "hipblas",
    "libhipblaslt": "hipblaslt",
    "libhipfft": "hipfft",
    "libhsa-runtime64": "hsa-rocr",
    "libMIOpen": "miopen-hip",
    "libmigraphx": "migraphx",
    "libmigraphx_c": "migraphx",
    "librocblas": "rocblas",
    "librocm_smi64": "rocm-smi-lib",
    "libroctracer64": "roctracer",
}
_ROCM_FOLDER = "/opt/rocm/lib"


def needed_libraries(library: Path) -> tuple[str, ...]:
    """Return the names that the dynamic loader will look for; none for a file that is no ELF-64."""
    data = library.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        return ()
    try:
        return tuple(_needed(data))
    except (struct.error, ValueError, OverflowError):
        return ()


def _needed(data: bytes) -> Iterable[str]:
    (table,) = struct.unpack_from("<Q", data, 0x20)
    entry, count = struct.unpack_from("<HH", data, 0x36)
    segments = [struct.unpack_from("<IIQQQQQQ", data, table + i * entry) for i in range(count)]
    loads = [(s[3], s[2], s[5]) for s in segments if s[0] == _LOAD]  # address, offset, bytes
    rows = [
        struct.unpack_from("<QQ", data, at)
        for kind, _, offset, _, _, size, *_ in segments
        if kind == _DYNAMIC
        for at in range(offset, offset + size - 15, 16)
    ]
    strings = next((_offset(value, loads) for tag, value in rows if tag == _STRINGS), None)
    if strings is None:
        return
    for tag, value in rows:
        if tag == _NEEDED:
            start = strings + value
            yield data[start : data.index(b"\0", start)].decode("ascii", "replace")


def _offset(address: int, loads: list[tuple[int, int, int]]) -> int | None:
    return next((o + address - a for a, o, size in loads if a <= address < a + size), None)


def missing_for(library: Path, variables: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the libraries that a provider's file needs and the loader would not find, in order.

    Those that lie beside it count as found.
    """
    names = needed_libraries(library)
    environment = os.environ if variables is None else variables
    missing = missing_libraries(names, environment)
    return tuple(n for n in names if n in missing and not (library.parent / n).is_file())


def installs(names: Iterable[str]) -> str:
    """Return the line that installs libraries, by ROCm's packages.

    Those of no package are named.
    """
    wanted = [(name, _PACKAGES.get(name.partition(".so")[0], "")) for name in names]
    packages = list(dict.fromkeys(package for _, package in wanted if package))
    others = [name for name, package in wanted if not package]
    lines = []
    if packages:
        major = next((n.rpartition(".so.")[2] for n, _ in wanted if "amdhip64.so." in n), "")
        version = f" of ROCm {major}" if major.isdigit() else ""
        lines.append(
            f"sudo apt install {' '.join(packages)} (from AMD's repository{version}:"
            " https://rocm.docs.amd.com/projects/install-on-linux);"
            f" export LD_LIBRARY_PATH={_ROCM_FOLDER} where they are not in the loader's cache"
        )
    if others:
        lines.append(f"install what brings {', '.join(f'`{name}`' for name in others)}")
    return "; ".join(lines)
