"""The matrix units: MFMA of CDNA, WMMA of RDNA 3 and 4.

Where an element lies is in AMD's instruction set guides, "Matrix arithmetic instructions" and
"Wave matrix multiply accumulate", and in AMD's matrix instruction calculator.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from vermilion.amdgpu.assembly import Instruction
from vermilion.amdgpu.formats import half_words
from vermilion.amdgpu.operands import NotInterpretedError, Operand
from vermilion.amdgpu.waves import Step, Waves

_MFMA = re.compile(r"v_mfma_(f32|i32|f64)_(\d+)x(\d+)x(\d+)_?(\w+)")
_WMMA = re.compile(r"v_wmma_(f32|f16|bf16|i32)_(\d+)x(\d+)x(\d+)_(\w+)")
_TYPES: dict[str, Any] = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "i8": np.int8,
    "iu8": np.uint8,
    "f64": np.float64,
}
_FLOAT8 = {
    True: {"fp8": ml_dtypes.float8_e4m3fnuz, "bf8": ml_dtypes.float8_e5m2fnuz},
    False: {"fp8": ml_dtypes.float8_e4m3fn, "bf8": ml_dtypes.float8_e5m2},
}


@dataclass(frozen=True)
class _Shape:
    rows: int
    columns: int
    depth: int


def matrix_step(instruction: Instruction, gfx: str) -> Step | None:
    """Return what carries out a matrix instruction, None where it is no such one."""
    if found := _MFMA.fullmatch(instruction.name):
        return _mfma(instruction, gfx, found)
    if found := _WMMA.fullmatch(instruction.name):
        return _wmma(instruction, gfx, found)
    return None


def _mfma(instruction: Instruction, gfx: str, found: re.Match[str]) -> Step:
    shape = _Shape(int(found[2]), int(found[3]), int(found[4]))
    kinds = _kinds(found[5].removesuffix("_1k"), gfx)
    if shape.rows not in (16, 32) or any(
        key in instruction.modifiers and instruction.modifiers[key] not in ("0",)
        for key in ("cbsz", "abid", "blgp")
    ):
        raise NotInterpretedError(f"`{instruction.name}` of several blocks is not interpreted")
    result, a, b, c = instruction.operands
    out: Any = {"f32": np.float32, "i32": np.int32, "f64": np.float64}[found[1]]
    words = out(0).itemsize // 4
    held = shape.rows * shape.columns // 64
    if a.count * 4 // np.dtype(kinds[0]).itemsize * 64 != shape.rows * shape.depth:
        raise NotInterpretedError(f"`{instruction.name}` of several blocks is not interpreted")
    if found[1] == "f64":
        raise NotInterpretedError(f"`{instruction.name}` is not interpreted")
    # Lane l has column l mod columns of the result, four rows at a time.
    lane, at = np.arange(64)[None, :], np.arange(held)[:, None]
    narrow, wide = 4 * (lane // 16) + at, 8 * (at // 4) + 4 * (lane // 32) + at % 4
    row = narrow if shape.rows == 16 else wide
    column = np.broadcast_to(lane % shape.columns, row.shape)

    def step(w: Waves) -> None:
        left = _gathered(w, a, kinds[0], shape.rows, shape.depth)
        right = _gathered(w, b, kinds[1], shape.columns, shape.depth)
        product = _product(left, right, out)
        _accumulate(w, result, c, product[:, row, column], out, words)

    return step


def _gathered(w: Waves, operand: Operand, kind: Any, rows: int, depth: int) -> NDArray[Any]:
    """Return a source as [wave, row, k]: lane l has row l mod rows, and consecutive k."""
    raw = _raw(w, operand)
    elements = raw.view(kind).reshape(w.count, 64, -1)
    held = elements.shape[2]
    groups = elements.reshape(w.count, 64 // rows, rows, held)
    return np.asarray(groups.transpose(0, 2, 1, 3).reshape(w.count, rows, depth))


def _raw(w: Waves, operand: Operand) -> NDArray[np.uint32]:
    """Return the words of a source as [wave, lane, register]."""
    words = [np.broadcast_to(w.register(operand, at), w.exec.shape) for at in range(operand.count)]
    return np.ascontiguousarray(np.stack(words, axis=-1))


def _product(left: NDArray[Any], right: NDArray[Any], out: Any) -> NDArray[Any]:
    """Return [wave, row, column] in float64, or in int64: sums of few terms, rounded once."""
    wide: Any = np.int64 if out is np.int32 else np.float64
    return np.asarray(left.astype(wide) @ right.astype(wide).swapaxes(1, 2))


def _accumulate(
    w: Waves, result: Operand, c: Operand, product: NDArray[Any], out: Any, words: int
) -> None:
    """Add what is there, [wave, register, lane], and write it. Matrix units know no lane off."""
    assert words == 1, "larger results are refused before"
    before = w.exec
    w.exec = np.ones_like(before)
    found = []
    for at in range(product.shape[1]):
        added = w.register(c, at if c.count > 1 else 0).view(out)
        total = product[:, at] + added
        if out is np.int32:
            found.append((total & 0xFFFFFFFF).astype(np.uint32))
        else:
            found.append(np.ascontiguousarray(total.astype(np.float32)).view(np.uint32))
    for at, one in enumerate(found):
        w.set_register(result, one, at)
    w.exec = before


def _kinds(text: str, gfx: str) -> tuple[Any, Any]:
    if text in _TYPES:
        return _TYPES[text], _TYPES[text]
    first, _, second = text.partition("_")
    formats = _FLOAT8[gfx in ("gfx940", "gfx941", "gfx942")]
    if first in formats and (second or first) in formats:
        return formats[first], formats[second or first]
    raise NotInterpretedError(f"matrix instructions on `{text}` are not interpreted")


def _wmma(instruction: Instruction, gfx: str, found: re.Match[str]) -> Step:
    if (found[2], found[3]) != ("16", "16") or found[1] == "bf16":
        raise NotInterpretedError(f"`{instruction.name}` is not interpreted")
    result, a, b, c = instruction.operands
    kinds = list(_kinds(found[5], gfx))
    signs = instruction.modifiers.get("neg_lo", "[0,0,0]").strip("[]").split(",")
    if found[5] == "iu8":
        kinds = [np.int8 if int(sign) else np.uint8 for sign in signs[:2]]
    elif any(int(sign) for sign in signs):
        raise NotInterpretedError(f"`{instruction.text}` changes signs, which is not interpreted")
    newer = gfx.startswith("gfx12")
    lane = np.arange(32)[None, :]
    at = np.arange(8)[:, None]
    row = 8 * (lane // 16) + at if newer else 2 * at + lane // 16
    column = np.broadcast_to(lane % 16, row.shape)
    depth = int(found[4])
    upper = instruction.modifiers.get("op_sel", "[0,0,0]").strip("[]").split(",")[2] == "1"

    def step(w: Waves) -> None:
        if w.lanes != 32:
            raise NotInterpretedError(f"`{instruction.name}` in waves of 64 is not interpreted")
        left, right = (
            _wmma_source(w, operand, kind, depth, newer)
            for operand, kind in zip((a, b), kinds, strict=True)
        )
        out: Any = np.int32 if found[1] == "i32" else np.float32
        product = _product(left, right, out)[:, row, column]
        if found[1] == "f16":
            _accumulate_half(w, result, c, product, newer, upper)
        else:
            _accumulate(w, result, c, product, out, 1)

    return step


def _wmma_source(w: Waves, operand: Operand, kind: Any, depth: int, newer: bool) -> NDArray[Any]:
    """Return a source as [wave, row, k].

    RDNA 3 has all k of a row in each of two lanes, RDNA 4 half of them in each.
    """
    elements = _raw(w, operand).view(kind).reshape(w.count, 2, 16, -1)
    if not newer:
        return np.asarray(elements[:, 0])
    return np.asarray(elements.transpose(0, 2, 1, 3).reshape(w.count, 16, depth))


def _accumulate_half(
    w: Waves, result: Operand, c: Operand, product: NDArray[Any], newer: bool, upper: bool
) -> None:
    """Add to float16 results: one a register on RDNA 3, in one of its halves, two on RDNA 4."""
    before = w.exec
    w.exec = np.ones_like(before)
    found = []
    for at in range(8):
        shift = np.uint32(16 * (at % 2 if newer else upper))
        word = w.register(c, (at // 2 if newer else at) if c.count > 1 else 0)
        added = (word >> shift).astype(np.uint16).view(np.float16).astype(np.float64)
        found.append(half_words(product[:, at] + added))
    for at, one in enumerate(found):
        place = at // 2 if newer else at
        high = bool(at % 2) if newer else upper
        kept = w.register(result, place) & np.uint32(0xFFFF if high else 0xFFFF0000)
        w.set_register(result, kept | (one << np.uint32(16) if high else one), place)
    w.exec = before
