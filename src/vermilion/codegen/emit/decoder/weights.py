"""How a product's weights lie in memory: panels of columns, whole depth after whole depth.

`block` weights: for each block of the depth the codes, then scales, then zero points if stored.
The 16 columns of a vector are its 32-bit lanes; a lane holds four codes of its column, or eight of
4 bits: the first four in the low halves of its bytes, the next four in the high ones.
`f32` weights: for each value of the depth, the panel's columns side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LANES = 16
VECTORS = 2
PANEL = LANES * VECTORS
# Values of the depth that are unpacked together: what a shared exponent is for, too.
EIGHT = 8


@dataclass(frozen=True)
class BlockWeights:
    """Codes of `bits` bits with a scale for each `block` of the depth in each column."""

    depth: int
    columns: int
    bits: Literal[4, 8]
    block: int
    scale: Literal["f16", "f32"]
    has_zeros: bool

    @property
    def blocks(self) -> int:
        """Blocks of a column."""
        return -(-self.depth // self.block)

    @property
    def panels(self) -> int:
        """Panels; the last may have columns that are not there."""
        return -(-self.columns // PANEL)

    @property
    def zero(self) -> int:
        """What the codes count from; 1 where each block has its own."""
        return 1 if self.has_zeros else 1 << (self.bits - 1)

    @property
    def code_bytes(self) -> int:
        """Bytes of the codes of one vector of columns in one block."""
        return self.block * LANES * self.bits // 8

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scales of one vector of columns in one block."""
        return LANES * (2 if self.scale == "f16" else 4)

    @property
    def zeros_at(self) -> int:
        """Bytes before the zero points of a block."""
        return VECTORS * (self.code_bytes + self.scale_bytes)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of a panel."""
        return self.zeros_at + (PANEL if self.has_zeros else 0)

    @property
    def panel_bytes(self) -> int:
        """Bytes of a panel."""
        return self.blocks * self.block_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes in all."""
        return self.panels * self.panel_bytes


@dataclass(frozen=True)
class PlainWeights:
    """Numbers as they are, in float32."""

    depth: int
    columns: int

    @property
    def panels(self) -> int:
        """Panels; the last may have columns that are not there."""
        return -(-self.columns // PANEL)

    @property
    def panel_bytes(self) -> int:
        """Bytes of a panel."""
        return self.depth * PANEL * 4

    @property
    def size_bytes(self) -> int:
        """Bytes in all."""
        return self.panels * self.panel_bytes


Weights = BlockWeights | PlainWeights
