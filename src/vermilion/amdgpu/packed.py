"""Vector instructions on two numbers a register or register pair, and conversions into such.

Source: AMD's instruction set guides, "Packed math" (VOP3P) and the conversions of VOP3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from vermilion.amdgpu import float_math as m
from vermilion.amdgpu.assembly import Instruction
from vermilion.amdgpu.formats import as_bfloat, as_half, half_words, reader, writer
from vermilion.amdgpu.operands import NotInterpretedError, Operand, bits
from vermilion.amdgpu.results import finished
from vermilion.amdgpu.vector import plain_name
from vermilion.amdgpu.waves import Step, Waves

_16 = np.uint32(16)
_LOW16 = np.uint32(0xFFFF)


def packed_step(instruction: Instruction) -> Step | None:
    """Return what carries out an instruction of this file, None where it is another."""
    name = plain_name(instruction.name)
    if name.startswith(("fma_mix", "mad_mix")):
        return _mixed(instruction)
    if name in _CONVERSIONS:
        return _conversion(instruction, _CONVERSIONS[name])
    if name in ("dot2_f32_f16", "dot2c_f32_f16", "dot2_f32_bf16", "dot2acc_f32_f16"):
        return _dot2(instruction)
    if not name.startswith("pk_"):
        return None
    what, _, kind = name.removeprefix("pk_").rpartition("_")
    what = {"maximum": "max", "minimum": "min", "max_num": "max", "min_num": "min"}.get(what, what)
    if kind == "f32" or name == "pk_mov_b32":
        return _wide_pairs(instruction, what)
    if (what, kind) == ("fmac", "f16") or what not in _PAIRS:
        raise NotInterpretedError(f"`{instruction.text}` is not among the packed ones known")
    return _narrow_pairs(instruction, _PAIRS[what], kind)


_PAIRS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "mul_lo": lambda a, b: a * b,
    "fma": lambda a, b, c: m.fma(a, b, c) if a.dtype.kind == "f" else a * b + c,
    "mad": lambda a, b, c: a * b + c,
    "min": lambda a, b: m.minimum(a, b) if a.dtype.kind == "f" else np.minimum(a, b),
    "max": lambda a, b: m.maximum(a, b) if a.dtype.kind == "f" else np.maximum(a, b),
    "lshlrev": lambda by, x: x << (by & by.dtype.type(15)),
    "lshrrev": lambda by, x: x >> (by & by.dtype.type(15)),
    "ashrrev": lambda by, x: x >> (by & by.dtype.type(15)),
}


def _listed(instruction: Instruction, key: str, default: int, count: int) -> list[int]:
    text = instruction.modifiers.get(key)
    found = [int(n) for n in text.strip("[]").split(",")] if text else []
    return (found + [default] * count)[:count]


def _half_of(operand: Operand, kind: str) -> Callable[[Waves, int], Any]:
    """Return what reads the 16 bits of a source that `which` names."""
    as_type: Any = {"f16": as_half, "bf16": as_bfloat}.get(kind)
    view: Any = np.int16 if kind == "i16" else np.uint16
    constant = None
    if operand.kind == "const":
        # A floating-point constant is a float16 in the lower half; others are 32 bits.
        value = bits(operand, "f16" if operand.real is not None else "b32") & 0xFFFFFFFF
        constant = np.full((1, 1), value, np.uint32)

    def read(w: Waves, which: int) -> Any:
        words = w.register(operand) if constant is None else constant
        words = (words >> _16 if which else words) & _LOW16
        return as_type(words) if as_type else words.astype(np.uint16).view(view)

    return read


def _narrow_pairs(instruction: Instruction, function: Callable[..., Any], kind: str) -> Step:
    result, *given = instruction.operands
    count = len(given)
    low, high = (
        _listed(instruction, "op_sel", 0, count),
        _listed(instruction, "op_sel_hi", 1, count),
    )
    signs = [_listed(instruction, key, 0, count) for key in ("neg_lo", "neg_hi")]
    reads = [_half_of(operand, "u16" if kind == "b16" else kind) for operand in given]
    clamps = "clamp" in instruction.modifiers
    if clamps and kind not in ("f16", "bf16"):
        raise NotInterpretedError(f"`{instruction.text}` clamps integers")

    def half(w: Waves, chosen: list[int], sign: list[int]) -> Any:
        values = [read(w, which) for read, which in zip(reads, chosen, strict=True)]
        found = function(*[-v if s else v for v, s in zip(values, sign, strict=True)])
        if kind == "f16":
            return half_words(np.clip(found, 0, 1) if clamps else found)
        if kind == "bf16":
            narrow = found.astype(ml_dtypes.bfloat16)
            return narrow.view(np.uint16).astype(np.uint32)
        return found.astype(np.uint16).astype(np.uint32)

    write = writer(result, "b32")
    return lambda w: write(w, half(w, low, signs[0]) | (half(w, high, signs[1]) << _16))


def _wide_pairs(instruction: Instruction, what: str) -> Step:
    """Return v_pk_…_f32 and v_pk_mov_b32: each half of the result from a register of a pair."""
    result, *given = instruction.operands
    count = len(given)
    chosen = _listed(instruction, "op_sel", 0, count), _listed(instruction, "op_sel_hi", 1, count)
    signs = [_listed(instruction, key, 0, count) for key in ("neg_lo", "neg_hi")]
    function = _PAIRS.get(what)

    def value(w: Waves, operand: Operand, which: int) -> Any:
        # A constant, and a single scalar register, is the same in both halves.
        return w.register(operand, which if operand.count > 1 else 0).view(np.float32)

    def step(w: Waves) -> None:
        halves = []
        for half in (0, 1):
            if what == "mov":
                halves.append(w.register(given[half], chosen[0][half]).copy())
                continue
            values = [value(w, o, which) for o, which in zip(given, chosen[half], strict=True)]
            assert function is not None, "only moves have none"
            found = function(*[-v if s else v for v, s in zip(values, signs[half], strict=True)])
            halves.append(np.ascontiguousarray(found, np.float32).view(np.uint32))
        w.set_register(result, halves[0])
        w.set_register(result, halves[1], 1)

    if what != "mov" and function is None:
        raise NotInterpretedError(f"`{instruction.text}` is not among the packed ones known")
    return step


def _mixed(instruction: Instruction) -> Step:
    """Return v_fma_mix_f32 and its kin: each source a float32, or one half of a register."""
    result, *given = instruction.operands
    halves, narrow = _listed(instruction, "op_sel", 0, 3), _listed(instruction, "op_sel_hi", 0, 3)
    reads = []
    for operand, half, is_half in zip(given, halves, narrow, strict=True):
        reads.append(reader(operand, "f16" if is_half else "f32", half))
    name = instruction.name
    kind = "f32" if name.endswith("_f32") else "f16"
    write = finished(instruction, writer(result, kind, int("mixhi" in name)), kind)
    if "mixlo" in name:
        plain = writer(result, kind, 0)

        def write(w: Waves, found: Any) -> None:  # keeps the upper half on every generation
            old = w.register(result).copy()
            plain(w, found)
            merged = (w.register(result) & _LOW16) | (old & ~_LOW16)
            w.set_register(result, merged)

    return lambda w: write(w, m.fma(*[read(w) for read in reads]))


def _dot2(instruction: Instruction) -> Step:
    operands = instruction.operands
    result, first, second = operands[:3]
    third = operands[3] if len(operands) > 3 else result
    kind = "bf16" if "bf16" in instruction.name else "f16"
    a, b, c = _half_of(first, kind), _half_of(second, kind), reader(third, "f32")
    write = writer(result, "f32")

    def step(w: Waves) -> None:
        products = a(w, 0) * b(w, 0) + a(w, 1) * b(w, 1)
        write(w, (products + c(w)).astype(np.float32))

    return step


def _toward_zero(x: Any) -> Any:
    """Return float16 numbers no further from zero than `x`."""
    near = x.astype(np.float16)
    over = np.abs(near.astype(np.float32)) > np.abs(x)
    return np.where(over, np.nextafter(near, np.float16(0)), near)


def _bfloat_words(x: Any) -> Any:
    return np.asarray(x).astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.uint32)


def _clipped(low: int, high: int) -> Callable[[Any], Any]:
    return lambda x: (np.clip(x.astype(np.int64), low, high) & 0xFFFF).astype(np.uint32)


def _normalized(low: int, high: int) -> Callable[[Any], Any]:
    scale = float(high)
    return lambda x: (
        np.clip(np.rint(np.nan_to_num(x) * scale), low, high).astype(np.int64) & 0xFFFF
    ).astype(np.uint32)


# Name → type of the sources, what makes 16 bits of one.
_CONVERSIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "cvt_pkrtz_f16_f32": ("f32", lambda x: half_words(_toward_zero(x))),
    "cvt_pk_rtz_f16_f32": ("f32", lambda x: half_words(_toward_zero(x))),
    "cvt_pk_f16_f32": ("f32", half_words),
    "cvt_pk_bf16_f32": ("f32", _bfloat_words),
    "cvt_pk_u16_u32": ("u32", _clipped(0, 65535)),
    "cvt_pk_i16_i32": ("i32", _clipped(-32768, 32767)),
    "cvt_pknorm_i16_f32": ("f32", _normalized(-32767, 32767)),
    "cvt_pknorm_u16_f32": ("f32", _normalized(0, 65535)),
}


def _conversion(instruction: Instruction, row: tuple[str, Callable[[Any], Any]]) -> Step:
    result, first, second = instruction.operands
    kind, function = row
    low, high, write = reader(first, kind), reader(second, kind), writer(result, "b32")
    return lambda w: write(w, function(low(w)) | (function(high(w)) << _16))
