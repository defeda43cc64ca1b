"""How a product's weights lie in memory: panels of columns, whole depth after whole depth.

`block` weights: for each block of the depth the codes, then scales, then zero points or what is
added, if stored. Where blocks have whole numbers for scales, some of them share the floats that
these are multiplied with, which lie before the first of them.
The 16 columns of a vector are its 32-bit lanes; a lane holds four codes of its column, or eight of
4 bits: the first four in the low halves of its bytes, the next four in the high ones.
Plain weights: for each value of the depth, the panel's columns side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LANES = 16
VECTORS = 2
PANEL = LANES * VECTORS
# Values of the depth that are unpacked together: what a shared exponent is for, too.
EIGHT = 8
# How the scale of a block is stored. `e8m0`: half a power of two, by its exponent (OCP Microscaling
# formats, version 1.0). `s8`: a whole number, times a float32 that `group` blocks share.
Scale = Literal["f16", "f32", "e8m0", "s8"]
_SCALE_BYTES: dict[Scale, int] = {"f16": 2, "f32": 4, "e8m0": 1, "s8": 1}


@dataclass(frozen=True)
class BlockWeights:
    """Codes of `bits` bits with a scale for each `block` of the depth in each column.

    A weight is (code - zero point) · scale; code · scale + what is added, with `has_mins`, which is
    stored as scales are; or the number of `table` that a code of 4 bits says, · scale.
    """

    depth: int
    columns: int
    bits: Literal[4, 8]
    block: int
    scale: Scale
    has_zeros: bool
    has_mins: bool = False
    table: tuple[int, ...] | None = None
    group: int = 0

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
        """What the codes count from, as they are multiplied; 1 where each block has its own.

        Numbers of a table are multiplied as bytes that count from 128.
        """
        if self.has_zeros or self.has_mins:
            return 1
        return 128 if self.table else 1 << (self.bits - 1)

    @property
    def is_plain(self) -> bool:
        """Whether a weight is its code less a zero point, times a float."""
        return not self.has_mins and self.table is None and self.scale in ("f16", "f32")

    @property
    def code_bytes(self) -> int:
        """Bytes of the codes of one vector of columns in one block."""
        return self.block * LANES * self.bits // 8

    @property
    def scale_item_bytes(self) -> int:
        """Bytes of the scale of one column in one block."""
        return _SCALE_BYTES[self.scale]

    @property
    def scale_bytes(self) -> int:
        """Bytes of the scales of one vector of columns in one block."""
        return LANES * self.scale_item_bytes

    @property
    def zeros_at(self) -> int:
        """Bytes before the zero points of a block, or before what is added."""
        return VECTORS * (self.code_bytes + self.scale_bytes)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of a panel."""
        mins = VECTORS * self.scale_bytes if self.has_mins else 0
        return self.zeros_at + (PANEL if self.has_zeros else mins)

    @property
    def shared_bytes(self) -> int:
        """Bytes of what a group of blocks of a panel shares."""
        return PANEL * 4 * (1 + self.has_mins) if self.group else 0

    @property
    def step(self) -> int:
        """Values of the depth after which weights begin like the first: whole groups of blocks."""
        return self.block * (self.group or 1)

    @property
    def step_bytes(self) -> int:
        """Bytes of so many values of a panel."""
        return (self.group or 1) * self.block_bytes + self.shared_bytes

    @property
    def panel_bytes(self) -> int:
        """Bytes of a panel."""
        return -(-self.depth // self.step) * self.step_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes in all."""
        return self.panels * self.panel_bytes


@dataclass(frozen=True)
class PlainWeights:
    """Numbers as they are, in float32 or in 16 bits."""

    depth: int
    columns: int
    storage: Literal["f32", "f16", "bf16"] = "f32"

    @property
    def row_bytes(self) -> int:
        """Bytes of one value of the depth of a panel."""
        return PANEL * (4 if self.storage == "f32" else 2)

    @property
    def panels(self) -> int:
        """Panels; the last may have columns that are not there."""
        return -(-self.columns // PANEL)

    @property
    def panel_bytes(self) -> int:
        """Bytes of a panel."""
        return self.depth * self.row_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes in all."""
        return self.panels * self.panel_bytes


Weights = BlockWeights | PlainWeights
