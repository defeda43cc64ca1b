from __future__ import annotations

import struct

import pytest

from vermilion.backends.iree.machine_code import Kernel, findings, function_sizes, read_kernels
from vermilion.errors import UnsupportedError

PRODUCT = "main$async_dispatch_0_matmul_like_64x64x512_f16xf16xf32"
COPY = "main$async_dispatch_1_slow_memcpy"

# As LLVM's assembler writes it, shortened; the argument has a `.name` of its own.
ASSEMBLY = f"""
\t.text
{PRODUCT}:
.LBB0_0:
\tv_mfma_f32_16x16x16_f16 a[0:3], v[0:1], v[2:3], a[0:3]
\tv_mfma_f32_16x16x16_f16 a[0:3], v[4:5], v[6:7], a[0:3]
\ts_endpgm
{COPY}:
\tglobal_load_dword v1, v0, s[0:1]
\ts_endpgm
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     4
    .args:
      - .actual_access:  read_only
        .name:           not_a_kernel
        .size:           8
    .group_segment_fixed_size: 2688
    .name:           '{PRODUCT}'
    .private_segment_fixed_size: 48
    .sgpr_count:     14
    .vgpr_count:     96
    .vgpr_spill_count: 20
  - .agpr_count:     0
    .name:           {COPY}
    .vgpr_count:     2
amdhsa.target:   amdgcn-amd-amdhsa--gfx942
...
\t.end_amdgpu_metadata
"""


def code_object(sizes: dict[str, int]) -> bytes:
    """Write the least ELF-64 that names functions: header, symbols, their names, section table."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in sizes)
    symbols, at = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0), 1
    for name, size in sizes.items():
        symbols += struct.pack("<IBBHQQ", at, 2, 3, 1, 0x1000, size)
        symbols += struct.pack("<IBBHQQ", at, 1, 3, 1, 0x2000, 64)  # its descriptor, an object
        at += len(name) + 1
    start, table = 64, 64 + len(symbols) + len(names)
    sections = struct.pack("<IIQQQQIIQQ", *[0] * 10)
    sections += struct.pack("<IIQQQQIIQQ", 0, 11, 0, 0, start, len(symbols), 2, 0, 8, 24)
    sections += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, start + len(symbols), len(names), 0, 0, 1, 0)
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", header, 0x28, table)
    struct.pack_into("<HH", header, 0x3A, 64, 3)
    return bytes(header) + symbols + names + sections


SIZES = {PRODUCT: 4096, COPY: 128}


def test_what_stands_in_code_object_and_assembly() -> None:
    product, copy = read_kernels("gfx942", code_object(SIZES), ASSEMBLY)
    assert (product.name, product.code_bytes) == (PRODUCT, 4096)
    assert product.matrix == {"v_mfma_f32_16x16x16_f16": 2}
    assert (product.vgprs, product.agprs, product.sgprs) == (96, 4, 14)
    assert (product.vgpr_spills, product.scratch_bytes, product.group_bytes) == (20, 48, 2688)
    assert (copy.name, copy.code_bytes, copy.vgprs, copy.matrix) == (COPY, 128, 2, {})
    row = product.as_json()
    assert row["matrix_instructions"] == 2
    assert (row["instructions"], row["matrix_share"]) == (3, 0.6667)
    assert (row["waves_per_simd"], copy.as_json()["memory_instructions"]) == (5, 1)


def test_a_code_object_and_an_assembly_that_do_not_belong_together() -> None:
    with pytest.raises(UnsupportedError, match="has no kernel"):
        read_kernels("gfx942", code_object({COPY: 128}), ASSEMBLY)
    with pytest.raises(UnsupportedError, match="has 3 kernels, its metadata 2"):
        read_kernels("gfx942", code_object({**SIZES, "third": 4}), ASSEMBLY)


@pytest.mark.parametrize("cut", [0, 4, 50, 64, 100, 300])
def test_a_damaged_code_object(cut: int) -> None:
    with pytest.raises(UnsupportedError, match="ELF"):
        function_sizes(code_object(SIZES)[:cut])


def kernel(name: str, *, spills: int = 0, matrix: int = 0) -> Kernel:
    counts = {"v_wmma_f32_16x16x16_f16": matrix} if matrix else {}
    return Kernel("gfx1100", name, 1024, 128, 0, 20, spills, 0, 4 * spills, 0, counts)


@pytest.mark.parametrize(
    ("name", "is_product"),
    [
        ("main$async_dispatch_3_conv_64x56x56x64x3x3_f16xf16xf32", True),
        ("main$async_dispatch_3_matmul_like_256x3136x64_f16xf16xf32", True),
        ("main$async_dispatch_3_batch_matmul_12x128x128x64_f16xf16xf16", True),
        ("main$async_dispatch_56_matmul_1x1000x2048_f16xf16xf32", False),  # one row
        ("main$async_dispatch_3_matmul_16x16x16_f16xf16xf32", False),  # small
        ("main$async_dispatch_3_conv_64x56x56x64x3x3_f32", False),
        ("main$async_dispatch_2_conv_64x56x56x3x3_f16", False),  # a pool
        ("main$async_dispatch_55_reduction_2048x49_f16xf32", False),
        ("main$async_dispatch_57_elementwise_1000_f16xf16xf32", False),
    ],
)
def test_which_kernels_should_have_matrix_instructions(name: str, is_product: bool) -> None:
    assert kernel(name).is_half_product == is_product


def test_findings_name_the_kernel_and_a_hint() -> None:
    assert not list(findings((kernel(PRODUCT, matrix=8, spills=3), kernel(COPY))))
    (missing,) = findings((kernel(PRODUCT), kernel(COPY)))
    assert missing.startswith("gfx1100: 1 of 2 kernels multiply float16 without a matrix")
    assert "dispatch_0_matmul_like_64x64x512" in missing
    assert "hint: " in missing
    (spilling,) = findings((kernel(PRODUCT, matrix=8, spills=45),))
    assert "1 of 1 kernels spill registers to memory, up to 45" in spilling
