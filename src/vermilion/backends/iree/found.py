"""Which GPUs IREE's HIP driver really opens here. A driver's name in a list proves nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vermilion.errors import Refusal
from vermilion.hardware.gpu import find_gpus
from vermilion.hardware.targets.gpu import runs_on

# The driver loads native libraries: it may hang or end the process.
PROBE_LIMIT_S = 60.0
# HIP's library is looked for first: without it, as on most machines, IREE is not worth loading.
_PROBE = """
import ctypes, json, os, sys
if "IREE_HIP_DYLIB_PATH" not in os.environ:
    ctypes.CDLL("amdhip64.dll" if sys.platform == "win32" else "libamdhip64.so")
import iree.runtime as r
print(json.dumps(len(r.get_driver("hip").query_available_devices())))
"""
_SYSFS = Path("/sys")
_INSTALL = "install AMD's GPU driver and HIP 6 or newer; `vermilion doctor` says what is missing"


@dataclass(frozen=True)
class Device:
    """A GPU that the driver opens: IREE's address of it, and its architecture."""

    uri: str
    gfx: str


def find_devices() -> tuple[Device, ...] | Refusal:
    """Return the GPUs that can be used, or say why none can."""
    count = _count()
    if isinstance(count, Refusal):
        return count
    known = [gpu.gfx for gpu in find_gpus((), _SYSFS if _SYSFS.is_dir() else None)]
    return paired(count, known)


def paired(count: int, architectures: Sequence[str]) -> tuple[Device, ...] | Refusal:
    """Pair HIP's numbers with the compute driver's list, which come in one order."""
    if count == 0:
        return Refusal("HIP finds no GPU", _INSTALL)
    if count != len(architectures):
        return Refusal(
            f"HIP shows {count} GPUs and the compute driver {len(architectures)}, so that none can "
            "be told by its number",
            "unset HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES",
        )
    return tuple(Device(f"hip://{at}", gfx) for at, gfx in enumerate(architectures))


def choose(architectures: Sequence[str], devices: Sequence[Device]) -> Device | Refusal:
    """Return the first device that one of the compiled programs is for."""
    for device in devices:
        if program_for(device.gfx, architectures):
            return device
    here = ", ".join(dict.fromkeys(device.gfx for device in devices)) or "no GPU"
    return Refusal(
        f"this machine has {here}, and the program is for {', '.join(architectures)}",
        f"compile for `--target {','.join(dict.fromkeys(d.gfx for d in devices))}`"
        if devices
        else _INSTALL,
    )


def program_for(gfx: str, architectures: Sequence[str]) -> str:
    """Return the name whose program runs on a GPU, its own before its family's; else nothing."""
    fitting = [name for name in architectures if runs_on(name, gfx)]
    return gfx if gfx in fitting else fitting[0] if fitting else ""


def _count() -> int | Refusal:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=PROBE_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Refusal(f"HIP did not answer in {PROBE_LIMIT_S:g} s", _INSTALL)
    try:
        return int(json.loads(done.stdout.strip().splitlines()[-1]))
    except (ValueError, IndexError):
        return Refusal(f"HIP cannot be used: {_last_reason(done.stderr)}", _INSTALL)


def _last_reason(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    for line in lines:
        if "UNAVAILABLE;" in line or "NOT_FOUND;" in line:
            words = line.rpartition("UNAVAILABLE;")[2].rpartition("NOT_FOUND;")[2]
            return words.partition(" please")[0].strip(" :")
    return lines[-1] if lines else "it says nothing"
