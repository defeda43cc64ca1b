"""Which register tile a product uses: a small cost model over the shapes that fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vermilion.codegen.isa import Isa
from vermilion.codegen.window import Window, live_share


@dataclass(frozen=True)
class Tile:
    """A patch of output kept in registers: rows × columns of pixels, times vectors of channels."""

    rows: int
    columns: int
    vectors: int

    @property
    def pixels(self) -> int:
        """Pixels in the patch."""
        return self.rows * self.columns


@dataclass(frozen=True)
class Patch:
    """Rows and vectors of a register tile."""

    rows: int
    vectors: int


# Measured on Zen 5: with every register taken, weights cannot be loaded ahead of their use.
_FULL_PENALTY = 1.28
# Fused multiply-adds and loads that start in a cycle (AMD's optimization guides, family 19h, 1Ah).
_ISSUE = 2.0
# Cycles of a tile outside its inner loop: call, address arithmetic, epilogue per vector.
_TILE_CYCLES = 12.0
_STORE_CYCLES = 2.0
_LATENCY = 4.0
# Weights of small patches are read again for each: bytes that a core's second-level cache keeps of
# them, and bytes a cycle from there and from the last-level cache (78 and 55 GB/s at 3.6 GHz, less
# what both cores at once leave of it).
_NEAR_BYTES = 768 * 1024
_NEAR_BYTES_A_CYCLE = 20.0
_FAR_BYTES_A_CYCLE = 12.0


def candidates(
    rows: int, columns: int, channels: int, isa: Isa, *, is_square: bool = False
) -> Iterator[Tile]:
    """Yield the tiles that fit the registers and the output; `is_square` in both directions."""
    widest = -(-channels // isa.lanes)
    for vectors in range(1, min(widest, 8 if isa.registers == 32 else 4) + 1):
        most = (isa.registers - vectors - 1) // vectors + 1
        for tile_columns in range(1, min(columns, most) + 1):
            for tile_rows in (1, 2, 3, 4):
                pixels = tile_rows * tile_columns
                is_short = is_square or tile_columns == columns
                if tile_rows > 1 and (not is_short or tile_rows > rows):
                    continue  # patches of several rows only where a row is short
                if pixels * vectors + vectors <= isa.registers:
                    yield Tile(tile_rows, tile_columns, vectors)


Windows = tuple[Window | None, Window | None]  # of rows, of columns; None: all taps are computed


def cost(
    tile: Tile, rows: int, columns: int, channels: int, steps: int, isa: Isa,
    windows: Windows = (None, None),
) -> float:  # fmt: skip
    """Return the estimated cycles of the whole product with this tile, on one core."""
    total = 0.0
    steps_of_patch = steps * live_share(windows[0], rows, tile.rows)
    steps_of_patch *= live_share(windows[1], columns, tile.columns)
    for row_count, row_times in _edges(rows, tile.rows):
        for column_count, column_times in _edges(columns, tile.columns):
            for vectors, vector_times in _edges(-(-channels // isa.lanes), tile.vectors):
                pixels = row_count * column_count
                multiplies = pixels * vectors / _ISSUE
                loads = (pixels + vectors) / _ISSUE
                cycles = max(multiplies, loads, _LATENCY) + 0.5
                if pixels * vectors + vectors + 1 > isa.registers:
                    cycles *= _FULL_PENALTY
                if any(windows):
                    cycles = max(cycles, _streamed(steps_of_patch, vectors, isa))
                one = steps_of_patch * cycles + _TILE_CYCLES + _STORE_CYCLES * pixels * vectors
                total += row_times * column_times * vector_times * one
    return total


def _streamed(steps: float, vectors: int, isa: Isa) -> float:
    """Return the cycles in which the weights of one step come from where those of a patch stay."""
    step_bytes = vectors * isa.vector_bytes
    is_near = steps * step_bytes <= _NEAR_BYTES
    return step_bytes / (_NEAR_BYTES_A_CYCLE if is_near else _FAR_BYTES_A_CYCLE)


def choose_tile(
    rows: int, columns: int, channels: int, steps: int, isa: Isa, windows: Windows = (None, None)
) -> Tile:
    """Return the cheapest tile."""
    return min(
        candidates(rows, columns, channels, isa, is_square=any(windows)),
        key=lambda tile: cost(tile, rows, columns, channels, steps, isa, windows),
    )


def _edges(size: int, tile: int) -> list[tuple[int, int]]:
    """Return (tile size, how often): the full tiles and the rest."""
    full, rest = divmod(size, tile)
    return [(tile, full)] * bool(full) + [(rest, 1)] * bool(rest)
