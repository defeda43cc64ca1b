"""The layout of the key and value cache: blocks of 64 tokens, as the products of attention read.

A sequence has room for `capacity` tokens in each layer, head after head, of `head_size` numbers.
In a block of keys, each 32-bit word of the head has the 64 keys side by side; in a block of values,
each 32-bit word of tokens has the head's numbers side by side. In bfloat16 a word is a pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vermilion.codegen.emit.builder import Function
from vermilion.codegen.emit.decoder.control import CAPACITY, ROOM, Sequence
from vermilion.codegen.emit.values import Value

BLOCK_TOKENS = 64


@dataclass(frozen=True)
class CacheForm:
    """Storage type and head size of a cache."""

    storage: Literal["bf16", "f32"]
    head_size: int

    @property
    def item_bytes(self) -> int:
        """Bytes of a number."""
        return 2 if self.storage == "bf16" else 4

    @property
    def group(self) -> int:
        """Numbers in a 32-bit word."""
        return 4 // self.item_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of keys, or of values."""
        return BLOCK_TOKENS * self.head_size * self.item_bytes

    def block_at(self, f: Function, base: Value, block: Value) -> Value:
        """Return the pointer to a block."""
        return f.at(base, f.multiply(block, self.block_bytes))

    def head_at(
        self, f: Function, base: Value, sequence: Sequence, heads: int, head: Value
    ) -> Value:
        """Return the pointer to the first block of one of a sequence's heads."""
        before = f.multiply(sequence.word(ROOM), heads)
        tokens = f.add(before, f.multiply(head, sequence.word(CAPACITY)))
        return f.at(base, f.multiply(tokens, self.head_size * self.item_bytes))
