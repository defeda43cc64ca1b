"""Instructions that read and write memory: global, buffers with bounds, scratch, and constants.

Source: AMD's instruction set guides, "Vector memory buffer instructions", "Flat memory
instructions", "Scalar memory operations"; LLVM, "AMDGPU address spaces".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vermilion.amdgpu.assembly import Instruction
from vermilion.amdgpu.memory_image import WildAccessError
from vermilion.amdgpu.operands import NotInterpretedError, Operand
from vermilion.amdgpu.scalar import read_scalar
from vermilion.amdgpu.waves import Step, Waves

Bytes = NDArray[np.uint8]

# Of a buffer's last word: each lane has its own part (ADD_TID_ENABLE). So is scratch memory before
# RDNA 3 and CDNA 3.
OF_LANES = np.uint32(1 << 23)


@dataclass(frozen=True)
class Access:
    """How much one lane moves, and what becomes of it in a register.

    `half` is the half of a register that is read or written, where the other one stays.
    """

    size: int
    signed: bool = False
    half: Literal["", "low", "high"] = ""


ACCESSES: dict[str, Access] = {
    **{name: Access(1) for name in ("ubyte", "u8", "byte", "b8")},
    **{name: Access(2) for name in ("ushort", "u16", "short", "b16")},
    **{name: Access(1, signed=True) for name in ("sbyte", "i8")},
    **{name: Access(2, signed=True) for name in ("sshort", "i16")},
    **{name: Access(4) for name in ("dword", "b32")},
    **{name: Access(8) for name in ("dwordx2", "b64")},
    **{name: Access(12) for name in ("dwordx3", "b96")},
    **{name: Access(16) for name in ("dwordx4", "b128")},
    **{name: Access(2, half="low") for name in ("short_d16", "d16_b16", "u16_d16")},
    **{
        name: Access(2, half="high")
        for name in ("short_d16_hi", "d16_hi_b16", "u16_d16_hi", "b16_d16_hi")
    },
    **{name: Access(1, half="low") for name in ("ubyte_d16", "d16_u8", "u8_d16")},
    **{
        name: Access(1, half="high")
        for name in ("ubyte_d16_hi", "d16_hi_u8", "u8_d16_hi", "byte_d16_hi", "d16_hi_b8")
    },
    **{name: Access(1, signed=True, half="low") for name in ("sbyte_d16", "d16_i8", "i8_d16")},
    **{
        name: Access(1, signed=True, half="high")
        for name in ("sbyte_d16_hi", "d16_hi_i8", "i8_d16_hi")
    },
}


def memory_step(instruction: Instruction) -> Step | None:
    """Return what carries out a memory instruction, None where it is no such one."""
    name = instruction.name
    if name.startswith(("s_load_", "s_buffer_load_")):
        return _scalar_load(instruction)
    kind, _, rest = name.partition("_")
    if kind not in ("buffer", "global", "flat", "scratch"):
        return None
    what, _, of = rest.partition("_")
    if kind == "buffer" and what in ("gl0", "gl1", "inv", "wbl2", "wbinvl1"):
        return lambda w: None  # caches: here there are none
    if kind == "global" and what in ("inv", "wb", "wbinv"):
        return lambda w: None
    if what not in ("load", "store") or of not in ACCESSES or "lds" in instruction.modifiers:
        raise NotInterpretedError(f"`{instruction.text}` is not interpreted")
    access = ACCESSES[of]
    if kind == "buffer":
        return _buffer(instruction, access, stores=what == "store")
    return _plain(instruction, access, kind, stores=what == "store")


def offset_of(instruction: Instruction, key: str = "offset") -> int:
    """Return the offset that an instruction names."""
    return int(instruction.modifiers.get(key, "0"), 0)


def stored_bytes(w: Waves, operand: Operand, access: Access) -> Bytes:
    """Return what lanes store, as [wave, lane, byte]."""
    count = -(-access.size // 4)
    words = [np.broadcast_to(w.register(operand, at), w.exec.shape) for at in range(count)]
    if access.half == "high" or operand.half:
        words = [words[0] >> np.uint32(16)]
    raw = np.ascontiguousarray(np.stack(words, axis=-1)).view(np.uint8)
    return raw[..., : access.size]


def write_loaded(
    w: Waves, operand: Operand, data: Bytes, access: Access, on: NDArray[Any] | None = None
) -> None:
    """Write what lanes have loaded, [wave, lane, byte], into registers."""
    if access.size >= 4:
        words = np.ascontiguousarray(data).view(np.uint32)
        for at in range(access.size // 4):
            w.set_register(operand, words[..., at], at, on)
        return
    unsigned: Any = np.uint8 if access.size == 1 else np.uint16
    found = np.ascontiguousarray(data).view(unsigned)[..., 0]
    if access.signed:
        signed: Any = np.int8 if access.size == 1 else np.int16
        word = found.view(signed).astype(np.int32).view(np.uint32)
    else:
        word = found.astype(np.uint32)
    high = access.half == "high" or operand.half
    if access.half or operand.half:
        old, word = w.register(operand), word & np.uint32(0xFFFF)
        kept = old & np.uint32(0xFFFF if high else 0xFFFF0000)
        word = kept | (word << np.uint32(16) if high else word)
    w.set_register(operand, word, 0, on)


def _scalar_load(instruction: Instruction) -> Step:
    result, base, *rest = instruction.operands
    of = instruction.name.removeprefix("s_buffer_").removeprefix("s_").removeprefix("load_")
    words = {
        "b512": 16,
        "dwordx16": 16,
        "b256": 8,
        "dwordx8": 8,
        **{name: access.size // 4 for name, access in ACCESSES.items() if access.size >= 4},
    }.get(of)
    if words is None and of in ACCESSES:
        words = 0
    if words is None:
        raise NotInterpretedError(f"`{instruction.text}` is not interpreted")
    reads = [read_scalar(operand, False, {}) for operand in rest]
    fixed = offset_of(instruction)
    bounded, access = instruction.name.startswith("s_buffer_"), ACCESSES.get(of, Access(4))

    def step(w: Waves) -> None:
        start = w.scalar64(base.index)
        if bounded:
            start = start & np.uint64(0xFFFFFFFFFFFF)
        offset = np.full(w.count, fixed, np.int64)
        for read in reads:
            offset = offset + read(w).view(np.int32)
        address = (start.astype(np.int64) + offset).astype(np.uint64)
        everywhere = np.ones(w.count, np.bool_)
        if not words:
            raw = w.memory.load(address, access.size, everywhere)
            kind: Any = {1: np.int8, 2: np.int16} if access.signed else {1: np.uint8, 2: np.uint16}
            small = np.ascontiguousarray(raw).view(kind[access.size])[:, 0]
            w.set_scalar(result.index, small.astype(np.int32).view(np.uint32))
            return
        found = w.memory.load(address, 4 * words, everywhere).view(np.uint32)
        for at in range(words):
            w.set_scalar(result.index + at, found[:, at])

    return step


def _buffer(instruction: Instruction, access: Access, *, stores: bool) -> Step:
    data, *places = instruction.operands
    address, resource, base = places
    modifiers = instruction.modifiers
    has_index, has_offset = "idxen" in modifiers, "offen" in modifiers
    fixed, soffset = offset_of(instruction), read_scalar(base, False, {})
    if base.kind == "null":
        soffset = _zero

    def where(w: Waves) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
        low = w.scalar(resource.index).astype(np.int64)
        high = w.scalar(resource.index + 1).astype(np.int64)
        start = (low | ((high & 0xFFFF) << 32))[:, None]
        stride, records = ((high >> 16) & 0x3FFF)[:, None], w.scalar(resource.index + 2)
        offset = np.full(w.exec.shape, fixed, np.int64)
        if has_offset:
            # Of 32 bits: compilers count down from zero and add it again in the instruction.
            offset = offset + w.register(address, int(has_index)).astype(np.int64) & 0xFFFFFFFF
        if has_index:
            offset = offset + w.register(address).astype(np.int64) * stride
        place = start + offset + soffset(w).astype(np.int64)[:, None]
        return place.astype(np.uint64), offset, records.astype(np.int64)[:, None]

    def within(w: Waves) -> NDArray[np.int64]:
        found: NDArray[np.int64] = np.full(w.exec.shape, fixed, np.int64)
        found += soffset(w).astype(np.int64)[:, None]
        return found + w.register(address).view(np.int32).astype(np.int64) if has_offset else found

    own = _scratch(data, access, within, stores=stores)

    def step(w: Waves) -> None:
        if np.any(w.scalar(resource.index + 3) & OF_LANES):
            own(w)
            return
        place, offset, records = where(w)
        # Each word is held against the bounds by itself: none is written outside, zero is read.
        unit = min(access.size, 4)
        pieces = range(0, access.size, unit)
        if stores:
            given = stored_bytes(w, data, access)
            whole = w.exec & (offset + access.size <= records)
            w.memory.store(place, given, whole)
            for at in pieces:
                part = w.exec & ~whole & (offset + at + unit <= records)
                if part.any():
                    moved = (place + np.uint64(at)).astype(np.uint64)
                    w.memory.store(moved, given[..., at : at + unit], part)
            return
        inside = w.exec & (offset + access.size <= records)
        found = w.memory.load(place, access.size, inside)
        for at in pieces:
            part = w.exec & ~inside & (offset + at + unit <= records)
            if part.any():
                moved = (place + np.uint64(at)).astype(np.uint64)
                found[part, at : at + unit] = w.memory.load(moved, unit, part)[part]
        write_loaded(w, data, found, access)

    return step


def _zero(w: Waves) -> Any:
    return np.zeros(w.count, np.uint32)


def _plain(instruction: Instruction, access: Access, kind: str, *, stores: bool) -> Step:
    operands = list(instruction.operands)
    data = operands.pop(1 if stores else 0)
    address, base = operands[0], operands[1] if len(operands) > 1 else Operand("off")
    fixed = offset_of(instruction)

    def offsets(w: Waves) -> NDArray[np.int64]:
        found = np.full(w.exec.shape, fixed, np.int64)
        if base.kind == "s":
            if kind == "scratch":
                found = found + w.scalar(base.index).view(np.int32).astype(np.int64)[:, None]
            else:
                found = found + w.scalar64(base.index).astype(np.int64)[:, None]
        if address.kind == "v":
            low = w.register(address).astype(np.int64)
            if address.count > 1:
                low = low | (w.register(address, 1).astype(np.int64) << 32)
            elif kind == "scratch":
                low = w.register(address).view(np.int32).astype(np.int64)
            found = found + low
        return found

    if kind == "scratch":
        return _scratch(data, access, offsets, stores=stores)

    def step(w: Waves) -> None:
        places = offsets(w).astype(np.uint64)
        if stores:
            w.memory.store(places, stored_bytes(w, data, access), w.exec)
        else:
            write_loaded(w, data, w.memory.load(places, access.size, w.exec), access)

    return step


def _scratch(
    data: Operand,
    access: Access,
    offsets: Callable[[Waves], NDArray[np.int64]],
    *,
    stores: bool,
) -> Step:
    def step(w: Waves) -> None:
        at = np.where(w.exec, offsets(w), 0)
        if at.min(initial=0) < 0 or at.max(initial=0) + access.size > w.scratch.shape[2]:
            raise WildAccessError("a kernel goes beyond its scratch memory")
        index = at[..., None] + np.arange(access.size)
        if stores:
            old = np.take_along_axis(w.scratch, index, axis=2)
            given = np.where(w.exec[..., None], stored_bytes(w, data, access), old)
            np.put_along_axis(w.scratch, index, given, axis=2)
        else:
            write_loaded(w, data, np.take_along_axis(w.scratch, index, axis=2), access)

    return step
