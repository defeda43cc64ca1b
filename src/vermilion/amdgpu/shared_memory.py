"""Instructions on the memory that a workgroup shares (LDS), and those that use its crossbar.

Source: AMD's instruction set guides, "Data share operations" and "DS instructions".
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.amdgpu.assembly import Instruction
from vermilion.amdgpu.memory_image import WildAccessError
from vermilion.amdgpu.memory_steps import ACCESSES, Access, offset_of, stored_bytes, write_loaded
from vermilion.amdgpu.operands import NotInterpretedError, Operand
from vermilion.amdgpu.waves import Step, Waves
from vermilion.errors import DeviceError

Bytes = NDArray[np.uint8]


class RaceError(DeviceError):
    """Waves use the same shared memory, one of them writes, and no barrier is between."""


class Shared:
    """The shared memory of the workgroups that run at one time.

    The interpreter's waves go in step, the chip's do not: what one writes another may use only
    behind a barrier. So each byte has a stamp of who wrote it last, and one of who read it: the
    number of barriers passed before, times the numbers of waves, plus the wave's.
    """

    def __init__(self, groups: int, size: int, waves: int) -> None:
        """Make it for so many workgroups. What is read before it is written is no number."""
        self.size = -(-size // 16) * 16
        self.bytes: Bytes = np.full(groups * self.size, 0xFF, np.uint8)
        self.words = self.bytes.view(np.uint32)
        self._waves = waves
        self._passed = np.zeros(groups, np.int64)
        several = groups * self.size if waves > 1 else 0
        self._wrote, self._read = (np.full(several, -1, np.int32) for _ in range(2))

    def clear(self) -> None:
        """Forget everything, for the next workgroups."""
        self.bytes[:] = 0xFF
        self._passed[:] = 0
        self._wrote[:] = self._read[:] = -1

    def pass_barrier(self, groups: NDArray[np.int64]) -> None:
        """Have the waves of some workgroups pass a barrier."""
        self._passed[groups] += 1

    def load(self, w: Waves, at: NDArray[np.int64], size: int) -> Bytes:
        """Return `size` bytes at each lane's place. Raises: WildAccessError, RaceError."""
        place = self._places(w, at, size)
        if self._waves > 1:
            self._note_read(w, place, size)
        if size % 4 == 0 and not np.any(place & 3):
            found: Bytes = self.words[(place >> 2)[..., None] + np.arange(size // 4)].view(np.uint8)
            return found
        narrow: Bytes = self.bytes[place[..., None] + np.arange(size)]
        return narrow

    def store(self, w: Waves, at: NDArray[np.int64], data: Bytes) -> None:
        """Write bytes at each lane's place. Raises: WildAccessError, RaceError."""
        size = data.shape[-1]
        everywhere = self._places(w, at, size)
        place = everywhere[w.exec]
        if self._waves > 1:
            self._note_write(w, everywhere, data)
        if size % 4 == 0 and not np.any(place & 3):
            words = np.ascontiguousarray(data[w.exec]).view(np.uint32)
            self.words[(place >> 2)[..., None] + np.arange(size // 4)] = words
            return
        self.bytes[place[..., None] + np.arange(size)] = data[w.exec]

    def _stamps(self, w: Waves, place: NDArray[np.int64], size: int) -> tuple[Any, Any, Any]:
        """Return places of bytes, the stamps of who uses them, and the least of this time's."""
        first = self._passed[w.group] * (self._waves + 1)
        lanes = np.broadcast_to((first + w.number)[:, None], place.shape)[w.exec]
        start = np.broadcast_to(first[:, None], place.shape)[w.exec]
        return place[w.exec][:, None] + np.arange(size), lanes[:, None], start[:, None]

    def _note_read(self, w: Waves, place: NDArray[np.int64], size: int) -> None:
        at, mine, start = self._stamps(w, place, size)
        wrote = self._wrote[at]
        if np.any((wrote >= start) & (wrote != mine)):
            raise RaceError(
                "a wave reads shared memory that another wave has written, and no barrier is"
                " between them"
            )
        several = start + self._waves
        read = self._read[at]
        self._read[at] = np.where((read >= start) & (read != mine), several, mine)
        read = self._read[at]
        self._read[at] = np.where(read == mine, mine, several)

    def _note_write(self, w: Waves, place: NDArray[np.int64], data: Bytes) -> None:
        at, mine, start = self._stamps(w, place, data.shape[-1])
        read, wrote = self._read[at], self._wrote[at]
        # Waves may write the same value.
        other = (wrote >= start) & (wrote != mine) & (self.bytes[at] != data[w.exec])
        self._wrote[at] = mine
        before = self.bytes[at].copy()
        self.bytes[at] = data[w.exec]
        other |= (self._wrote[at] != mine) & (self.bytes[at] != data[w.exec])
        self.bytes[at] = before
        if np.any(((read >= start) & (read != mine)) | other):
            raise RaceError(
                "a wave writes shared memory that another wave uses, and no barrier is between them"
            )

    def _places(self, w: Waves, at: NDArray[np.int64], size: int) -> NDArray[np.int64]:
        at = np.where(w.exec, at, 0)
        if w.exec.any() and (at.min() < 0 or at.max() + size > self.size):
            raise WildAccessError("a kernel goes beyond its workgroup's shared memory")
        return at + (w.group * self.size)[:, None]


def shared_step(instruction: Instruction, shared: Shared) -> Step | None:
    """Return what carries out an instruction on shared memory, None where it is no such one."""
    if not instruction.name.startswith("ds_"):
        return None
    name = instruction.name[3:]
    if name in ("bpermute_b32", "permute_b32"):
        return _permute(instruction, backward=name.startswith("b"))
    if name == "swizzle_b32":
        return _swizzle(instruction)
    what, _, of = name.partition("_")
    stores = what in ("write", "store", "write2", "store2", "write2st64")
    if what not in ("read", "load", "read2", "read2st64", "write", "store", "write2", "write2st64"):
        raise NotInterpretedError(f"`{instruction.text}` is not interpreted")
    pair, step = what.endswith(("2", "st64")), 64 if what.endswith("st64") else 1
    for prefix, stride in (("2addr_stride64_", 64), ("2addr_", 1)):
        if of.startswith(prefix):
            pair, step, of = True, stride, of.removeprefix(prefix)
    if of not in ACCESSES:
        raise NotInterpretedError(f"`{instruction.text}` is not interpreted")
    access = ACCESSES[of]
    if pair:
        return _two(instruction, shared, access, step, stores=stores)
    return _one(instruction, shared, access, stores=stores)


def _at(w: Waves, operand: Operand, offset: int) -> NDArray[np.int64]:
    found: NDArray[np.int64] = np.broadcast_to(w.register(operand), w.exec.shape).astype(np.int64)
    return found + offset


def _one(instruction: Instruction, shared: Shared, access: Access, *, stores: bool) -> Step:
    first, second = instruction.operands[:2]
    offset = offset_of(instruction)
    if stores:
        return lambda w: shared.store(w, _at(w, first, offset), stored_bytes(w, second, access))
    return lambda w: write_loaded(
        w, first, shared.load(w, _at(w, second, offset), access.size), access
    )


def _part(operand: Operand, first: int, count: int) -> Operand:
    return Operand(operand.kind, operand.index + first, count)


def _two(
    instruction: Instruction, shared: Shared, access: Access, step: int, *, stores: bool
) -> Step:
    """Return a load or store of two places, whose offsets count elements."""
    operands, size = instruction.operands, access.size
    places = [offset_of(instruction, f"offset{n}") * size * step for n in (0, 1)]
    if stores:

        def store(w: Waves) -> None:
            for place, data in zip(places, operands[1:3], strict=True):
                shared.store(w, _at(w, operands[0], place), stored_bytes(w, data, access))

        return store
    words = size // 4

    def load(w: Waves) -> None:
        found = [shared.load(w, _at(w, operands[1], place), size) for place in places]
        for at, data in enumerate(found):
            write_loaded(w, _part(operands[0], at * words, words), data, access)

    return load


def _permute(instruction: Instruction, *, backward: bool) -> Step:
    result, place, data = instruction.operands
    offset = offset_of(instruction)

    def step(w: Waves) -> None:
        lane = (_at(w, place, offset) // 4) % w.lanes
        words = np.broadcast_to(w.register(data), w.exec.shape)
        if backward:
            words = np.where(w.exec, words, np.uint32(0))
            w.set_register(result, np.take_along_axis(words, lane, axis=1))
            return
        found = np.zeros(w.exec.shape, np.uint32)
        wave = np.broadcast_to(np.arange(w.count)[:, None], lane.shape)
        found[wave[w.exec], lane[w.exec]] = words[w.exec]
        w.set_register(result, found)

    return step


def _swizzle(instruction: Instruction) -> Step:
    """Return ds_swizzle in its two modes: four lanes in any order, or 32 by masks."""
    result, data = instruction.operands
    text = instruction.modifiers.get("offset", "0")
    if text.startswith("swizzle("):
        control = _swizzle_control(text[len("swizzle(") : -1])
    else:
        control = int(text, 0)

    def step(w: Waves) -> None:
        lane: NDArray[Any] = np.arange(w.lanes)
        if control & 0x8000:
            chosen = lane // 4 * 4 + (control >> (lane % 4 * 2) & 3)
        else:
            inner = ((lane & 31 & (control & 31)) | (control >> 5 & 31)) ^ (control >> 10 & 31)
            chosen = lane // 32 * 32 + inner
        words = np.where(w.exec, w.register(data), np.uint32(0))
        w.set_register(result, words[:, chosen])

    return step


def _swizzle_control(text: str) -> int:
    """Return the number that `swizzle(…)` stands for."""
    mode, *values = [word.strip() for word in text.split(",")]
    if mode == "QUAD_PERM":
        return 0x8000 | sum(int(value) << (2 * at) for at, value in enumerate(values))
    if mode == "BITMASK_PERM":
        letters = values[0].strip('"')
        masks = [0, 0, 0]  # kept, set, turned
        for at, letter in enumerate(reversed(letters)):
            masks[0] |= (letter in "pi") << at
            masks[1] |= (letter == "1") << at
            masks[2] |= (letter == "i") << at
        return masks[0] | masks[1] << 5 | masks[2] << 10
    if mode == "SWAP":
        return 31 | int(values[0]) << 10
    if mode == "REVERSE":
        return 31 | (int(values[0]) - 1) << 10
    if mode == "BROADCAST":
        size, lane = map(int, values)
        return (32 - size) & 31 | lane << 5
    raise NotInterpretedError(f"`swizzle({text})` is not interpreted")
