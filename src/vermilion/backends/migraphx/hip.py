"""What the HIP runtime really shows: asked in a child process, because it loads native libraries.

python -m vermilion.backends.migraphx.hip LIBRARY…      (what `ask_hip` starts)
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vermilion.hardware.providers import ask_once

PROBE_LIMIT_S = 60.0
_HIP = "libamdhip64" if sys.platform != "win32" else "amdhip64"
# Source: HIP, hip_runtime_api.h, `hipError_t`.
_ERRORS: Mapping[int, str] = {
    3: "hipErrorNotInitialized",
    35: "hipErrorInsufficientDriver",
    100: "hipErrorNoDevice",
    101: "hipErrorInvalidDevice",
}
_COMMAND = (sys.executable, "-c", "from vermilion.backends.migraphx.hip import main; main()")


@dataclass(frozen=True)
class Hip:
    """What came of loading libraries and asking HIP.

    `paths` are the files that the libraries are, by the name asked for; `refused` why one did not
    load; `error` why HIP gives no number of devices, empty where it does.
    """

    devices: int = 0
    version: str = ""
    error: str = ""
    paths: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


def ask_hip(
    libraries: Sequence[str],
    *,
    command: Sequence[str] = _COMMAND,
    limit_s: float = PROBE_LIMIT_S,
) -> Hip:
    """Load libraries in a child process and count the GPUs that HIP gives it."""
    answer = ask_once([*command, *libraries], limit_s)
    return Hip(error=f"asking {answer}") if isinstance(answer, str) else Hip(**answer)


def main() -> None:
    """Answer in the file that the last argument names; the others are libraries."""
    names, place = sys.argv[1:-1], Path(sys.argv[-1])
    paths: dict[str, str] = {}
    refused: dict[str, str] = {}
    hip = None
    for name in names:
        try:
            loaded = ctypes.CDLL(name, mode=getattr(ctypes, "RTLD_GLOBAL", 0))
        except OSError as error:
            refused[name] = str(error)
            continue
        paths[name] = _path_of(name)
        hip = loaded if name.startswith(_HIP) else hip
    answer = {"paths": paths, "refused": refused, **_count(hip)}
    aside = place.with_suffix(".part")
    aside.write_text(json.dumps(answer), encoding="utf-8")
    aside.replace(place)


def _count(hip: ctypes.CDLL | None) -> dict[str, object]:
    if hip is None:
        return {"error": "the HIP runtime is not among the libraries that load"}
    number, version = ctypes.c_int(0), ctypes.c_int(0)
    known = hip.hipRuntimeGetVersion(ctypes.byref(version)) == 0
    code = int(hip.hipGetDeviceCount(ctypes.byref(number)))
    said = {"version": str(version.value) if known else ""}
    if code:
        return {**said, "error": f"hipGetDeviceCount gives {_ERRORS.get(code, f'error {code}')}"}
    return {**said, "devices": number.value}


def _path_of(name: str) -> str:
    """Return the file that a loaded library is: its name has the version."""
    maps = Path("/proc/self/maps")
    stem = name.partition(".so")[0]
    if not maps.is_file():
        return name
    lines = (line.split(maxsplit=5) for line in maps.read_text().splitlines())
    files = (fields[5] for fields in lines if len(fields) == 6)
    return next((f for f in files if Path(f).name.startswith(f"{stem}.so")), name)
