"""The NPU of Strix Point and Strix Halo (XDNA 2)."""

from __future__ import annotations

from vermilion.hardware.targets.npu_operators import OPERATORS
from vermilion.hardware.targets.target import LatencyModel, PlacementLimits, Target

# Source: Ryzen AI documentation, modelrun.rst: threshold_gops_percent 20, at most 7 subgraphs.
NPU_LIMITS = PlacementLimits(min_gops_percent=20.0, max_parts=7)

# The array's int8 rate: 4096 operations a cycle and column, 8 columns, 1584 MHz (the step below the
# highest in the driver's table), from amd/xdna-driver, npu4_regs.c; AMD's own `xrt-smi validate
# --run gemm` reports 51.3. Block floating point (bfp16), which bf16 matrix products are turned
# into, has the same rate.
XDNA2_PEAK_TOPS = {"int8": 51.9, "bf16": 51.9}

_TABLE = "amd/RyzenAI-SW, onnx-benchmark/performance_results.json, STX, batch 1"

LATENCY = {
    "int8": LatencyModel(
        overhead_ms=0.5,
        ms_per_gop=0.0,
        ms_per_gb=71.4,  # 14 GB/s
        source=(
            f"{_TABLE}, release 1.7.0. Fitted by hand to ResNet-18, -34, -50 in XINT8 (1.70, 2.68,"
            " 3.84 ms) over bytes of weights and of activations read and written (16.7, 29, 47.5"
            " MB): gives 1.69, 2.57, 3.89 ms, residuals -1 %, -4 %, +1 %. Depthwise networks do not"
            " follow it: the same table moves them up to 7 times between releases"
        ),
    ),
    "bf16": LatencyModel(
        overhead_ms=0.0,
        ms_per_gop=8.5,
        ms_per_gb=0.0,
        source=(
            f"{_TABLE}, FP32 models run as BF16. Fitted by hand to ResNet-18 (3.64 GOP, 30.8 ms)"
            " and ResNet-50 (8.2 GOP, about 70 ms): gives 30.9 and 69.7 ms, residuals +0.5 % and"
            " about 0 %"
        ),
    ),
}

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
    latency=LATENCY,
)
