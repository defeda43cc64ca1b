from __future__ import annotations

import numpy as np
import pytest

from vermilion.bench import peak
from vermilion.bench.peak import STEPS, TILES, Tile
from vermilion.errors import Refusal
from vermilion.hardware.cpu import detect_cpu
from vermilion.hardware.targets.x86 import ZEN2, ZEN4, ZEN5

HERE = detect_cpu().features
EVERY = [(precision, tile) for precision, tiles in TILES.items() for tile in tiles]
RUNNABLE = [
    pytest.param(precision, tile, id=f"{precision}-{tile.instruction}")
    for precision, tile in EVERY
    if tile.features <= HERE
]


@pytest.mark.parametrize(
    ("features", "precision", "instruction"),
    [
        (ZEN5, "fp32", "vfmadd231ps, 512 bits"),
        (ZEN4, "bf16", "vdpbf16ps, 512 bits"),
        (ZEN4, "int8", "vpdpbusd, 512 bits"),
        (ZEN2 | {"avxvnni"}, "int8", "vpdpbusd, 256 bits"),
        (ZEN2, "int8", "vpmaddwd + vpaddd, 256 bits"),
        (ZEN2, "fp32", "vfmadd231ps, 256 bits"),
    ],
)
def test_the_widest_instruction_of_a_core_is_its_peak(
    features: frozenset[str], precision: str, instruction: str
) -> None:
    tile = peak.tile_for(precision, frozenset(features))
    assert isinstance(tile, Tile)
    assert tile.instruction == instruction


def test_a_core_without_bf16_has_no_peak_in_bf16() -> None:
    assert peak.tile_for("bf16", frozenset(ZEN2)) == Refusal(
        "this processor has no instruction that multiplies bf16"
    )


@pytest.mark.parametrize(("precision", "tile"), RUNNABLE)
def test_a_tile_computes_as_many_products_as_it_is_credited_with(
    precision: str, tile: Tile
) -> None:
    """All operands are 1, so that each lane ends up as the number of products added to it."""
    a, b, c = peak._operands(tile)
    peak._compiled(tile)(a.ctypes.data, b.ctypes.data, c.ctypes.data, 3)
    lanes = c.view(np.int32) if precision == "int8" else c.view(np.float32)
    products = tile.operations_a_tile // 2 // lanes.size
    assert products >= STEPS
    np.testing.assert_array_equal(lanes, np.full(lanes.size, products))


def test_the_peak_is_of_the_right_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 1 to 1000 GFLOP/s: one core of anything made since 2013, however busy."""
    monkeypatch.setattr(peak, "BURST_S", 0.005)
    found = peak.measure_peak("fp32", 1)
    if isinstance(found, Refusal):
        pytest.skip(f"this machine has no peak here: {found.reason}")
    assert 1.0 < found.gops_per_s < 1000.0
    assert set(found.as_json()) == {"precision", "threads", "gops_per_s", "instruction"}
