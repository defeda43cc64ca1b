"""The scalar unit: one value a wave.

Source: AMD's instruction set guides, "Scalar ALU operations" (SOP1, SOP2, SOPK, SOPC, SOPP).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from vermilion.amdgpu import float_math as m
from vermilion.amdgpu.assembly import Instruction
from vermilion.amdgpu.operands import EXEC, NotInterpretedError, Operand, bits
from vermilion.amdgpu.scalar_math import BINARY, UNARY
from vermilion.amdgpu.waves import Step, Waves, as_words

Symbols = Mapping[str, int]

# Of no meaning where instructions take effect one after the other.
_WAITS = (
    *("s_waitcnt", "s_wait_", "s_delay_alu", "s_clause", "s_nop", "s_sendmsg", "s_setprio"),
    *("s_sleep", "s_code_end", "s_inst_prefetch", "s_set_inst_prefetch", "s_icache_inv"),
    *("s_setreg", "s_denorm_mode", "s_round_mode", "s_dcache", "s_prefetch", "s_version"),
    *("s_set_gpr_idx_off", "s_ttrace", "s_singleuse_vdst", "s_barrier_signal"),
)
# Instructions with a constant of 16 bits (SOPK).
_SHORT = ("s_movk_", "s_cmovk_", "s_cmpk_", "s_addk_", "s_mulk_")
# Counted from what `s_getpc_b64` gives, which `assembly` has seen to.
_RELATIVE = re.compile(r"(.+)@rel32@(lo|hi)([+-]\d+)")
_SAVES: dict[str, Callable[[Any, Any], Any]] = {
    "and": lambda s, e: s & e,
    "or": lambda s, e: s | e,
    "xor": lambda s, e: s ^ e,
    "andn2": lambda s, e: s & ~e,
    "and_not1": lambda s, e: s & ~e,
    "and_not0": lambda s, e: ~s & e,
    "andn1": lambda s, e: ~s & e,
    "orn2": lambda s, e: s | ~e,
    "or_not1": lambda s, e: s | ~e,
}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "lg": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "neq": np.not_equal,
    "nlt": lambda a, b: ~(a < b),
    "nle": lambda a, b: ~(a <= b),
    "ngt": lambda a, b: ~(a > b),
    "nge": lambda a, b: ~(a >= b),
}
_VIEWS: dict[str, Any] = {
    "u32": np.uint32,
    "i32": np.int32,
    "u64": np.uint64,
    "f32": np.float32,
}


def scalar_step(instruction: Instruction, symbols: Symbols) -> Step | None:
    """Return what carries out a scalar instruction, None where it is no such one."""
    name = instruction.name
    if not name.startswith("s_"):
        return None
    if name.startswith(_WAITS):
        return lambda w: None
    plain = name[2:]
    if name.startswith(_SHORT):
        instruction = _with_short(instruction, signed=not name.endswith("u32"))
    if name.startswith(("s_cmp_", "s_cmpk_")):
        return _comparison(instruction)
    if "_saveexec_" in plain:
        return _saving(instruction)
    if plain == "getpc_b64":
        return lambda w: w.set_scalar64(
            instruction.operands[0].index, np.full(w.count, symbols[""], np.uint64)
        )
    if plain in ("bitcmp0_b32", "bitcmp1_b32"):
        return _bit_comparison(instruction)
    if plain in ("bitset0_b32", "bitset1_b32"):
        return _bit_setting(instruction)
    if plain in ("fmac_f32", "fmaak_f32", "fmamk_f32"):
        return _fused(instruction)
    if plain in UNARY:
        return _unary(instruction, symbols)
    return _binary(instruction, symbols) if plain in BINARY else None


def _with_short(instruction: Instruction, *, signed: bool) -> Instruction:
    """Return an instruction whose 16-bit constant is written as the 32 bits that are meant."""
    *others, last = instruction.operands
    if last.kind != "const":
        return instruction
    value = last.value & 0xFFFF
    value -= (value >> 15 << 16) if signed else 0
    return replace(instruction, operands=(*others, replace(last, value=value)))


def read_scalar(operand: Operand, wide: bool, symbols: Symbols) -> Callable[[Waves], Any]:
    """Return what reads a scalar source; constants of 64 bits are extended with their sign."""
    kind: Any = np.uint64 if wide else np.uint32
    if operand.kind == "const":
        value = bits(operand, "b64" if wide else "b32") & (2 ** (64 if wide else 32) - 1)
        return lambda w: np.full(w.count, value, kind)
    if operand.kind == "text":
        value = _address_part(operand.text, symbols)
        return lambda w: np.full(w.count, value, kind)
    if operand.negative or operand.absolute:
        return lambda w: _with_sign(w.scalar(operand.index), operand)
    if wide:
        return lambda w: w.scalar64(operand.index)
    return lambda w: w.scalar(operand.index)


def _with_sign(words: Any, operand: Operand) -> Any:
    words = words & np.uint32(0x7FFFFFFF) if operand.absolute else words
    return words ^ np.uint32(0x80000000) if operand.negative else words


def _address_part(text: str, symbols: Symbols) -> int:
    """Return half of the distance from what `s_getpc_b64` gives to a symbol."""
    found = _RELATIVE.fullmatch(text)
    if found is None or found[1] not in symbols:
        raise NotInterpretedError(f"`{text}` is no place that is known")
    distance = symbols[found[1]] - symbols[""] + int(found[3])
    return (distance if found[2] == "lo" else distance >> 32) & 0xFFFFFFFF


def _unary(instruction: Instruction, symbols: Symbols) -> Step:
    function, sets = UNARY[instruction.name[2:]]
    result, source = instruction.operands
    wide = instruction.name.endswith("64")
    read = read_scalar(source, wide, symbols)

    def step(w: Waves) -> None:
        found = function(read(w))
        if found.itemsize == 8:
            w.set_scalar64(result.index, found)
        else:
            w.set_scalar(result.index, found.view(np.uint32))
        if sets:
            w.scc = np.asarray(found != 0)

    return step


def _binary(instruction: Instruction, symbols: Symbols) -> Step:
    name = instruction.name[2:]
    function, result, *given = BINARY[name], *instruction.operands
    if name in ("addk_i32", "mulk_i32"):
        given = [result, *given]
    wide = name.endswith("64")
    by_word = name.startswith(("lshl_", "lshr_", "ashr_", "bfe_"))
    first = read_scalar(given[0], wide, symbols)
    second = read_scalar(given[1], wide and not by_word, symbols)

    def step(w: Waves) -> None:
        found, scc = function(first(w), second(w), w.scc)
        if wide:
            w.set_scalar64(result.index, found)
        else:
            w.set_scalar(result.index, found)
        w.scc = np.asarray(scc)

    return step


def _comparison(instruction: Instruction) -> Step:
    what, _, kind = instruction.name.removeprefix("s_cmpk_").removeprefix("s_cmp_").rpartition("_")
    first, second = (read_scalar(o, kind == "u64", {}) for o in instruction.operands)
    function, view = _COMPARISONS[what], _VIEWS[kind]

    def step(w: Waves) -> None:
        w.scc = np.asarray(function(first(w).view(view), second(w).view(view)))

    return step


def _bit_comparison(instruction: Instruction) -> Step:
    first, second = (read_scalar(o, False, {}) for o in instruction.operands)
    wanted = np.uint32(int(instruction.name[8]))

    def step(w: Waves) -> None:
        w.scc = np.asarray((first(w) >> (second(w) & np.uint32(31))) & np.uint32(1) == wanted)

    return step


def _bit_setting(instruction: Instruction) -> Step:
    result, which = instruction.operands
    read, on = read_scalar(which, False, {}), instruction.name.startswith("s_bitset1")

    def step(w: Waves) -> None:
        bit = np.uint32(1) << (read(w) & np.uint32(31))
        old = w.scalar(result.index)
        w.set_scalar(result.index, old | bit if on else old & ~bit)

    return step


def _fused(instruction: Instruction) -> Step:
    result, *given = instruction.operands
    operands = [*given, result] if len(given) == 2 else given
    reads = [read_scalar(operand, False, {}) for operand in operands]

    def step(w: Waves) -> None:
        found = m.fma(*[read(w).view(np.float32) for read in reads])
        w.set_scalar(result.index, found.view(np.uint32))

    return step


def _saving(instruction: Instruction) -> Step:
    what, _, kind = instruction.name[2:].partition("_saveexec_")
    result, source = instruction.operands
    function, wide = _SAVES[what], kind == "b64"
    read = read_scalar(source, wide, {})

    def step(w: Waves) -> None:
        before = as_words(w.exec)
        given = read(w).astype(np.uint64)
        after = function(given, before)
        if wide:
            w.set_scalar64(result.index, before)
            w.set_scalar64(EXEC, after)
        else:
            w.set_scalar(result.index, before.astype(np.uint32))
            w.set_scalar(EXEC, after.astype(np.uint32))
        w.scc = np.asarray(w.exec.any(axis=1))

    return step
