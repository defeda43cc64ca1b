"""The NPU of Krackan Point (XDNA 2)."""

from __future__ import annotations

from vermilion.hardware.targets.npu_operators import OPERATORS
from vermilion.hardware.targets.strix import NPU_LIMITS, XDNA2_PEAK_TOPS
from vermilion.hardware.targets.target import Target

# No latency model: AMD publishes latencies for Strix only, and what the int8 fit is bound by,
# memory, is another on this chip.
KRACKAN = Target(
    name="krackan",
    kind="npu",
    title="Krackan Point NPU (XDNA 2)",
    source=(
        "Ryzen AI documentation 1.8: ops_support.rst, relnotes.rst (same models as Strix);"
        " amd/xdna-driver, npu6_regs.c (same array as npu4)"
    ),
    aliases=("krackan-point", "krk"),
    device_code="krk",
    limits=NPU_LIMITS,
    operators=OPERATORS,
    peak_tops=XDNA2_PEAK_TOPS,
)
