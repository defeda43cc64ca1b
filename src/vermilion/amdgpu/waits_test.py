from __future__ import annotations

import pytest

from gpu_code import kernel
from vermilion.amdgpu.waits import NotWaitedError, check_waits

# Two loads that a loop does again, using one, and a store to shared memory before a barrier.
BODY = """
    s_load_b128 s[4:7], s[0:1], 0x0
    s_waitcnt lgkmcnt(0)
    global_load_b32 v1, v0, s[4:5]
    global_load_b32 v2, v0, s[6:7]
    s_mov_b32 s8, 0
.LBB0_1:
    s_waitcnt vmcnt(1)
    v_add_f32_e32 v3, v1, v3
    global_load_b32 v1, v0, s[4:5]
    global_load_b32 v2, v0, s[6:7]
    s_add_u32 s8, s8, 1
    s_cmp_lt_u32 s8, 4
    s_cbranch_scc1 .LBB0_1
    s_waitcnt vmcnt(0)
    v_dual_add_f32 v3, v3, v2 :: v_dual_mov_b32 v4, v0
    ds_store_b32 v0, v3
    s_waitcnt lgkmcnt(0)
    s_barrier
    ds_load_b32 v5, v0 offset:4
    ds_load_b32 v6, v0 offset:8
    s_waitcnt lgkmcnt(1)
    v_add_f32_e32 v5, v5, v3
    s_waitcnt lgkmcnt(0)
    v_add_f32_e32 v5, v5, v6
    global_store_b32 v0, v5, s[4:5]
"""


def rdna4(text: str) -> str:
    """Return the same with the counters of RDNA 4."""
    first, rest = text.split("s_mov_b32")
    first = first.replace("s_waitcnt lgkmcnt(0)", "s_wait_kmcnt 0x0")
    rest = rest.replace("s_barrier", "s_barrier_signal -1\n s_barrier_wait 0xffff")
    for name, new in (("lgkmcnt", "dscnt"), ("vmcnt", "loadcnt")):
        for most in (0, 1):
            rest = rest.replace(f"s_waitcnt {name}({most})", f"s_wait_{new} {most:#x}")
    return f"{first}s_mov_b32{rest}"


BODIES = {"gfx1100": BODY, "gfx1201": rdna4(BODY)}
WAITS = [
    (gpu, at)
    for gpu, body in BODIES.items()
    for at, line in enumerate(body.splitlines())
    if "s_wait" in line or "_signal" in line
]


@pytest.mark.parametrize("gpu", BODIES)
def test_a_kernel_that_waits(gpu: str) -> None:
    check_waits(kernel(gpu, BODIES[gpu]))


@pytest.mark.parametrize(("gpu", "at"), WAITS)
def test_each_wait_is_needed(gpu: str, at: int) -> None:
    lines = BODIES[gpu].splitlines()
    del lines[at]
    with pytest.raises(NotWaitedError, match="the kernel `kernel`"):
        check_waits(kernel(gpu, "\n".join(lines)))


def test_a_wait_for_too_few() -> None:
    text = BODY.replace("lgkmcnt(0)\n    v_add_f32", "lgkmcnt(1)\n    v_add_f32")
    with pytest.raises(NotWaitedError, match="uses v6"):
        check_waits(kernel("gfx1100", text))


def test_scalars_come_in_any_order() -> None:
    text = (
        "s_load_b32 s4, s[0:1], 0x0\n s_load_b32 s5, s[0:1], 0x4\n s_waitcnt lgkmcnt(1)\n"
        " s_mov_b32 s6, s4"
    )
    with pytest.raises(NotWaitedError, match="uses s4"):
        check_waits(kernel("gfx1100", text))


def test_stores_count_as_loads_before_rdna() -> None:
    text = (
        "global_load_dword v1, v0, s[4:5]\n global_store_dword v0, v2, s[4:5]\n"
        " s_waitcnt vmcnt({})\n v_mov_b32_e32 v3, v1"
    )
    check_waits(kernel("gfx942", text.format(1)))
    with pytest.raises(NotWaitedError, match="uses v1"):
        check_waits(kernel("gfx942", text.format(2)))


def test_halves_of_a_register_may_be_loaded_one_after_the_other() -> None:
    text = (
        "global_load_d16_b16 v1, v0, s[4:5]\n global_load_d16_hi_b16 v1, v0, s[4:5] offset:2\n"
        " s_waitcnt vmcnt(0)\n v_mov_b32_e32 v3, v1"
    )
    check_waits(kernel("gfx1100", text))
    shared = "ds_load_u16_d16 v1, v0\n ds_load_u16_d16_hi v1, v0 offset:2"
    with pytest.raises(NotWaitedError, match="uses v1"):
        check_waits(kernel("gfx1100", shared))
