"""The rows that tokens begin with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Embedding:
    """The rows that tokens begin with, from numbers or from codes of 4 or 8 bits.

    `codes` are the graph's bytes, (vocabulary, bytes); `zeros` None is the middle of the range.
    """

    width: int
    factor: float
    plain: NDArray[np.generic] | None = None
    codes: NDArray[np.uint8] | None = None
    scales: Floats | None = None
    zeros: NDArray[np.uint8] | None = None
    bits: Literal[4, 8] = 4
    block: int = 0

    @property
    def tokens(self) -> int:
        """How many tokens have a row."""
        table = self.plain if self.plain is not None else self.codes
        return 0 if table is None else len(table)

    def rows(self, tokens: NDArray[np.int64]) -> Floats:
        """Give the rows of tokens: (n,) → (n, width)."""
        if self.plain is not None:
            found = np.asarray(self.plain[tokens], np.float32)
        else:
            found = self._unpacked(tokens)
        return found * np.float32(self.factor) if self.factor != 1.0 else found

    def _unpacked(self, tokens: NDArray[np.int64]) -> Floats:
        assert self.codes is not None, "either numbers or codes"
        assert self.scales is not None, "codes come with scales"
        packed = self.codes[tokens]
        blocks = self.scales.shape[1]
        if self.bits == 4 and self.zeros is None and 2 * packed.shape[1] == blocks * self.block:
            # A token at a time, what counts is how many calls there are: a third of them.
            pairs = _nibbles_from_8()[packed].reshape(len(tokens), blocks, self.block)
            pairs *= self.scales[tokens][:, :, None]
            return pairs.reshape(len(tokens), -1)[:, : self.width]
        codes = unpacked_nibbles(packed) if self.bits == 4 else packed
        values = codes[:, : blocks * self.block].astype(np.float32)
        padding = blocks * self.block - values.shape[1]
        if padding:
            values = np.pad(values, ((0, 0), (0, padding)))
        values = values.reshape(len(tokens), blocks, self.block)
        if self.zeros is None:
            values -= np.float32(1 << (self.bits - 1))
        else:
            own = self.zeros[tokens]
            own = unpacked_nibbles(own)[:, :blocks] if self.bits == 4 else own
            values -= own[:, :, None].astype(np.float32)
        values *= self.scales[tokens][:, :, None]
        return values.reshape(len(tokens), -1)[:, : self.width]


def unpacked_nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Give the two codes of each byte, the low one first."""
    out = np.empty((*packed.shape[:-1], packed.shape[-1] * 2), np.uint8)
    np.bitwise_and(packed, 15, out=out[..., ::2])
    np.right_shift(packed, 4, out=out[..., 1::2])
    return out


@cache
def _nibbles_from_8() -> Floats:
    """Give what the two codes of each byte are over the middle of their range: (256, 2)."""
    codes = unpacked_nibbles(np.arange(256, dtype=np.uint8)[:, None])
    return codes.astype(np.float32) - np.float32(8)
