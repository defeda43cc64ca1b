"""Which values of an output were not written: they still are what was there before the run.

Floats begin as a NaN of a payload that no arithmetic makes, integers as a number of no meaning.
That number may be a result: what looks unwritten is asked for once more, with other values there
before, and what still looks so is not written.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vermilion.backends.base import Array

_TURNS = 2
_FLOATS = {2: (0x7E95, 0x7F2A), 4: (0x7FCA5C31, 0x7FD1A3CE),
           8: (0x7FFCA5C3A5C31111, 0x7FFD1A3C5A3C2222)}  # fmt: skip
_INTEGERS = {1: (0xA6, 0x59), 2: (0xA6C5, 0x593A), 4: (0xA6C53D71, 0x593AC28E),
             8: (0xA6C53D71E94F0B27, 0x593AC28E16B0F4D8)}  # fmt: skip
# Numbers of fewer bytes are among the results by chance: a whole entry of the batch must look so.
_TELLING_BYTES = 4


def blank(dtype: np.dtype[Any], shape: tuple[int, ...], turn: int) -> Array:
    """Return what an output holds before a run; another one each `turn`."""
    bits = np.full(shape, _bits(dtype)[turn % _TURNS], np.dtype(f"u{dtype.itemsize}"))
    return bits.view(dtype)


def unwritten(found: Array, turn: int) -> str:
    """Say what of an output may not be written; empty where all is."""
    if not found.size:
        return ""
    bits = found.view(np.dtype(f"u{found.dtype.itemsize}"))
    looks = bits == _bits(found.dtype)[turn % _TURNS]
    if found.dtype.kind == "b":
        looks = bits > 1
    if looks.all():
        return "it is never written"
    if found.ndim and len(found) > 1:
        empty = np.flatnonzero(looks.reshape(len(found), -1).all(axis=1))
        if empty.size:
            return f"entry {empty[0]} of the batch of {len(found)} is never written"
    if found.dtype.kind in "fb" or found.dtype.itemsize >= _TELLING_BYTES:
        count = int(np.count_nonzero(looks))
        return f"{count} of its {found.size} values are never written" if count else ""
    return ""


def is_certain(dtype: np.dtype[Any]) -> bool:
    """Whether what looks unwritten is: nothing that is computed looks so."""
    return dtype.kind in "fb"


def _bits(dtype: np.dtype[Any]) -> tuple[int, int]:
    return (_FLOATS if dtype.kind == "f" else _INTEGERS)[dtype.itemsize]
