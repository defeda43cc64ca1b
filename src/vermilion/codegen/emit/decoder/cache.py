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
from vermilion.codegen.tensor import STORAGE_BYTES, Storage

BLOCK_TOKENS = 64
CacheNumbers = Literal["bf16", "bf16_wide", "f32"]


@dataclass(frozen=True)
class CacheForm:
    """In what products over a cache are computed, and its head size.

    `bf16_wide`: in float32, of keys and values that are stored in bfloat16.
    """

    storage: CacheNumbers
    head_size: int

    @property
    def item_bytes(self) -> int:
        """Bytes of a number."""
        return 4 if self.storage == "f32" else 2

    @property
    def stored(self) -> Storage:
        """Storage type of keys and values."""
        return "f32" if self.storage == "f32" else "bf16"

    @property
    def multiplied(self) -> Storage:
        """Storage type of what is multiplied with them: queries, and weights of keys."""
        return "bf16" if self.storage == "bf16" else "f32"

    @property
    def query_bytes(self) -> int:
        """Bytes of a head of a query."""
        return self.head_size * STORAGE_BYTES[self.multiplied]

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
