"""Vector instructions with flags beside or instead of words: comparisons, carries, divisions.

And those that take one lane's word, or put words in another order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vermilion.amdgpu import float_math as m
from vermilion.amdgpu.assembly import Instruction
from vermilion.amdgpu.formats import reader, writer
from vermilion.amdgpu.lanes import permlane16
from vermilion.amdgpu.memory_image import WildAccessError
from vermilion.amdgpu.operands import M0, VCC, NotInterpretedError, Operand
from vermilion.amdgpu.vector import plain_name
from vermilion.amdgpu.waves import Step, Waves

_CARRY = Operand("s", VCC, 2)


def _ordered(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: ~function(a, b)


def _unordered(a: Any, b: Any) -> Any:
    return np.isnan(a) | np.isnan(b)


COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "lt": np.less,
    "eq": np.equal,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "ne": np.not_equal,
    "u": _unordered,
    "o": _ordered(_unordered),
    "lg": lambda a, b: (a < b) | (a > b),
    "nge": _ordered(np.greater_equal),
    "nlt": _ordered(np.less),
    "ngt": _ordered(np.greater),
    "nle": _ordered(np.less_equal),
    "neq": np.not_equal,
    "nlg": lambda a, b: ~((a < b) | (a > b)),
}


def flags_step(instruction: Instruction) -> Step | None:
    """Return what carries out an instruction of this file, None where it is another."""
    name = instruction.name
    if name.startswith(("v_cmp_", "v_cmpx_")):
        return _comparison(instruction)
    plain = plain_name(name)
    if plain in _CARRIES:
        return _carry(instruction, *_CARRIES[plain])
    maker = _MAKERS.get(plain)
    return None if maker is None else maker(instruction)


def _comparison(instruction: Instruction) -> Step:
    what, _, kind = instruction.name.removeprefix("v_cmpx_").removeprefix("v_cmp_").rpartition("_")
    always = instruction.name.startswith("v_cmpx_")
    operands = list(instruction.operands)
    target = _CARRY
    if len(operands) == 3:
        target = operands.pop(0)
    modifiers = dict(instruction.modifiers)
    if what == "class":
        first = reader(operands[0], kind, 0, modifiers, 0)
        second = reader(operands[1], "u32", 0, modifiers, 1)
        function: Callable[[Any, Any], Any] = m.is_of_class
    elif what in COMPARISONS:
        halves = [int(n) for n in modifiers.get("op_sel", "[0,0]").strip("[]").split(",")]
        first = reader(operands[0], kind, halves[0], modifiers, 0)
        second = reader(operands[1], kind, halves[1], modifiers, 1)
        function = COMPARISONS[what]
    else:
        raise NotInterpretedError(f"`{instruction.text}` compares in a way that is not known")

    def step(w: Waves) -> None:
        found = np.broadcast_to(function(first(w), second(w)), w.exec.shape)
        if always:
            if len(instruction.operands) == 3:
                w.set_mask(target.index, found)
            w.exec = w.exec & found
        else:
            w.set_mask(target.index, found)

    return step


# Name → whether a carry comes in, whether the operands change places, what is computed.
_CARRIES: dict[str, tuple[bool, bool, bool]] = {
    "add_co_u32": (False, False, False),
    "sub_co_u32": (False, False, True),
    "subrev_co_u32": (False, True, True),
    "addc_co_u32": (True, False, False),
    "add_co_ci_u32": (True, False, False),
    "subb_co_u32": (True, False, True),
    "sub_co_ci_u32": (True, False, True),
    "subbrev_co_u32": (True, True, True),
    "subrev_co_ci_u32": (True, True, True),
}


def _carry(instruction: Instruction, takes: bool, turned: bool, subtracts: bool) -> Step:
    result, target, *rest = instruction.operands
    first, second = reader(rest[0], "u32"), reader(rest[1], "u32")
    carry = rest[2] if len(rest) > 2 else _CARRY
    write = writer(result, "u32")

    def step(w: Waves) -> None:
        a, b = first(w).astype(np.int64), second(w).astype(np.int64)
        a, b = (b, a) if turned else (a, b)
        incoming = w.mask(carry.index).astype(np.int64) if takes else np.int64(0)
        total = a - b - incoming if subtracts else a + b + incoming
        w.set_mask(target.index, np.broadcast_to((total < 0) | (total >> 32 != 0), w.exec.shape))
        write(w, (total & 0xFFFFFFFF).astype(np.uint32))

    return step


def _div_scale(instruction: Instruction) -> Step:
    result, target, *rest = instruction.operands
    reads = [reader(operand, "f32") for operand in rest]
    write = writer(result, "f32")

    def step(w: Waves) -> None:
        found, flags = m.div_scale(*[read(w) for read in reads])
        w.set_mask(target.index, np.broadcast_to(flags, w.exec.shape))
        write(w, found)

    return step


def _div_fmas(instruction: Instruction) -> Step:
    result, *rest = instruction.operands
    a, b, c = (reader(operand, "f32") for operand in rest)
    write = writer(result, "f32")
    return lambda w: write(w, m.div_fmas(a(w), b(w), c(w), w.mask(VCC)))


def _mad64(instruction: Instruction) -> Step:
    result, target, *rest = instruction.operands
    kind = "i32" if "i64" in instruction.name else "u32"
    first, second = reader(rest[0], kind), reader(rest[1], kind)
    third, write = reader(rest[2], "u64"), writer(result, "u64")
    wide: Any = np.int64 if kind == "i32" else np.uint64

    def step(w: Waves) -> None:
        product = (first(w).astype(wide) * second(w).astype(wide)).astype(np.uint64)
        added = third(w)
        total = product + added
        w.set_mask(target.index, np.broadcast_to(total < added, w.exec.shape))
        write(w, total)

    return step


def _first_lane(w: Waves) -> Any:
    return np.where(w.exec.any(axis=1), np.argmax(w.exec, axis=1), 0)


def _read_first(instruction: Instruction) -> Step:
    result, source = instruction.operands

    def step(w: Waves) -> None:
        words = np.broadcast_to(w.register(source), w.exec.shape)
        w.set_scalar(result.index, words[np.arange(w.count), _first_lane(w)])

    return step


def _read_lane(instruction: Instruction) -> Step:
    result, source, lane = instruction.operands
    which = reader(lane, "u32")

    def step(w: Waves) -> None:
        words = np.broadcast_to(w.register(source), w.exec.shape)
        at = np.broadcast_to(which(w), (w.count, 1))[:, 0] % w.lanes
        w.set_scalar(result.index, words[np.arange(w.count), at])

    return step


def _write_lane(instruction: Instruction) -> Step:
    result, source, lane = instruction.operands
    value, which = reader(source, "u32"), reader(lane, "u32")

    def step(w: Waves) -> None:
        at = np.broadcast_to(which(w), (w.count, 1))[:, 0] % w.lanes
        words = np.broadcast_to(value(w), (w.count, 1))[:, 0]
        w.v[result.index][np.arange(w.count), at] = words

    return step


def _permlane16(instruction: Instruction) -> Step:
    result, source, low, high = instruction.operands
    lows, highs = reader(low, "u32"), reader(high, "u32")
    other, write = "permlanex16" in instruction.name, writer(result, "u32")
    return lambda w: write(w, permlane16(w, w.register(source), lows(w), highs(w), other_row=other))


def _permlane64(instruction: Instruction) -> Step:
    result, source = instruction.operands
    write = writer(result, "u32")
    return lambda w: write(w, np.roll(np.broadcast_to(w.register(source), w.exec.shape), 32, 1))


def _permlane_swap(instruction: Instruction) -> Step:
    """Return v_permlane16_swap or 32: rows of the first change places with rows of the second."""
    first, second = instruction.operands
    rows = 16 if "16" in instruction.name else 32

    def step(w: Waves) -> None:
        a, b = w.register(first).copy(), w.register(second).copy()
        odd = (np.arange(w.lanes) // rows % 2).astype(np.bool_)
        w.set_register(first, np.where(odd, np.roll(b, rows, 1), a))
        w.set_register(second, np.where(odd, b, np.roll(a, -rows, 1)))

    return step


def _swap(instruction: Instruction) -> Step:
    first, second = instruction.operands

    def step(w: Waves) -> None:
        kept = w.register(first).copy()
        w.set_register(first, w.register(second))
        w.set_register(second, kept)

    return step


def _any_logic(instruction: Instruction) -> Step:
    """Return v_bitop3: bit n of a number is the result where the sources' bits make n."""
    result, *given = instruction.operands
    reads, write = [reader(operand, "b32") for operand in given], writer(result, "b32")
    wanted = int(instruction.modifiers.get("bitop3", "0"), 0)

    def step(w: Waves) -> None:
        words = [read(w) for read in reads]
        found = np.zeros((1, 1), np.uint32)
        for number in (n for n in range(8) if wanted >> n & 1):
            a, b, c = (word if number >> (2 - at) & 1 else ~word for at, word in enumerate(words))
            found = found | (a & b & c)
        write(w, np.broadcast_to(found, w.exec.shape))

    return step


