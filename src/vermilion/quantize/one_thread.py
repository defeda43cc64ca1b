"""Keeping numpy's matrix library to one thread while many small products are computed.

Its threads spin while they wait for each other. On matrices of a few hundred rows, which is what
rounding works on, that took two to four times the CPU time of one thread (measured on two busy
cores: 9.3 s against 2.4 s for the 53 layers of a thin ResNet-50), and little less wall clock.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

# Where numpy's wheels keep OpenBLAS, and how its functions are called there (numpy 1.26 and 2).
_FOLDERS = ("../numpy.libs", ".dylibs")
_NAMES = ("scipy_openblas_{}64_", "openblas_{}64_", "openblas_{}")


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit OpenBLAS to one thread within; numpy on another library stays as it is."""
    functions = _functions()
    if functions is None:
        yield
        return
    get, put = functions
    before = get()
    put(1)
    try:
        yield
    finally:
        put(before)


@cache
def _functions() -> tuple[ctypes._NamedFuncPointer, ctypes._NamedFuncPointer] | None:
    home = Path(np.__file__).parent
    for folder in _FOLDERS:
        for file in sorted((home / folder).glob("*openblas*")):
            library = ctypes.CDLL(str(file.resolve()))
            for name in _NAMES:
                get = getattr(library, name.format("get_num_threads"), None)
                put = getattr(library, name.format("set_num_threads"), None)
                if get is not None and put is not None:
                    return get, put
    return None
