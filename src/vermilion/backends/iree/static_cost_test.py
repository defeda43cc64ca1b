from __future__ import annotations

import pytest

from vermilion.backends.iree.static_cost import (
    StaticCost,
    instruction_of,
    static_cost,
    waves_at_once,
)


def test_kinds_of_instructions_without_those_that_wait() -> None:
    found = static_cost(
        {
            "v_wmma_f32_16x16x16_f16": 4,
            "v_add_f32_e32": 2,
            "ds_load_b128": 3,
            "buffer_load_b128": 5,
            "global_store_b32": 1,
            "scratch_load_b32": 1,
            "s_waitcnt": 7,
            "s_delay_alu": 7,
        }
    )
    assert found == StaticCost(16, matrix=4, shared=3, memory=6, scratch=1)
    assert found.matrix_share == 0.25
    assert static_cost({}).matrix_share == 0.0


@pytest.mark.parametrize(
    ("gpu", "vgprs", "waves"),
    [
        ("gfx942", 64, 8),
        ("gfx942", 128, 4),
        ("gfx942", 512, 1),
        ("gfx1100", 96, 16),
        ("gfx1100", 256, 5),
        ("gfx1102", 256, 4),
        ("gfx1030", 65, 14),
        ("gfx11-generic", 64, 16),
    ],
)
def test_waves_that_registers_leave_room_for(gpu: str, vgprs: int, waves: int) -> None:
    assert waves_at_once(gpu, vgprs) == waves


def test_what_a_line_has() -> None:
    assert instruction_of("\tv_add_f32_e32 v1, v2, v3") == "v_add_f32_e32"
    assert instruction_of("\t.p2align 8") == ""
    assert instruction_of("; %bb.0:") == ""