def _indexed(instruction: Instruction) -> Step:
    """Return v_movrels or v_movreld: M0 is added to the number of one of the registers."""
    result, source = instruction.operands
    reads = "movrels" in instruction.name
    value = reader(source, "b32")

    def step(w: Waves) -> None:
        first = source if reads else result
        numbers = first.index + w.scalar(M0).astype(np.int64)
        if numbers.max(initial=0) >= len(w.v):
            raise WildAccessError("a kernel goes beyond its registers")
        waves = np.arange(w.count)
        if reads:
            w.set_register(result, w.v[numbers, waves])
            return
        w.v[numbers, waves] = np.where(w.exec, value(w), w.v[numbers, waves])

    return step


def _lanes_below(instruction: Instruction) -> Step:
    result, mask, added = instruction.operands
    start = 0 if "lo" in instruction.name else 32
    masks, adds, write = reader(mask, "u32"), reader(added, "u32"), writer(result, "u32")

    def step(w: Waves) -> None:
        below = np.clip(np.arange(w.lanes) - start, 0, 32).astype(np.uint64)
        ones = ((np.uint64(1) << below) - np.uint64(1)).astype(np.uint32)
        write(w, np.bitwise_count(masks(w) & ones).astype(np.uint32) + adds(w))

    return step


def _nothing(instruction: Instruction) -> Step:
    return lambda w: None


