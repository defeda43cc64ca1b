from __future__ import annotations

import numpy as np
import pytest

from gpu_code import kernel, run
from vermilion.amdgpu.memory_image import WildAccessError
from vermilion.amdgpu.shared_memory import RaceError

# Each of 64 threads writes its number to shared memory, and reads that of the mirrored thread.
MIRROR = """
\ts_load_b64 s[4:5], s[0:1], 0x0
\tv_mov_b32_e32 v31, 0x110
\tv_lshlrev_b32_e32 v1, 2, v0
\tds_store_b32 v1, v0 offset:16
\ts_waitcnt lgkmcnt(0)
\ts_barrier
\tv_sub_nc_u32_e32 v2, 252, v1
\tds_load_b32 v3, v2 offset:16
\ts_lshl_b32 s6, s2, 8
\tv_add_nc_u32_e32 v1, s6, v1
\tglobal_store_b32 v1, v3, s[4:5]
"""


def test_waves_share_memory_and_wait_for_each_other() -> None:
    made = kernel("gfx1100", MIRROR.replace("252", "0xfc"), shared=512)
    (found,) = run(made, np.zeros((3, 64), np.uint32), threads=64, groups=3)
    assert np.array_equal(found, np.tile(np.arange(63, -1, -1), (3, 1)))


FAULTS = [
    ("0xfc", "0xf8"),
    ("v_lshlrev_b32_e32 v1, 2, v0", "v_lshlrev_b32_e32 v1, 3, v0"),
    ("ds_store_b32 v1, v0 offset:16", "ds_store_b32 v1, v0 offset:20"),
    ("ds_load_b32 v3, v2 offset:16", "ds_load_b32 v3, v1 offset:16"),
    ("ds_load_b32 v3, v2 offset:16", "ds_load_u16 v3, v2 offset:18"),
    ("\ts_lshl_b32 s6, s2, 8\n", "\ts_lshl_b32 s6, s2, 7\n"),
    ("v_sub_nc_u32_e32 v2, 0xfc, v1", "v_sub_nc_u32_e32 v2, v1, v1"),
    ("global_store_b32 v1, v3, s[4:5]", "global_store_b32 v1, v2, s[4:5]"),
    ("global_store_b32 v1, v3, s[4:5]", "global_store_b16 v1, v3, s[4:5]"),
    ("v_add_nc_u32_e32 v1, s6, v1", "v_add_nc_u32_e32 v1, s7, v1"),
    ("\ts_barrier\n", ""),
    # Not before the mirrored thread has read.
    ("\ts_lshl_b32 s6, s2, 8\n", "\ts_lshl_b32 s6, s2, 8\n\tds_store_b32 v1, v3 offset:16\n"),
    # Both waves write the same place.
    ("\ts_lshl_b32 s6, s2, 8\n", "\ts_lshl_b32 s6, s2, 8\n\tds_store_b32 v31, v0\n"),
]


@pytest.mark.parametrize(("right", "wrong"), FAULTS)
def test_a_fault_in_a_kernel_shows(right: str, wrong: str) -> None:
    text = MIRROR.replace("252", "0xfc")
    assert text.count(right) == 1
    start = np.full((2, 64), 5 << 16, np.uint32)
    made = kernel("gfx1100", text.replace(right, wrong), shared=512)
    try:
        (found,) = run(made, start, threads=64, groups=2)
    except (WildAccessError, RaceError):
        return
    assert not np.array_equal(found, np.tile(np.arange(63, -1, -1), (2, 1)))


@pytest.mark.parametrize(
    "more",
    [
        "ds_load_b32 v4, v2 offset:16",  # both waves read all the time
        "ds_load_b32 v4, v1 offset:16\n\tds_store_b32 v1, v3 offset:272",  # a wave's own place
        "v_mov_b32_e32 v5, 7\n\tv_mov_b32_e32 v6, 0\n\tds_store_b32 v6, v5 offset:272",  # the same
    ],
)
def test_what_waves_may_do_without_a_barrier(more: str) -> None:
    text = MIRROR.replace("252", "0xfc").replace("\ts_lshl_b32", f"\t{more}\n\ts_lshl_b32")
    (found,) = run(
        kernel("gfx1100", text, shared=1024), np.zeros((3, 64), np.uint32), threads=64, groups=3
    )
    assert np.array_equal(found, np.tile(np.arange(63, -1, -1), (3, 1)))


def test_a_wave_alone_needs_no_barrier() -> None:
    text = MIRROR.replace("252", "0x7c").replace("\ts_barrier\n", "")
    (found,) = run(kernel("gfx1100", text, shared=512), np.zeros(32, np.uint32), threads=32)
    assert np.array_equal(found, np.arange(31, -1, -1))
