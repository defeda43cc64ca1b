"""Object files → functions in this process, without LLVM where that can be."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Mapping

from vermilion.codegen.elf import load_elf
from vermilion.codegen.isa import Isa


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
