"""How an instruction reads its sources and writes its result: as which type, from which half."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from vermilion.amdgpu.lanes import permuted, select
from vermilion.amdgpu.operands import NotInterpretedError, Operand, bits
from vermilion.amdgpu.waves import Waves

Read = Callable[[Waves], Any]
Write = Callable[[Waves, NDArray[Any]], None]

_VIEWS: dict[str, Any] = {
    "f32": np.float32,
    "i32": np.int32,
    "u32": np.uint32,
    "b32": np.uint32,
    "f64": np.float64,
    "i64": np.int64,
    "u64": np.uint64,
    "b64": np.uint64,
    "u16": np.uint16,
    "i16": np.int16,
    "b16": np.uint16,
}
_16 = ("f16", "u16", "i16", "b16", "bf16")
_64 = ("f64", "i64", "u64", "b64")
_SIGN32, _SIGN16, _SIGN64 = np.uint32(1 << 31), np.uint32(1 << 15), np.uint64(1 << 63)


def reader(
    operand: Operand,
    kind: str,
    half: int = 0,
    modifiers: dict[str, str] | None = None,
    position: int = 0,
) -> Read:
    """Return what reads a source: `f16` and `bf16` come as float32, `u24` and `i24` as words.

    `half` says which 16 bits of a register. `modifiers` are those of DPP and SDWA, `position` the
    source's.
    """
    if kind == "mask":
        return lambda w: w.mask(operand.index)
    if kind in _64:
        return _read64(operand, kind)
    words = _words(operand, kind, modifiers or {}, position)
    if kind in _16:
        return _read16(operand, words, kind, half or operand.half)
    if kind in ("u24", "i24"):
        return _read24(words, kind)
    view = _VIEWS[kind]
    if operand.absolute or operand.negative:  # of what is no float, too, as a choice of two
        return lambda w: _signed(words(w), operand, _SIGN32).view(view)
    return lambda w: words(w).view(view)


def writer(operand: Operand, kind: str, half: int = 0) -> Write:
    """Return what writes a result of a type; of 16 bits into one half of a register."""
    if kind == "mask":
        return lambda w, found: w.set_mask(operand.index, found)
    if operand.kind == "s":  # of v_readlane and the scalar forms of transcendental functions
        return lambda w, found: w.set_scalar(
            operand.index, np.broadcast_to(_as_words(found, kind), (w.count, 1))[:, 0]
        )
    if kind in _64:
        return lambda w, found: _write64(w, operand, found, kind)
    if kind in _16:
        return lambda w, found: _write16(w, operand, _as_words(found, kind), half or operand.half)
    return lambda w, found: w.set_register(operand, _as_words(found, kind))


def as_half(words: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Return the lower 16 bits as the float16 that they are, in float32."""
    return words.astype(np.uint16).view(np.float16).astype(np.float32)


def as_bfloat(words: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Return the lower 16 bits as the bfloat16 that they are, in float32."""
    return (words << np.uint32(16)).view(np.float32)


def half_words(found: NDArray[Any]) -> NDArray[np.uint32]:
    """Return float16 numbers as words, from any wider type."""
    return np.asarray(found).astype(np.float16).view(np.uint16).astype(np.uint32)


def _words(operand: Operand, kind: str, modifiers: dict[str, str], position: int) -> Read:
    if operand.kind == "const":
        word = np.full((1, 1), bits(operand, kind) & 0xFFFFFFFF, np.uint32)
        return lambda w: word
    lanes = permuted(modifiers) if position == 0 else None
    part = modifiers.get(f"src{position}_sel", "DWORD")
    if lanes is not None:
        return lambda w: lanes(w, w.register(operand))
    if part != "DWORD":
        return lambda w: select(w.register(operand), part, signed=operand.extended)
    return lambda w: w.register(operand)


def _signed(words: NDArray[Any], operand: Operand, sign: Any) -> NDArray[Any]:
    if operand.absolute:
        words = words & ~sign
    return words ^ sign if operand.negative else words


def _read16(operand: Operand, words: Read, kind: str, half: int) -> Read:
    def read(w: Waves) -> Any:
        found = words(w)
        if half and operand.kind != "const":
            found = found >> np.uint32(16)
        found = found & np.uint32(0xFFFF)
        if operand.absolute or operand.negative:
            found = _signed(found, operand, _SIGN16)
        if kind == "f16":
            return as_half(found)
        if kind == "bf16":
            return as_bfloat(found)
        return found.astype(np.uint16).view(_VIEWS[kind])

    return read


def _read24(words: Read, kind: str) -> Read:
    if kind == "u24":
        return lambda w: words(w) & np.uint32(0xFFFFFF)
    return lambda w: (words(w) << np.uint32(8)).view(np.int32) >> np.int32(8)


def _read64(operand: Operand, kind: str) -> Read:
    view = _VIEWS[kind]
    if operand.kind == "const":
        value = bits(operand, kind)
        fixed = np.full((1, 1), value & 0xFFFFFFFFFFFFFFFF, np.uint64)
        return lambda w: _signed(fixed, operand, _SIGN64).view(view)

    def read(w: Waves) -> Any:
        low = w.register(operand).astype(np.uint64)
        high = w.register(operand, 1).astype(np.uint64) if operand.count > 1 else np.uint64(0)
        return _signed(low | (high << np.uint64(32)), operand, _SIGN64).view(view)

    return read


def _as_words(found: NDArray[Any], kind: str) -> NDArray[np.uint32]:
    """Return a result as the words that a register holds."""
    if kind == "f16":
        return half_words(found)
    if kind == "bf16":
        narrow = np.asarray(found, np.float32).astype(ml_dtypes.bfloat16)
        return narrow.view(np.uint16).astype(np.uint32)
    if kind == "f32":
        return np.ascontiguousarray(found, np.float32).view(np.uint32)
    if kind in ("u16", "i16", "b16"):
        return np.asarray(found).astype(np.uint32) & np.uint32(0xFFFF)
    array = np.asarray(found)
    if array.dtype.kind == "f":
        raise NotInterpretedError(f"a floating-point result as `{kind}`")
    return array.astype(np.uint32)


def _write16(w: Waves, operand: Operand, words: NDArray[np.uint32], half: int) -> None:
    if w.generation == 9 and not half:  # clears the other half; later ones keep it
        w.set_register(operand, words)
        return
    old = w.register(operand)
    if half:
        w.set_register(operand, (old & np.uint32(0xFFFF)) | (words << np.uint32(16)))
    else:
        w.set_register(operand, (old & np.uint32(0xFFFF0000)) | words)


def _write64(w: Waves, operand: Operand, found: NDArray[Any], kind: str) -> None:
    array = np.asarray(found)
    wide = np.ascontiguousarray(array, np.float64).view(np.uint64) if kind == "f64" else array
    wide = wide.astype(np.uint64)
    w.set_register(operand, (wide & np.uint64(0xFFFFFFFF)).astype(np.uint32))
    w.set_register(operand, (wide >> np.uint64(32)).astype(np.uint32), 1)
