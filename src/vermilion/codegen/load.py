"""Object files → functions in this process, without LLVM where that can be."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vermilion.codegen.elf import load_elf
from vermilion.codegen.isa import Isa

KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
"""A kernel: its argument array, the first unit, and the end of the units."""


def load_object(data: bytes, symbols: Iterable[str], isa: Isa) -> tuple[object, Mapping[str, int]]:
    """Load an object file into this process; give what keeps it alive and the addresses.

    Raises: DeviceError where it cannot be loaded.
    """
    if sys.platform.startswith("linux") and platform.machine() == "x86_64":
        loaded = load_elf(data, symbols)
        return loaded, loaded.addresses
    # Other systems and processors have other objects: LLVM's own linker knows them all.
    from vermilion.codegen.object import link_object

    return link_object(data, symbols, isa)


def load_functions(
    data: bytes, kinds: Mapping[str, Callable[[int], Any]], isa: Isa
) -> dict[str, Callable[..., Any]]:
    """Load an object file; return its functions by name, each of a `ctypes.CFUNCTYPE`.

    The code lives as long as any of them. Raises: DeviceError where it cannot be loaded.
    """
    library, addresses = load_object(data, kinds, isa)
    functions = {name: kind(addresses[name]) for name, kind in kinds.items()}
    for function in functions.values():
        function.library = library
    return functions
