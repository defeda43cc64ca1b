"""The state of waves that execute the same instruction at the same time.

Registers lie as `[register, wave, lane]`, so that one instruction of all waves is one operation on
arrays. All are unsigned 32-bit words; who reads them as something else takes a view.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.amdgpu.memory_image import Memory
from vermilion.amdgpu.operands import EXEC, NULL, NotInterpretedError, Operand, bits

Words = NDArray[np.uint32]
Flags = NDArray[np.bool_]
Any32 = NDArray[Any]

_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


@dataclass
class Waves:
    """Some waves of a dispatch, all at one place of the program."""

    gfx: str
    lanes: int
    v: Words
    a: Words
    s: Words
    scc: Flags
    exec: Flags
    group: NDArray[np.int64]  # of each wave: which workgroup's memory is its
    number: NDArray[np.int64]  # and which of that workgroup's waves it is
    memory: Memory
    pc: int = 0
    pcs: NDArray[np.int64] | None = None  # where they have parted
    ended: bool = False
    waits: bool = False
    scratch: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, 0, 0), np.uint8))

    @property
    def count(self) -> int:
        """The number of waves."""
        return int(self.s.shape[1])

    @property
    def generation(self) -> int:
        """9 for gfx90a and gfx942, 10, 11, 12."""
        return int(self.gfx[3:5]) if self.gfx[3] == "1" else 9

    def take(self, chosen: Flags) -> Waves:
        """Return the chosen waves apart; `put` brings them back."""
        return Waves(
            self.gfx,
            self.lanes,
            self.v[:, chosen],
            self.a[:, chosen],
            self.s[:, chosen],
            self.scc[chosen],
            self.exec[chosen],
            self.group[chosen],
            self.number[chosen],
            self.memory,
            scratch=self.scratch[chosen],
        )

    def put(self, chosen: Flags, waves: Waves) -> None:
        """Take back what `take` gave."""
        self.v[:, chosen] = waves.v
        self.a[:, chosen] = waves.a
        self.s[:, chosen] = waves.s
        self.scc[chosen] = waves.scc
        self.exec[chosen] = waves.exec
        self.scratch[chosen] = waves.scratch

    # Scalars: one word a wave.

    def scalar(self, index: int) -> Words:
        """Return a scalar register."""
        if index >= EXEC:
            words = np.packbits(self.exec, axis=1, bitorder="little").view(np.uint32)
            at = index - EXEC
            return words[:, at] if at < words.shape[1] else np.zeros(self.count, np.uint32)
        if index == NULL:
            return np.zeros(self.count, np.uint32)
        found: Words = self.s[index]
        return found

    def set_scalar(self, index: int, words: Any32) -> None:
        """Write a scalar register."""
        if index == NULL:
            return
        if index >= EXEC:
            at = 32 * (index - EXEC)
            if at < self.lanes:
                self.exec[:, at : at + 32] = as_flags(np.asarray(words).astype(np.uint64), 32)
            return
        self.s[index] = words

    def scalar64(self, index: int) -> NDArray[np.uint64]:
        """Return a pair of scalar registers."""
        low, high = self.scalar(index), self.scalar(index + 1)
        return low.astype(np.uint64) | (high.astype(np.uint64) << _32)

    def set_scalar64(self, index: int, words: Any32) -> None:
        """Write a pair of scalar registers."""
        if index == NULL:
            return
        wide = np.asarray(words).astype(np.uint64)
        self.set_scalar(index, (wide & _LOW).astype(np.uint32))
        self.set_scalar(index + 1, (wide >> _32).astype(np.uint32))

    def mask(self, index: int) -> Flags:
        """Return a bit a lane of what a scalar register, or a pair, holds."""
        words = self.scalar64(index) if self.lanes == 64 else self.scalar(index).astype(np.uint64)
        return as_flags(words, self.lanes)

    def set_mask(self, index: int, flags: Flags) -> None:
        """Write a bit a lane; of lanes that are off, none."""
        words = as_words(flags & self.exec)
        if self.lanes == 64:
            self.set_scalar64(index, words)
        else:
            self.set_scalar(index, words.astype(np.uint32))

    # Vectors: one word a wave and lane.

    def register(self, operand: Operand, at: int = 0) -> Words:
        """Return a register of a range, without modifiers; a scalar's as a column."""
        if operand.kind == "v":
            found: Words = self.v[operand.index + at]
            return found
        if operand.kind == "a":
            found = self.a[operand.index + at]
            return found
        if operand.kind in ("s", "null"):
            if operand.text == "scc":
                return self.scc.astype(np.uint32)[:, None]
            return self.scalar(operand.index + at)[:, None]
        if operand.kind == "const":
            return np.full((1, 1), (bits(operand, "b32") >> (32 * at)) & 0xFFFFFFFF, np.uint32)
        raise NotInterpretedError(f"`{operand.text or operand.kind}` is no operand that is known")

    def set_register(
        self, operand: Operand, words: Any32, at: int = 0, lanes: Flags | None = None
    ) -> None:
        """Write a register of a range in the lanes that are on."""
        file = self.a if operand.kind == "a" else self.v
        place = file[operand.index + at]
        np.copyto(place, words.astype(np.uint32, copy=False), where=self.on(lanes))

    def on(self, lanes: Flags | None = None) -> Flags:
        """Return the lanes that are on, of `lanes` where they are given."""
        return self.exec if lanes is None else self.exec & lanes


Step = Callable[[Waves], None]


def as_flags(words: NDArray[np.uint64], lanes: int) -> Flags:
    """Return bits as one flag a lane."""
    raw = np.ascontiguousarray(words).view(np.uint8).reshape(len(words), 8)
    found: Flags = np.unpackbits(raw, axis=1, bitorder="little")[:, :lanes].astype(np.bool_)
    return found


def as_words(flags: Flags) -> NDArray[np.uint64]:
    """Return one flag a lane as bits."""
    packed = np.packbits(flags, axis=1, bitorder="little")
    wide = np.zeros((len(flags), 8), np.uint8)
    wide[:, : packed.shape[1]] = packed
    return wide.view(np.uint64)[:, 0]
