"""The C library by ctypes: its structures and functions, as `vermilion.h` has them."""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from functools import cache
from pathlib import Path

from vermilion_runtime.errors import BY_CODE, NO_MEMORY, DeviceError

ABI_VERSION = 1
MAX_RANK = 16
TRUST_CODE, SKIP_WEIGHTS_DIGEST = 1, 2
# Another build of the library, for who develops it.
_VARIABLE = "VERMILION_LIBRARY"


class OpenOptions(ctypes.Structure):
    """`vermilion_open_options`."""

    _fields_ = [("size", c_size_t), ("flags", c_uint32), ("part", c_char_p)]


class SessionOptions(ctypes.Structure):
    """`vermilion_session_options`."""

    _fields_ = [("size", c_size_t), ("workers", c_int32)]


class Port(ctypes.Structure):
    """`vermilion_port`."""

    _fields_ = [
        ("name", c_char_p),
        ("type", c_int32),
        ("rank", c_int32),
        ("shape", POINTER(c_int64)),
        ("names", POINTER(c_char_p)),
    ]


class Tensor(ctypes.Structure):
    """`vermilion_tensor`."""

    _fields_ = [
        ("data", c_void_p),
        ("bytes", c_size_t),
        ("type", c_int32),
        ("rank", c_int32),
        ("shape", c_int64 * MAX_RANK),
    ]


# Results and arguments of the functions; those that return a status are `None` here.
_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "vermilion_abi_version": (c_uint32, []),
    "vermilion_version": (c_char_p, []),
    "vermilion_status_code": (c_int32, [c_void_p]),
    "vermilion_status_message": (c_char_p, [c_void_p]),
    "vermilion_status_where": (c_char_p, [c_void_p]),
    "vermilion_status_hint": (c_char_p, [c_void_p]),
    "vermilion_status_text": (c_char_p, [c_void_p]),
    "vermilion_status_free": (None, [c_void_p]),
    "vermilion_open": (c_void_p, [c_char_p, POINTER(OpenOptions), POINTER(c_void_p)]),
    "vermilion_open_memory": (
        c_void_p,
        [c_void_p, c_size_t, POINTER(OpenOptions), POINTER(c_void_p)],
    ),
    "vermilion_model_free": (None, [c_void_p]),
    "vermilion_input_count": (c_size_t, [c_void_p]),
    "vermilion_output_count": (c_size_t, [c_void_p]),
    "vermilion_input": (POINTER(Port), [c_void_p, c_size_t]),
    "vermilion_output": (POINTER(Port), [c_void_p, c_size_t]),
    "vermilion_input_index": (c_int64, [c_void_p, c_char_p]),
    "vermilion_output_index": (c_int64, [c_void_p, c_char_p]),
    "vermilion_model_digest": (c_char_p, [c_void_p]),
    "vermilion_model_target": (c_char_p, [c_void_p]),
    "vermilion_session_new": (c_void_p, [c_void_p, POINTER(SessionOptions), POINTER(c_void_p)]),
    "vermilion_session_free": (None, [c_void_p]),
    "vermilion_session_workers": (c_int32, [c_void_p]),
    "vermilion_shapes": (c_void_p, [c_void_p, c_void_p, c_size_t, c_void_p, c_size_t]),
    "vermilion_run": (c_void_p, [c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p]),
    "vermilion_cpu_features": (c_char_p, []),
    "vermilion_usable_cores": (c_int32, []),
}


def library_file() -> Path:
    """Return the library's file: of this package, or the one that VERMILION_LIBRARY names."""
    named = os.environ.get(_VARIABLE)
    if named:
        return Path(named)
    name = "vermilion.dll" if sys.platform == "win32" else "libvermilion.so"
    return Path(__file__).parent / "lib" / name


@cache
def load(file: str) -> ctypes.CDLL:
    """Load the library, and tell ctypes of its functions.

    Raises: DeviceError where it cannot be loaded, or is of another version.
    """
    try:
        found = ctypes.CDLL(file)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(found, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise DeviceError(
            f"the library cannot be loaded: {error}",
            where=file,
            hint="it is for Linux and Windows on x86-64; elsewhere, `pip install vermilion`",
        ) from error
    version = int(found.vermilion_abi_version())
    if version != ABI_VERSION:
        raise DeviceError(
            f"the library has ABI version {version}, this package wants {ABI_VERSION}",
            where=file,
            hint="install both from one version",
        )
    return found


def raise_for(library: ctypes.CDLL, status: int | None) -> None:
    """Raise what a status stands for; None stands for success."""
    if status is None:
        return
    code = library.vermilion_status_code(status)
    message, where, hint = (
        getattr(library, f"vermilion_status_{part}")(status).decode("utf-8", "replace")
        for part in ("message", "where", "hint")
    )
    library.vermilion_status_free(status)
    if code == NO_MEMORY:
        raise MemoryError(message)
    raise BY_CODE[code](message, where=where, hint=hint)
