from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from gpu_code import by_lane, kernel, run
from vermilion.amdgpu.interpret import Budget, TooLongError
from vermilion.amdgpu.memory_image import WildAccessError
from vermilion.amdgpu.operands import NotInterpretedError
from vermilion.errors import DeviceError

G = np.random.default_rng(3)
A, B, C = (G.standard_normal(32).astype(np.float32) for _ in range(3))
U, V = (G.integers(0, 1 << 32, 32, dtype=np.uint32) for _ in range(2))
LANE = np.arange(32)


def halves(words: NDArray[np.uint32]) -> NDArray[np.float16]:
    return words.view(np.float16)


H = np.ascontiguousarray(G.standard_normal(64).astype(np.float16)).view(np.uint32)
K = np.ascontiguousarray(G.standard_normal(64).astype(np.float16)).view(np.uint32)


@pytest.mark.parametrize(
    ("line", "sources", "expected"),
    [
        ("v_add_f32_e32 v10, v1, v2", (A, B), A + B),
        ("v_sub_f32_e64 v10, -v1, |v2|", (A, B), -A - np.abs(B)),
        ("v_mul_f32_e32 v10, 0.5, v1", (A,), A / 2),
        ("v_max_f32_e32 v10, v1, v2", (A, B), np.maximum(A, B)),
        ("v_add_f32_e64 v10, v1, v2 mul:2 clamp", (A, B), np.clip(2 * (A + B), 0, 1)),
        ("v_med3_f32 v10, v1, v2, v3", (A, B, C), np.median([A, B, C], axis=0)),
        ("v_cvt_i32_f32_e32 v10, v1", (8 * A,), np.trunc(8 * A).astype(np.int32)),
        ("v_cvt_f32_ubyte1_e32 v10, v1", (U,), (U >> 8 & 255).astype(np.float32)),
        ("v_add_nc_u32_e32 v10, v1, v2", (U, V), U + V),
        ("v_mul_hi_u32 v10, v1, v2", (U, V), (U.astype(np.uint64) * V >> 32).astype(np.uint32)),
        ("v_lshrrev_b32_e32 v10, 5, v1", (U,), U >> 5),
        ("v_ashrrev_i32_e32 v10, 5, v1", (U,), U.view(np.int32) >> 5),
        ("v_bfe_u32 v10, v1, 4, 7", (U,), U >> 4 & 127),
        ("v_bfi_b32 v10, v1, v2, v1", (U, V), (U & V) | (~U & U)),
        ("v_and_or_b32 v10, v1, 0xff, v2", (U, V), (U & 255) | V),
        ("v_lshl_add_u32 v10, v1, 3, v2", (U, V), (U << 3) + V),
        # Bytes 7 and 6 are of the first, 1 and 0 of the second.
        ("v_perm_b32 v10, v1, v2, 0x7060100", (U, V), (U & 0xFFFF0000) | (V & 0xFFFF)),
        ("v_bfrev_b32_e32 v10, v1", (U,), [int(f"{n:032b}"[::-1], 2) for n in U]),
        ("v_mov_b32_e32 v10, 0\nv_cvt_f16_f32_e32 v10, v1", (A,),
         A.astype(np.float16).view(np.uint16)),
        ("v_mbcnt_lo_u32_b32 v10, -1, 0", (U,), LANE),
        ("v_mov_b32_dpp v10, v1 row_ror:4 row_mask:0xf bank_mask:0xf", (U,),
         U[LANE // 16 * 16 + (LANE % 16 - 4) % 16]),
        ("v_mov_b32_dpp v10, v1 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf bound_ctrl:1",
         (U,), U[LANE ^ 1]),
        # A sign is turned though what is chosen is no number.
        ("v_cmp_lt_u32_e32 vcc_lo, v1, v2\nv_cndmask_b32_e64 v10, v1, -v1, vcc_lo", (U, V),
         np.where(U < V, U ^ np.uint32(1 << 31), U)),
        ("s_mov_b32 m0, 1\nv_movrels_b32_e32 v10, v1", (U, V), V),
        ("s_mov_b32 m0, 1\nv_movreld_b32_e32 v9, v1", (U,), U),
        # Constants of 16 bits have a sign, but for comparisons of numbers that have none.
        ("s_movk_i32 s9, 0xffee\nv_mov_b32_e32 v10, s9", (U,), [-18] * 32),
        ("s_movk_i32 s9, 0xffee\ns_cmpk_lt_u32 s9, 0xffee\ns_cselect_b32 s9, 1, 2\n"
         "v_mov_b32_e32 v10, s9", (U,), [2] * 32),
        ("s_movk_i32 s9, 20\ns_addk_i32 s9, 0xfffe\nv_mov_b32_e32 v10, s9", (U,), [18] * 32),
        ("v_readfirstlane_b32 s9, v1\ns_cvt_hi_f32_f16 s9, s9\nv_mov_b32_e32 v10, s9", (H,),
         np.repeat(halves(H)[1].astype(np.float32), 32)),
        ("v_permlanex16_b32 v10, v1, 0x76543210, 0xfedcba98", (U,), U[LANE ^ 16]),
    ],
)  # fmt: skip
def test_an_instruction(line: str, sources: tuple[Any, ...], expected: Any) -> None:
    found = by_lane("gfx1100", line, *sources)[0]
    wanted = np.asarray(expected)
    if wanted.dtype.kind == "f":
        np.testing.assert_allclose(found.view(np.float32), wanted, rtol=1e-6)
    else:
        assert found.tolist() == [int(n) & 0xFFFFFFFF for n in wanted]


@pytest.mark.parametrize(
    ("line", "function", "bound"),
    [
        ("v_exp_f32_e32 v10, v1", np.exp2, 1e-6),
        ("v_rcp_f32_e32 v10, v1", np.reciprocal, 1e-6),
        ("v_rsq_f32_e32 v10, |v1|", lambda x: 1 / np.sqrt(np.abs(x)), 1e-6),
        ("v_log_f32_e64 v10, |v1|", lambda x: np.log2(np.abs(x)), 1e-5),
        ("v_sin_f32_e32 v10, v1", lambda x: np.sin(2 * np.pi * x), 1e-4),
    ],
)
def test_a_function(line: str, function: Any, bound: float) -> None:
    found = by_lane("gfx1100", line, A)[0].view(np.float32)
    np.testing.assert_allclose(found, function(A), rtol=bound, atol=bound)


DIVISION = """
v_div_scale_f32 v5, null, v2, v2, v1
v_div_scale_f32 v6, vcc_lo, v1, v2, v1
v_rcp_f32_e32 v7, v5
v_fma_f32 v8, -v5, v7, 1.0
v_fmac_f32_e32 v7, v8, v7
v_mul_f32_e32 v8, v6, v7
v_fma_f32 v9, -v5, v8, v6
v_fmac_f32_e32 v8, v9, v7
v_fma_f32 v9, -v5, v8, v6
v_div_fmas_f32 v9, v9, v7, v8
v_div_fixup_f32 v10, v9, v2, v1
"""


def test_a_division_as_compilers_write_it_is_exact() -> None:
    over = np.float32([1, -1, 0, 1, np.inf, 3e38, 1e-38, 1e-42, 7, *A[:23]])
    under = np.float32([3, 0, 0, np.inf, np.inf, 1e-3, 1e10, 3, 1e-40, *B[:23]])
    with np.errstate(all="ignore"):
        expected = over / under
    found = by_lane("gfx1100", DIVISION, over, under)[0].view(np.float32)
    np.testing.assert_array_max_ulp(found[np.isfinite(expected)], expected[np.isfinite(expected)])
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    assert np.array_equal(np.isinf(found), np.isinf(expected))


def test_pairs_of_float16() -> None:
    found = by_lane("gfx1100", "v_pk_fma_f16 v10, v1, v2, v1 op_sel_hi:[1,0,1]", H, K)[0]
    a, b = halves(H).astype(np.float64), halves(K).astype(np.float64)
    b[1::2] = b[0::2]
    np.testing.assert_array_equal(halves(found), (a * b + a).astype(np.float16))


def test_a_mixed_product() -> None:
    line = "v_fma_mix_f32 v10, v1, v2, v3 op_sel:[1,0,0] op_sel_hi:[1,1,0]"
    found = by_lane("gfx1100", line, H, K, C)[0].view(np.float32)
    expected = halves(H)[1::2].astype(np.float64) * halves(K)[0::2] + C
    np.testing.assert_allclose(found, expected.astype(np.float32), rtol=1e-6)


def test_two_instructions_at_once_read_before_either_writes() -> None:
    lines = """
    v_mov_b32_e32 v10, v1
    v_mov_b32_e32 v11, v2
    v_dual_mov_b32 v10, v11 :: v_dual_mov_b32 v11, v10
    """
    found = by_lane("gfx1100", lines, U, V, registers=2)
    assert np.array_equal(found, [V, U])


def test_lanes_that_are_off_keep_what_they_have() -> None:
    lines = """
    v_mov_b32_e32 v10, 7
    v_cmp_lt_f32_e32 vcc_lo, v1, v2
    s_and_saveexec_b32 s8, vcc_lo
    v_mov_b32_e32 v10, 9
    s_or_b32 exec_lo, exec_lo, s8
    """
    assert np.array_equal(by_lane("gfx1100", lines, A, B)[0], np.where(A < B, 9, 7))


def test_waves_of_64_and_sdwa() -> None:
    words = G.integers(0, 1 << 32, 64, dtype=np.uint32)
    line = (
        "v_add_u32_sdwa v10, v1, v1 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_1 "
        "src1_sel:WORD_1"
    )
    assert np.array_equal(by_lane("gfx942", line, words)[0], (words >> 8 & 255) + (words >> 16))


def test_any_function_of_three_bits() -> None:
    a, b, c = (G.integers(0, 1 << 32, 64, dtype=np.uint32) for _ in range(3))
    # LLVM's way to write one: that function of 0xf0, 0xcc and 0xaa.
    table = (0xF0 & ~0xCC | 0xAA) & 0xFF
    found = by_lane("gfx950", f"v_bitop3_b32 v10, v1, v2, v3 bitop3:{table:#x}", a, b, c)[0]
    assert np.array_equal(found, a & ~b | c)


def test_matrix_units_of_cdna() -> None:
    a, b = (G.standard_normal((16, 4)).astype(np.float32) for _ in range(2))
    # Lane l has row l mod 16 and k = l div 16; the result has four rows a lane.
    found = by_lane(
        "gfx942",
        "v_mfma_f32_16x16x4_f32 v[10:13], v1, v2, 1.0",
        a.T.reshape(64).copy(),
        b.T.reshape(64).copy(),
        registers=4,
    ).view(np.float32)
    rows = found.reshape(4, 4, 16).transpose(1, 0, 2).reshape(16, 16)
    np.testing.assert_allclose(rows, a @ b.T + 1, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("gpu", ["gfx1100", "gfx1201"])
def test_matrix_units_of_rdna(gpu: str) -> None:
    a, b = (G.integers(-8, 8, (16, 16)).astype(np.float16) for _ in range(2))
    pairs = [np.ascontiguousarray(m).view(np.uint32) for m in (a, b)]  # [row, pair of k]
    if gpu == "gfx1100":
        sources = [np.tile(pair[:, at], 2) for pair in pairs for at in range(8)]
        line = "v_wmma_f32_16x16x16_f16 v[20:27], v[1:8], v[9:16], 0"
    else:
        sources = [np.concatenate([p[:, at], p[:, 4 + at]]) for p in pairs for at in range(4)]
        line = "v_wmma_f32_16x16x16_f16 v[20:27], v[1:4], v[5:8], 0"
    moves = "\n".join(f"v_mov_b32_e32 v{10 + n}, v{20 + n}" for n in range(8))
    found = by_lane(gpu, f"{line}\n{moves}", *sources, registers=8).view(np.float32)
    parts = found.reshape(8, 2, 16)
    rows = parts.reshape(16, 16) if gpu == "gfx1100" else parts.transpose(1, 0, 2).reshape(16, 16)
    np.testing.assert_array_equal(rows, a.astype(np.float32) @ b.astype(np.float32).T)


def test_bfloat16_on_the_matrix_units() -> None:
    a, b = (G.integers(-8, 8, (16, 16)).astype(ml_dtypes.bfloat16) for _ in range(2))
    # Lane l has row l mod 16, and the four k from 4·(l div 16) on.
    sources = [
        np.ascontiguousarray(m.reshape(16, 4, 2, 2).transpose(2, 1, 0, 3)).view(np.uint32)[at]
        for m in (a, b)
        for at in range(2)
    ]
    found = by_lane(
        "gfx942",
        "v_mfma_f32_16x16x16_bf16 v[10:13], v[1:2], v[3:4], 0",
        *[source.reshape(64).copy() for source in sources],
        registers=4,
    ).view(np.float32)
    rows = found.reshape(4, 4, 16).transpose(1, 0, 2).reshape(16, 16)
    np.testing.assert_array_equal(rows, a.astype(np.float32) @ b.astype(np.float32).T)


# Wave n adds 1 n + 1 times, in a loop that each leaves at another time.
LOOP = """
\ts_load_b64 s[4:5], s[0:1], 0x0
\tv_lshrrev_b32_e32 v1, 5, v0
\tv_readfirstlane_b32 s6, v1
\tv_mov_b32_e32 v2, 0
.LBB0_1:
\tv_add_nc_u32_e32 v2, 1, v2
\ts_sub_i32 s6, s6, 1
\ts_cmp_lt_i32 s6, 0
\ts_cbranch_scc0 .LBB0_1
\ts_barrier
\tv_lshlrev_b32_e32 v1, 2, v0
\tglobal_store_b32 v1, v2, s[4:5]
"""


def test_waves_that_part_meet_again() -> None:
    (found,) = run(kernel("gfx1100", LOOP), np.zeros(128, np.uint32), threads=128)
    assert np.array_equal(found, np.arange(128) // 32 + 1)
    with pytest.raises(TooLongError):
        run(kernel("gfx1100", LOOP), np.zeros(128, np.uint32), threads=128, budget=Budget(20))


def test_a_barrier_that_some_never_reach() -> None:
    body = "\tv_readfirstlane_b32 s6, v0\n\ts_cmp_lg_u32 s6, 0\n\ts_cbranch_scc1 .L1\n"
    made = kernel("gfx1100", f"{body}.L2:\n\ts_barrier\n\ts_branch .L2\n.L1:\n\ts_branch .L1\n")
    with pytest.raises(DeviceError):
        run(made, np.zeros(1, np.uint32), threads=64, budget=Budget(1000))


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("global_store_b32 v1, v1, s[4:5] offset:2048", WildAccessError),
        ("ds_load_b32 v1, v0", WildAccessError),
        ("scratch_store_b32 off, v1, off offset:128", WildAccessError),
        ("v_cvt_scalef32_pk_f32_fp8 v1, v1, v1", NotInterpretedError),
        ("v_dot8_i32_iu4 v1, v1, v1, v1", NotInterpretedError),
    ],
)
def test_what_no_kernel_may_do(line: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        by_lane("gfx1100", line, A)


@pytest.mark.parametrize(
    ("gpu", "extends", "more"),
    [
        ("gfx1100", "", 0),
        ("gfx1201", "\ts_sext_i32_i16 s9, s9\n", 4),
        ("gfx1201", "\ts_wait_alu depctr_sa_sdst(0)\n\ts_sext_i32_i16 s9, s9\n", 8),
    ],
)
def test_a_place_within_a_constant(gpu: str, extends: str, more: int) -> None:
    body = f"""
\ts_load_b64 s[4:5], s[0:1], 0x0
\ts_getpc_b64 s[8:9]
{extends}\ts_add_u32 s8, s8, .Ltable@rel32@lo+{12 + more}
\ts_addc_u32 s9, s9, .Ltable@rel32@hi+{20 + more}
\tv_mov_b32_e32 v0, 0
\tv_mov_b32_e32 v4, s8
\tv_mov_b32_e32 v5, s9
\tglobal_store_b64 v0, v[4:5], s[4:5]"""
    far = {"": 1 << 30, ".Ltable": (1 << 30) - 72}
    (found,) = run(kernel(gpu, body), np.zeros(1, np.uint64), threads=1, symbols=far)
    assert int(found[0]) == (1 << 30) - 72 + 8


def test_buffers_have_bounds() -> None:
    lines = """
    s_mov_b32 s6, 64
    s_mov_b32 s7, 0
    v_mov_b32_e32 v9, 1.0
    v_subrev_nc_u32_e32 v0, 0x200, v0
    buffer_load_b32 v10, v0, s[4:7], 0 offen offset:512
    v_add_nc_u32_e32 v0, 0x200, v0
    """
    # The result's address lies in s[6:7] after the arguments are loaded: it is kept beside.
    kept = "s_mov_b64 s[8:9], s[6:7]\n" + lines + "s_mov_b64 s[6:7], s[8:9]"
    found = by_lane("gfx1100", kept, U)[0]
    assert np.array_equal(found, np.where(LANE < 16, U, 0))


def test_scratch_memory_that_is_a_buffer() -> None:
    lines = """
    v_lshlrev_b32_e32 v3, 1, v1
    buffer_store_dword v1, off, s[8:11], 0 offset:8
    buffer_store_dword v3, off, s[8:11], 0 offset:12
    v_mov_b32_e32 v4, 4
    buffer_load_dword v10, v4, s[8:11], 0 offen offset:8
    s_waitcnt vmcnt(0)
    """
    words = G.integers(0, 1 << 30, 64, dtype=np.uint32)
    marked = f"s_mov_b32 s11, {1 << 23:#x}\n{lines}"  # as the hardware sets it
    assert np.array_equal(by_lane("gfx90a", marked, words)[0], 2 * words)


def test_swizzled_and_permuted_through_the_crossbar() -> None:
    lines = """
    v_xor_b32_e32 v2, 20, v0
    ds_bpermute_b32 v10, v2, v1
    ds_swizzle_b32 v11, v1 offset:swizzle(SWAP,4)
    """
    found = by_lane("gfx1100", lines, U, registers=2)
    assert np.array_equal(found, [U[LANE ^ 5], U[LANE ^ 4]])
