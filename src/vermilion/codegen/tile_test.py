"""The tile that a product uses fits the registers and is the cheapest by the model."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vermilion.codegen.isa import isa_of
from vermilion.codegen.tile import Tile, candidates, choose_tile, cost
from vermilion.hardware.targets.find import find_target

WIDE, NARROW = (isa_of(find_target(name)) for name in ("zen4", "zen3"))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 60), st.integers(1, 60), st.integers(1, 300), st.integers(1, 500),
    st.sampled_from([WIDE, NARROW]),
)  # fmt: skip
def test_every_candidate_fits(rows: int, columns: int, channels: int, steps: int, isa) -> None:  # type: ignore[no-untyped-def]
    found = list(candidates(rows, columns, channels, isa))
    assert found, "there is always one"
    for tile in found:
        assert tile.rows * tile.columns * tile.vectors + tile.vectors <= isa.registers
        assert tile.rows <= rows
        assert tile.columns <= columns
        assert tile.rows == 1 or tile.columns == columns, "patches of several rows are whole rows"
    chosen = choose_tile(rows, columns, channels, steps, isa)
    least = min(cost(tile, rows, columns, channels, steps, isa) for tile in found)
    assert cost(chosen, rows, columns, channels, steps, isa) == least


@pytest.mark.parametrize(
    ("rows", "columns", "channels", "steps", "registers_used"),
    [(56, 56, 64, 576, 24), (28, 28, 128, 1152, 24), (14, 14, 256, 2304, 24), (7, 7, 512, 512, 24)],
)
def test_the_layers_of_a_resnet_fill_the_registers(
    rows: int, columns: int, channels: int, steps: int, registers_used: int
) -> None:
    tile = choose_tile(rows, columns, channels, steps, WIDE)
    assert tile.rows * tile.columns * tile.vectors >= registers_used


def test_one_row_of_pixels_takes_as_many_vectors_as_hide_the_latency() -> None:
    assert choose_tile(1, 1, 1000, 2048, WIDE).vectors >= 7


def test_more_work_costs_more() -> None:
    tile = Tile(1, 7, 4)
    costs = [cost(tile, n, 28, 64, steps, WIDE) for n, steps in ((7, 64), (14, 64), (14, 128))]
    assert costs == sorted(costs)
    assert costs[0] < costs[-1]
