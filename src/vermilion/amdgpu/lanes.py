"""Instructions that move words from lane to lane: DPP, permutations, SDWA's parts of words.

Source: AMD's instruction set guides (CDNA 3, RDNA 2 to 4), "Data parallel primitives" and "SDWA".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.amdgpu.waves import Flags, Waves

Words = NDArray[np.uint32]
Permute = Callable[[Waves, Words], Words]

_ROW = 16
_DPP = frozenset(
    (
        *("quad_perm", "row_shl", "row_shr", "row_ror", "row_mirror", "row_half_mirror"),
        *("row_bcast", "row_share", "row_xmask", "row_newbcast", "dpp8"),
        *("wave_shr", "wave_shl", "wave_ror", "wave_rol"),
    )
)


def permuted(modifiers: Mapping[str, str]) -> Permute | None:
    """Return how a source's lanes are permuted, None where they are not."""
    chosen = [name for name in modifiers if name in _DPP]
    if not chosen:
        return None
    name, value = chosen[0], modifiers[chosen[0]]

    def permute(w: Waves, words: Words) -> Words:
        source, valid = sources(name, value, w.lanes)
        wide = np.broadcast_to(words, (w.count, w.lanes))
        found: Words = np.where(valid, wide[:, np.where(valid, source, 0)], np.uint32(0))
        return found

    return permute


def written(modifiers: Mapping[str, str], w: Waves) -> Flags | None:
    """Return the lanes that a DPP instruction writes, None where it is none."""
    chosen = [name for name in modifiers if name in _DPP]
    if not chosen:
        return None
    lane = np.arange(w.lanes)
    row = int(modifiers.get("row_mask", "0xf"), 0) >> (lane // _ROW) & 1
    bank = int(modifiers.get("bank_mask", "0xf"), 0) >> (lane % _ROW // 4) & 1
    allowed = (row & bank).astype(np.bool_)
    if modifiers.get("bound_ctrl", "0") != "1" and chosen[0] != "dpp8":
        allowed &= sources(chosen[0], modifiers[chosen[0]], w.lanes)[1]
    return np.broadcast_to(allowed, (w.count, w.lanes))


def sources(name: str, value: str, lanes: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the lane that each lane reads from, and whether that is one of its row."""
    lane = np.arange(lanes)
    row, place = lane // _ROW * _ROW, lane % _ROW
    everywhere = np.ones(lanes, np.bool_)
    if name in ("quad_perm", "dpp8"):
        chosen = np.array([int(n) for n in value.strip("[]").split(",")])
        return lane // len(chosen) * len(chosen) + chosen[lane % len(chosen)], everywhere
    if name == "row_mirror":
        return row + _ROW - 1 - place, everywhere
    if name == "row_half_mirror":
        return lane // 8 * 8 + 7 - lane % 8, everywhere
    number = int(value, 0)
    if name == "row_shl":
        return row + (place + number) % _ROW, place + number < _ROW
    if name == "row_shr":
        return row + (place - number) % _ROW, place - number >= 0
    if name == "row_ror":
        return row + (place - number) % _ROW, everywhere
    if name in ("row_share", "row_newbcast"):
        return row + number, everywhere
    if name == "row_xmask":
        return row + (place ^ number), everywhere
    if name == "row_bcast":
        # The last lane of a row goes to the next row (15), of two rows to the next two (31).
        start = lane // (number + 1) * (number + 1) - 1
        return np.maximum(start, 0), start >= 0
    step = {"wave_shl": 1, "wave_rol": 1, "wave_shr": -1, "wave_ror": -1}[name] * number
    inside = (lane + step >= 0) & (lane + step < lanes)
    return (lane + step) % lanes, everywhere if name in ("wave_rol", "wave_ror") else inside


def select(words: Words, part: str, *, signed: bool = False) -> Words:
    """Return a byte or half of each word (`BYTE_1`, `WORD_0`), extended."""
    kind, _, number = part.partition("_")
    width = 8 if kind == "BYTE" else 16
    found = words >> np.uint32(width * int(number))
    left = np.uint32(32 - width)
    if signed:
        return ((found << left).view(np.int32) >> left.astype(np.int32)).view(np.uint32)
    return (found << left) >> left


def placed(words: Words, old: Words, part: str, unused: str) -> Words:
    """Return a result in the part of a register that SDWA names, with the rest as it says."""
    kind, _, number = part.partition("_")
    width = 8 if kind == "BYTE" else 16
    shift, mask = np.uint32(width * int(number)), np.uint32((1 << width) - 1)
    moved = (words & mask) << shift
    if unused == "UNUSED_PRESERVE":
        return (old & ~(mask << shift)) | moved
    if unused == "UNUSED_SEXT" and int(number) == 0:
        return select(words, f"{kind}_0", signed=True)
    return moved


def permlane16(w: Waves, words: Words, low: Words, high: Words, *, other_row: bool) -> Words:
    """Return each lane's word from the lane of its row, or the next, that a nibble names."""
    lane = np.arange(w.lanes)
    place, row = lane % _ROW, lane // _ROW * _ROW
    nibbles = np.where(place < 8, low, high) >> (place % 8 * 4).astype(np.uint32) & np.uint32(15)
    source = (row ^ _ROW if other_row else row) + nibbles.astype(np.int64)
    wide = np.broadcast_to(words, (w.count, w.lanes))
    return np.take_along_axis(wide, np.broadcast_to(source, wide.shape), axis=1)
