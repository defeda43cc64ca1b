"""The NPU of Strix Point and Strix Halo (XDNA 2)."""

from __future__ import annotations

from vermilion.hardware.targets.npu_operators import OPERATORS
from vermilion.hardware.targets.target import PlacementLimits, Target

# Source: Ryzen AI documentation, modelrun.rst: threshold_gops_percent 20, at most 7 subgraphs.
NPU_LIMITS = PlacementLimits(min_gops_percent=20.0, max_parts=7)

# The array's int8 rate: 4096 operations a cycle and column, 8 columns, 1584 MHz (the step below the
# highest in the driver's table), from amd/xdna-driver, npu4_regs.c; AMD's own `xrt-smi validate
# --run gemm` reports 51.3. Block floating point (bfp16), which bf16 matrix products are turned
# into, has the same rate.
XDNA2_PEAK_TOPS = {"int8": 51.9, "bf16": 51.9}

STRIX = Target(
    name="strix",
    kind="npu",
    title="Strix Point and Strix Halo NPU (XDNA 2)",
    source="Ryzen AI documentation 1.8: ops_support.rst, relnotes.rst, modelrun.rst",
    aliases=("strix-halo", "strix-point", "stx", "stx-halo", "sth"),
    device_code="stx",
    limits=NPU_LIMITS,
    operators=OPERATORS,
    peak_tops=XDNA2_PEAK_TOPS,
)