def _scalar_float(function: Callable[[Any], Any]) -> Callable[[Instruction], Step]:
    """Return the makers of transcendental functions whose result is a scalar (gfx12)."""

    def maker(instruction: Instruction) -> Step:
        result, source = instruction.operands
        read, write = reader(source, "f32"), writer(result, "f32")
        return lambda w: write(w, function(read(w)))

    return maker


_MAKERS: dict[str, Callable[[Instruction], Step]] = {
    "div_scale_f32": _div_scale,
    "div_fmas_f32": _div_fmas,
    "mad_u64_u32": _mad64,
    "mad_i64_i32": _mad64,
    "mad_co_u64_u32": _mad64,
    "readfirstlane_b32": _read_first,
    "readlane_b32": _read_lane,
    "writelane_b32": _write_lane,
    "permlane16_b32": _permlane16,
    "permlanex16_b32": _permlane16,
    "permlane64_b32": _permlane64,
    "permlane16_swap_b32": _permlane_swap,
    "permlane32_swap_b32": _permlane_swap,
    "swap_b32": _swap,
    "bitop3_b32": _any_logic,
    "movrels_b32": _indexed,
    "movreld_b32": _indexed,
    "mbcnt_lo_u32_b32": _lanes_below,
    "mbcnt_hi_u32_b32": _lanes_below,
    "nop": _nothing,
    "s_exp_f32": _scalar_float(m.exp2),
    "s_log_f32": _scalar_float(m.log2),
    "s_rcp_f32": _scalar_float(m.reciprocal),
    "s_rsq_f32": _scalar_float(m.rsqrt),
    "s_sqrt_f32": _scalar_float(m.square_root),
}
